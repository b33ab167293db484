"""A headless Chromium, driven through its DevTools pipe with the standard library alone."""

import base64
import json
import os
import selectors
import shutil
import subprocess
import sys
import tempfile
import time

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
    "--hide-scrollbars",
    "--window-size=1400,950",
    "--remote-debugging-pipe",
)
ON_3_AND_4 = """
import fcntl, os, sys
pipes = [fcntl.fcntl(int(fd), fcntl.F_DUPFD, 10) for fd in sys.argv[1:3]]
for pipe, fd in zip(pipes, (3, 4)):
    os.dup2(pipe, fd)
os.execv(sys.argv[3], sys.argv[3:])
"""
PATIENCE_S = 60
KEYS = {
    "Tab": (9, ""),
    "Enter": (13, "\r"),
    " ": (32, " "),
}  # code, and the text that a button waits for


class Browser:
    """One page in a fresh browser that knows nobody."""

    def __init__(self):
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        pipes = theirs_in, theirs_out
        browser = [CHROMIUM, *FLAGS, f"--user-data-dir={self._profile.name}"]
        command = [sys.executable, "-c", ON_3_AND_4, *map(str, pipes), *browser]
        self._process = subprocess.Popen(command, pass_fds=pipes, stderr=subprocess.DEVNULL)
        os.close(theirs_in)
        os.close(theirs_out)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._in, selectors.EVENT_READ)
        self._text = b""
        self._target = self._session = None
        self._serial = 0
        self._look = ("light", "none")

    def look(self, scheme, deficiency="none"):
        """Show pages opened from now on in a colour scheme, as readers with a deficiency of vision
        see them.
        """
        self._look = (scheme, deficiency)

    def open(self, url):
        """Load a page in a new tab, which gets the keys, and wait until its script has run."""
        if self._target:
            self._session = None
            self._call("Target.closeTarget", targetId=self._target)
        self._target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=self._target, flatten=True)[
            "sessionId"
        ]
        self._call("Emulation.setFocusEmulationEnabled", enabled=True)
        self._call("Page.bringToFront")
        scheme, deficiency = self._look
        self._call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": scheme}],
        )
        self._call("Emulation.setEmulatedVisionDeficiency", type=deficiency)
        self._call("Page.navigate", url=url)
        deadline = time.monotonic() + PATIENCE_S
        # One question: between two, the page may take the place of the blank one that was complete.
        while not self.value("document.readyState == 'complete' && location.href != 'about:blank'"):
            assert time.monotonic() < deadline, f"{url} does not load"
            time.sleep(0.05)

    def value(self, expression):
        """What an expression gives in the page."""
        answer = self._call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def text(self, selector):
        """What a reader sees of an element."""
        return self.value(f"document.querySelector({json.dumps(selector)}).innerText")

    def click(self, selector, x=None, y=None):
        """Press the mouse on an element: at (x, y) from its corner, else in its middle."""
        element = f"document.querySelector({json.dumps(selector)})"
        self.value(f"{element}.scrollIntoView({{block: 'nearest'}})")
        left, top, width, height = self.value(
            f"(box => [box.left, box.top, box.width, "
            f"box.height])({element}.getBoundingClientRect())"
        )
        where = {
            "x": left + (width / 2 if x is None else x),
            "y": top + (height / 2 if y is None else y),
        }
        for kind in ("mousePressed", "mouseReleased"):
            self._call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **where)

    def press(self, key):
        """Press a key, with what it does to the focus or to a button."""
        code, text = KEYS.get(key, (0, ""))
        down = {"type": "keyDown", "text": text} if text else {"type": "rawKeyDown"}
        for kind in (down, {"type": "keyUp"}):
            self._call(
                "Input.dispatchKeyEvent", key=key, code=key, windowsVirtualKeyCode=code, **kind
            )

    def tab_to(self, selector):
        """Press Tab until an element has the focus."""
        for _ in range(60):
            if self.value(f"document.activeElement.matches({json.dumps(selector)})"):
                return
            self.press("Tab")
        raise AssertionError(f"Tab never comes to {selector}")

    def resize(self, width, height=900):
        """Show the page as a screen of this size does; narrow ones are phones."""
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 500,
        )
        self.value(
            "new Promise(drawn => requestAnimationFrame(() => requestAnimationFrame(drawn)))"
        )

    def screenshot(self, width, height):
        """The page from its top as a PNG."""
        self.resize(width, height)
        return base64.b64decode(self._call("Page.captureScreenshot", format="png")["data"])

    def close(self):
        """End the browser."""
        self._process.kill()
        self._process.wait()
        os.close(self._in)
        os.close(self._out)
        self._profile.cleanup()

    def _call(self, method, **parameters):
        self._serial += 1
        message = {"id": self._serial, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._serial:
                assert "error" not in answer, answer["error"]
                return answer["result"]

    def _read(self):
        while b"\0" not in self._text:
            assert self._selector.select(PATIENCE_S), "the browser does not answer"
            part = os.read(self._in, 1 << 16)
            assert part, "the browser has gone"
            self._text += part
        message, _, self._text = self._text.partition(b"\0")
        return json.loads(message)
