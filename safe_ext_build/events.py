"""What happened in a build, one JSON object a line. The supervisor writes them, the hook process reads them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Event:
    """One ended run of a compiler. Times in seconds (`time`: monotonic clock), `peak` and `curve` in bytes.

    `entry` is the name of the compile in the history, `curve` what it held over its life, `alone` the
    seconds that it would have taken alone on its CPUs.
    """

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
    entry: str
    alone: float
    curve: tuple[int, ...]

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
            values = json.loads(line)
            yield Event(**{**values, "curve": tuple(values["curve"])})
        except (ValueError, TypeError, KeyError):
            continue
