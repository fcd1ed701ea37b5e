"""A build's client of the compile farm: an sccache server that has the steps of compiles run on other machines.

It is one of the build's own, beside the one that only caches: what it runs here by itself, because the farm does
not, has not been admitted, and the two must be told apart. Standard library only.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from ..launcher.call import Launching, farm_directory, farm_log
from ..launcher.redact import redact
from .cache_server import CacheServer

TRIES = 3
"""How often a client that is lost is started anew."""
_FELL_BACK = "Could not perform distributed compile, falling back to local: "
_TOOLS = {"cicc", "ptxas", "cudafe++", "cc1", "cc1plus"}
# The front that stands for nvcc (launcher.dryrun), and what sccache asks nvcc itself: they compile nothing.
_ASKED = re.compile(r"nvcc|(ba|da)?sh|python[\d.]*")
_TAIL = 1 << 16


class FarmClient(CacheServer):
    """Started with the first compile that is to leave."""

    what = "the client of the compile farm"

    def __init__(self, launching: Launching, environ: Mapping[str, str]) -> None:
        super().__init__(launching, environ, farm_directory(launching))
        self.address = launching.farm
        self.log = farm_log(launching)
        self.tries = 0

    def own_variables(self) -> dict[str, str]:
        """With the farm: the user's own configuration names it."""
        return {}

    def need(self) -> None:
        """A compile is to leave. One that was lost is started again, a few times."""
        if not self.address or self.tries >= TRIES:
            return
        if self.state in ("none", "lost"):
            self.state = "none"
            self.tries += 1
            os.makedirs(self.temporary, exist_ok=True)
            self.start()

    def line(self) -> str:
        more = "it is started again" if self.tries < TRIES else "what is left is compiled here"
        return f"{redact(self.why, self.environ)}; {more}"

    def why_not(self) -> str:
        """Why the farm has last refused a step, as its client says."""
        try:
            with open(self.log, "rb") as file:
                file.seek(max(0, os.path.getsize(self.log) - _TAIL))
                text = file.read().decode(errors="replace")
        except OSError:
            return ""
        found = [line.partition(_FELL_BACK)[2] for line in text.splitlines() if _FELL_BACK in line]
        return redact(found[-1], self.environ)[:300] if found else ""


def compiles(command: list[bytes]) -> bool:
    """Whether a process that the client has started is the part of a compile that was to run elsewhere.

    Preprocessors, nvcc's listing of its steps and fatbinary are always run here.
    """
    if not command or not command[0]:
        return False
    name = os.path.basename(os.fsdecode(command[0]))
    return name in _TOOLS or (b"-c" in command and b"-E" not in command and not _ASKED.fullmatch(name))
