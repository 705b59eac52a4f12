"""A Google Cloud Storage server for tests: the emulator, made as strict as the real one where we rely on it.

The emulator ignores preconditions, refuses bytes that are sent twice, takes line breaks in content for those
of an e-mail, knows no end of an upload session and serves one connection at a time.

Run as `python -m tests.support.stores.gcs PORT`.
"""

from __future__ import annotations

import functools
import io
import json
import re
import sys
import threading
from http.server import ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from gcp_storage_emulator import server as emulator
from gcp_storage_emulator.storage import Storage

_REASONS = {412: "Precondition Failed", 416: "Range Not Satisfiable", 499: "Client Closed Request"}


class PreconditionFailedError(Exception):
    pass


class StrictStorage(Storage):
    """Holds writers to the generation that their request names, atomically with the write."""

    def __init__(self) -> None:
        super().__init__(use_memory_fs=True)
        self.lock = threading.RLock()
        self.required_generation: str | None = None  # of the request that holds the lock

    def create_file(self, bucket: str, name: str, content: bytes, meta: Any, upload: str | None = None) -> None:
        if self.required_generation is not None:
            present = self.objects.get(bucket, {}).get(name)
            if (present["generation"] if present else "0") != self.required_generation:
                raise PreconditionFailedError
        super().create_file(bucket, name, content, meta, upload)

    def add_to_resumable_upload(
        self, file_id: str, content: bytes, total_size: int | None = None, expected_start: int | None = None
    ) -> bytes | None:
        have = self.get_resumable_byte_count(file_id)
        if content and expected_start is not None and expected_start < have:  # bytes that were sent before
            content, expected_start = content[have - expected_start :], have
        whole: bytes | None = super().add_to_resumable_upload(file_id, content, total_size, expected_start)
        return whole

    def forget_upload(self, upload: str) -> None:
        with self.lock:
            self.resumable.pop(upload, None)


_read_data = emulator._read_data


def _read_data_exactly(handler: Any, query: Any) -> Any:
    """Replaces the emulator's parser of uploads with metadata and content in one body."""
    kind = handler.headers.get("Content-Type") or ""
    if not kind.startswith("multipart/related"):
        return _read_data(handler, query)
    boundary = kind.partition("boundary=")[2].strip("\"'").encode()
    body: bytes = handler.rfile.read(int(handler.headers["Content-Length"]))
    _, meta, rest = body.split(b"--" + boundary + b"\n", 2)
    headers, _, content = rest.partition(b"\n\n")
    return {
        "meta": json.loads(meta.partition(b"\n\n")[2]),
        "content": content[: content.rindex(b"\n--" + boundary + b"--")],
        "content-type": headers.partition(b":")[2].strip().decode(),
    }


emulator._read_data = _read_data_exactly


class Handler(emulator.RequestHandler):  # type: ignore[misc]
    """Reads the request and sends the answer without the lock, so that slow clients hinder no one."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def route(self, method: str) -> None:
        query = parse_qs(urlsplit(self.path).query)
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        if len(body) < length:
            self.close_connection = True  # the client is gone in the middle of its request
            return
        if method == "DELETE" and "upload_id" in query:
            self.storage.forget_upload(query["upload_id"][0])
            self.answer(499, b"")
            return
        connection, output = (self.rfile, self.wfile), io.BytesIO()
        with self.storage.lock:
            self.storage.required_generation = query.get("ifGenerationMatch", [None])[0]
            self.rfile, self.wfile = io.BytesIO(body), output
            try:
                emulator.Router(self).handle(method)
                failed = False
            except PreconditionFailedError:
                failed = True
            finally:
                self.rfile, self.wfile = connection
                self.storage.required_generation = None
        if _starts_behind_the_end(output.getvalue()):
            self.answer(416, b"")
        elif failed:
            error = {"code": 412, "message": "At least one of the pre-conditions you specified did not hold."}
            self.answer(412, json.dumps({"error": error}).encode())
        else:
            self.wfile.write(output.getvalue())

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status, _REASONS[status])
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = functools.partialmethod(route, "GET")  # noqa: N815
    do_POST = functools.partialmethod(route, "POST")  # noqa: N815
    do_PUT = functools.partialmethod(route, "PUT")  # noqa: N815
    do_PATCH = functools.partialmethod(route, "PATCH")  # noqa: N815
    do_DELETE = functools.partialmethod(route, "DELETE")  # noqa: N815


def _starts_behind_the_end(answer: bytes) -> bool:
    found = re.search(rb"\r\nContent-Range: bytes (\d+)-\d*-?\d*/(\d+)\r\n", answer[:1000])
    return found is not None and int(found[1]) >= int(found[2])


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


if __name__ == "__main__":
    import logging

    logging.disable(logging.CRITICAL)  # the emulator logs every missing object
    Server(("127.0.0.1", int(sys.argv[1])), functools.partial(Handler, StrictStorage())).serve_forever()
