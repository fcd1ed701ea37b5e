"""W, the supervisor: owns the tree and the broker. One thread, one event loop, standard library only.

Started as `python -I -S -E` by the hook process, in a session of its own. Whatever it may need is imported
at once: a frontend that dies may take the environment that we were installed in with it.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from ..events import Event
from ..schedule.broker import Broker, Evidence, Job
from ..schedule.policy import Limits
from . import guard
from .linux import die_with_parent, pidfd_open, set_name, set_subreaper
from .memory import MemoryWatch
from .processes import (
    JOB_VARIABLE,
    Process,
    descendants,
    end_all,
    environment_value,
    marked,
    read,
    reap,
    send,
    snapshot,
)
from .protocol import CONTINUE, FAILED, SIGNAL_BYTES, STOP, SupervisorRequest, Verdict
from .workspace import Workspace

GRACE = 0.5
SAMPLE = 0.5
NUDGE = 0.2
HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class Supervisor:
    """The event loop of one build."""

    def __init__(self, request: SupervisorRequest) -> None:
        self.request = request
        self.workspace = Workspace(Path(request.workspace), request.lock)
        self.selector = selectors.DefaultSelector()
        self.connections: dict[int, Connection] = {}
        self.edges: dict[int, Process] = {}
        self.memory = MemoryWatch()
        self.events = open(self.workspace.path / "events.jsonl", "a", buffering=1)
        self.broker = Broker(
            Limits(request.jobs, request.cpus),
            str(self.workspace.path / "jobs"),
            request.real,
            self._send,
            self._emit,
        )
        self.reason = ""
        self.urgent = False
        self.finished = False
        self.flagged = False
        self.builder = 0
        self.builder_status = 0
        self.guard = 0
        self.guard_pipe = -1
        self.next_sample = 0.0
        self.next_nudge = 0.0

    # Starting.

    def start(self) -> None:
        """Become the owner of what follows, then fork the guard and the builder."""
        set_name("seb-super")
        set_subreaper(True)
        for descriptor in (self.request.lock, self.request.lifeline):
            # What escapes with a copy of the lock would make the workspace look alive for ever.
            os.set_inheritable(descriptor, False)
        self._watch_signals()
        self._watch_process(self.request.hook, 0, "the hook process is gone")
        if self.request.frontend:
            self._watch_process(self.request.frontend, self.request.frontend_start, "the frontend is gone")
        self._watch(self.request.lifeline, self._read_lifeline)
        self._listen()
        self._start_guard()
        self.builder = self._fork_builder()

    def _watch(self, descriptor: int, handler: Callable[[], None]) -> None:
        self.selector.register(descriptor, selectors.EVENT_READ, handler)

    def _watch_signals(self) -> None:
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, *HANDLED):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, lambda *_: None)
        self._watch(reader, lambda: self._read_signals(reader))

    def _watch_process(self, pid: int, start: int, reason: str) -> None:
        def gone() -> None:
            self.urgent = True
            self._tear_down(reason)

        try:
            pidfd = pidfd_open(pid)
        except OSError:
            return gone()
        process = read(pid)
        if process is None or (start and process.start != start):
            return gone()
        self._watch(pidfd, gone)

    def _listen(self) -> None:
        server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        old = os.umask(0o177)
        server.bind(os.fspath(self.workspace.socket))
        os.umask(old)
        server.listen(1024)
        self._watch(server.fileno(), lambda: self._accept(server))

    def _start_guard(self) -> None:
        self.guard, self.guard_pipe = guard.start(self.workspace)

    def _fork_builder(self) -> int:
        parent = os.getpid()
        pid = os.fork()
        if pid:
            return pid
        try:
            die_with_parent(parent)
            os.setpgid(0, 0)
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, *HANDLED):
                if signal.getsignal(number) is not signal.SIG_IGN:
                    signal.signal(number, signal.SIG_DFL)
            for number in (signal.SIGPIPE, signal.SIGXFSZ):
                signal.signal(number, signal.SIG_DFL)
            os.execve(self.request.command[0], self.request.command, self.request.environ)
        finally:
            os._exit(127)

    # Events.

    def run(self) -> None:
        """Serve until the build has ended, in whatever way."""
        while not self.finished and not self.reason:
            for key, _ in self.selector.select(self._timeout()):
                key.data()
            self._step()
        self._clear_up()

    def _timeout(self) -> float | None:
        if self.broker.ready_to_interrupt:
            return 0.01
        if self._is_interrupted:
            return NUDGE
        return SAMPLE if self.broker.running() else None

    def _step(self) -> None:
        now = time.monotonic()
        if self.broker.running() and now >= self.next_sample:
            self.next_sample = now + SAMPLE
            self._sample(now)
        pid = self.broker.ready_to_interrupt
        if pid and self._is_collected(pid):
            # What the failed compile printed is out: nothing comes after it.
            self.broker.interrupt_ninja()
            self.next_nudge = now + NUDGE
        if self._is_interrupted and now >= self.next_nudge:
            self.next_nudge = now + NUDGE
            self._nudge_jobs()
        self._flag_failure()
        if self.broker.stop_reason:
            self._tear_down(self.broker.stop_reason)

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

    def _edge(self, pid: int) -> Process | None:
        """What ninja started, and waits for: the J `pid` itself or, where the shell does not exec, a shell."""
        process = read(pid)
        while process and (parent := read(process.parent)):
            if parent.parent in self.broker.ninjas.values():  # which are the shims, and `parent` is ninja
                return process
            process = parent
        return None

    def _flag_failure(self) -> None:
        """Let the builder know whether it is known why the build fails: a compiler has said it, or we shall."""
        if bool(self.broker.failure or self.reason) == self.flagged:
            return
        self.flagged = not self.flagged
        flag = self.workspace.path / FAILED
        try:
            flag.touch() if self.flagged else flag.unlink(missing_ok=True)
        except OSError:
            pass  # a full disk costs a shorter output, not the teardown

    def _sample(self, now: float) -> None:
        table = snapshot()
        for job in self.broker.running():
            job.peak = max(job.peak, sum(process.rss for process in descendants(job.pid, table)))
        self.memory.sample(now)

    def _evidence(self) -> Evidence:
        return self.memory.evidence(time.monotonic())

    def _tear_down(self, reason: str) -> None:
        self.reason = self.reason or reason
        self._flag_failure()

    def _interrupt(self, name: str) -> None:
        """The first signal asks for the end; a second one does not want to wait for it."""
        if self.reason:
            self.urgent = True
        self._tear_down(f"received {name}")

    def _read_signals(self, reader: int) -> None:
        try:
            numbers = set(os.read(reader, 256))
        except BlockingIOError:
            return
        if signal.SIGCHLD in numbers:
            self._reap()
        for number in HANDLED:
            if number in numbers:
                self._interrupt(signal.Signals(number).name)

    def _reap(self) -> None:
        for pid, status in reap().items():
            if pid == self.builder:
                self.builder_status = status
                self.finished = True
                if status & 0x7F:
                    self._tear_down(f"the builder was killed by signal {status & 0x7F}")
            elif pid == self.guard:
                os.close(self.guard_pipe)
                self._start_guard()

    def _read_lifeline(self) -> None:
        data = os.read(self.request.lifeline, 16)
        if not data:
            self.urgent = True
            self._tear_down("the hook process is gone")
        for byte in (data[index : index + 1] for index in range(len(data))):
            if byte == STOP:
                self._signal_tree(signal.SIGSTOP)
            elif byte == CONTINUE:
                self._signal_tree(signal.SIGCONT)
            elif byte in SIGNAL_BYTES:
                self._interrupt(SIGNAL_BYTES[byte])

    def _signal_tree(self, number: int) -> None:
        for process in self._tree():
            send(process, number)

    def _tree(self) -> list[Process]:
        """What descends from us, the guard left out."""
        return [process for process in descendants(os.getpid(), snapshot()) if process.pid != self.guard]

    # Jobs.

    def _accept(self, server: socket.socket) -> None:
        try:
            client, _ = server.accept()
        except OSError:
            return
        pid, user, _ = struct.unpack("3i", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if user != os.getuid():
            client.close()
            return
        client.setblocking(False)
        connection = Connection(client, pid)
        self.connections[client.fileno()] = connection
        if edge := self._edge(pid):
            self.edges[pid] = edge
        self._watch(client.fileno(), lambda: self._serve(connection))

    def _serve(self, connection: Connection) -> None:
        open_still = connection.read()
        try:
            for fields in connection.messages():
                self.broker.receive(connection.number, connection.pid, fields, time.monotonic(), self._evidence())
        except (ValueError, IndexError):
            open_still = False  # not one of ours, or damaged
        if not open_still:
            self._drop(connection)

    def _drop(self, connection: Connection) -> None:
        self.selector.unregister(connection.socket)
        del self.connections[connection.number]
        orphan = self.broker.gone(connection.number, time.monotonic(), self._evidence())
        connection.socket.close()
        if orphan:
            self._end_job(orphan)

    def _end_job(self, job: Job) -> None:
        """End a compiler whose J is gone: its group, and what of it has left the group."""
        end_all(lambda: [process for process in self._tree() if self._belongs(process, job)], patience=2.0)

    def _belongs(self, process: Process, job: Job) -> bool:
        if process.pid in (self.builder, *self.broker.ninjas.values()):
            return False
        return process.group == job.compiler or environment_value(process.pid, JOB_VARIABLE) == str(job.id)

    def _send(self, number: int, fields: list[bytes]) -> None:
        body = b"\0".join(fields)
        connection = self.connections.get(number)
        if connection:
            connection.send(len(body).to_bytes(4, "big") + body)

    def _emit(self, event: Event) -> None:
        try:
            self.events.write(event.to_line())
        except OSError:
            pass  # a full disk costs the report, not the build

    # The end.

    def _clear_up(self) -> None:
        """Nothing survives: ask, then kill and reap until there is no child, then look for what escaped."""
        if self.reason and not self.urgent:
            self._ask_to_end()
        stuck = end_all(self._tree)
        stuck += end_all(lambda: [process for process in marked(self.workspace.id) if process.pid != self.guard])
        self._save_verdict(stuck)
        if self.urgent or os.getppid() != self.request.hook:
            # Nobody comes after us. (The hook process may have been killed while we were busy above.)
            self._end_hook()
            self.workspace.remove()
        try:
            os.write(self.guard_pipe, b"q")
        except OSError:
            pass

    def _ask_to_end(self) -> None:
        """TERM and CONT to ninja and the job groups, so that each can remove its own temporary files."""
        asked = {job.compiler for job in self.broker.running()} | {job.pid for job in self.broker.jobs.values()}
        asked |= set(self.broker.ninjas.values())
        for process in self._tree():
            if process.pid in asked or process.group in asked:
                send(process, signal.SIGTERM)
                send(process, signal.SIGCONT)
        deadline = time.monotonic() + GRACE
        while self._tree() and time.monotonic() < deadline and not self.urgent:
            for key, _ in self.selector.select(0.01):
                key.data()

    def _save_verdict(self, stuck: list[Process]) -> None:
        verdict = Verdict(
            reason=self.reason,
            builder_status=self.builder_status,
            failure=asdict(self.broker.failure) if self.broker.failure else None,
            stuck=[f"{process.name} (pid {process.pid})" for process in stuck],
        )
        try:
            verdict.save(self.workspace.path / "verdict.json")
        except OSError:
            pass

    def _end_hook(self) -> None:
        """A hook process that is stopped cannot end by itself when its frontend is gone."""
        process = read(self.request.hook)
        if process and process.state in "Tt" and process.pid == os.getppid():
            send(process, signal.SIGKILL)


class Connection:
    """A J or a ninja shim: frames of four bytes of length and NUL-separated fields."""

    def __init__(self, client: socket.socket, pid: int) -> None:
        self.socket = client
        self.number = client.fileno()
        self.pid = pid
        self.buffer = b""

    def read(self) -> bool:
        """Take what has arrived; False when the other end is gone."""
        try:
            data = self.socket.recv(1 << 16)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self.buffer += data
        return bool(data)

    def messages(self) -> list[list[bytes]]:
        result = []
        while len(self.buffer) >= 4:
            end = 4 + int.from_bytes(self.buffer[:4], "big")
            if len(self.buffer) < end:
                break
            result.append(self.buffer[4:end].split(b"\0"))
            self.buffer = self.buffer[end:]
        return result

    def send(self, data: bytes) -> None:
        self.socket.setblocking(True)
        self.socket.settimeout(5)
        try:
            self.socket.sendall(data)
        except OSError:
            pass  # it is gone, and its end of the connection will tell
        finally:
            self.socket.setblocking(False)


def main() -> None:
    supervisor = Supervisor(SupervisorRequest.load(Path(sys.argv[1])))
    supervisor.start()
    supervisor.run()
