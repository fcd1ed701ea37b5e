"""How far a build is, in a line that fits: for a terminal that is redrawn, and for a log. Pure.

Standard library only: the supervisor imports this.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from ..events import Event
from .heartbeat import GIB, duration, memory, on_farm
from .status import Status

Mode = Literal["auto", "tty", "lines", "off"]
NARROWEST = 20
"""Columns that a terminal must have for a bar."""
_GUESSED_FROM = 3  # compiles that must have ended before their pace says how long the rest will take
_LONGEST_NAME = 40
_SHORTEST_GAUGE, _LONGEST_GAUGE = 5, 30
_GREEN, _RED, _PLAIN = "\x1b[32m", "\x1b[31m", "\x1b[0m"
# What a configure step tries out is no object of the build.
_PROBE = re.compile(r"CMakeScratch|CompilerId|meson-private|conftest\.|(?:^|/)tmp\w{8}/")


@dataclass(frozen=True)
class Show:
    """How progress is shown: `lines`, one for each object; `beat`, one now and then; and a bar on the descriptor
    `terminal`, if that is not negative, with `unicode`, `color` and the `taskbar`, where it has them. It is drawn
    while the process `owner` is in the foreground; the file `marker` exists while it has to be taken away."""

    lines: bool = False
    beat: bool = True
    terminal: int = -1
    owner: int = 0
    marker: str = ""
    unicode: bool = False
    color: bool = False
    taskbar: bool = False


# What a terminal can do.


def draws(environ: Mapping[str, str]) -> bool:
    """Whether a terminal understands where a cursor is to go."""
    return environ.get("TERM", "") not in ("", "dumb", "unknown", "emacs", "cons25")


def is_watched(environ: Mapping[str, str]) -> bool:
    """Whether somebody looks at the terminal: that of a CI job is a log."""
    return not environ.get("CI")


def has_unicode(environ: Mapping[str, str]) -> bool:
    """Whether the locale is one of UTF-8 (locale(7) has the order)."""
    locale = next(filter(None, map(environ.get, ("LC_ALL", "LC_CTYPE", "LANG"))), "")
    return "utf8" in locale.lower().replace("-", "")


def has_taskbar(environ: Mapping[str, str]) -> bool:
    """Whether the terminal is known to understand OSC 9;4; others show such a message as a notification.

    What runs inside tmux and screen sees the variables of the terminal outside, which is not the one it writes to.
    """
    get = environ.get
    if get("TMUX") or get("STY"):
        return False
    if get("WT_SESSION") or get("ConEmuANSI") == "ON" or get("TERM_PROGRAM") == "WezTerm":
        return True
    if get("TERM_PROGRAM") == "ghostty":
        return _version(get("TERM_PROGRAM_VERSION", "")) >= [1, 2]
    if "P" in re.findall(r"[A-Z][a-z]*\d*", get("TERM_FEATURES", "")):  # iTerm2, from 3.6.6 on
        return True
    return _version(get("PTYXIS_VERSION", "")) >= [48] or _version(get("KONSOLE_VERSION", "")) >= [260400]


def _version(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text)[:2]]


# What there is to say.


def left(status: Status, elapsed: float) -> float | None:
    """Seconds until all is compiled: from the history, else from what was compiled in the `elapsed` seconds; None
    where neither tells. (The history counts CPU time: where compiles mostly wait for others, it says nothing.)"""
    if status.expected is not None and status.expected >= 1:
        return status.expected
    if not status.total or status.compiled < _GUESSED_FROM:
        return None
    return elapsed / status.compiled * (status.total - status.compiled)


def percent(status: Status) -> int:
    """How much is compiled, from 0 to 100."""
    return min(100, 100 * status.compiled // status.total) if status.total else 0


def finished(event: Event, number: int, status: Status, seconds: float | None) -> str:
    """The line for an object that has just been compiled, as the `number`th."""
    total = f"/{max(number, status.total)}" if status.total else ""
    threads = f" with {event.threads} threads" if event.threads > 1 else ""
    where, here = (" on the farm", " here") if event.remote and event.cache != "hit" else (threads, "")
    cost = f"{_name(event.source, True)} {duration(event.seconds)}{where}, {event.peak / GIB:.1f} GiB{here}"
    rest = ", ".join(_figures(status, seconds))
    return f"[{number}{total}] {cost}{f' ({rest})' if rest else ''}"


def is_worth_a_line(event: Event) -> bool:
    """Whether an object has been compiled that is the project's."""
    return event.kind == "job" and event.outcome == "compiled" and not _PROBE.search(event.source)


def _figures(status: Status, seconds: float | None, brief: bool = False) -> Iterable[str]:
    if seconds is not None and status.compiled < status.total:
        yield f"~{duration(seconds)} left"
    if status.running or status.waiting:
        frozen = sum(one.frozen for one in status.running)
        held = status.waiting + frozen
        where = on_farm(replace(status, slots=0))
        farm = f", {where}" if where and not brief else ""
        yield f"{len(status.running) - frozen} run{farm}{f', {held} held' if held else ''}"
    if text := memory(status):
        yield text


def bar(status: Status, seconds: float | None, width: int, *, unicode: bool, color: bool) -> str:
    """One line of less than `width` columns (a full one would wrap); what matters most comes first."""
    room = width - 1
    count = f"{status.compiled}/{status.total}" if status.total else f"{status.compiled} compiled"
    parts = [count]
    last = _ending(status) or _slowest(status, unicode)
    both = zip(_figures(status, seconds), _figures(status, seconds, brief=True), strict=True)
    for choice in (*both, (last,)):
        fitting = [part for part in choice if part and len("  ".join([*parts, part])) <= room]
        parts += fitting[:1]
    spare = room - len("  ".join(parts)) - 2
    gauge = _gauge(status, min(spare, _LONGEST_GAUGE), unicode, color) if spare >= _SHORTEST_GAUGE else ""
    return "  ".join(filter(None, [gauge, *parts]))


def _ending(status: Status) -> str:
    return f"{_name(status.failed, False)} has failed" if status.failed else ""


def _slowest(status: Status, unicode: bool) -> str:
    if not status.running:
        return ""
    longest = status.running[0]
    return f"{_name(longest.source, unicode)} {duration(longest.seconds)}"


def _gauge(status: Status, width: int, unicode: bool, color: bool) -> str:
    if not status.total:
        return ""
    inner = width if unicode else width - 2
    done = inner * status.compiled // max(1, status.total)
    text = "━" * done + "┈" * (inner - done) if unicode else "[" + "#" * done + "-" * (inner - done) + "]"
    paint = _RED if status.failed else _GREEN
    return f"{paint}{text}{_PLAIN}" if color else text


def _name(source: str, unicode: bool) -> str:
    """A file's name, of signs that take a column each: nothing in it may move the cursor."""
    name = source.rpartition("/")[2]
    name = name if len(name) <= _LONGEST_NAME else f"...{name[3 - _LONGEST_NAME :]}"
    return "".join(sign if _is_plain(sign, unicode) else "?" for sign in name)


def _is_plain(sign: str, unicode: bool) -> bool:
    # From Hangul Jamo on there are signs that are two columns wide; combining ones have none.
    return sign.isprintable() and (sign < "\x7f" or (unicode and "\xa0" < sign < "\u0300"))
