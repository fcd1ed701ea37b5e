"""Small files of the kernel: whatever is missing, unreadable, gone meanwhile or junk reads as nothing."""

from __future__ import annotations

from pathlib import Path


def read(path: Path) -> str:
    """The text of a file, or "" when it cannot be read; bytes that are not UTF-8 stay usable in paths."""
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except (OSError, ValueError):
        return ""


def number(text: str) -> int | None:
    """A count as the kernel writes it. `max`, `-1` and junk are no number."""
    text = text.strip()
    # The length bound keeps junk away from int(), which is slow on, and refuses, very long digits.
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 20 else None


def read_number(path: Path) -> int | None:
    """The one number that a file holds."""
    return number(read(path))


def field(text: str, key: str) -> int | None:
    """The number after `key` in lines such as `oom_kill 3` or `MemTotal:  16384 kB`."""
    for line in text.splitlines():
        words = line.split()
        if len(words) > 1 and words[0].removesuffix(":") == key:
            return number(words[1])
    return None
