"""Charts as TensorBoard's own page draws them in chromium, put together in one picture."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import aiohttp
from PIL import Image, ImageDraw, ImageFont

_BROWSER = "chromium"
_OPTIONS = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-port=0"]
_PAGE = "/?smoothing=0&tagFilter=batch_loss&runFilter=train#timeseries"
_TIMEOUT_SECONDS = 60.0
_TITLE_HEIGHT = 30
# The chart alone: without the table of a selected step below it.
_SHRINK = """
document.querySelectorAll('.scalars-step-selector input, input[type=checkbox]').forEach(box => {
  const label = box.closest('mat-checkbox');
  if (label && label.textContent.includes('step selection') && box.checked) box.click();
});
"""
_CHART = """
(() => {
  const card = document.querySelector('scalar-card');
  if (!card || !card.querySelector('line-chart')) return null;
  const box = card.querySelector('line-chart').getBoundingClientRect();
  return [box.x, box.y, box.width, box.height];
})()
"""


class _Page:
    """A page of the browser, as it is told what to do."""

    def __init__(self, socket: Any) -> None:
        self._socket, self._number = socket, 0

    async def call(self, method: str, **given: Any) -> Any:
        self._number += 1
        await self._socket.send_json({"id": self._number, "method": method, "params": given})
        async for message in self._socket:
            answer = json.loads(message.data)
            if answer.get("id") == self._number:
                return answer["result"]
        raise RuntimeError("the browser has ended")

    async def evaluate(self, script: str) -> Any:
        found = await self.call("Runtime.evaluate", expression=script, returnByValue=True)
        return found["result"].get("value")


def draw(boards: Sequence[Sequence[tuple[str, str]]], target: Path) -> None:
    """Writes a picture of several charts.

    Args:
        boards: In rows, what stands above each, and where its TensorBoard is.
        target: A PNG file.
    """
    charts = asyncio.run(_photograph([url for row in boards for _, url in row]))
    width, height = charts[0].width, charts[0].height + _TITLE_HEIGHT
    picture = Image.new("RGB", (width * len(boards[0]), height * len(boards)), "white")
    pen, font = ImageDraw.Draw(picture), ImageFont.load_default(16)
    for number, (title, _) in enumerate(one for row in boards for one in row):
        left, top = width * (number % len(boards[0])), height * (number // len(boards[0]))
        pen.text((left + 12, top + 8), title, fill="black", font=font)
        picture.paste(charts[number], (left, top + _TITLE_HEIGHT))
    picture.quantize(64).save(target, optimize=True)


async def _photograph(urls: Sequence[str]) -> list[Image.Image]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        command = [_BROWSER, *_OPTIONS, f"--user-data-dir={home}", "about:blank"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # noqa: S603
        try:
            address = await _until(lambda: _address(Path(home)))
            async with aiohttp.ClientSession() as session:
                async with session.get(f"http://{address}/json/list") as answer:
                    (page, *_) = [one for one in await answer.json(content_type=None) if one["type"] == "page"]
                async with session.ws_connect(page["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                    return [await _chart(_Page(socket), url) for url in urls]
        finally:
            process.terminate()
            process.wait()


async def _chart(page: _Page, url: str) -> Image.Image:
    size = {"width": 1280, "height": 900, "deviceScaleFactor": 1.5, "mobile": False}
    await page.call("Emulation.setDeviceMetricsOverride", **size)
    await page.call("Page.navigate", url=url + _PAGE)
    await _until(lambda: page.evaluate(_CHART))
    await page.evaluate(_SHRINK)
    await asyncio.sleep(3)  # a chart is drawn by a thread of its own, which says nothing when it is done
    x, y, width, height = await page.evaluate(_CHART)
    clip = {"x": x, "y": y, "width": width, "height": height, "scale": 1}
    shot = await page.call("Page.captureScreenshot", clip=clip)
    return Image.open(io.BytesIO(base64.b64decode(shot["data"]))).convert("RGB")


async def _address(home: Path) -> str | None:
    file = home / "DevToolsActivePort"
    return f"127.0.0.1:{file.read_text().split()[0]}" if file.exists() and file.read_text() else None


async def _until(look: Callable[[], Awaitable[Any]]) -> Any:
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        if (found := await look()) is not None:
            return found
        await asyncio.sleep(0.1)
    raise RuntimeError("the browser shows nothing")
