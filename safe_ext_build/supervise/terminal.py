"""A line at the bottom of a terminal that others write to as well. Standard library only: the supervisor uses it.

The last row is taken out of the region that scrolls, so that what a compiler, pip or uv prints goes on above it,
and nothing of it has to pass through us. Each change is one write, which no other comes between; the descriptor
does not wait (^S stops a terminal), and belongs to nobody else. The supervisor is in a session of its own, so it
is never stopped for writing, and it asks whether its hook process is in the foreground.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import struct
import termios
from collections.abc import Iterator, Mapping
from pathlib import Path

from ..ui import PREFIX
from .progress import NARROWEST, Mode, Show, draws, has_taskbar, has_unicode, is_watched

DRAWN = "drawn"
"""Stands in the workspace while something is drawn that has to be taken away."""
VARIABLE = "SAFE_EXT_BUILD_TERMINAL"
_LOWEST = 4  # rows
_SAVE, _RESTORE = "\x1b7", "\x1b8"
_ALL_ROWS = "\x1b[r"
_NO_TASKBAR = "\x1b]9;4;0;0\x1b\\"
KEPT_ALIVE = 5.0
"""Seconds after which a taskbar's progress is said again: some terminals forget it, so that nothing stays of a
program that was killed."""


def size(descriptor: int) -> tuple[int, int]:
    """Rows and columns; zeros where they are not known."""
    try:
        rows, columns, _, _ = struct.unpack("4H", fcntl.ioctl(descriptor, termios.TIOCGWINSZ, bytes(8)))
    except OSError:
        return 0, 0
    return rows, columns


def is_in_foreground(pid: int) -> bool:
    """Whether a process is of its terminal's foreground group, or has no terminal (proc_pid_stat(5))."""
    try:
        with open(f"/proc/{pid}/stat", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return False
    return fields[5] in ("-1", fields[2])


class Terminal:
    """The last row, where it may be drawn."""

    def __init__(self, show: Show) -> None:
        self.descriptor = show.terminal
        self._marker = Path(show.marker)
        self._owner = show.owner
        self._size = (0, 0)
        self._unsent = b""
        self._taskbar = ""
        self._said = 0.0

    @property
    def is_drawn(self) -> bool:
        return self._size != (0, 0)

    def columns(self) -> int:
        """How wide a line may be; 0 when nothing can be drawn now, and then nothing is."""
        rows, columns = size(self.descriptor)
        if rows >= _LOWEST and columns >= NARROWEST and is_in_foreground(self._owner):
            return columns
        self.clear()
        return 0

    def draw(self, text: str, taskbar: str, now: float) -> None:
        """Show a line, which fits; `taskbar` is "" or the state and percentage for OSC 9;4."""
        now_size = size(self.descriptor)
        data = ""
        if now_size != self._size:
            data = self._moved(now_size)
        rows = now_size[0]
        data += f"{_SAVE}\x1b[1;{rows - 1}r\x1b[{rows};1H\x1b[0m\x1b[2K{text}{_RESTORE}"
        if taskbar and (taskbar != self._taskbar or now - self._said >= KEPT_ALIVE):
            self._taskbar, self._said = taskbar, now
            data += f"\x1b]9;4;{taskbar}\x1b\\"
        self._write(data)

    def _moved(self, now: tuple[int, int]) -> str:
        """Take the last row, and give back the one that was."""
        was = self._size[0]
        self._size = now
        if not was:
            with contextlib.suppress(OSError):
                self._marker.touch()
        data = f"{_SAVE}\x1b[{was};1H\x1b[2K{_ALL_ROWS}{_RESTORE}" if 0 < was <= now[0] else ""
        return f"{data}\x1bD\x1b[A"  # what stands in the last row scrolls up

    def clear(self) -> None:
        """Give the row back."""
        if not self.is_drawn:
            return
        self._write(_cleared(self._size[0]) + (_NO_TASKBAR if self._taskbar else ""), last=True)
        self._size, self._taskbar = (0, 0), ""
        with contextlib.suppress(OSError):
            self._marker.unlink(missing_ok=True)

    def _write(self, text: str, last: bool = False) -> None:
        """Write what the terminal takes. What it takes half of is completed by the next write, in place of that
        one's own text, unless this is the `last`."""
        data = self._unsent + (text.encode(errors="replace") if last or not self._unsent else b"")
        try:
            self._unsent = data[os.write(self.descriptor, data) :]
        except OSError:
            pass  # it takes nothing: then nothing was begun


def _cleared(row: int) -> str:
    return f"{_SAVE}\x1b[{row};1H\x1b[0m\x1b[2K{_ALL_ROWS}{_RESTORE}"


def give_back(show: Show) -> None:
    """Clear away what a supervisor that was killed has drawn."""
    if show.terminal < 0 or not os.path.exists(show.marker):
        return
    rows, _ = size(show.terminal)
    old = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})  # or we might be stopped for it
    try:
        os.write(show.terminal, (_cleared(max(1, rows)) + _NO_TASKBAR * show.taskbar).encode())
        os.unlink(show.marker)
    except OSError:
        pass  # the terminal is gone, or another has been faster
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old)


