"""How often the kernel has killed for memory. Standard library only: the supervisor imports this too."""

from __future__ import annotations

from pathlib import Path

from .cgroups import Cgroup, ancestors
from .files import field, read


def oom_kills(root: Path = Path("/"), groups: tuple[Cgroup, ...] | None = None) -> dict[str, int]:
    """Kills so far, by domain: `host`, and our own cgroup under the name that `MemoryLimit` gives it.

    The cgroup counts the victims that were in it (on v2 also below it), whichever domain ran out of memory;
    the host counts every victim on the machine. So a rise of the cgroup's is one of ours (or of a neighbour
    in the same cgroup), while a rise of the host's alone may be anybody's. Kernels before 4.13 count neither.
    """
    if groups is None:
        groups = ancestors("memory", root)
    counts = {"host": field(read(root / "proc/vmstat"), "oom_kill")}
    counts.update((f"cgroup {group.name}", _group_kills(group)) for group in groups[:1])
    return {domain: count for domain, count in counts.items() if count is not None}


def _group_kills(group: Cgroup) -> int | None:
    name = "memory.oom_control" if group.version == 1 else "memory.events"
    return field(read(group.directory / name), "oom_kill")
