"""A headless Chromium, controlled through its debugging port: opens pages, reads them and takes screenshots."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import pytest

T = TypeVar("T")
PATIENCE = 120.0


def need_chromium() -> None:
    """Skip a test without a browser; fail if CI is set, where all tests must run."""
    if _chromium() is None:
        reason = f"Chromium is not installed: {_why_no_chromium()}"
        assert "CI" not in os.environ, f"{reason}; continuous integration must check the pages"
        pytest.skip(reason)


def _chromium() -> str | None:
    """The path of the program, if it is installed."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


def _why_no_chromium() -> str:
    """The last line of apt's output when `make test` tried to install it."""
    said = Path(sys.prefix) / "chromium.log"
    lines = said.read_text().splitlines() if said.is_file() else []
    return lines[-1] if lines else "install Debian's package `chromium`"


class Page:
    """A tab of the browser."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket, self._number = socket, 0

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
        answer = await self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        return answer["result"].get("value")

    async def open(self, url: str) -> None:
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

    async def photograph(self, path: Path) -> None:
        answer = await self.call("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(answer["data"]))


def browse(folder: Path, look: Callable[[Page], Awaitable[T]], size: tuple[int, int] = (1400, 1000)) -> T:
    """Start a browser, call ``look`` with a page, and end the browser."""
    program = _chromium()
    assert program is not None
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
    # It connects to MLflow only.
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
            return await look(Page(socket))
