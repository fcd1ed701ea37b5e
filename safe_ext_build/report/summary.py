"""What the compiles of a build have cost, in one line. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..events import Event
from . import caches, farmed

GIB = 1 << 30


def summarize(events: Sequence[Event]) -> str:
    """One line about the compiles; '' when nothing was compiled."""
    events = [event for event in events if event.kind == "job"]
    done = [event for event in events if event.outcome == "compiled"]
    if not done:
        return ""
    largest = max(done, key=lambda event: event.peak)
    elapsed = max(event.time for event in events) - min(event.time - event.seconds for event in events)
    cpu = sum(event.cpu for event in events)
    again = sum(event.outcome == "memory" for event in events)
    retries = f"; {again} stopped for memory and run again" if again else ""
    away = farmed.sentence(events, "; ")
    return (
        f"compiled {len(done)} {'object' if len(done) == 1 else 'objects'} in {elapsed:.0f} s "
        f"({cpu:.0f} CPU s{' here' if away else ''}, peak {largest.peak / GIB:.1f} GiB in "
        f"{Path(largest.source).name}{retries}){away}{_cached(done)}"
    )


def _cached(done: Sequence[Event]) -> str:
    """What the compiler cache did, where there was one."""
    return caches.sentence([caches.Said(event.cache, event.cache_why, event.saved) for event in done], "; ")
