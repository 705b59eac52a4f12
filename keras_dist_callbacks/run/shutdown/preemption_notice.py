"""News of a coming preemption that is not a signal: a file, a function, the metadata servers of two clouds."""

from __future__ import annotations

import os
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from keras_dist_callbacks.base import static, validation
from keras_dist_callbacks.base.terminal import warn

_EVERY_SECONDS = 1.0
_TIMEOUT_SECONDS = 2.0
_AWS_TOKEN_SECONDS = 21600


@dataclass(frozen=True)
class Notice:
    """What says that this machine is going to be taken away.

    Attributes:
        name: For messages.
        given: Whether it says so now.
    """

    name: str
    given: Callable[[], bool]

    @classmethod
    def of(cls, source: str | os.PathLike[str] | Callable[[], bool]) -> Notice:
        """A path that appears, or a function that returns True."""
        if callable(source):
            return cls(f"the notice {', '.join(static.place_in_script(source))}", source)
        path = Path(source)
        return cls(f"the file {path}", path.exists)


class NoticePoller:
    """Asks for a notice each second, in a thread.

    Args:
        notice: What is asked.
        on_notice: Called once, with its name.
    """

    def __init__(self, notice: Notice, on_notice: Callable[[str], None]) -> None:
        self._notice = notice
        self._on_notice = on_notice
        self._stopped = threading.Event()

    def start(self) -> None:
        """Begins.

        Raises:
            Exception: Whatever the function raises when it is asked for the first time.
        """
        if self._notice.given():
            self._on_notice(self._notice.name)
            return
        threading.Thread(target=self._poll, name="kdc-notice", daemon=True).start()

    def stop(self) -> None:
        """Ends; does not wait for a question that is on its way."""
        self._stopped.set()

    def _poll(self) -> None:
        has_warned = False
        while not self._stopped.wait(_EVERY_SECONDS):
            try:
                given = self._notice.given()
            except Exception as error:  # noqa: BLE001 - the user's function; the next answer may be better
                if not has_warned:
                    warn(f"{self._notice.name} failed: {error}", UserWarning)
                has_warned = True
                continue
            if given:
                self._on_notice(self._notice.name)
                return


def gce_notice(endpoint: str | None = None) -> Callable[[], bool]:
    """Asks Google Compute Engine's metadata server whether this instance is being preempted.

    For `ShutdownOptions(notice=kdc.gce_notice())`. The server's `instance/preempted` turns to `TRUE`
    (Google Cloud's documentation of preemptible instances).

    Args:
        endpoint: Base URL of the server. Defaults to `http://` and `GCE_METADATA_HOST`, or Google's own name.

    Returns:
        A function that returns whether a preemption was announced; it raises `OSError` where there is no server.

    Raises:
        ConfigError: `endpoint` is not a URL.
    """
    return _Gce(_url(endpoint) or f"http://{os.environ.get('GCE_METADATA_HOST', 'metadata.google.internal')}")


def aws_notice(endpoint: str | None = None) -> Callable[[], bool]:
    """Asks Amazon EC2's metadata server whether this spot instance is going to be stopped or taken away.

    For `ShutdownOptions(notice=kdc.aws_notice())`. The server's `spot/instance-action` does not exist
    before (Amazon's documentation of spot interruptions); it is asked with a token (IMDSv2).

    Args:
        endpoint: Base URL of the server. Defaults to `AWS_EC2_METADATA_SERVICE_ENDPOINT`, or Amazon's own address.

    Returns:
        A function that returns whether an interruption was announced; it raises `OSError` where there is no server.

    Raises:
        ConfigError: `endpoint` is not a URL.
    """
    base = (_url(endpoint) or os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or "http://169.254.169.254").rstrip(
        "/"
    )
    return _Aws(base)


@dataclass(frozen=True)
class _Gce:
    """A class instead of a function in a function, so that callbacks that have it can be pickled."""

    base: str
    __name__ = "gce_notice()"

    def __call__(self) -> bool:
        answer = _ask(f"{self.base}/computeMetadata/v1/instance/preempted", {"Metadata-Flavor": "Google"})
        return answer is not None and answer.strip().upper() == "TRUE"


class _Aws:
    __name__ = "aws_notice()"

    def __init__(self, base: str) -> None:
        self.base = base
        self._token: str | None = None

    def __reduce__(self) -> tuple[type[_Aws], tuple[str]]:
        return _Aws, (self.base,)  # a copy asks for a token of its own

    def __call__(self) -> bool:
        if self._token is None:
            lifetime = {"X-aws-ec2-metadata-token-ttl-seconds": str(_AWS_TOKEN_SECONDS)}
            self._token = _ask(f"{self.base}/latest/api/token", lifetime, "PUT") or ""
        try:
            action = _ask(
                f"{self.base}/latest/meta-data/spot/instance-action", {"X-aws-ec2-metadata-token": self._token}
            )
        except urllib.error.HTTPError:
            self._token = None  # it may have expired
            raise
        return action is not None


def _url(endpoint: str | None) -> str | None:
    if endpoint is None or (isinstance(endpoint, str) and endpoint.startswith(("http://", "https://"))):
        return endpoint
    raise validation.invalid_argument("endpoint", endpoint, "a URL that begins with http:// or https://, or None")


def _ask(url: str, headers: dict[str, str], method: str = "GET") -> str | None:
    """Returns the body of an answer; None for one that says that there is nothing of that name."""
    request = urllib.request.Request(url, headers=headers, method=method)  # noqa: S310 - a metadata server's address
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # these servers are never behind a proxy
    try:
        with opener.open(request, timeout=_TIMEOUT_SECONDS) as response:
            return str(response.read().decode())
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return None
        raise
