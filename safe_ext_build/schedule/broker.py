"""Admits compiles, keeps their books, and decides what a compile's end means for the build.

The broker lives in the supervisor and touches the world only through `send`, and where a compiler cache needs
names or has a verdict: connections are opaque, time is passed in. What must be done to processes it leaves in
`stop_reason`, `doomed`, `paused` (True: stop it, False: let it go on) and `ready_to_interrupt`.
Standard library only.
"""

from __future__ import annotations

import os
import re
import signal
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from ..events import Event
from ..launcher import names, storage
from ..launcher.call import CCACHE, SCCACHE, VERDICT, Called, Compile, Launching, call, farm_log, on_farm
from ..launcher.redact import redact
from ..launcher.verdict import ServerLog, Verdict, read_ccache
from ..ui import PREFIX
from . import command as commands
from . import fit as fits
from . import history_key
from . import outcome as outcomes
from .forecast import GIB, Curve, Features, Forecaster, resample
from .policy import Decision, Limits, Memory, Scheduler, Waiting

Connection = int  # the descriptor; the supervisor maps it to its socket
Send = Callable[[Connection, list[bytes]], None]
State = Literal["waiting", "running", "held", "ended"]


# A compile that is killed for memory again, although nothing of ours ran beside it, does not fit.
KILLS_ALONE = 2
FARM_LOST = "the build's client of the farm was lost"
# When two steps send one compiler to a server at a time, sccache-dist 0.16 cuts the second off, and then has it.
CUT_OFF = "Could not submit toolchain"
UNSAID = "it does not say why"
# A run is never taken to be shorter than this (seconds): the scheduler divides by it.
SHORTEST = 0.05
# Of sccache's client, about a step; and a place in a source, as gcc and nvcc write it.
_REFUSED = re.compile(r"http error status: (Error \d+: [^\[\n]{1,150})")
_PLACE = re.compile(r"[(:]\d+[):]")
_SCCACHE_FAILED = re.compile(r"^sccache: (?:error\b|encountered fatal error)", re.MULTILINE)


@dataclass
class Job:
    """One compile, from the moment its J asks until J is gone.

    `call`: what it runs, made to fit. `samples`: (CPU seconds, bytes) of the run that is on. `company`:
    whether another compile ran beside it. `doomed`: we have killed its compiler, for memory. `torch_header`:
    whether it includes torch/extension.h, where that is known. `own_launcher`: what stood before its compiler,
    `launcher`: the tool that it runs through, `output`: the name that this run writes to, `served`: CPU seconds
    that the cache's server was seen to spend on it, `uncached`: sccache has failed for it. `remote`: this run is
    on the farm, `unasked`: why it came back from there, `cut_off`: that was for a moment's reason, once, `named`:
    its J was told of names or variables.
    """

    id: int
    connection: Connection
    pid: int
    parsed: commands.CompileJob
    features: Features
    directory: str
    cwd: str
    call: fits.Call
    asked: float
    state: State = "waiting"
    compiler: int = 0
    threads: int = 1
    started: float = 0.0
    oom_kills: int = 0
    peak: int = 0
    exit_code: int = 0
    company: bool = False
    doomed: bool = False
    kills_alone: int = 0
    torch_header: bool | None = None
    own_launcher: str = ""
    launcher: str = ""
    output: str = ""
    served: float = 0.0
    remote: bool = False
    unasked: str = ""
    cut_off: bool = False
    named: bool = False
    uncached: bool = False
    samples: list[tuple[float, int]] = field(default_factory=list)

    @property
    def ran(self) -> Features:
        """What it is, as it runs now."""
        return replace(self.features.with_threads(self.threads), remote=self.remote)

    @property
    def name(self) -> str:
        return self.parsed.source or self.parsed.output or os.path.basename(self.parsed.command[0])


@dataclass(frozen=True)
class Failure:
    """The first compile that failed: what the build ends with. `situation`: its id, where it is known here."""

    source: str
    code: int
    error: str
    memory: bool = False
    situation: str = ""


@dataclass(frozen=True)
class Sight:
    """What the supervisor saw of memory: the domain that binds, the OOM kills that the kernel has counted so
    far, and whether a domain was below its floor just now."""

    memory: Memory
    oom_kills: int
    low: bool


