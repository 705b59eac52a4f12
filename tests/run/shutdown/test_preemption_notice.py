"""Metadata servers of clouds, faked on loopback by what their documentation says."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from keras_dist_callbacks.run.shutdown.preemption_notice import Notice, NoticePoller, aws_notice, gce_notice

SOON = 10.0


def _never() -> bool:
    return False


class Metadata(ThreadingHTTPServer):
    """Both clouds' servers at once."""

    preempted = False
    ticket = "one"
    tokens_made = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Metadata

    def do_GET(self) -> None:
        if self.path == "/computeMetadata/v1/instance/preempted":
            right = self.headers.get("Metadata-Flavor") == "Google"
            self.answer(200 if right else 403, "TRUE" if self.server.preempted else "FALSE")
        elif self.headers.get("X-aws-ec2-metadata-token") != self.server.ticket:
            self.answer(401, "")
        else:
            assert self.path == "/latest/meta-data/spot/instance-action"
            self.answer(*((200, '{"action": "terminate"}') if self.server.preempted else (404, "")))

    def do_PUT(self) -> None:
        assert self.path == "/latest/api/token"
        assert int(self.headers["X-aws-ec2-metadata-token-ttl-seconds"]) > 0
        self.server.tokens_made += 1
        self.answer(200, self.server.ticket)

    def answer(self, code: int, body: str) -> None:
        self.send_response(code)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def metadata() -> Iterator[Metadata]:
    with Metadata(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("make", [gce_notice, aws_notice])
def test_a_cloud_is_asked(metadata: Metadata, make) -> None:  # type: ignore[no-untyped-def]
    notice = make(metadata.url)
    assert not notice()
    metadata.preempted = True
    assert notice()


def test_the_servers_address_comes_from_the_environment(metadata: Metadata, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GCE_METADATA_HOST", metadata.url.removeprefix("http://"))
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", metadata.url)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # never asked
    metadata.preempted = True
    assert gce_notice()()
    assert aws_notice()()


def test_a_token_that_expired_is_made_again(metadata: Metadata) -> None:
    notice = aws_notice(metadata.url)
    assert not notice()
    metadata.ticket = "two"
    with pytest.raises(OSError, match="401"):
        notice()
    assert not notice()
    assert metadata.tokens_made == 2


def test_no_server_is_an_error_at_the_start() -> None:
    for make in (gce_notice, aws_notice):
        watch = NoticePoller(Notice.of(make("http://127.0.0.1:9")), lambda name: None)
        with pytest.raises(OSError, match="refused"):
            watch.start()


@pytest.mark.parametrize(
    ("source", "name"),
    [
        (Path("/leave"), "the file /leave"),
        (lambda: False, "the notice FILE:LINE"),
        (_never, "the notice _never, FILE:LINE"),
        (functools.partial(bool, 0), "the notice partial"),
        (gce_notice("http://localhost"), "the notice gce_notice()"),
    ],
)
def test_a_notice_is_called_as_the_script_has_it(source: Any, name: str) -> None:
    line = getattr(getattr(source, "__code__", None), "co_firstlineno", 0)
    assert Notice.of(source).name == name.replace("FILE:LINE", f"{Path(__file__).name}:{line}")


@pytest.mark.filterwarnings("ignore:the notice:UserWarning")
def test_a_file_that_appears_is_a_notice(tmp_path: Path) -> None:
    came, names = threading.Event(), []
    watch = NoticePoller(Notice.of(tmp_path / "leave"), lambda name: (names.append(name), came.set()))
    watch.start()
    assert not came.is_set()
    (tmp_path / "leave").touch()
    assert came.wait(SOON)
    assert names == [f"the file {tmp_path / 'leave'}"]


@pytest.mark.slow
def test_a_function_that_fails_once_is_asked_again(recwarn: pytest.WarningsRecorder) -> None:
    answers = iter([False, OSError("away"), True])
    came = threading.Event()

    def ask() -> bool:
        answer = next(answers)
        if isinstance(answer, OSError):
            raise answer
        return answer

    watch = NoticePoller(Notice.of(ask), lambda name: came.set())
    watch.start()
    assert came.wait(SOON)
    assert str(recwarn.pop(UserWarning).message) == f"{Notice.of(ask).name} failed: away"
