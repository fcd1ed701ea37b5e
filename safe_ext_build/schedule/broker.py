"""Admits compiles, keeps their books, and decides what a compile's end means for the build.

The broker lives in the supervisor and touches the world only through `send`: connections are opaque, time
is passed in. What must be done to processes it leaves in `stop_reason`, `jobs` and `ready_to_interrupt`.
Standard library only.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from ..events import Event
from . import command as commands
from . import outcome as outcomes
from . import policy

Connection = int  # the descriptor; the supervisor maps it to its socket
Send = Callable[[Connection, list[bytes]], None]
State = Literal["waiting", "running", "held", "ended"]


@dataclass
class Job:
    """One compile, from the moment its J asks until J is gone."""

    id: int
    connection: Connection
    pid: int
    parsed: commands.CompileJob
    directory: str
    cwd: str
    state: State = "waiting"
    alone: bool = False
    compiler: int = 0
    asked: float = 0.0
    started: float = 0.0
    oom_kills: int = 0
    peak: int = 0
    exit_code: int = 0
    command: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.parsed.source or self.parsed.output or os.path.basename(self.parsed.command[0])

    @property
    def candidate(self) -> policy.Candidate:
        return policy.Candidate(self.id, self.parsed.weight, self.alone)


@dataclass(frozen=True)
class Failure:
    """The first compile that failed: what the build ends with."""

    source: str
    code: int
    error: str
    memory: bool = False


@dataclass(frozen=True)
class Evidence:
    """What the supervisor saw of memory: OOM kills counted so far, and whether the budget was low just now."""

    oom_kills: int
    low: bool


class Broker:
    """The state of one build's compiles."""

    def __init__(
        self,
        limits: policy.Limits,
        directory: str,
        real: dict[str, str],
        send: Send,
        emit: Callable[[Event], None],
    ) -> None:
        self.limits = limits
        self.directory = directory
        self.real = real
        self.send = send
        self.emit = emit
        self.jobs: dict[Connection, Job] = {}
        self.ninjas: dict[Connection, int] = {}
        self.failure: Failure | None = None
        self.failed_job: Job | None = None
        self.stop_reason = ""
        self.interrupted = False
        self.winding_down = False
        self._next = 1

    # What the connections say.

    def receive(
        self, connection: Connection, pid: int, fields: list[bytes], now: float, evidence: Evidence
    ) -> None:
        """Handle one message; a message that makes no sense drops nothing but itself."""
        kind = fields[0]
        if kind == b"job" and connection not in self.jobs:
            self._ask(connection, pid, fields[1:], now)
        elif kind == b"ninja":
            self.ninjas[connection] = pid
            self.interrupted = False
        elif kind == b"ninja-done":
            self._ninja_done(connection, int(fields[1]))
        elif (job := self.jobs.get(connection)) is not None:
            if kind == b"started":
                job.compiler = int(fields[1])
                # The build goes on, so what failed before was expected to. (That a J was admitted says less: its
                # ninja may have been interrupted, and the J with it.)
                self.failure = self.failure if self.winding_down else None
            elif kind == b"signalled":
                self._stop(f"the job of {job.name} received {signal.Signals(int(fields[1])).name}")
            elif kind == b"done" and job.state == "running":
                status, peak, cpu = int(fields[1]), int(fields[2]), float(fields[3])
                self._done(job, status, peak, cpu, fields[4].decode(errors="replace"), now, evidence)
        self.step(now, evidence)

    def gone(self, connection: Connection, now: float, evidence: Evidence) -> Job | None:
        """A connection has closed. Returns the job whose compiler now has nobody, if there is one."""
        if connection in self.ninjas:
            self._ninja_done(connection, signal.SIGKILL)
        job = self.jobs.pop(connection, None)
        if job is None:
            self.step(now, evidence)
            return None
        orphaned = job.state == "running"
        if job.state != "ended" and not self.interrupted:
            self._stop(f"the job of {job.name} was killed")
        job.state = "ended"
        self.step(now, evidence)
        return job if orphaned else None

    def _ask(self, connection: Connection, pid: int, fields: list[bytes], now: float) -> None:
        cwd, prepend, append, *words = (os.fsdecode(item) for item in fields)
        compiler = commands.compiler_index(words)
        words[compiler] = self.real.get(words[compiler], words[compiler])
        parsed = commands.parse(words, prepend, append, self.limits.cpus)
        if parsed is None:
            self.send(connection, [b"pass"])
            return
        number = self._next
        self._next += 1
        directory = os.path.join(self.directory, str(number))
        self.jobs[connection] = Job(number, connection, pid, parsed, directory, cwd, asked=now)

    def _done(
        self, job: Job, status: int, peak: int, cpu: float, tail: str, now: float, evidence: Evidence
    ) -> None:
        job.peak = max(job.peak, peak)
        short = evidence.low or evidence.oom_kills > job.oom_kills
        outcome = outcomes.classify(status, tail, short)
        self._record(job, outcome, cpu, now)
        job.exit_code = _exit_code(status)
        if outcome == "compiled":
            self._release(job)
        elif outcome == "stopped":
            self._stop(f"the compiler of {job.name} was killed by signal {outcomes.killed_by(status, tail)}")
        elif outcome == "memory" and not job.alone:
            job.state, job.alone = "waiting", True
        else:
            self._fail(job, outcome, outcomes.first_error(tail))

    def _fail(self, job: Job, outcome: outcomes.Outcome, error: str) -> None:
        job.state = "held"
        if not self.winding_down:
            self.failed_job = job
            self.failure = Failure(job.name, job.exit_code, error, outcome == "memory")
            self.winding_down = bool(self.ninjas)
        if not self.winding_down:
            self._release(job)  # make and the like stop by themselves, and a configure step may expect it

    def _ninja_done(self, connection: Connection, status: int) -> None:
        if self.ninjas.pop(connection, None) is None:
            return
        if status & 0x7F and not self.interrupted:
            self._stop(f"ninja was killed by signal {status & 0x7F}")
        self.winding_down = self.winding_down and bool(self.ninjas)

    def _stop(self, reason: str) -> None:
        self.stop_reason = self.stop_reason or reason

    # What follows from it.

    def step(self, now: float, evidence: Evidence) -> None:
        """Admit what may start; or, after a failure, let the failed compile speak last."""
        if self.stop_reason:
            return
        if self.winding_down:
            self._wind_down()
            return
        waiting = sorted((job for job in self.jobs.values() if job.state == "waiting"), key=lambda job: job.id)
        running = [job.candidate for job in self.running()]
        by_id = {job.id: job for job in waiting}
        for number in policy.admit(self.limits, running, [job.candidate for job in waiting]):
            self._start(by_id[number], now, evidence)

    def running(self) -> list[Job]:
        return [job for job in self.jobs.values() if job.state == "running"]

    def _start(self, job: Job, now: float, evidence: Evidence) -> None:
        job.command, temporary = commands.with_temporary_output(job.parsed, f"seb-{job.id}")
        final = job.parsed.output if temporary else ""
        job.state, job.started, job.oom_kills = "running", now, evidence.oom_kills
        paths = [_absolute(job.cwd, path) for path in (temporary, final, job.parsed.depfile)]
        self.send(
            job.connection,
            [b"run", *map(os.fsencode, [job.directory, *paths, str(job.id), *job.command])],
        )

    def _wind_down(self) -> None:
        """After the first failure: the running compiles finish, then the failed ones speak, the first one last."""
        if self.running():
            return
        for job in list(self.jobs.values()):
            if job.state == "held" and job is not self.failed_job:
                self._release(job)
        ending = [job for job in self.jobs.values() if job.state == "ended"]
        if self.failed_job and self.failed_job.state == "held" and not ending:
            self._release(self.failed_job)  # the others are gone, so ninja has what they printed

    @property
    def ready_to_interrupt(self) -> int:
        """The pid of the failed compile's J, when ninja must be ended as soon as it has collected it; else 0."""
        if not self.winding_down or self.interrupted or not self.failed_job:
            return 0
        return self.failed_job.pid if self.failed_job.state == "ended" else 0

    def interrupt_ninja(self) -> None:
        self.interrupted = True
        for job in self.jobs.values():
            if job.state == "waiting":
                job.state = "ended"  # ninja ends their Js; none may start while it does
        for connection in self.ninjas:
            self.send(connection, [b"interrupt"])

    def _release(self, job: Job) -> None:
        job.state = "ended"
        self.send(job.connection, [b"end", b"%d" % job.exit_code])

    def _record(self, job: Job, outcome: outcomes.Outcome, cpu: float, now: float) -> None:
        self.emit(
            Event(
                kind="job",
                time=now,
                source=job.name,
                outcome=outcome,
                waited=job.started - job.asked,
                seconds=now - job.started,
                cpu=cpu,
                peak=job.peak,
                threads=job.parsed.threads,
                archs=job.parsed.archs,
            )
        )


def _absolute(cwd: str, path: str) -> str:
    return os.path.join(cwd, path) if path else ""


def _exit_code(status: int) -> int:
    return 128 + (status & 0x7F) if status & 0x7F else status >> 8
