"""This build among the other builds of its user: what they will still take, and how many CPUs are ours."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from ..machine.cgroups import Cgroup
from ..machine.neighbours import Neighbours, Outlook, Share, domains, fair_share

HOST = "host"


class Neighbourhood:
    """A record in each memory domain that binds us; without a place for records there are no neighbours."""

    def __init__(
        self, root: str, groups: tuple[Cgroup, ...], build_id: str, project: str, workspace: str = ""
    ) -> None:
        names = domains(groups=groups) if root else {}
        self._domains = {
            domain: Neighbours(Path(root) / directory, build_id, project, workspace)
            for domain, directory in names.items()
        }
        self._share = Share(0, 0)
        for neighbours in self._domains.values():
            neighbours.open()

    def outlooks(self) -> dict[str, Outlook]:
        """What the other builds mean for this one, in each domain."""
        return {domain: neighbours.outlook() for domain, neighbours in self._domains.items()}

    def cpus(self, all_cpus: int) -> int:
        """How many CPUs this build may keep busy."""
        host = self._domains.get(HOST)
        return fair_share(all_cpus, self._share, host.others()) if host else all_cpus

    @contextlib.contextmanager
    def turn(self) -> Iterator[bool]:
        """Hold the one lock under which builds admit compiles; False when another has it for too long."""
        host = self._domains.get(HOST)
        if host is None:
            yield True
            return
        with host.admission() as ours:
            yield ours

    def publish(self, share: Share) -> None:
        self._share = share
        for neighbours in self._domains.values():
            neighbours.publish(share)

    def close(self) -> None:
        for neighbours in self._domains.values():
            neighbours.close()