@contextlib.contextmanager
def shown(mode: Mode, environ: Mapping[str, str], workspace: Path) -> Iterator[Show]:
    """How the progress of a build is shown from here; at the end the terminal is as it was."""
    show = choose(mode, environ, workspace)
    try:
        yield show
    finally:
        give_back(show)
        if show.terminal >= 0:
            os.close(show.terminal)


def lent(show: Show) -> dict[str, str]:
    """The variable by which builds inside of this one find the terminal, which is not theirs any more."""
    place = f"/proc/{os.getpid()}/fd/{show.terminal}:{show.owner}:{show.marker}"
    return {VARIABLE: place} if show.terminal >= 0 else {}


def choose(mode: Mode, environ: Mapping[str, str], workspace: Path) -> Show:
    """How progress is to be shown: a bar where our own output goes to a terminal, else lines; with `tty` also a
    bar on the terminal that a frontend keeps our output from, if there is one. A build inside of one that has a
    terminal uses that one's."""
    if mode in ("lines", "off"):
        return Show(lines=mode == "lines", beat=mode == "lines")
    ours = os.isatty(2)
    place, owner, marker = "", str(os.getpid()), os.fspath(workspace / DRAWN)
    if not draws(environ):
        pass
    elif environ.get(VARIABLE, "").count(":") >= 2:
        place, owner, marker = environ[VARIABLE].split(":", 2)
    elif ours and (mode == "tty" or is_watched(environ)):
        place = "/proc/self/fd/2"
    elif mode == "tty":
        place = "/dev/tty"
    descriptor = _open(place)
    is_a_log = not ours or descriptor < 0
    return Show(
        lines=is_a_log,
        beat=is_a_log,
        terminal=descriptor,
        owner=int(owner),
        marker=marker,
        unicode=has_unicode(environ),
        color=not environ.get("NO_COLOR"),
        taskbar=descriptor >= 0 and has_taskbar(environ),
    )


def tell(mode: Mode, text: str) -> None:
    """Say what cannot wait on the terminal that a frontend keeps our output from, if that is asked for."""
    if mode != "tty" or os.isatty(2) or not is_in_foreground(os.getpid()):
        return
    descriptor = _open("/dev/tty")
    if descriptor < 0:
        return
    with contextlib.suppress(OSError):
        os.write(descriptor, f"\r\n{PREFIX}{text}\r\n".encode(errors="replace"))
    os.close(descriptor)


def _open(place: str) -> int:
    """A descriptor of a terminal that never waits, and is ours alone; -1 where there is none."""
    try:
        descriptor = os.open(place, os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC) if place else -1
    except OSError:
        return -1  # no controlling terminal; or, after su, another user's
    # Who lent it may be gone, and its number another file's; and one that has no size is somebody's log.
    if descriptor >= 0 and not all(size(descriptor)):
        os.close(descriptor)
        return -1
    return descriptor
