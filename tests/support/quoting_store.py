"""Servers on loopback that refuse every request and quote, in every way they can, what clients must not show."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextmanager
def quoting(*texts: str, status: int = 403) -> Iterator[int]:
    """A server whose every answer is a refusal; its port.

    Args:
        texts: What it says, in the reason and in the body, with the request's own path and headers.
        status: Of its answers.
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # whose clients may ask before they send a body

        def _answer(self) -> None:
            said = " ".join(texts)
            headers = " ".join(f"{name}: {value}" for name, value in self.headers.items())
            body = f"{said} {self.path} {headers}".encode("utf-8", "replace")
            if length := int(self.headers.get("Content-Length") or 0):
                self.rfile.read(length)
            self.send_response(status, said.replace("\n", " "))
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Connection", "close")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _answer  # noqa: N815 - the names that the base class wants

        def log_message(self, format: str, *arguments: object) -> None:
            """Tests print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
