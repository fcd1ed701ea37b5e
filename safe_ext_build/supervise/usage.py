"""What the jobs of a build use: one pass over /proc for all of them. Standard library only."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from .processes import JOB_VARIABLE, PAGE, environment_value

TICK = os.sysconf("SC_CLK_TCK")
ANEW = 16


class Usage(NamedTuple):
    """Of a process tree: resident bytes now, and CPU seconds so far (those of collected children included)."""

    held: int
    spent: float


class Watch:
    """Looks again and again, and does not read again what cannot belong to a job.

    A process gets new ancestors only by losing its parent, and then the supervisor or init is the next: who was
    once seen outside the jobs never comes into one. (But his pid may, so all are looked at anew now and then.)
    """

    def __init__(self) -> None:
        self._strangers: set[int] = set()
        self._passes = 0
        self._adopted: dict[int, tuple[int, int]] = {}
        self._before: dict[int, tuple[int, int]] = {}
        self.spent_by_servers = 0.0

    def look(self, roots: Mapping[int, int], servers: Collection[int] = ()) -> dict[int, Usage]:
        """What the descendants of each root process use; `roots` is job -> pid, and a root itself does not count.

        Shared pages count in every process that has them, so the sum errs on the safe side. Below `servers`
        processes work for jobs, too: for which, their environment says.
        """
        pids = set(map(int, filter(str.isdigit, os.listdir("/proc"))))
        self._strangers &= pids
        if self._passes % ANEW == 0:
            self._strangers.clear()
        self._passes += 1
        seen = _read(sorted(pids - self._strangers))
        return self._sum_up(roots, seen, self._adopt(seen, servers), servers)

    def adopted(self) -> dict[int, int]:
        """The servers' children, as they were last seen, and the jobs that they work for."""
        return {pid: job for pid, (_, job) in self._adopted.items() if job}

    def _adopt(self, seen: Mapping[int, list[bytes]], servers: Collection[int]) -> dict[int, int]:
        """Each child is asked until it tells: before it executes its program, it has its parent's environment."""
        found = {}
        for pid, fields in seen.items():
            if servers and int(fields[1]) in servers:
                start, job = self._adopted.get(pid, (0, 0))
                if start != int(fields[19]) or not job:
                    job = int(environment_value(pid, JOB_VARIABLE) or 0)
                found[pid] = (int(fields[19]), job)
        self._adopted = found
        return self.adopted()

    def _sum_up(
        self,
        roots: Mapping[int, int],
        seen: Mapping[int, list[bytes]],
        adopted: Mapping[int, int],
        servers: Collection[int],
    ) -> dict[int, Usage]:
        parents = {pid: int(fields[1]) for pid, fields in seen.items()}
        owners: dict[int, int | None] = {pid: job for job, pid in roots.items()}
        owners.update({pid: job if job in roots else None for pid, job in adopted.items()})
        held = dict.fromkeys(roots, 0)
        ticks = dict.fromkeys(roots, 0)
        for pid, parent in parents.items():
            job = owners[pid] if pid in adopted else _owner(parent, parents, owners)
            if job is not None:
                fields = seen[pid]
                held[job] += int(fields[21]) * PAGE
                ticks[job] += sum(map(int, fields[11:15]))
            elif pid not in servers and parent not in servers and (not parent or parent in self._strangers):
                # (Where the parent was not listed, since it is younger than the list, nothing is known yet.)
                self._strangers.add(pid)
        if servers:
            own = sum(sum(map(int, seen[server][11:15])) for server in servers if server in seen)
            self.spent_by_servers = (own + sum(ticks.values())) / TICK
            self._keep_ended(ticks)
        return {job: Usage(held[job], ticks[job] / TICK) for job in roots}

    def _keep_ended(self, ticks: dict[int, int]) -> None:
        """Add what ended children of the server have used: it collects them, and no counter of a job's grows."""
        self._before = {job: pair for job, pair in self._before.items() if job in ticks}
        for job, now in ticks.items():
            ended, last = self._before.get(job, (0, 0))
            ended += last if now < last else 0
            self._before[job] = (ended, now)
            ticks[job] = ended + now


def look(roots: Mapping[int, int]) -> dict[int, Usage]:
    """One look, as by a new `Watch`."""
    return Watch().look(roots)


def _owner(pid: int, parents: Mapping[int, int], owners: dict[int, int | None]) -> int | None:
    """The job that a process belongs to; what is found out on the way up is remembered."""
    way = []
    while pid not in owners and pid in parents:
        way.append(pid)
        pid = parents[pid]
    job = owners.get(pid)
    owners.update(dict.fromkeys(way, job))
    return job


def spent_by_all() -> tuple[dict[int, int], dict[int, float]]:
    """The parent of every process, and the CPU seconds that it has used."""
    seen = _read(map(int, filter(str.isdigit, os.listdir("/proc"))))
    parents = {pid: int(fields[1]) for pid, fields in seen.items()}
    return parents, {pid: sum(map(int, fields[11:15])) / TICK for pid, fields in seen.items()}


def _read(pids: Iterable[int]) -> dict[int, list[bytes]]:
    """The fields of /proc/PID/stat from the third on: 1 is the parent, 11 to 14 CPU ticks, 21 resident pages.

    Written for speed: at twice a second this is most of what the supervisor does.
    """
    seen: dict[int, list[bytes]] = {}
    for pid in pids:
        try:
            descriptor = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
        except OSError:
            continue
        try:
            data = os.read(descriptor, 4096)
        except OSError:
            continue
        finally:
            os.close(descriptor)
        fields = data[data.rfind(b")") + 2 :].split(b" ", 22)
        if len(fields) > 22:
            seen[pid] = fields
    return seen
