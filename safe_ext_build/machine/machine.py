"""The machine as a build sees it: one value, read once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .cpus import Cpus, read_cpus
from .files import read
from .memory import MemoryLimit, read_memory
from .pids import read_pids_free


@dataclass(frozen=True)
class Machine:
    """What this process may use of the machine that it runs on."""

    cpus: Cpus
    memory: tuple[MemoryLimit, ...]
    """The host first, then the cgroups that set a limit, the nearest first."""
    pids_free: int | None
    """Tasks that may still be started; None where there is no limit."""
    wsl: bool
    """In the virtual machine of Windows' Linux subsystem, which has less memory than the computer."""

    @property
    def budget(self) -> MemoryLimit:
        """The domain that binds: the one with least available (0 where no domain could be read)."""
        return min(self.memory, key=lambda limit: limit.available, default=MemoryLimit("unknown", 0, 0))


def read_machine(root: Path = Path("/")) -> Machine:
    """Read the machine. Never raises: a domain that cannot be read is left out."""
    return Machine(
        cpus=read_cpus(root),
        memory=read_memory(root),
        pids_free=read_pids_free(root),
        wsl="microsoft" in read(root / "proc/version").lower(),
    )
