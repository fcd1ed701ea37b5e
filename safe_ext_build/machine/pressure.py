"""How long processes have stood still for want of memory (PSI). Standard library only, as the supervisor is."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from .cgroups import Cgroup, ancestors
from .files import read

_LINE = re.compile(r"^(some|full) avg10=(\d{1,3}(?:\.\d+)?)\s", re.MULTILINE)


@dataclass(frozen=True)
class Pressure:
    """Percent of the last 10 s, of whichever domain that binds us had the most; 0.0 where nobody tells."""

    some_avg10: float
    """At least one process stood still for want of memory."""
    full_avg10: float
    """None of those that wanted to run could."""


def read_pressure(root: Path = Path("/"), groups: tuple[Cgroup, ...] | None = None) -> Pressure:
    """The worst of the host and of the v2 cgroups that bind us.

    Who reads again and again passes `groups=pressure_groups()`, and the mount table is read only once.
    """
    if groups is None:
        groups = pressure_groups(root)
    files = [group.directory / "memory.pressure" for group in groups if group.version == 2]
    tables = [_parse(read(file)) for file in (root / "proc/pressure/memory", *files)]
    return Pressure(
        some_avg10=max(table.get("some", 0.0) for table in tables),
        full_avg10=max(table.get("full", 0.0) for table in tables),
    )


def pressure_groups(root: Path = Path("/")) -> tuple[Cgroup, ...]:
    """The v2 cgroups of this process, the nearest first: PSI is there also where v1 has the memory controller."""
    # No hierarchy of v1 has a controller of this name, so the answer is v2's.
    return ancestors("pressure", root)


def _parse(text: str) -> dict[str, float]:
    return {kind: min(100.0, float(percent)) for kind, percent in _LINE.findall(text)}
