"""How many more tasks the cgroups allow: each thread of each compiler counts as one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from .cgroups import Cgroup, ancestors
from .files import read_number


def read_pids_free(root: Path = Path("/")) -> int | None:
    """Tasks that may still be started in the tightest visible cgroup; None where none sets a limit."""
    return min(_free(ancestors("pids", root)), default=None)


def _free(groups: tuple[Cgroup, ...]) -> Iterator[int]:
    for group in groups:
        limit = read_number(group.directory / "pids.max")
        current = read_number(group.directory / "pids.current")
        if limit is not None and current is not None:
            yield max(0, limit - current)
