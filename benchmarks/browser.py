"""A headless Chromium, controlled through its debugging port: opens pages, reads them, acts and takes screenshots."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import subprocess
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import aiohttp

T = TypeVar("T")
PATIENCE = 120.0


def chromium() -> str | None:
    """The path of the program, if it is installed."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


class Page:
    """A tab of the browser."""

    def __init__(self, session: aiohttp.ClientSession, port: str, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._session, self._port, self._socket, self._number = session, port, socket, 0

    async def tab(self, url: str) -> Page:
        """Another tab."""
        async with self._session.put(f"http://127.0.0.1:{self._port}/json/new?about:blank") as answer:
            address = json.loads(await answer.text())["webSocketDebuggerUrl"]
        page = Page(self._session, self._port, await self._session.ws_connect(address, max_msg_size=0))
        await page.open(url)
        return page

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """A command of Chromium's protocol."""
        self._number += 1
        await self._socket.send_json({"id": self._number, "method": method, "params": parameters})
        while True:
            answer = await self._socket.receive_json(timeout=PATIENCE)
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return dict(answer["result"])

    async def value(self, expression: str) -> Any:
        """The value of a JavaScript expression on this page; None if it has none."""
        answer = await self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        return answer["result"].get("value")

    async def open(self, url: str) -> None:
        """Go to an address."""
        await self.call("Page.navigate", url=url)

    async def shows(self, expression: str) -> Any:
        """Wait until an expression is true."""
        deadline = time.monotonic() + PATIENCE
        while not (found := await self.value(expression)):
            if time.monotonic() > deadline:
                text = await self.value("document.body.innerText")
                raise AssertionError(f"{expression} does not become true; the page shows:\n{text}")
            await asyncio.sleep(0.1)
        return found

    async def click(self, x: float, y: float, modifiers: int = 0) -> None:
        """Press the mouse at a place, and let go."""
        await self.drag([(x, y)], modifiers)

    async def drag(self, places: list[tuple[float, float]], modifiers: int = 0) -> None:
        """Press the mouse at the first place, move it over the others, and let go at the last; 8 is Shift."""
        for kind, (x, y) in [
            ("mouseMoved", places[0]),
            ("mousePressed", places[0]),
            *(("mouseMoved", place) for place in places[1:]),
            ("mouseReleased", places[-1]),
        ]:
            held = {"button": "left", "buttons": 1, "clickCount": 1}
            await self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, modifiers=modifiers, **held)

    async def press(self, key: str, modifiers: int = 0) -> None:
        """Press a key; 2 is Ctrl."""
        text = {"text": key} if len(key) == 1 and not modifiers else {"text": "\r"} if key == "Enter" else {}
        code = {"Enter": 13, "Escape": 27}.get(key, ord(key[0].upper()))
        shared = {"key": key, "windowsVirtualKeyCode": code, "modifiers": modifiers}
        await self.call("Input.dispatchKeyEvent", type="keyDown", **shared, **text)
        await self.call("Input.dispatchKeyEvent", type="keyUp", **shared)

    async def type(self, text: str) -> None:
        """Type into what has the focus."""
        await self.call("Input.insertText", text=text)

    async def photograph(self, path: Path) -> None:
        """Save what is on the screen as PNG."""
        answer = await self.call("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(answer["data"]))


def browse(
    folder: Path, look: Callable[[Page], Awaitable[T]], size: tuple[int, int] = (1400, 1000), *, webgl: bool = False
) -> T:
    """Start a browser, call ``look`` with a page, and end the browser; WebGL is computed by the processor."""
    program = chromium()
    assert program is not None
    options = ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--no-first-run"]
    options += ["--use-angle=swiftshader", "--enable-unsafe-swiftshader"] if webgl else ["--disable-gpu"]
    # It connects to our pages only.
    options += ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-quic"]
    options += [f"--user-data-dir={folder}", "--remote-debugging-port=0", f"--window-size={size[0]},{size[1]}"]
    with (folder.parent / f"{folder.name}.log").open("wb") as log:
        process = subprocess.Popen([program, *options, "about:blank"], stdout=log, stderr=log)
    try:
        return asyncio.run(_look(folder / "DevToolsActivePort", look))
    finally:
        process.kill()
        process.wait()


async def _look(port_file: Path, look: Callable[[Page], Awaitable[T]]) -> T:
    deadline = time.monotonic() + PATIENCE
    while not port_file.is_file() or "\n" not in port_file.read_text():
        assert time.monotonic() < deadline, "the browser does not start"
        await asyncio.sleep(0.1)
    port = port_file.read_text().splitlines()[0]
    async with aiohttp.ClientSession() as session:
        async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
            tabs = json.loads(await answer.text())
        address = next(tab["webSocketDebuggerUrl"] for tab in tabs if tab["type"] == "page")
        async with session.ws_connect(address, max_msg_size=0) as socket:
            return await look(Page(session, port, socket))
