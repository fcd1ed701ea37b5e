"""A headless Chromium, driven over chromedriver's WebDriver protocol: https://www.w3.org/TR/webdriver2/."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROGRAMS = ("chromium", "chromedriver")
_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
_ARGUMENTS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-dev-shm-usage", "--hide-scrollbars"),
)
# Nothing between us and a driver on this machine, whatever proxy the environment names.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def missing() -> list[str]:
    """The programs that are not installed."""
    return [name for name in PROGRAMS if shutil.which(name) is None]


class Browser:
    """One session."""

    def __init__(self, base: str, profile: Path) -> None:
        self._base = base
        options = {"args": [*_ARGUMENTS, f"--user-data-dir={profile}"]}
        wanted = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        made = self._ask("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self._base += f"/session/{made['sessionId']}"

    def _ask(self, method: str, path: str, body: object = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self._base + path, data, {"Content-Type": "application/json"}, method=method
        )
        with _OPENER.open(request, timeout=60) as answer:
            return json.load(answer)["value"]

    def open(self, page: Path) -> None:
        self._ask("POST", "/url", {"url": page.as_uri()})

    def run(self, script: str, *arguments: object) -> Any:
        """What a JavaScript function's body returns."""
        return self._ask("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def _find(self, css: str) -> str:
        found = self._ask("POST", "/element", {"using": "css selector", "value": css})
        return str(found[_ELEMENT])

    def click(self, css: str) -> None:
        self._ask("POST", f"/element/{self._find(css)}/click", {})

    def point(self, css: str) -> None:
        """Move the mouse over an element."""
        origin = {_ELEMENT: self._find(css)}
        move = {"type": "pointerMove", "duration": 0, "x": 0, "y": 0, "origin": origin}
        self._act({"type": "pointer", "id": "mouse", "actions": [move]})

    def press(self, *keys: str) -> None:
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self._act({"type": "key", "id": "keyboard", "actions": actions})

    def _act(self, source: dict[str, object]) -> None:
        self._ask("POST", "/actions", {"actions": [source]})

    def emulate(self, scheme: str, width: int = 1200, height: int = 900) -> None:
        """A window of this size, on a system with this colour scheme."""
        self._command("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._command("Emulation.setDeviceMetricsOverride", **size)

    def _command(self, name: str, **parameters: object) -> Any:
        return self._ask("POST", "/goog/cdp/execute", {"cmd": name, "params": parameters})

    def complaints(self) -> list[str]:
        """What the console has said since the last call."""
        return [f"{one['level']}: {one['message']}" for one in self._ask("POST", "/se/log", {"type": "browser"})]

    def shoot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self._ask("GET", "/screenshot")))

    def quit(self) -> None:
        self._ask("DELETE", "")


@contextmanager
def browser(place: Path) -> Iterator[Browser]:
    """A browser with a profile and a log of its own in the directory `place`."""
    with open(place / "driver.log", "wb") as log:
        command = ["chromedriver", "--port=0"]
        driver = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert driver.stdout
        try:
            line = next(line for line in driver.stdout if "started successfully on port" in line)
            port = line.strip().rstrip(".").rpartition(" ")[2]
            found = Browser(f"http://127.0.0.1:{port}", place / "profile")
            try:
                yield found
            finally:
                found.quit()
        finally:
            driver.terminate()
            driver.wait(timeout=20)
            driver.stdout.close()
