"""Google Cloud's credentials: whether gcsfs will find some, for a user who waits at the terminal.

Without any it looks for a metadata server for half a minute, then asks as an anonymous user, and is refused. A file of
credentials is not judged here beyond its form: the store does that.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fsspec.config

from keras_dist_callbacks.base.errors import ConfigError
from keras_dist_callbacks.storage.redaction import redact, reject_credentials

_PROTOCOLS = ("gs", "gcs")
_FILE = "GOOGLE_APPLICATION_CREDENTIALS"
_METADATA_ADDRESS = "169.254.169.254"
_FLAVOR = "Metadata-Flavor"
_ANSWER_SECONDS = 3.0  # one that is there answers within milliseconds
_PRODUCT = Path("/sys/class/dmi/id/product_name")


def require_credentials(url: str, options: Mapping[str, Any]) -> None:
    """Makes sure, within seconds, that there are credentials for a `gs://` URL; of any other, nothing is checked.

    Args:
        url: A path or URL.
        options: Of its file system.

    Raises:
        ConfigError: There are none, or the URL holds some.
    """
    if url.partition("://")[0] not in _PROTOCOLS:
        return
    reject_credentials(url)
    given = {**fsspec.config.conf.get("gs", {}), **fsspec.config.conf.get("gcs", {}), **options}
    if given.get("token") or given.get("endpoint_url") or os.environ.get("STORAGE_EMULATOR_HOST"):
        return
    named = os.environ.get(_FILE)
    if named and not _holds_credentials(Path(named)):
        raise ConfigError(f"{redact(url)}: {_FILE} does not name a file of credentials")  # it may hold them itself
    if named or _has_own_credentials() or _is_in_google_cloud():
        return
    raise ConfigError(
        f"{redact(url)}: no credentials for Google Cloud were found: run `gcloud auth application-default login`, or "
        f'let {_FILE} name a file of credentials; a public bucket needs the storage options {{"token": "anon"}}'
    )


def _has_own_credentials() -> bool:
    """Whether this account has logged in, by gcloud or by a browser that gcsfs has opened."""
    gcloud = Path(os.environ.get("CLOUDSDK_CONFIG") or Path.home() / ".config/gcloud")
    return (
        _holds_credentials(gcloud / "application_default_credentials.json") or (Path.home() / ".gcs_tokens").is_file()
    )


def _holds_credentials(path: Path) -> bool:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and "type" in found


def _is_in_google_cloud() -> bool:
    """Whether there is a metadata server, which gives credentials; the variables are those of google-auth."""
    if os.environ.get("NO_GCE_CHECK") == "true":
        return False
    with contextlib.suppress(OSError):
        if _PRODUCT.read_text(encoding="utf-8", errors="replace").startswith("Google"):
            return True
    address = os.environ.get("GCE_METADATA_IP") or _METADATA_ADDRESS
    try:
        with contextlib.closing(http.client.HTTPConnection(address, timeout=_ANSWER_SECONDS)) as connection:
            connection.request("GET", "/", headers={_FLAVOR: "Google"})
            return connection.getresponse().getheader(_FLAVOR) == "Google"
    except (OSError, http.client.HTTPException):
        return False
