"""A build's client of the compile farm: an sccache server that has the steps of compiles run on other machines.

It is one of the build's own, beside the one that only caches: what it runs here by itself, because the farm does
not, has not been admitted, and the two must be told apart. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Mapping

from ..launcher.call import Launching, farm_directory, farm_log
from ..launcher.redact import redact
from ..schedule.away import Away
from . import lookout
from .cache_server import CacheServer
from .processes import send

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
        self.answers = True
        self.lookout = -1

    def own_variables(self) -> dict[str, str]:
        """With the farm: the user's own configuration names it."""
        return {}

    def need(self) -> None:
        """A compile is to leave. One that was lost is started again, a few times."""
        if not self.address or self.tries >= TRIES or self.process:
            return
        if self.state in ("none", "lost"):
            self.state = "none"
            self.tries += 1
            os.makedirs(self.temporary, exist_ok=True)
            self.start()

    def lose(self, why: str) -> None:
        if self.state == "starting":
            self.tries = TRIES  # what keeps it from beginning keeps the next one, too, and waiting costs
        super().lose(why)

    def look_out(self) -> int:
        """Have the farm watched, with the client that runs now; returns the pipe that tells, or -1."""
        if self.lookout < 0 and self.process:
            with contextlib.suppress(OSError):  # no more processes: sccache's own timeouts must do
                _, self.lookout = lookout.start(self.process.pid, self.launching.scheduler)
        return self.lookout

    def hear(self, away: Away) -> str:
        """Take note of what the lookout says (`lookout` is -1 once it has ended); returns a line for people."""
        try:
            data = os.read(self.lookout, 1 << 16)
            reports = lookout.read_reports(data)
        except (OSError, ValueError, TypeError):
            data, reports = b"", []
        if not data:
            self.lookout = -1
        lines = [line for report in reports if (line := self._take(report, away))]
        return "; ".join(lines)

    def _take(self, report: lookout.Report, away: Away) -> str:
        if report.lost and self.process:
            self.lose(f"a server of the farm, {report.lost}, does not answer any more")
            send(self.process, signal.SIGKILL)
            return ""
        if self.launching.shares and report.cpus >= 0:
            away.slots = max(0, report.cpus - max(0, report.in_progress - away.steps))
        if report.answers == self.answers:
            return ""
        self.answers = report.answers
        if self.answers:
            return "the farm's scheduler answers again"
        return "the farm's scheduler does not answer any more: what is left is compiled here until it does"

    def leave_behind(self, away: Away) -> None:
        """The servers go on with what nobody waits for any more: until the scheduler is asked again, that takes up
        what they have. (One step is sent at any rate: only a client has the scheduler asked.)"""
        if self.launching.shares:
            away.slots = max(1, away.slots - away.steps)

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
        return redact(_cause(found[-1]), self.environ)[:200] if found else ""


def _cause(text: str) -> str:
    """What is at the bottom of it: an error of the farm's is JSON, each with its cause inside of it. Numbers of
    jobs are left out, so that what is alike is said once."""
    while described := re.findall(r'"description":\s*"((?:[^"\\]|\\.)*)"', text):
        text = re.sub(r"\\(.)", r"\1", described[-1])
    return re.sub(r" for url \([^)]*\)| \(Headers=\{.*?\}\)", "", text).strip()


def compiles(command: list[bytes]) -> bool:
    """Whether a process that the client has started is the part of a compile that was to run elsewhere.

    Preprocessors, nvcc's listing of its steps and fatbinary are always run here.
    """
    if not command or not command[0]:
        return False
    name = os.path.basename(os.fsdecode(command[0]))
    return name in _TOOLS or (b"-c" in command and b"-E" not in command and not _ASKED.fullmatch(name))
