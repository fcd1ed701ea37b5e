"""What a compiler cache has done for a build, in words. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from .words import count, duration

LEAST = 1.0  # seconds: less is not worth a word


@dataclass(frozen=True)
class Said:
    """What it said of one compile: see record.Run."""

    cache: str
    why: str
    saved: float


def sentence(compiles: Sequence[Said], before: str = "") -> str:
    """`cache: 10 hits (saved 5 min), 2 misses, 1 not cacheable (why)`; '' where no cache said anything."""
    said = [one for one in compiles if one.cache]
    if not said:
        return ""
    kinds = Counter(one.cache for one in said)
    saved = sum(one.saved for one in said)
    parts = [count(kinds["hit"], "hit") + (f" (saved {duration(saved)})" if saved >= LEAST else "")]
    parts += [_misses(kinds["miss"], sum(one.cache == "miss" and bool(one.why) for one in said))]
    parts += [f"{kinds['uncacheable']} not cacheable ({reasons(said)})"] if kinds["uncacheable"] else []
    silent = len(compiles) - len(said)
    parts += [f"{silent} without a word"] if silent else []
    return f"{before}cache: {', '.join(filter(None, parts))}"


def _misses(number: int, partial: int) -> str:
    """sccache takes the steps of nvcc one by one, so some may hit."""
    word = f"{number} {'miss' if number == 1 else 'misses'}" if number else ""
    return f"{word} ({partial} in part)" if partial else word


def reasons(said: Sequence[Said]) -> str:
    """Why some cannot be cached, the most frequent reason first."""
    found = Counter(one.why or "no reason given" for one in said if one.cache == "uncacheable")
    return "; ".join(why for why, _ in found.most_common(3))
