"""A headless Chromium, and pages for it to open: what a user's browser sends, seen by a broker.

Chromium is driven over its DevTools protocol (https://chromedevtools.github.io/devtools-protocol/).
"""

import asyncio
import json
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from time import monotonic
from typing import Any

import aiohttp
import pytest

from tailrace.local.broker import HOST

# None: this machine has no browser.
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
needs_browser = pytest.mark.skipif(BROWSER is None, reason="no chromium: apt install chromium")
# It resolves to the broker's address as a name does that its owner has pointed there.
REBOUND_HOST = "evil.example"
START_S_MAX = 60.0
ANSWER_S_MAX = 60.0
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",
    "--disable-sync",
    "--remote-debugging-port=0",
    f"--host-resolver-rules=MAP {REBOUND_HOST} {HOST}",
)


class Browser:
    """A running browser."""

    def __init__(self, devtools_port: int) -> None:
        self._url = f"http://{HOST}:{devtools_port}"

    def run(self, page_url: str, script: str) -> Any:
        """Open a page and run a script on it; what the script's promise resolves to."""
        return asyncio.run(self._run(page_url, script))

    async def _run(self, page_url: str, script: str) -> Any:
        timeout = aiohttp.ClientTimeout(total=ANSWER_S_MAX)
        async with aiohttp.ClientSession(self._url, timeout=timeout) as session:
            async with session.put("/json/new?about:blank") as answer:
                tab = json.loads(await answer.read())
            async with (
                asyncio.timeout(ANSWER_S_MAX),
                session.ws_connect(tab["webSocketDebuggerUrl"]) as socket,
            ):
                ids = count(1)
                ask = partial(_ask, socket, ids)
                await ask("Page.enable")
                await ask("Page.navigate", url=page_url)
                while (await socket.receive_json()).get("method") != "Page.loadEventFired":
                    pass
                options = {"awaitPromise": True, "returnByValue": True}
                answered = await ask("Runtime.evaluate", expression=script, **options)
            async with session.get(f"/json/close/{tab['id']}"):
                return answered["result"]["value"]


async def _ask(
    socket: "aiohttp.ClientWebSocketResponse[Any]",
    ids: "count[int]",
    method: str,
    **parameters: Any,
) -> Any:
    """The result of one command; events in between are passed over."""
    number = next(ids)
    await socket.send_json({"id": number, "method": method, "params": parameters})
    while (message := await socket.receive_json()).get("id") != number:
        pass
    assert "error" not in message, message
    assert "exceptionDetails" not in message["result"], message
    return message["result"]


@contextmanager
def start_browser(profile: Path) -> Iterator[Browser]:
    """A browser with an empty profile in this directory; it is gone when the block ends."""
    process = subprocess.Popen(
        [str(BROWSER), *_FLAGS, f"--user-data-dir={profile}", "about:blank"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield Browser(_devtools_port(process, profile / "DevToolsActivePort"))
    finally:
        process.kill()
        process.wait()


def _devtools_port(process: "subprocess.Popen[bytes]", written: Path) -> int:
    """The browser writes it to a file when it is ready."""
    ends_s = monotonic() + START_S_MAX
    tick = threading.Event()
    while not (written.exists() and written.read_text()):
        assert process.poll() is None, "the browser has ended"
        assert monotonic() < ends_s, "the browser does not start"
        tick.wait(0.05)
    return int(written.read_text().split()[0])


class _Page(BaseHTTPRequestHandler):
    """The same empty page for every path."""

    def do_GET(self) -> None:
        body = b"<!doctype html><title>page</title>"
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is written."""


@contextmanager
def serve_page() -> Iterator[int]:
    """The port of a web server on loopback that has an empty page."""
    with ThreadingHTTPServer((HOST, 0), _Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()
