"""Makes the screens of the documentation from real runs: `python tests/docs/docs_pictures.py [COMMAND...]`.

A run is shown as it was in a terminal of 104 columns, but for the paths of the machine that it ran on.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from html import escape
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / name) for name in (".", "docs", "frontends", "report", "toolchain")]

from docs_scenes import Place, make_house, new_place, project  # noqa: E402
from frontend_fixtures import make_wheel  # noqa: E402
from report_records import flash_attention  # noqa: E402

from safe_ext_build.report import shelf  # noqa: E402

STATIC = TESTS.parent / "docs" / "_static"
COLUMNS = 104
_CHAR, _LINE, _MARGIN, _BAR = 7.83, 18, 16, 30  # pixels
_CLEAR = "\x1b[H\x1b[J"
_COLOURS = {"1": "b", "31": "r", "32": "g", "33": "y"}
_STYLE = """
text { font: 13px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; white-space: pre; }
.w { fill: #fbfbfd; stroke: #c9ccd3; } .t, .p { fill: #6b7280; } text { fill: #1f2328; }
.b { font-weight: bold; } .r { fill: #b3261e; } .g { fill: #19702c; } .y { fill: #8a5a00; }
@media (prefers-color-scheme: dark) {
  .w { fill: #16181d; stroke: #3a3f4a; } .t, .p { fill: #9aa3b2; } text { fill: #e3e6ec; }
  .r { fill: #ff8a80; } .g { fill: #7fd18b; } .y { fill: #e8b64c; }
}
"""
# Sources of a build that runs: seconds, MiB.
BUSY = {
    "attention_backward": (40, 1500),
    "attention_forward": (40, 1100),
    "norm": (8, 300),
    "rotary": (12, 400),
    "softmax": (40, 700),
    "topk": (40, 600),
    "quantize": (30, 500),
}


# --- a terminal ---


def in_terminal(place: Place, command: str, until: Callable[[str], bool] | None = None) -> str:
    """What a command writes to a terminal; ended by Ctrl-C as soon as `until` says so of it."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, COLUMNS, 0, 0))
    environ = {**place.shell.environ, "COLUMNS": str(COLUMNS), "TERM": "xterm"}
    words = ["bash", "-c", f"exec {command}"]
    process = subprocess.Popen(words, cwd=place.work, env=environ, stdin=slave, stdout=slave, stderr=slave)
    os.close(slave)
    seen: list[bytes] = []

    def read() -> None:
        try:
            while data := os.read(master, 65536):
                seen.append(data)
        except OSError:  # the last one has closed it
            pass

    reader = threading.Thread(target=read)
    reader.start()
    while until and process.poll() is None and not until(b"".join(seen).decode(errors="replace")):
        time.sleep(0.2)
    if until:
        process.send_signal(2)
    process.wait()
    reader.join()
    os.close(master)
    return b"".join(seen).decode(errors="replace").replace("\r\n", "\n")


def picture(title: str, screen: str) -> str:
    """A screen as SVG, for light and dark pages."""
    lines = screen.rstrip("\n").split("\n")
    width = round(COLUMNS * _CHAR + 2 * _MARGIN)
    height = _BAR + _LINE * len(lines) + _MARGIN
    rows = [
        f'<text x="{_MARGIN}" y="{_BAR + _LINE * (number + 0.7):.1f}">{row}</text>'
        for number, row in enumerate(_spans(line) for line in lines)
        if row
    ]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    )
    frame = f'<rect class="w" x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="7"/>'
    name = f'<text class="p" x="{_MARGIN}" y="20">$ {escape(title)}</text>'
    what = f"<title>{escape(title)}</title>"
    return "\n".join([f'{head} role="img">{what}<style>{_STYLE}</style>', frame, name, *rows, "</svg>\n"])


def _spans(line: str) -> str:
    parts = re.split(r"\x1b\[([\d;]*)m", line)
    shown = escape(parts[0])
    for code, text in zip(parts[1::2], parts[2::2], strict=True):
        style = _COLOURS.get(code)
        shown += f'<tspan class="{style}">{escape(text)}</tspan>' if style and text else escape(text)
    return shown


# --- what is shown ---


def doctor(place: Place) -> str:
    return in_terminal(place, "safe-ext-build doctor")


def report(place: Place) -> str:
    """Of the simulated build of flash-attn that the pictures of howto/report.md show."""
    shelf.export(flash_attention(73, 16, 48), place.work / "flash-attn.json")
    return in_terminal(place, "safe-ext-build report flash-attn.json")


def plan(place: Place) -> str:
    """With the history of an earlier build."""
    kernels = project(place.work / "my-kernels", "standin")
    sources(kernels, {name: (max(1, seconds / 10), mib) for name, (seconds, mib) in BUSY.items()})
    command = [str(place.python), "-m", "pip", "install", "-q", "--no-deps", "."]
    subprocess.run(command, cwd=kernels, env=place.shell.environ, check=True)
    return in_terminal(place, "safe-ext-build plan ./my-kernels")


def builds(place: Place) -> str:
    kernels = project(place.work / "my-kernels", "standin")
    sources(kernels, BUSY)
    command = [str(place.python), "-m", "pip", "install", "-q", "--no-deps", "."]
    environ = {**place.shell.environ, "MAX_JOBS": "4"}
    process = subprocess.Popen(command, cwd=kernels, env=environ, stderr=subprocess.DEVNULL)
    try:
        seen = in_terminal(place, "safe-ext-build builds --watch", _is_half_way)
    finally:
        place.safe_ext_build("kill", "--all")
        process.wait()
    return seen.rpartition(_CLEAR)[2].replace("^C", "")


def _is_half_way(text: str) -> bool:
    last = text.rpartition(_CLEAR)[2]
    return "held back: the first" in last and re.search(r"[1-5] of 7 compiled, [2-4] run", last) is not None


def sources(target: Path, wanted: Mapping[str, tuple[float, int]]) -> None:
    for path in (target / "csrc").iterdir():
        path.unlink()
    for name, (seconds, mib) in wanted.items():
        (target / "csrc" / f"{name}.cu").write_text(f"//! seconds={seconds} mib={mib} burn=1\n")


SCREENS = {"doctor": doctor, "plan ./my-kernels": plan, "builds --watch": builds, "report": report}


def shareable(text: str, place: Place) -> str:
    """As it would look on the machine of somebody whose home directory holds all of it."""
    beside = str(Path(sys.prefix))
    for path, name in ((str(place.root / "home"), "~"), (beside, "~/venv"), (str(place.root), "~")):
        text = text.replace(path, name)
    for before, after in (
        ("~/env", "~/venv"),
        ("~/cache", "~/.cache"),
        ("safe-ext-build-0", "safe-ext-build-1000"),
    ):
        text = text.replace(before, after)
    return re.sub(r"^Linux \S+", "Linux 6.8.0", text, flags=re.MULTILINE)


def main() -> None:
    """Make all screens, or those that are named."""
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        house = make_house(root / "house", make_wheel(root / "wheel"))
        for command in sys.argv[1:] or SCREENS:
            name = command.split()[0]
            with ExitStack() as cleanup:
                place = new_place(root / name, house, root / "wheel", cleanup)
                place.shell.cwd = place.root / "home"
                # As for most people: workspaces where they are if nothing is said of them.
                place.shell.environ.pop("SAFE_EXT_BUILD_WORKSPACE_DIR")
                screen = shareable(SCREENS[command](place), place)
                (STATIC / f"screen-{name}.svg").write_text(picture(f"safe-ext-build {command}", screen))


if __name__ == "__main__":
    main()
