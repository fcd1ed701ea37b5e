"""What the supervisor shows of its build: lines in a log, a bar on a terminal. Standard library only."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from ..events import Event
from . import progress, stall
from .heartbeat import Heartbeat, sentence
from .progress import Show
from .status import Status
from .terminal import Terminal

EVERY = 1.0
"""Seconds between two drawings of a bar in which nothing has happened."""
_SOON = 0.1  # ... and in which something has
_LINGER = 2.0  # how long it stays where nothing is compiled: the next compile may be about to start


class View:
    """What is shown, and when it is due; `interval`: see Heartbeat."""

    def __init__(self, show: Show, interval: float) -> None:
        self._show = show
        self._terminal = Terminal(show) if show.terminal >= 0 else None
        self._beat = Heartbeat(interval)
        self._finished: deque[Event] = deque()
        self._begun = 0.0
        self._compiling = 0.0  # when something was last compiled
        self._next = 0.0
        self._drawn = 0.0

    def note(self, event: Event) -> None:
        """Take note of what has happened; it is shown by the next `update`."""
        if self._show.lines and progress.is_worth_a_line(event):
            self._finished.append(event)
        self._begun = self._begun or event.time
        self._next = min(self._next, self._drawn + _SOON)

    def timeout(self, now: float) -> float | None:
        """Seconds until `update` wants to be called again; None: when something has happened."""
        if self._terminal is None or not self._begun or not (self._terminal.is_drawn or self._is_busy(now)):
            return None
        return max(0.0, self._next - now)

    def update(self, look: Callable[[], Status], busy: bool, now: float) -> None:
        """Show what is due; `busy`: whether anything compiles, or waits to."""
        if busy:
            self._compiling = now
        beat = self._show.beat and self._beat.is_due(now, busy)
        draw = self._terminal is not None and now >= self._next
        if not (beat or draw or self._finished):
            return
        status = look()
        seconds = progress.left(status, now - self._begun)
        self._say_finished(status, seconds)
        if beat:
            stall.say(sentence(status))
        if self._terminal and draw:
            self._next, self._drawn = now + EVERY, now
            self._draw(self._terminal, status, seconds, now)

    def hide(self) -> None:
        """Leave the terminal as it was; the next `update` may draw again."""
        self._next = self._compiling = 0.0
        if self._terminal:
            self._terminal.clear()

    def _is_busy(self, now: float) -> bool:
        return bool(self._compiling) and now - self._compiling < _LINGER

    def _say_finished(self, status: Status, seconds: float | None) -> None:
        before = status.compiled - len(self._finished)
        while self._finished:
            before += 1
            stall.say(progress.finished(self._finished.popleft(), max(1, before), status, seconds))

    def _draw(self, terminal: Terminal, status: Status, seconds: float | None, now: float) -> None:
        if not self._is_busy(now):
            terminal.clear()
        elif columns := terminal.columns():
            show = self._show
            text = progress.bar(status, seconds, columns, unicode=show.unicode, color=show.color)
            taskbar = f"{2 if status.failed else 1};{progress.percent(status)}" if show.taskbar else ""
            terminal.draw(text, taskbar, now)
