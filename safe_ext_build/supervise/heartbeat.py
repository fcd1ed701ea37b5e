"""A line each minute on how a build goes on, for those who see nothing else of it. Standard library only."""

from __future__ import annotations

from .status import Status

INTERVAL = 60.0
"""Seconds between two lines."""
GIB = 1 << 30
_UNKNOWN = 1 << 50  # bytes: the budget where memory cannot be read


class Heartbeat:
    """When a line is due. Pure: times are passed in."""

    def __init__(self, interval: float) -> None:
        self.interval = interval
        self._next = 0.0

    def is_due(self, now: float, compiling: bool) -> bool:
        """Whether a line is due: an interval after the first compile has begun, and then after each line."""
        if not compiling:
            return False
        self._next = self._next or now + self.interval
        if now < self._next:
            return False
        self._next = now + self.interval
        return True


def sentence(status: Status) -> str:
    """The line."""
    parts = [progress(status), _running(status), on_farm(status), memory(status), waiting(status)]
    if status.failed:
        parts.append(f"{status.failed} has failed, and what runs is waited for")
    return ", ".join(filter(None, parts))


def progress(status: Status) -> str:
    """`12 of 73 compiled`, and of these `10 from the cache` and `5 on the farm`"""
    parts = [f"{status.hits} from the cache"] if status.hits else []
    parts += [f"{status.farmed} on the farm"] if status.farmed else []
    whence = f" ({', '.join(parts)})" if parts else ""
    return f"{status.compiled}{f' of {status.total}' if status.total else ''} compiled{whence}"


def _running(status: Status) -> str:
    if not status.running:
        return ""
    longest = status.running[0]
    name = longest.source.rpartition("/")[2]
    count = len(status.running)
    return f"{count} {'runs' if count == 1 else 'run'} (longest: {name}, {duration(longest.seconds)})"


def on_farm(status: Status) -> str:
    """`3 of them on the farm (6 slots)`, or, of all that run, `on the farm (6 slots)`"""
    if not status.remote:
        return ""
    slots = f" ({status.slots} {'slot' if status.slots == 1 else 'slots'})" if status.slots else ""
    some = f"{status.remote} of them " if status.remote != len(status.running) else ""
    return f"{some}on the farm{slots}"


def memory(status: Status) -> str:
    """`14.2 of 22.0 GiB`: what the compiles hold of what they may."""
    budget = f" of {status.budget / GIB:.1f}" if status.budget < _UNKNOWN else ""
    return f"{status.held / GIB:.1f}{budget} GiB" if status.running else ""


def waiting(status: Status) -> str:
    """`2 wait for memory`"""
    if not status.waiting:
        return ""
    return f"{status.waiting} {'waits' if status.waiting == 1 else 'wait'}{reason(status.why)}"


def reason(why: str) -> str:
    """What the scheduler says of the first that waits, in as few words as there are."""
    if "GiB" in why or "memory" in why:
        return " for memory"
    if "CPUs" in why:
        return " for a CPU"
    return f" ({why})" if why else ""


def duration(seconds: float) -> str:
    """`40 s`, `3 min`, `2 h 5 min`"""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"
