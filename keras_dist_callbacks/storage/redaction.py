"""Keeps credentials out of every text that leaves: user info and queries of URLs, and the secrets that the user gave.

What is hidden by mistake costs a reader a moment, and what is shown by mistake costs more: in doubt, it is hidden.
"""

from __future__ import annotations

import base64
import itertools
import os
import re
import traceback
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from keras_dist_callbacks.base.errors import ConfigError, cause_chain
from keras_dist_callbacks.base.terminal import escape_controls

_E = TypeVar("_E", bound=BaseException)
_HIDDEN = "***"
_BUCKETS = {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss"}
_AZURE = {"az", "abfs", "abfss"}
_SCHEMES = _BUCKETS | {"file", "ftp", "hdfs", "http", "https", "memory", "ram", "sftp"}
_MISTYPED = re.compile(
    rf"(?i)((?:\w+::)*)(?:({'|'.join(_SCHEMES)}):/(?!/)|({'|'.join(_BUCKETS)})(?::(?![/:])|//))(.*)", re.DOTALL
)
_LINK = re.compile(r"(?:::)?(?:[A-Za-z][\w+.-]*::)*([A-Za-z][\w+.-]*)://")
_ANY_URL = re.compile(r"\b[A-Za-z][\w+.-]*://[^\s'\"<>]*")
_PORT = re.compile(r"[^:@]*:\d{1,5}$|\[[0-9a-fA-F:.]*\](:\d{1,5})?$")
_SECRET_NAMES = re.compile("key|secret|token|passw|sig|sas|credential|connection_string", re.IGNORECASE)
_OPEN_NAMES = re.compile(
    r"(?i)(\w+_)?(url|endpoint|host|hostname|port|region|region_name|project|location|protocol|acl|consistency|mode|"
    r"account_name|addressing_style|version|encoding|compression)|access"
)
_KNOWN_WORDS = {"anon", "browser", "cache", "cloud", "default", "false", "google_default", "none", "true"}
_HEADERS = re.compile(r"(?i)\b(basic|bearer|sharedkey|aws4-hmac-sha256)\s+(?!auth|token\b)[^\s'\"]{8,}")
_SHORTEST = 4
_SHORT = 8
_LONGEST_REASON = 400


class _Link(NamedTuple):
    """One URL of a chain such as `simplecache::s3://...`: `start` is all up to and with its `//`."""

    start: str
    protocol: str
    credentials: str
    place: str
    query: str


def redact(url: str | os.PathLike[str]) -> str:
    """`url` without user names, passwords and query strings, fit for logs and errors."""
    return escape_controls(_shown(os.fspath(url)))


def reject_credentials(url: str) -> None:
    """Refuses mistyped URLs, and credentials in the URL of a bucket, where no client looks for them.

    Raises:
        ConfigError: The URL is mistyped, names no bucket, or holds credentials.
    """
    mistyped = _MISTYPED.match(url)
    if mistyped:  # else it would be a local directory named `s3:`
        chain_before, scheme, bucket_scheme, rest = mistyped.groups()
        protocol = (scheme or bucket_scheme).lower()
        place = f"/{rest}" if protocol == "file" else rest.lstrip("/")
        intended = redact(f"{chain_before}{protocol}://{place}")
        raise ConfigError(
            f"a URL that begins with {protocol!r} must continue with '://': use {intended!r} (pathlib.Path removes one "
            "slash: give URLs as a str), or './' before it for a local directory"
        )
    for link in _links(url):
        if link.protocol not in _BUCKETS:
            continue
        kind = "container" if link.protocol in _AZURE else "bucket"
        if not link.credentials and (not link.place or link.place.startswith("/")):
            path = link.place.lstrip("/")
            raise ConfigError(
                f"{redact(url)!r} names no {kind}: use "
                + repr(f"{link.protocol}://{path}" if path else f"{link.protocol}://{kind}/path")
            )
        names = [name for name, _ in urllib.parse.parse_qsl(link.query)]
        if link.credentials or any(_SECRET_NAMES.search(name) for name in names):
            raise ConfigError(
                f"{redact(url)!r}: this URL seems to contain credentials (not shown here), which the client of "
                f"{link.protocol}:// reads as part of the name; give them in storage_options, or in the environment "
                f"variables of that client, and use only this URL: {link.protocol}://{kind}/path"
            )


@dataclass(frozen=True)
class Redactor:
    """Takes credentials out of texts.

    Attributes:
        known: Finds the secrets that the user gave, wherever they turn up, in any of their spellings.
    """

    known: re.Pattern[str] | None = field(default=None, repr=False)

    @classmethod
    def of(cls, url: str, options: Mapping[str, Any]) -> Redactor:
        """One that knows the secrets in a URL and in its `storage_options`."""
        found = {*_secrets_in_url(url), *_secrets_in_options("", options)} - {""}
        if not found:
            return cls()
        return cls(re.compile("|".join(map(_spellings, sorted(found, key=len, reverse=True))), re.IGNORECASE))

    def clean(self, text: str) -> str:
        """`text` without secrets, user info and query strings."""
        if self.known is not None:
            text = self.known.sub(_HIDDEN, text)
        return redact_text(text)

    def is_clean(self, error: BaseException) -> bool:
        """Returns whether the error and its causes may be shown as they are."""
        texts = ["".join(traceback.format_exception(error, limit=0)), *map(repr, cause_chain(error))]
        return all(self.clean(text) == text for text in texts)

    def caused(self, failure: _E, error: BaseException) -> _E:
        """`failure` with `error` as its cause, if that may be shown; to be raised outside of the `except` block.

        There, Python would make `error` the context of whatever is raised.
        """
        failure.__cause__ = error if self.is_clean(error) else None
        return failure

    def reason(self, error: BaseException) -> str:
        """Returns what a client's error says, in one line."""
        unnamed = "no answer in time" if isinstance(error, TimeoutError) else type(error).__name__
        text = (getattr(error, "strerror", None) or str(error)).strip() or unnamed
        lines = re.split(r"\n\s*(?:RequestId|Time|Content):", text)[0].splitlines()
        text = escape_controls(self.clean(" ".join(line.strip() for line in lines if line.strip())))
        return text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]}..."


