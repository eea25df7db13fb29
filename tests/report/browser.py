"""A headless Chromium driven through its debugging pipe, for tests of the page as people see it."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

PATH = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--hide-scrollbars", "--remote-debugging-pipe",
)  # fmt: skip
# Chromium reads commands from descriptor 3 and answers on 4.
START = "import os, sys; r, w = map(int, sys.argv[1:3]); os.dup2(r, 3); os.dup2(w, 4); "
START += "os.execv(sys.argv[3], sys.argv[3:])"


class Page:
    """One page in a browser of its own; what it asked for and complained about is noted."""

    def __init__(self, file: Path, *, width: int, height: int = 900, dark: bool = False) -> None:
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self._answers: dict[int, dict[str, Any]] = {}
        self._count, self._buffer, self._session, self._loaded = 0, b"", None, False
        self._profile = tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True)
        theirs_in, self._out = (_high(fd) for fd in os.pipe())
        self._in, theirs_out = (_high(fd) for fd in os.pipe())
        self._process = subprocess.Popen(
            [sys.executable, "-c", START, str(theirs_in), str(theirs_out), str(PATH), *FLAGS,
             f"--user-data-dir={self._profile.name}", "about:blank"],
            pass_fds=(theirs_in, theirs_out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(theirs_in)
        os.close(theirs_out)
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Network", "Log", "Runtime"):
            self.call(f"{domain}.enable")
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
            mobile=width < 600,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=file.resolve().as_uri())
        self._read(lambda: self._loaded)

    def __enter__(self) -> Page:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(30)
        os.close(self._in)
        os.close(self._out)
        self._profile.cleanup()

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """A command of the DevTools protocol, and its result."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        self._read(lambda: self._count in self._answers)
        answer = self._answers.pop(self._count)
        assert "error" not in answer, (method, answer)
        return answer["result"]

    def evaluate(self, script: str) -> Any:
        """The value of a JavaScript expression in the page."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def screenshot(self, path: Path) -> None:
        """The whole page as PNG."""
        data = self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(data))

    def _read(self, done, patience: float = 90.0) -> None:
        until = time.monotonic() + patience
        while not done():
            ready, _, _ = select.select([self._in], [], [], max(until - time.monotonic(), 0))
            assert ready, f"Chromium did not answer for {patience:.0f} s"
            data = os.read(self._in, 1 << 20)
            assert data, "Chromium ended"
            *messages, self._buffer = (self._buffer + data).split(b"\0")
            for message in messages:
                self._take(json.loads(message))

    def _take(self, message: dict[str, Any]) -> None:
        if "id" in message:
            self._answers[message["id"]] = message
        elif message["method"] == "Network.requestWillBeSent":
            self.requests.append(message["params"]["request"]["url"])
        elif message["method"] in ("Log.entryAdded", "Runtime.exceptionThrown",
                                   "Runtime.consoleAPICalled"):  # fmt: skip
            self.complaints.append(json.dumps(message["params"]))
        elif message["method"] == "Page.loadEventFired":
            self._loaded = True


def _high(descriptor: int) -> int:
    """The same under a number that 3 and 4 cannot be."""
    copy = fcntl.fcntl(descriptor, fcntl.F_DUPFD, 10)
    os.close(descriptor)
    return copy
