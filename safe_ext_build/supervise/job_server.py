"""The supervisor's dealings with its jobs: connections, sensors, neighbours, and what the broker decides.

The broker says what is to be done; here it is done. Standard library only.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..events import Event
from ..launcher.call import SCCACHE, Launching
from ..machine.neighbours import Share
from ..schedule.broker import FARM_LOST, SHORTEST, Broker, Job, Naming, Sight
from ..schedule.fit import Fit
from ..schedule.forecast import Curve
from ..schedule.policy import Limits
from . import connection, farm, stall, status, usage
from .cache_server import IDLE, SPENT, CacheServer
from .connection import Connection
from .farm import FarmClient
from .memory import MemoryWatch
from .neighbourhood import Neighbourhood
from .processes import JOB_VARIABLE, Process, descendants, end_all, environment_value, read, send, snapshot
from .protocol import HISTORY, SupervisorRequest
from .workspace import Workspace

# Twice a second, or as often as takes less than 2% of a CPU, but never less than once a second. (One look in
# sixteen is a full one, which costs more.)
SAMPLE = 0.5
SHARE_OF_CPU = 0.018
SLOWEST = 1.0
# How old a look at memory may be when something happens that may let a compile start.
FRESH = 0.25
# How often what was seen of memory is written down, for the report.
NOTE = 2.0
NUDGE = 0.2


class JobServer:
    """Admits, watches and stops the compiles of one build."""

    def __init__(
        self,
        request: SupervisorRequest,
        workspace: Workspace,
        selector: selectors.BaseSelector,
        note: Callable[[Event], None],
    ) -> None:
        self.workspace = workspace
        self.note = note
        self.selector = selector
        self.connections: dict[int, Connection] = {}
        self.edges: dict[int, Process] = {}
        self.memory = MemoryWatch()
        self.usage = usage.Watch()
        self.neighbours = Neighbourhood(
            request.neighbours, self.memory.groups, workspace.id, request.compiles["project"], str(workspace.path)
        )
        self.events = open(workspace.path / "events.jsonl", "a", buffering=1)
        self.broker = Broker(
            Limits(**request.limits),
            _naming(request.compiles),
            str(workspace.path / "jobs"),
            _history(workspace.path / HISTORY),
            self._send,
            self._emit,
        )
        self.cache = CacheServer(self.broker.naming.launching, request.environ, str(workspace.path / "tmp"))
        self.farm = FarmClient(self.broker.naming.launching, request.environ)
        self.broker.scheduler.away.slots = self.broker.naming.launching.slots
        self.sight = self.memory.look(self.neighbours.outlooks())
        self.old_from = 0.0
        self.next_look = 0.0
        self.next_nudge = 0.0
        self.next_note = 0.0

    def listen(self) -> None:
        server = connection.listen(os.fspath(self.workspace.socket))
        self._watch(server.fileno(), lambda: self._accept(server))

    def _watch(self, descriptor: int, handler: Callable[[], None]) -> None:
        self.selector.register(descriptor, selectors.EVENT_READ, handler)

    # Time.

    def timeout(self) -> float | None:
        """Seconds until `step` wants to be called again, whatever happens; None: not before something happens."""
        if self.broker.ready_to_interrupt:
            return 0.01
        if self._is_interrupted:
            return NUDGE
        if "starting" in (self.cache.state, self.farm.state):
            return 0.02
        return max(0.0, self.next_look - time.monotonic()) if self.broker.jobs else None

    def step(self) -> None:
        """Look, decide, and do what was decided."""
        now = time.monotonic()
        if self.cache.state == "starting":
            self.cache.look()
            self._heed_cache()
        if self.farm.state == "starting":
            self.farm.look()
            self._heed_farm()
        if self.broker.jobs and now >= self.next_look:
            self._look(now)
            self._find_abandoned()
            self._advance()
        pid = self.broker.ready_to_interrupt
        if pid and self._is_collected(pid):
            # What the failed compile printed is out: nothing comes after it.
            self.broker.interrupt_ninja()
            self.next_nudge = now + NUDGE
        if self._is_interrupted and now >= self.next_nudge:
            self.next_nudge = now + NUDGE
            self._nudge_jobs()

    def _look(self, now: float) -> None:
        begun = time.process_time()  # not the clock: what others keep the CPUs from is no cost of ours
        used = self.usage.look({job.id: job.pid for job in self.broker.running()}, self._servers())
        self.sight = self.memory.look(self.neighbours.outlooks())
        self.broker.observe(used, now)
        self._look_at_farm()
        for line in self.broker.heed_storage(now):
            stall.say(line)
        self.cache.patience = SPENT if self.broker.storage.given_up else IDLE
        served = [job for job in self.broker.running() if job.launcher == SCCACHE and not job.remote]
        self.cache.watch(now, self.usage.spent_by_servers, bool(served) and not self.broker.frozen)
        if now >= self.next_note:
            self.next_note = now + NOTE
            self.broker.note(used, now, self.sight.memory)
        rest = min(SLOWEST, (time.process_time() - begun) / SHARE_OF_CPU)
        self.old_from = now + max(FRESH, rest)
        self.next_look = now + max(SAMPLE, rest)

    def _servers(self) -> list[int]:
        return [pid for pid in (self.cache.pid, self.farm.pid) if pid]

    def _look_at_farm(self) -> None:
        """Find compiles that were to run on the farm, and have begun to run here."""
        remote = {job.id for job in self.broker.running() if job.remote}
        here = {job for pid, job in self.usage.adopted().items() if job in remote and farm.compiles(_command(pid))}
        for number in sorted(here):
            self.broker.came_back(number, self.farm.why_not())

    def _sight(self, fields: list[bytes]) -> Sight:
        """What we see of memory when this message comes."""
        if fields[0] == b"done" and fields[1:2] != [b"0"]:
            # Only its counter tells a kill by the kernel from somebody's: read it after the kill.
            return self.memory.look(self.neighbours.outlooks())
        now = time.monotonic()
        if now > self.old_from:
            self._look(now)
        return self.sight

    def _advance(self) -> None:
        """Let the broker decide, while no neighbour does; what must run at any rate does not wait for them."""
        self._open_farm()
        if self._waits_for_servers():
            return
        with self.neighbours.turn() as ours:
            if ours or not self.broker.running():
                now = time.monotonic()
                self.broker.set_cpus(self.neighbours.cpus(self.broker.limits.cpus))
                self.broker.step(now, self.sight)
                self.neighbours.publish(self._share(now))
        while self.broker.doomed:
            self._signal_compiler(self.broker.doomed.pop(), signal.SIGKILL)
        for job, stop in self.broker.paused:
            self._signal_compiler(job, signal.SIGSTOP if stop else signal.SIGCONT)
        self.broker.paused.clear()

    def _waits_for_servers(self) -> bool:
        """Whether a compile waits for a server to begin: a client that finds none would start one itself, and what
        might leave would run here."""
        if self.cache.state == "none" and any(
            self.broker.tool_of(job) == SCCACHE for job in self.broker.waiting()
        ):
            self.cache.need()
            self._heed_cache()
        return "starting" in (self.cache.state, self.farm.state)

    def _open_farm(self) -> None:
        """Have the client started as soon as something may leave."""
        away = self.broker.scheduler.away
        if away.slots and self.farm.state in ("none", "lost") and self.broker.waiting():
            self.farm.need()
        away.open = self.farm.state == "ready" and self.farm.answers

    def _watch_farm(self) -> None:
        if self.farm.lookout < 0 and (reader := self.farm.look_out()) >= 0:
            self._watch(reader, self._hear_of_farm)

    def _hear_of_farm(self) -> None:
        """Of the scheduler: how much there is. Of a server that is gone: what waits for it cannot be told from the
        rest, but all that has been done is in the cache."""
        away = self.broker.scheduler.away
        reader = self.farm.lookout
        line = self.farm.hear(away)
        if self.farm.lookout < 0:
            self.selector.unregister(reader)
            os.close(reader)
            if self.farm.state == "ready":
                self._watch_farm()
        if line:
            stall.say(line)
        self._advance()

    def _heed_farm(self) -> None:
        if self.farm.state == "ready":
            self._watch_farm()
        if self.farm.state == "lost" and not self.farm.process:
            stall.say(self.farm.line())
            self.farm.leave_behind(self.broker.scheduler.away)
            self.broker.recall(FARM_LOST)
        if self.farm.state in ("lost", "ready"):
            self._advance()

    def _heed_cache(self) -> None:
        if self.cache.state == "lost" and not self.broker.server_lost:
            self.broker.server_lost = True
            stall.say(self.cache.line())
            self._advance()
        elif self.cache.state == "ready":
            self._advance()

    def child_ended(self, pid: int, status: int) -> None:
        """A child of the supervisor has ended. With the server go its compilers, which nobody waits for any more:
        their clients compile again, by themselves."""
        lost_farm, lost_cache = self.farm.ended(pid, status), self.cache.ended(pid, status)
        if not (lost_farm or lost_cache) or self.broker.stop_reason:
            return
        end_all(self._ownerless, patience=2.0)
        if lost_farm:
            self._heed_farm()
        if lost_cache:
            self._heed_cache()

    def _ownerless(self) -> list[Process]:
        """What works for a job, and descends neither from one nor from a server that lives."""
        table = snapshot()
        roots = [*(job.pid for job in self.broker.jobs.values()), *self._servers()]
        owned = {one.pid for root in roots for one in descendants(root, table)}
        ours = descendants(os.getpid(), table)
        jobs = {job.pid for job in self.broker.jobs.values()}
        loose = [one for one in ours if one.pid not in owned and one.pid not in jobs]
        return [one for one in loose if environment_value(one.pid, JOB_VARIABLE)]

    def _share(self, now: float) -> Share:
        busy, waiting, growth = self.broker.scheduler.load(now)
        return Share(cpus=busy, waiting=waiting, claimed=growth, jobs=len(self.broker.running()))

    def stop(self, reason: str) -> None:
        """The build ends: nothing is admitted any more, and our share is free."""
        self.broker.stop_reason = self.broker.stop_reason or reason or "the builder has ended"
        self.broker.places.close()
        self.neighbours.close()

    # Connections.

    def _accept(self, server: socket.socket) -> None:
        found = connection.accept(server)
        if found is None:
            return
        self.connections[found.number] = found
        self.edges.pop(found.pid, None)  # of an earlier process of that number
        if edge := self._edge(found.pid):
            self.edges[found.pid] = edge
        self._watch(found.number, lambda: self._serve(found))

    def _serve(self, one: Connection) -> None:
        open_still = one.read()
        try:
            for fields in one.messages():
                if fields[0] in (status.ASK, status.END):
                    self._oblige(one, fields)
                    continue
                self.broker.receive(one.number, one.pid, fields, time.monotonic(), self._sight(fields))
        except (ValueError, IndexError):
            open_still = False  # not one of ours, or damaged
        if not open_still:
            self._drop(one)
        if not one.is_visitor:
            self._advance()

    def _oblige(self, one: Connection, fields: list[bytes]) -> None:
        """Somebody of this user looks at the build from outside, or wants it to end. He is no part of it."""
        one.is_visitor = True
        if fields[0] == status.END:
            self.broker.stop_reason = self.broker.stop_reason or fields[1].decode(errors="replace")
        one.offer(self.status().to_line())

    def status(self) -> status.Status:
        return status.look(self.workspace.path, self.broker, self.sight.memory, time.monotonic())

    def _drop(self, one: Connection) -> None:
        self.selector.unregister(one.socket)
        del self.connections[one.number]
        orphan = self.broker.gone(one.number)
        one.socket.close()
        if orphan:
            self._end_job(orphan)

    def _send(self, number: int, fields: list[bytes]) -> None:
        found = self.connections.get(number)
        if found:
            found.send(fields)

    def _emit(self, event: Event) -> None:
        self.note(event)
        try:
            self.events.write(event.to_line())
        except OSError:
            pass  # a full disk costs the report, not the build

    # Processes.

    def _tree(self) -> list[Process]:
        return descendants(os.getpid(), snapshot())

    def _signal_compiler(self, job: Job, number: int) -> None:
        """Signal a compiler and its tools, but not its J, which reports what becomes of them."""
        table = snapshot()
        for process in [*descendants(job.pid, table), *self._served(job, table)]:
            send(process, number)

    def _served(self, job: Job, table: dict[int, Process]) -> list[Process]:
        """What the cache's server runs for a job."""
        below = [process for server in self._servers() for process in descendants(server, table)]
        return [process for process in below if environment_value(process.pid, JOB_VARIABLE) == str(job.id)]

    def _end_job(self, job: Job) -> None:
        """End a compiler whose J is gone: its group, and what of it has left the group."""
        end_all(lambda: [process for process in self._tree() if self._belongs(process, job)], patience=2.0)

    def _belongs(self, process: Process, job: Job) -> bool:
        return process.group == job.compiler or environment_value(process.pid, JOB_VARIABLE) == str(job.id)

    def groups(self) -> set[int]:
        """The process groups, and processes, that are to be asked first when the build ends."""
        jobs = self.broker.jobs.values()
        return {job.compiler for job in jobs} | {job.pid for job in jobs} | set(self.broker.ninjas.values())

    @property
    def _is_interrupted(self) -> bool:
        return self.broker.interrupted and bool(self.broker.ninjas)

    def _nudge_jobs(self) -> None:
        """Interrupt the Js that an interrupted ninja waits for. It has done so, but a shell that has forked
        and not yet executed its command swallows a SIGINT, and then both would wait for ever."""
        waiting = {job.pid for job in self.broker.jobs.values()}
        for process in self._tree():
            if process.pid in waiting:
                send(process, signal.SIGINT)

    def _is_collected(self, job: int) -> bool:
        """Whether ninja has waited for the process that it started for this J."""
        edge = self.edges.get(job)
        if edge is None:
            return read(job) is None
        now = read(edge.pid)
        return now is None or now.start != edge.start

    def _find_abandoned(self) -> None:
        """What ninja started for a compile may be a shell; if somebody kills that, ninja never hears of its J."""
        for job in self.broker.jobs.values():
            edge = self.edges.get(job.pid)
            if edge and job.state != "ended":
                now = read(edge.pid)
                if now is None or now.start != edge.start or now.state in "ZX":
                    self.broker.abandoned(job)

    def _edge(self, pid: int) -> Process | None:
        """What ninja started, and waits for: the J `pid` itself or, where the shell does not exec, a shell."""
        process = read(pid)
        while process and (parent := read(process.parent)):
            if parent.parent in self.broker.ninjas.values():  # which are the shims, and `parent` is ninja
                return process
            process = parent
        return None


def _command(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def _naming(fields: dict[str, Any]) -> Naming:
    inner = {"fit": Fit(**fields["fit"]), "launching": Launching(**fields["launching"])}
    return Naming(**{**fields, **inner})


def _history(path: Path) -> dict[str, Curve]:
    """What is known of this project's compiles. Without it the build goes on as the first one."""
    try:
        known = json.loads(path.read_text())
        return {entry: _curve(*values) for entry, values in known.items()}
    except (OSError, ValueError, TypeError, AttributeError, OverflowError):
        return {}


def _curve(seconds: float, first: int, *points: int) -> Curve:
    return Curve(max(SHORTEST, float(seconds)), tuple(int(point) for point in (first, *points)))
