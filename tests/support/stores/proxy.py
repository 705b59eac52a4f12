"""A network between client and store that fails on command.

Every fault is real on the wire: a reset is a TCP RST, a store that is down refuses connections. Requests are
forwarded only when they have arrived completely, so that whatever a fault cuts off the store never saw.
"""

from __future__ import annotations

import asyncio
import io
import socket
import struct
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import yarl
from aiohttp import web

_HOP_BY_HOP = {"connection", "transfer-encoding", "keep-alive", "expect", "content-length"}
_PIECE = 16 * 1024


@dataclass(frozen=True)
class Request:
    """What a predicate sees of a request."""

    method: str
    path: str
    length: int
    range: str | None = None

    @property
    def is_upload(self) -> bool:
        return self.method in {"PUT", "POST"} and self.length > 0


def uploads(request: Request) -> bool:
    return request.is_upload


def anything(request: Request) -> bool:
    return True


@dataclass
class Fault:
    """What happens to the requests that it strikes.

    Attributes:
        kind: `"status"`, `"reset"` (in the middle of the body), `"lose"` (done, but the answer is lost),
            `"hang"` or `"down"` (the port is closed for `seconds`).
        when: Which requests it may strike.
        times: How many it strikes.
        after: How many it lets pass first.
        status: The status code of kind `"status"`.
        body: And its body.
        seconds: How long a hang or an outage lasts.
        struck: What it has struck.
    """

    kind: str
    when: Callable[[Request], bool] = uploads
    times: int = 1
    after: int = 0
    status: int = 503
    body: bytes = b""
    seconds: float = 3600.0
    struck: list[Request] = field(default_factory=list)

    def takes(self, request: Request) -> bool:
        if len(self.struck) >= self.times or not self.when(request):
            return False
        if self.after > 0:
            self.after -= 1
            return False
        self.struck.append(request)
        return True


class FaultProxy:
    """Forwards everything to a port on loopback, from a port of its own, in a thread of its own."""

    def __init__(self, upstream_port: int) -> None:
        self._upstream = f"http://127.0.0.1:{upstream_port}"
        self._faults: list[Fault] = []
        self._lock = threading.Lock()
        self.requests: list[Request] = []
        self.uploading = 0  # requests with content that are on their way
        self.bytes_per_second: float | None = None
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy", daemon=True)
        self._thread.start()
        self._wait(self._connect())

    def arm(self, kind: str, when: Callable[[Request], bool] = uploads, **options: Any) -> Fault:
        """Makes the next requests that `when` selects fail; see `Fault` for the options."""
        fault = Fault(kind, when, **options)
        with self._lock:
            self._faults.append(fault)
        return fault

    def heal(self) -> None:
        """No more faults; opens the port if it is closed."""
        with self._lock:
            self._faults.clear()
        self.bytes_per_second = None
        self._wait(self._listen())

    def take_down(self) -> None:
        """Refuses connections from now on, and cuts those that exist."""
        self._wait(self._go_down())

    @property
    def is_down(self) -> bool:
        """Whether connections are refused."""
        return self._runner is None

    def close(self) -> None:
        self._wait(self._disconnect())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    # --- on the loop's thread

    async def _connect(self) -> None:
        # A connection each: servers that close idle ones would cause faults that no one asked for.
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        timeout = aiohttp.ClientTimeout(total=None)
        self._client = aiohttp.ClientSession(connector=connector, auto_decompress=False, timeout=timeout)
        self._runner: web.ServerRunner | None = None
        await self._listen()

    async def _disconnect(self) -> None:
        await self._go_down()
        await self._client.close()

    async def _listen(self) -> None:
        if self._runner is not None:
            return
        self._runner = web.ServerRunner(
            web.Server(self._handle, access_log=None, handler_cancellation=True),  # type: ignore[arg-type]
            shutdown_timeout=0.1,
        )
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def _go_down(self) -> None:
        runner, self._runner = self._runner, None
        if runner is not None:
            for connection in runner.server.connections if runner.server else []:
                if connection.transport is not None:
                    connection.transport.abort()
            await runner.cleanup()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        seen = Request(request.method, request.raw_path, request.content_length or 0, request.headers.get("Range"))
        with self._lock:
            self.requests.append(seen)
            fault = next((f for f in self._faults if f.takes(seen)), None)
        if fault is None or fault.kind in {"status", "reset", "lose"}:
            await _ask_for_the_body(request)
        if fault is None:
            self.uploading += seen.is_upload
            try:
                return await self._forward(request)
            finally:
                self.uploading -= seen.is_upload
        if fault.kind == "status":
            await request.read()
            return web.Response(status=fault.status, body=fault.body, content_type="application/json")
        if fault.kind == "hang":
            await asyncio.sleep(fault.seconds)
            return _reset(request)
        if fault.kind == "down":
            asyncio.ensure_future(self._pause(fault.seconds))  # noqa: RUF006 - it outlives this connection
            await asyncio.sleep(fault.seconds)
            return _reset(request)
        if fault.kind == "reset":
            return await self._cut(request, seen.length // 2)
        if fault.kind == "lose":
            return await self._forward(request, lose=True)
        raise AssertionError(f"unknown fault {fault.kind!r}")

    async def _pause(self, seconds: float) -> None:
        await self._go_down()
        await asyncio.sleep(seconds)
        await self._listen()

    async def _cut(self, request: web.BaseRequest, after: int) -> web.StreamResponse:
        arrived = 0
        async for piece in self._slowly(request.content):
            arrived += len(piece)
            if arrived > after:
                break
        return _reset(request)

    async def _forward(self, request: web.BaseRequest, *, lose: bool = False) -> web.StreamResponse:
        body = b"".join([piece async for piece in self._slowly(request.content)])
        if len(body) < (request.content_length or 0):
            return _reset(request)  # the client went away
        headers = {k: v for k, v in request.headers.items() if k.lower() not in _HOP_BY_HOP}
        url = yarl.URL(self._upstream + request.raw_path, encoded=True)
        data = io.BytesIO(body) if body or request.method in {"PUT", "POST"} else None
        arguments: dict[str, Any] = {"headers": headers, "data": data, "skip_auto_headers": {"Content-Type"}}
        async with self._client.request(request.method, url, allow_redirects=False, **arguments) as answer:
            if lose:
                await answer.read()
                return _reset(request)
            response = web.StreamResponse(status=answer.status, reason=answer.reason)
            for name, value in answer.headers.items():
                if name.lower() not in _HOP_BY_HOP or name.lower() == "content-length":
                    response.headers.add(name, value)
            await response.prepare(request)
            async for piece in self._slowly(answer.content):
                await response.write(piece)
            await response.write_eof()
            return response

    async def _slowly(self, stream: aiohttp.StreamReader) -> AsyncIterator[bytes]:
        due = time.monotonic()
        while piece := await stream.read(_PIECE if self.bytes_per_second else 2**20):
            if self.bytes_per_second:
                due = max(due, time.monotonic() - 0.05) + len(piece) / self.bytes_per_second
                await asyncio.sleep(max(0.0, due - time.monotonic()))
            yield piece

    def _wait(self, coroutine: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(30)


async def _ask_for_the_body(request: web.BaseRequest) -> None:
    if request.headers.get("Expect", "").lower() == "100-continue":
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # headers may follow


def _reset(request: web.BaseRequest) -> web.StreamResponse:
    transport = request.transport
    if transport is not None:
        raw = transport.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close() sends RST
        transport.abort()
    return web.Response()