@dataclass(frozen=True)
class Naming:
    """What a build's compiles have in common.

    `real`: shim -> the compiler behind it. `project`, `root` and `compilers` ("cuda" and "host" -> build)
    name compiles in the history. `free_threads`: nobody has said how many threads nvcc is to use, so idle
    CPUs may get some. `fit`: what their command lines have to fit. `launching`: the compiler cache before them.
    """

    real: dict[str, str]
    project: str
    root: str
    compilers: dict[str, str]
    free_threads: bool
    fit: fits.Fit = field(default_factory=fits.Fit)
    launching: Launching = field(default_factory=Launching)


class Broker:
    """The state of one build's compiles."""

    def __init__(
        self,
        limits: Limits,
        naming: Naming,
        directory: str,
        history: Mapping[str, Curve],
        send: Send,
        emit: Callable[[Event], None],
    ) -> None:
        self.limits = limits
        self.naming = naming
        self.directory = directory
        # Builds that have all just stopped a compile must not all start the next one in the same moment.
        jitter = zlib.crc32(directory.encode()) / 0xFFFFFFFF
        self.scheduler = Scheduler(limits, Forecaster(history), jitter)
        self.send = send
        self.emit = emit
        self.jobs: dict[Connection, Job] = {}
        self.ninjas: dict[Connection, int] = {}
        self.places = names.Places(os.path.dirname(directory))
        self.server_log = ServerLog(naming.launching.log)
        self.farm_log = ServerLog(farm_log(naming.launching))
        self.server_lost = False
        self.farmed = 0
        self.storage = storage.Storage()
        self.cached = {"hit": 0, "miss": 0, "uncacheable": 0}
        self.compiled = 0
        self.planned = 0  # compiles, by what each ninja has said that it is to do
        self.frozen: set[int] = set()
        self.doomed: list[Job] = []
        self.paused: list[tuple[Job, bool]] = []
        self.held = ""
        self.failure: Failure | None = None
        self.failed_job: Job | None = None
        self.stop_reason = ""
        self.interrupted = False
        self.winding_down = False
        self._next = 1
        self._said: set[str] = set()

    # What the connections say.

    def receive(self, connection: Connection, pid: int, fields: list[bytes], now: float, sight: Sight) -> None:
        """Handle one message; a message that makes no sense drops nothing but itself."""
        kind = fields[0]
        if kind == b"job" and connection not in self.jobs:
            self._ask(connection, pid, fields[1:], now)
        elif kind == b"ninja":
            self.ninjas[connection] = pid
            self.interrupted = False
            self.planned += int(fields[2]) if len(fields) > 2 else 0
        elif kind == b"ninja-done":
            self._ninja_done(connection, int(fields[1]))
        elif (job := self.jobs.get(connection)) is not None:
            if kind == b"started":
                job.compiler = int(fields[1])
                self.scheduler.started(job.id, now)
                if job.doomed or (job.remote and job.unasked):
                    self.doomed.append(job)  # when it was to be killed there was no compiler yet
                # The build goes on, so what failed before was expected to. (That a J was admitted says less: its
                # ninja may have been interrupted, and the J with it.)
                self.failure = self.failure if self.winding_down else None
            elif kind == b"signalled":
                self._stop(f"the compile of {job.name} received {signal.Signals(int(fields[1])).name}")
            elif kind == b"done" and job.state == "running":
                status, peak, cpu = int(fields[1]), int(fields[2]), float(fields[3])
                job.torch_header = {b"0": False, b"1": True}.get(b"".join(fields[5:6]))
                self._done(job, status, peak, cpu, fields[4].decode(errors="replace"), now, sight)

    def gone(self, connection: Connection) -> Job | None:
        """A connection has closed. Returns the job whose compiler now has nobody, if there is one."""
        if connection in self.ninjas:
            self._ninja_done(connection, signal.SIGKILL)
        job = self.jobs.pop(connection, None)
        if job is None:
            return None
        orphaned = job.state == "running"
        if job.state != "ended" and not self.interrupted:
            self._stop(f"the compile of {job.name} was killed")
        job.state = "ended"
        self.scheduler.remove(job.id)
        return job if orphaned else None

    def abandoned(self, job: Job) -> None:
        """Nobody waits for this job any more: what stood between it and ninja was killed."""
        if not self.interrupted:
            self._stop(f"the compile of {job.name} was killed")

    def _ask(self, connection: Connection, pid: int, fields: list[bytes], now: float) -> None:
        cwd, prepend, append, *words = (os.fsdecode(item) for item in fields)
        words, own_launcher = commands.without_launchers(commands.split_program(words))
        words[0] = self.naming.real.get(words[0], words[0])
        ours = words[0] in self.naming.real.values()
        fitted = fits.fit(fits.Call(tuple(words), prepend, append), self.naming.fit, ours=ours)
        job = self._add(connection, pid, fitted.call, cwd, now)
        if job is None:
            self.send(connection, [b"pass"])
            return
        job.own_launcher = own_launcher
        self._say(job, fitted.lines)
        if fitted.error:
            self._refuse(job, fitted.error)
            return
        self._enqueue(job)

    def _enqueue(self, job: Job) -> None:
        most = len(job.parsed.archs) if self.naming.free_threads else 0
        may_leave = bool(self.naming.launching.farm and job.parsed.compiles)
        self.scheduler.enqueue(Waiting(job.id, job.features, most, may_leave))

    def _add(self, connection: Connection, pid: int, call: fits.Call, cwd: str, now: float) -> Job | None:
        parsed = commands.parse(list(call.command), call.prepend, call.append, self.limits.cpus)
        if parsed is None:
            return None
        features = self._features(parsed, cwd, [*call.command, *call.prepend.split(), *call.append.split()])
        number = self._next
        self._next += 1
        directory = os.path.join(self.directory, str(number))
        job = self.jobs[connection] = Job(number, connection, pid, parsed, features, directory, cwd, call, now)
        return job

    def _say(self, job: Job, lines: Iterable[str]) -> None:
        """Say what is true of many compiles once: before the output of the first of them."""
        for line in lines:
            if line not in self._said:
                self._said.add(line)
                self.send(job.connection, [b"say", os.fsencode(f"{PREFIX}{line}\n")])

    def _refuse(self, job: Job, error: str) -> None:
        """End a compile that cannot succeed, as its compiler would have."""
        situation = "SEB-6005"
        self.send(job.connection, [b"say", os.fsencode(f"{PREFIX}error[{situation}]: {job.name}: {error}\n")])
        job.exit_code = 1
        self._fail(job, Failure(job.name, 1, error, situation=situation))

    def _features(self, parsed: commands.CompileJob, cwd: str, words: list[str]) -> Features:
        compiler = self.naming.compilers.get("cuda" if parsed.cuda else "host", "")
        source = _absolute(cwd, parsed.source or parsed.output)
        key = history_key.key(
            self.naming.project, source, words, parsed.archs, None, compiler, root=self.naming.root
        )
        return Features(parsed.cuda, max(1, len(parsed.archs)), parsed.threads, key)

    def _done(self, job: Job, status: int, peak: int, cpu: float, said: str, now: float, sight: Sight) -> None:
        job.peak = max(job.peak, peak)
        job.exit_code = _exit_code(status)
        spent = _progress(max(cpu, job.served), now - job.started)
        if job.launcher == SCCACHE:  # its server runs the compilers: J has seen its client only
            spent = max([spent, *(progress for progress, _ in job.samples)])
        curve = self._curve(job, spent, peak)
        said_of = self._verdict(job) if status == 0 else Verdict()
        self._say(job, self.heed_storage(now, job))
        if status and self._failed_by_its_cache(job, said):
            self._go_without_cache(job, now)
            return
        short = sight.low or sight.oom_kills > job.oom_kills
        outcome: outcomes.Outcome = "memory" if job.doomed and status else outcomes.classify(status, said, short)
        if job.remote and status and not job.doomed:
            # Of a step that fails there sccache 0.16 tells neither the status nor, for nvcc, what was said; and it
            # may be that machine's fault. Here it will be told as it is.
            outcome, job.unasked = "returned", job.unasked or redact(_last_word(said))
        may_leave = job.unasked == FARM_LOST or self._is_cut_off(job)
        if job.unasked and not may_leave:
            self._say(job, [f"what the farm does not compile ({_in_short(job.unasked)}) is compiled here"])
        self._record(job, outcome, max(cpu, job.served), curve, now, said_of)
        self.frozen.discard(job.id)
        if outcome == "compiled":
            self.compiled += 1
            self.farmed += job.remote and said_of.result != "hit"
            self.scheduler.finished(job.id, now, curve if self._teaches(job, said_of) else None)
            self._release(job)
        elif outcome == "stopped":
            self._stop(f"the compiler of {job.name} was killed by signal {outcomes.killed_by(status, said)}")
        elif outcome == "returned":
            job.cut_off = job.cut_off or self._is_cut_off(job)
            self.scheduler.returned(job.id, now, may_leave=may_leave)
            job.state, job.remote = "waiting", False
        elif outcome == "memory" and self._may_try_again(job, sight):
            self.scheduler.killed(job.id, now)
            job.state, job.remote = "waiting", False
        else:
            self.scheduler.finished(job.id, now)
            self._fail(job, self._failure(job, outcome, said, sight))

    def _verdict(self, job: Job) -> Verdict:
        """What the cache says of a compile that has succeeded."""
        if job.launcher == CCACHE:
            found = read_ccache(os.path.join(job.directory, VERDICT))
        else:
            log = self.farm_log if job.remote else self.server_log
            found = log.verdict(job.output, job.parsed.source) if job.launcher == SCCACHE else Verdict()
        if found.result:
            self.cached[found.result] += 1
        return found

    def _failed_by_its_cache(self, job: Job, said: str) -> bool:
        """Whether it was sccache that failed, or may have been. A client whose server has just died wants to start
        one of its own, and fails when it cannot."""
        if job.launcher != SCCACHE or job.remote or job.doomed or self.winding_down:
            return False
        return self.server_lost or bool(_SCCACHE_FAILED.search(said))

    def _go_without_cache(self, job: Job, now: float) -> None:
        """Run it once more, the compiler alone: what that says is the truth."""
        job.uncached, job.state = True, "waiting"
        self.frozen.discard(job.id)
        self.scheduler.finished(job.id, now)
        self._enqueue(job)

    def heed_storage(self, now: float, job: Job | None = None) -> list[str]:
        """Take note of whether the storage that the cache shares answers, as its server's log says or that of the
        compile that has just ended; returns what is to be said."""
        job = job or next((one for one in self.running() if one.launcher == SCCACHE), None)
        if job is None or not job.launcher:
            return []
        if served := job.launcher == SCCACHE:
            word = (self.farm_log if job.remote else self.server_log).word()
        else:
            word = storage.read_ccache(os.path.join(job.directory, storage.LOG))
        lines = self.storage.heed(word, len(self.running()), now, job.launcher)
        self.server_lost = self.server_lost or (served and self.storage.given_up)
        return [redact(line, known=self.naming.launching.secrets) for line in lines]

    def _teaches(self, job: Job, said_of: Verdict) -> bool:
        """Whether a run shows what the compile costs: a hit does not, in whole or in part, nor one that a server
        ran unseen, nor one that was half on a farm."""
        seen = job.launcher != SCCACHE or ((job.remote or self.naming.launching.ours) and bool(job.samples))
        in_part = said_of.result == "miss" and bool(said_of.why)
        return seen and said_of.result != "hit" and not in_part and not job.unasked

    def _curve(self, job: Job, spent: float, peak: int) -> Curve:
        """What the run that has just ended took; one too short to be seen is known by its peak alone."""
        samples = [*job.samples, (max(spent, SHORTEST), 0)] if job.samples else [(max(spent, SHORTEST), peak)]
        return resample(samples, job.ran.parallelism)

    def _may_try_again(self, job: Job, sight: Sight) -> bool:
        # A build that others have to come before was not alone, whatever of it ran.
        job.kills_alone += not job.company and sight.memory.first
        return job.kills_alone < KILLS_ALONE

    def _failure(self, job: Job, outcome: outcomes.Outcome, said: str, sight: Sight) -> Failure:
        secrets = self.naming.launching.secrets  # a launcher's own errors may name what it stores in
        error = redact(outcomes.first_error(said), known=secrets)
        if outcome == "memory":
            error = (
                f"the compiler was killed because memory ran out, although nothing else of this build ran "
                f"(it held {job.peak / GIB:.1f} GiB of {sight.memory.total / GIB:.1f})"
            )
        return Failure(job.name, job.exit_code, error, outcome == "memory")

    def _fail(self, job: Job, failure: Failure) -> None:
        job.state = "held"
        if not self.winding_down:
            self.failed_job = job
            self.failure = failure
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

    def step(self, now: float, sight: Sight) -> None:
        """Admit what may start; or, after a failure, let the failed compile speak last."""
        if self.stop_reason:
            return
        if self.winding_down:
            self._stop_and_go(self.scheduler.relieve(now, sight.memory), now)
            self._wind_down()
            return
        decision = self.scheduler.decide(now, sight.memory)
        self.held = decision.held
        by_id = {job.id: job for job in self.jobs.values()}
        for number, threads in decision.send:
            self._start(by_id[number], threads, now, sight, remote=True)
        for number, threads in decision.admit:
            self._start(by_id[number], threads, now, sight)
        self._stop_and_go(decision, now)

    def _stop_and_go(self, decision: Decision, now: float) -> None:
        for job in self.running():
            if job.id in decision.kill:
                job.doomed = True
                self.doomed.append(job)
            elif job.id in (*decision.freeze, *decision.thaw):
                freeze = job.id in decision.freeze
                (self.frozen.add if freeze else self.frozen.discard)(job.id)
                self.paused.append((job, freeze))
                self.emit(Event("freeze" if freeze else "thaw", now, job.name, job=job.id))

    def came_back(self, number: int, why: str) -> None:
        """The farm's client has begun to compile here, unasked, what was to run there. It is ended, and waits for
        its turn as any other compile: nobody has looked whether there is room for it, and its next steps would go
        to a farm that has just refused one. The steps that are done are in the cache."""
        job = next((job for job in self.running() if job.id == number), None)
        if job is not None and job.remote and not job.unasked:
            job.unasked = why or UNSAID
            self.doomed.append(job)

    def _is_cut_off(self, job: Job) -> bool:
        """Whether the farm would take it now; but twice is not for a moment's reason."""
        return job.unasked.startswith(CUT_OFF) and not job.cut_off

    def recall(self, why: str) -> None:
        """Nothing that is on the farm will come to an end there."""
        for job in self.running():
            if job.remote and not job.unasked:
                job.unasked = why
                self.doomed.append(job)

    def set_cpus(self, cpus: int) -> None:
        """Neighbours come and go, and with them our share of the CPUs."""
        self.scheduler.limits = replace(self.limits, cpus=cpus)

    def observe(self, usage: Mapping[int, tuple[int, float]], now: float) -> None:
        """Take note of what the running compiles use: job -> (bytes held, CPU seconds spent)."""
        progress = {}
        for job in self.running():
            if job.id in usage:
                held, spent = usage[job.id]
                progress[job.id] = _progress(spent, now - job.started)
                job.peak = max(job.peak, held)
                job.served = max(job.served, spent) if job.launcher == SCCACHE else 0.0
                job.samples.append((progress[job.id], held))
        cpu = {number: used for number, (_, used) in usage.items()}
        self.scheduler.observed({job: held for job, (held, _) in usage.items()}, now, progress, cpu)

    def note(self, usage: Mapping[int, tuple[int, float]], now: float, memory: Memory) -> None:
        """Write down how much memory the build holds and may hold, and why what waits does."""
        held = sum(bytes_held for bytes_held, _ in usage.values())
        promised = max(memory.promised, default=0)
        waiting = sum(job.state == "waiting" for job in self.jobs.values())
        self.emit(
            Event(
                kind="memory",
                time=now,
                held=held,
                available=memory.available,
                budget=max(0, memory.available + held - memory.reserve - promised),
                total=memory.total,
                running=len(usage),
                waiting=waiting,
                why=self.held if waiting else "",
            )
        )

    def waiting(self) -> list[Job]:
        return [job for job in self.jobs.values() if job.state == "waiting"]

    def running(self) -> list[Job]:
        return [job for job in self.jobs.values() if job.state == "running"]

    def _start(self, job: Job, threads: int, now: float, sight: Sight, *, remote: bool = False) -> None:
        command, temporary = commands.with_temporary_output(job.parsed, f"seb-{job.id}")
        command, prepend, append = commands.with_threads(
            job.parsed, command, job.call.prepend, job.call.append, threads
        )
        final = job.parsed.output if temporary else ""
        job.remote, job.unasked = remote, ""
        called = self._called(job, command, prepend, append, temporary)
        self.storage.began(now)
        beside = self.running()
        job.company = bool(beside)
        for other in beside:
            other.company = True
        job.state, job.started, job.oom_kills = "running", now, sight.oom_kills
        job.threads, job.samples, job.doomed, job.served = threads, [], False, 0.0
        paths = [_absolute(job.cwd, path) for path in (temporary, final, job.parsed.depfile)]
        if job.launcher or job.named:
            job.named = True
            self.send(job.connection, [b"with", *map(os.fsencode, self._terms(called))])
        fields = [job.directory, *paths, str(job.id), called.prepend, called.append, *called.words]
        self.send(job.connection, [b"run", *map(os.fsencode, fields)])
        cuda, waited = job.parsed.cuda, now - job.asked
        started = Event(
            "start", now, job.name, waited=waited, threads=threads, job=job.id, cuda=cuda, remote=remote
        )
        self.emit(started)

    def _terms(self, called: Called) -> Iterable[str]:
        """What a J has to know of this run beside its command: see job.py."""
        extra = {"CCACHE_REMOTE_STORAGE": "", "SCCACHE_NO_CACHE": "1"} if self.storage.given_up else {}
        variables = (f"{name}={value}" for name, value in {**called.variables, **extra}.items())
        secrets = self.naming.launching.secrets
        return names.lines(called.used), *map("\n".join, (variables, secrets, called.keeps))

    def _called(self, job: Job, command: list[str], prepend: str, append: str, temporary: str) -> Called:
        """How the compiler is called: through the compiler cache, where there is one."""
        launching = self.naming.launching
        job.launcher, job.output = self.tool_of(job), temporary
        if not job.launcher:
            if job.own_launcher and launching.keeps and not (self.server_lost or job.uncached):
                command = [job.own_launcher, *command]
            return Called(tuple(command), prepend, append)
        parsed = job.parsed
        compile = Compile(tuple(command), prepend, append, parsed.cuda, parsed.source, job.cwd, job.directory)
        called = call(compile, launching, job.launcher, job.own_launcher, named=bool(temporary))
        if called.used and not self.places.establish(job.cwd, called.used):
            called = call(compile, launching, job.launcher, job.own_launcher, named=False)
        return on_farm(called, launching) if job.remote else called

    def tool_of(self, job: Job) -> str:
        """The compiler cache that a compile goes through; '' for none. The farm has a server of its own."""
        if job.remote:
            return SCCACHE
        tool = self.naming.launching.choose(job.own_launcher) if job.parsed.compiles else ""
        lost = self.server_lost or job.uncached or not self.naming.launching.server
        return "" if tool == SCCACHE and lost else tool

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
                job.state = "ended"  # ninja ends their Js; none may start while it does, or after it
                self.scheduler.remove(job.id)
        for connection in self.ninjas:
            self.send(connection, [b"interrupt"])

    def _release(self, job: Job) -> None:
        job.state = "ended"
        self.send(job.connection, [b"end", b"%d" % job.exit_code])

    def _record(
        self, job: Job, outcome: outcomes.Outcome, cpu: float, curve: Curve, now: float, said_of: Verdict
    ) -> None:
        known = self.scheduler.forecaster.seconds_known(job.ran)
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
                threads=job.threads,
                archs=len(job.parsed.archs),
                entry=job.ran.entry,
                alone=curve.seconds,
                curve=curve.points if self._teaches(job, said_of) else (),
                job=job.id,
                cuda=job.parsed.cuda,
                targets=";".join(job.parsed.archs),
                torch_header=job.torch_header,
                why=_why(job, outcome),
                remote=job.remote,
                cache=said_of.result,
                cache_why=said_of.why,
                saved=max(0.0, known - now + job.started) if said_of.result == "hit" else 0.0,
                again=known > 0,
            )
        )


def _absolute(cwd: str, path: str) -> str:
    return os.path.join(cwd, path) if path else ""


def _last_word(said: str) -> str:
    """What a compile that failed elsewhere said: the farm's answer, its first error, or what it ended with."""
    if refused := _REFUSED.search(said):
        return refused[1].strip()
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return (outcomes.first_error(said) or (lines[-1] if lines else UNSAID))[:200]


def _in_short(why: str) -> str:
    """The same for many: an error in the source, which has a place there, will be said by who compiles it here."""
    return "it failed there" if _PLACE.search(why) else why


def _why(job: Job, outcome: outcomes.Outcome) -> str:
    """Why a compile has to run again."""
    if outcome == "returned":
        return job.unasked
    killer = "stopped to make room" if job.doomed else "killed by the kernel"
    return killer if outcome == "memory" else ""


def _progress(cpu: float, wall: float) -> float:
    """How far a compile has come, in seconds: of CPU, which a busy machine does not stretch. One that uses
    next to none waits for something else (a network, a remote compiler), and then the clock must do."""
    return cpu if cpu > 0.02 * wall else wall


def _exit_code(status: int) -> int:
    return 128 + (status & 0x7F) if status & 0x7F else status >> 8
