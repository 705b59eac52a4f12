"""Ways to give a store a secret, and every text in which it must not be found again."""

from __future__ import annotations

import base64
import traceback
import urllib.parse
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

USER = "AKIAM4RKUSER"
SECRET = "m4rkA/s3cr3tB@x+yZ=="  # noqa: S105 - of no store
"""With all that is difficult in a URL; each of its words is rare enough to be looked for alone."""
ENCODED = urllib.parse.quote(SECRET, safe="")
_WORDS = ("m4rka", "s3cr3tb", "akiam4rkuser")


def spellings(secret: str = SECRET) -> list[str]:
    """How the secret may be spelled by a client or a store that quotes it."""
    pair = f"{USER}:{secret}".encode()
    return [
        secret,
        urllib.parse.quote(secret),
        ENCODED,
        ENCODED.lower(),
        urllib.parse.quote(ENCODED, safe=""),
        base64.b64encode(pair).decode(),
        base64.urlsafe_b64encode(pair).decode(),
        f"{USER}:{secret}",
    ]


def found_in(text: str) -> list[str]:
    """What of the secret is in a text."""
    lowered = text.lower()
    encoded = [s.rstrip("=") for s in spellings()[5:7]]
    return [word for word in _WORDS if word in lowered] + [s for s in encoded if s in text]


def texts_of(error: BaseException) -> Iterator[str]:
    """All that a log can make of an error: its text, its traceback, and the texts of whatever hangs on it."""
    yield str(error)
    yield repr(error)
    yield "".join(traceback.format_exception(error))
    for link in (error.__cause__, error.__context__):
        if link is not None:
            yield from texts_of(link)


def said_about(name: str) -> list[str]:
    """What a store may quote of one of `TAKEN`: what it was given."""
    return spellings()[:5] if "query" in name else spellings()


@dataclass(frozen=True)
class Given:
    """A URL and options with a secret in them; `{port}` stands for that of a server that quotes it."""

    url: str
    options: dict[str, Any] = field(default_factory=dict)

    def at(self, port: int) -> Given:
        """The same, for a server."""
        return Given(_filled(self.url, port), _filled(self.options, port))


def _filled(value: Any, port: int) -> Any:
    if isinstance(value, dict):
        return {key: _filled(item, port) for key, item in value.items()}
    if not isinstance(value, str):
        return value
    return value.replace("{port}", str(port)).replace("{fresh}", uuid.uuid4().hex)


REFUSED = {
    "s3": f"s3://{USER}:{SECRET}@bucket/x",
    "s3-encoded": f"s3://{USER}:{ENCODED}@bucket/x",
    "s3-colon": f"s3://{USER}%3A{ENCODED}@bucket/x",
    "s3-no-at": f"s3://{USER}:m4rkA/x",
    "s3-query": f"s3://bucket/x?X-Amz-Credential={USER}&X-Amz-Signature={SECRET}",
    "s3-cached": f"simplecache::s3://{USER}:{SECRET}@bucket/x",
    "s3-filecache": f"filecache::s3://{USER}:{ENCODED}@bucket/x",
    "s3-zip": f"zip://inner::s3://{USER}:{SECRET}@bucket/x.zip",
    "gs": f"gs://{USER}:{SECRET}@bucket/x",
    "gs-user": "gs://m4rkA@bucket/x",
    "az": f"az://{USER}:{SECRET}@container/x",
    "az-sas": f"az://container/x?sv=2024-01-01&sig={ENCODED}",
    "abfs": f"abfs://container:{SECRET}@account.dfs.core.windows.net/x",
}
"""What no client of a bucket reads."""

TAKEN = {
    "memory": Given(f"memory://{USER}:{SECRET}@{{fresh}}/d"),
    "memory-query": Given(f"memory://{{fresh}}/d?sig={SECRET}"),
    "memory-options": Given("memory://{fresh}/d", {"secret": SECRET, "user": USER}),
    "chained-memory": Given(f"dir::memory://{USER}:{SECRET}@{{fresh}}/d"),
    "http": Given(f"http://{USER}:{ENCODED}@127.0.0.1:{{port}}/d"),
    "http-raw": Given(f"http://{USER}:{SECRET}@127.0.0.1:{{port}}/d"),
    "http-query": Given(f"http://127.0.0.1:{{port}}/d?sv=1&sig={ENCODED}"),
    "http-cached": Given(f"simplecache::http://{USER}:{ENCODED}@127.0.0.1:{{port}}/d"),
    "webhdfs": Given(f"webhdfs://{USER}:{ENCODED}@127.0.0.1:{{port}}/d"),
    "ftp": Given(f"ftp://{USER}:{ENCODED}@127.0.0.1:9/d"),
    "s3-options": Given("s3://bucket/x", {"key": USER, "secret": SECRET, "endpoint_url": "http://127.0.0.1:{port}"}),
    "s3-endpoint": Given(
        "s3://bucket/x", {"key": USER, "secret": SECRET, "endpoint_url": f"http://{USER}:{ENCODED}@127.0.0.1:{{port}}"}
    ),
    "gs-options": Given("gs://bucket/x", {"token": f"/no/such/{SECRET}", "endpoint_url": "http://127.0.0.1:{port}"}),
    "az-options": Given(
        "az://container/x",
        {"account_name": "a", "account_key": SECRET, "connection_string": f"AccountName=a;AccountKey={SECRET}"},
    ),
    "unknown": Given(f"nope://{USER}:{SECRET}@host/x"),
    "spaces": Given(f"  nope://{USER}:{SECRET}@host/x"),
}
"""What clients take, or refuse in words of their own."""
