"""What the jobs of a build use: one pass over /proc for all of them. Standard library only."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

from .processes import PAGE

TICK = os.sysconf("SC_CLK_TCK")


class Usage(NamedTuple):
    """Of a process tree: resident bytes now, and CPU seconds so far (those of collected children included)."""

    held: int
    spent: float


def look(roots: Mapping[int, int]) -> dict[int, Usage]:
    """What the descendants of each root process use; `roots` is job -> pid, and a root itself does not count.

    Shared pages count in every process that has them, so the sum errs on the safe side.
    """
    parents, figures = read_all()
    owners: dict[int, int | None] = {pid: job for job, pid in roots.items()}
    held = dict.fromkeys(roots, 0)
    ticks = dict.fromkeys(roots, 0)
    for pid, parent in parents.items():
        job = _owner(parent, parents, owners)
        if job is not None:
            bytes_held, spent = figures[pid]
            held[job] += bytes_held
            ticks[job] += spent
    return {job: Usage(held[job], ticks[job] / TICK) for job in roots}


def _owner(pid: int, parents: Mapping[int, int], owners: dict[int, int | None]) -> int | None:
    """The job that a process belongs to; what is found out on the way up is remembered."""
    way = []
    while pid not in owners and pid in parents:
        way.append(pid)
        pid = parents[pid]
    job = owners.get(pid)
    owners.update(dict.fromkeys(way, job))
    return job


def read_all() -> tuple[dict[int, int], dict[int, tuple[int, int]]]:
    """Parent, and (resident bytes, CPU ticks), of every process: fields 4, 24 and 14 to 17 of stat.

    Written for speed: at twice a second this is most of what the supervisor does.
    """
    parents: dict[int, int] = {}
    figures: dict[int, tuple[int, int]] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            descriptor = os.open(f"/proc/{name}/stat", os.O_RDONLY)
        except OSError:
            continue
        try:
            data = os.read(descriptor, 4096)
            fields = data[data.rindex(b")") + 2 :].split(b" ", 22)
            pid = int(name)
            parents[pid] = int(fields[1])
            figures[pid] = (int(fields[21]) * PAGE, sum(map(int, fields[11:15])))
        except (OSError, ValueError, IndexError):
            continue
        finally:
            os.close(descriptor)
    return parents, figures
