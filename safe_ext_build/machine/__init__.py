"""What a build may use of this machine: CPUs, memory, tasks. Readers only; standard library at import."""

from __future__ import annotations

from .cgroups import Cgroup, ancestors
from .cpus import Cpus
from .machine import Machine, read_machine
from .memory import MemoryLimit, floor, read_memory, reserve
from .oom import oom_kills

__all__ = [
    "Cgroup",
    "Cpus",
    "Machine",
    "MemoryLimit",
    "ancestors",
    "floor",
    "oom_kills",
    "read_machine",
    "read_memory",
    "reserve",
]
