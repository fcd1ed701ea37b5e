"""What happened in a build, one JSON object a line. The supervisor writes them, the hook process reads them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path


@dataclass(frozen=True)
class Event:
    """What happened at `time` (seconds of the monotonic clock) to the compile `job`, or to the whole build.

    - `start`: a compile was admitted, with `threads`, after it had `waited` (seconds).
    - `freeze`, `thaw`: it was held still to save memory, or goes on.
    - `job`: one run of its compiler has ended. `seconds` on the clock, `cpu` in CPU seconds, `peak` and
      `curve` in bytes: what it held at most, and over its life. `entry` is its name in the history, `alone` the
      seconds that it would have taken alone on its CPUs, `archs` how many GPU architectures it was compiled for
      and `targets` which, `torch_header` whether it includes torch/extension.h (None: not known). `cache`: what a
      compiler cache said of it (`hit`, `miss`, `uncacheable`; '' without one), `cache_why` it cannot be cached,
      `saved`: seconds that a hit has saved, as far as earlier builds tell,
      `again`: an earlier build has compiled the same. `remote`: it was on a farm of other machines; with the
      outcome `returned`, `why` it came back, to be compiled here; one that came back and was `compiled` in the
      same run is not `remote`, and has a `why`.
    - `memory`: `held` by all running compiles, `available` in the domain that binds, whose size is `total`,
      and `budget`, what our compiles may hold of it; in bytes. Compiles `running` and `waiting`, and `why` the
      first of these waits.
    """

    kind: str
    time: float
    source: str = ""
    outcome: str = ""
    waited: float = 0.0
    seconds: float = 0.0
    cpu: float = 0.0
    peak: int = 0
    threads: int = 1
    archs: int = 0
    entry: str = ""
    alone: float = 0.0
    curve: tuple[int, ...] = ()
    job: int = 0
    cuda: bool = False
    targets: str = ""
    torch_header: bool | None = None
    why: str = ""
    cache: str = ""
    cache_why: str = ""
    saved: float = 0.0
    again: bool = False
    remote: bool = False
    held: int = 0
    available: int = 0
    budget: int = 0
    total: int = 0
    running: int = 0
    waiting: int = 0

    def to_line(self) -> str:
        """One line of JSON, without what is as by default."""
        values = {name: value for name in _DEFAULTS if (value := getattr(self, name)) != _DEFAULTS[name]}
        return json.dumps(values) + "\n"


_DEFAULTS = {field.name: field.default for field in fields(Event)}


def read(path: Path) -> Iterator[Event]:
    """The events in a file; a last line that was cut off by a crash is left out."""
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return
    for line in text.splitlines():
        try:
            values = json.loads(line)
            yield Event(**{**values, "curve": tuple(values.get("curve", ()))})
        except (ValueError, TypeError, KeyError):
            continue
