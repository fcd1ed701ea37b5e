"""Numbers as people read them. Pure."""

from __future__ import annotations

import re

GIB = 1 << 30
MIB = 1 << 20


def duration(seconds: float) -> str:
    """`0.4 s`, `42 s`, `4 min 12 s`, `2 h 05 min`."""
    if seconds < 9.95:
        return f"{max(0.0, seconds):.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s" if rest else f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def clock(seconds: float) -> str:
    """`4:12`, `1:04:12`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def size(count: int) -> str:
    """`812 MiB`, `4.1 GiB`."""
    return f"{count / MIB:.0f} MiB" if count < GIB else f"{count / GIB:.1f} GiB"


def share(part: float, whole: float) -> str:
    """`52%`, `0.4%`."""
    percent = 100 * part / whole if whole else 0.0
    return f"{percent:.1f}%" if 0.05 <= percent < 0.95 else f"{percent:.0f}%"


def count(number: int, what: str) -> str:
    """`1 compile`, `2 compiles`."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def name(source: str, longest: int = 60) -> str:
    """A path that is not too long to read: its end, which tells most."""
    return source if len(source) <= longest else f"…{source[1 - longest :]}"


def error_label(code: str) -> str:
    """What stands before an error: `error[SEB-6001]:`, or `error:` for one that has no id."""
    return f"error[{code}]:" if code else "error:"


def without_home(text: str, home: str) -> str:
    """The text with `~` for the home directory."""
    if not home.strip("/"):
        return text
    return re.sub(re.escape(home.rstrip("/")) + r"(?![\w.-])", "~", text)