def redact_text(text: str) -> str:
    """A text of unknown origin without what HTTP headers and URLs hold of credentials."""
    return _ANY_URL.sub(lambda found: _shown(found.group()), _HEADERS.sub(rf"\1 {_HIDDEN}", text))


def _shown(url: str) -> str:
    return "".join(link.start + link.place for link in _links(url))


def _links(url: str) -> Iterator[_Link]:
    """The URLs of a chain; a plain path is one without a protocol."""
    found = list(_LINK.finditer(url))
    yield _Link("", "", "", url[: found[0].start()] if found else url, "")
    for match, following in itertools.zip_longest(found, found[1:]):
        rest = url[match.end() : following.start() if following else len(url)]
        protocol = match.group(1).lower()
        end = _credentials_end(protocol, rest)
        place, _, query = rest[end:].partition("?")
        yield _Link(match.group(), protocol, rest[:end], place, query)


def _credentials_end(protocol: str, rest: str) -> int:
    """Where the place begins. A secret may have any character, so that the last @ is taken for its end."""
    head = re.split("[/?#]", rest, maxsplit=1)[0]
    is_bucket = protocol in _BUCKETS  # which has neither port nor colon
    if rest.startswith("arn:") or (not is_bucket and _PORT.fullmatch(head)):
        return 0
    if ":" in head:
        return rest.rfind("@") + 1 or (len(head) if is_bucket else 0)
    user, at, host = head.rpartition("@")
    # In abfs://container@account.dfs.core.windows.net the container is not a secret, but part of the place.
    is_container = protocol in _AZURE and "." in host and "@" not in user
    return 0 if is_container or not at else len(user) + 1


def _secrets_in_url(url: str) -> Iterator[str]:
    for link in _links(url):
        credentials = link.credentials.removesuffix("@")
        yield credentials
        user, _, password = credentials.partition(":")
        yield from (user, password)
        # yarl takes a secret apart at the signs of a URL and complains about a part.
        yield from (part for part in re.split("[/@:?#]", credentials) if len(part) >= _SHORTEST)
        if password:
            yield from _basic(user, password)
        yield link.query
        yield from _secret_fields(link.query)


def _secret_fields(text: str) -> Iterator[str]:
    """The secrets in a query or a connection string."""
    for part in re.split("[&;?]", text):
        name, _, value = part.partition("=")
        if _SECRET_NAMES.search(name):
            yield value


def _secrets_in_options(name: str, value: Any) -> Iterator[str]:
    """All texts but those under names that are known to hold nothing secret."""
    if isinstance(value, Mapping):
        yield from _pairs(value)
        for inner, content in value.items():
            yield from _secrets_in_options(str(inner), content)
    elif isinstance(value, str | bytes):
        text = value if isinstance(value, str) else value.decode(errors="surrogateescape")
        yield from _secrets_in_url(text)
        yield from _secret_fields(text)
        may_be_secret = len(text) >= _SHORTEST and not _OPEN_NAMES.fullmatch(name)
        if text.lower() not in _KNOWN_WORDS and (may_be_secret or _SECRET_NAMES.search(name)):
            yield text
    elif isinstance(value, Sequence):
        for item in value:
            yield from _secrets_in_options(name, item)


def _pairs(options: Mapping[str, Any]) -> Iterator[str]:
    texts = {str(name): value for name, value in options.items() if isinstance(value, str)}
    for name, password in texts.items():
        if _SECRET_NAMES.search(name):
            for user in texts.values():
                yield from _basic(user, password)


def _basic(user: str, password: str) -> Iterator[str]:
    """How HTTP spells them in a header."""
    for pair in {f"{user}:{password}", urllib.parse.unquote(f"{user}:{password}")}:
        content = pair.encode(errors="surrogateescape")
        yield base64.b64encode(content).decode().rstrip("=")
        yield base64.urlsafe_b64encode(content).decode().rstrip("=")


def _spellings(secret: str) -> str:
    """Returns an expression for a secret: as it is, or quoted for URLs or Python."""
    forms: set[str] = set()
    for text in (secret, urllib.parse.unquote(secret)):
        quoted = urllib.parse.quote(text, "", errors="surrogateescape")
        path = urllib.parse.quote(text, errors="surrogateescape")
        forms |= {text, quoted, path, urllib.parse.quote(quoted, ""), repr(text)[1:-1]}
    anywhere = "|".join(map(re.escape, sorted(forms, key=len, reverse=True)))
    if len(secret) >= _SHORT:
        return f"(?:{anywhere})"
    return rf"(?:(?<![A-Za-z0-9])|(?<=%[0-9A-F]{{2}}))(?:{anywhere})(?![A-Za-z0-9])"
