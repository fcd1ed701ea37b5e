"""What happened in a build, one JSON object a line. The supervisor writes them, the hook process reads them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Event:
    """One ended run of a compiler. Times in seconds (`time`: monotonic clock), `peak` in bytes."""

    kind: str
    time: float
    source: str
    outcome: str
    waited: float
    seconds: float
    cpu: float
    peak: int
    threads: int
    archs: int

    def to_line(self) -> str:
        return json.dumps(asdict(self)) + "\n"


def read(path: Path) -> Iterator[Event]:
    """The events in a file; a last line that was cut off by a crash is left out."""
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return
    for line in text.splitlines():
        try:
            yield Event(**json.loads(line))
        except (ValueError, TypeError):
            continue
