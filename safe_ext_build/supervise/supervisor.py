"""W, the supervisor: owns the tree and the broker. One thread, one event loop, standard library only.

Started as `python -I -S -E` by the hook process, in a session of its own. Whatever it may need is imported
at once: a frontend that dies may take the environment that we were installed in with it.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from . import guard, stall, usage
from .job_server import JobServer
from .linux import begin_child, pidfd_open, raise_stack, set_name, set_subreaper
from .processes import (
    Process,
    descendants,
    end_all,
    forsaken_wards,
    marked,
    read,
    reap,
    send,
    snapshot,
    wake,
)
from .progress import Show
from .protocol import BUILDER_KILLED, CONTINUE, FAILED, SIGNAL_BYTES, STOP, SupervisorRequest, Verdict
from .view import View
from .workspace import Workspace

GRACE = 0.5
# A command of the user's (pip, most often) may have to put back what it has half installed.
COMMAND_GRACE = 2.0
# Bytes. ninja dies of half a MiB, and compilers are made for what is usual.
STACK = 8 << 20
HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class Supervisor:
    """The event loop of one build."""

    def __init__(self, request: SupervisorRequest) -> None:
        self.request = request
        self.workspace = Workspace(Path(request.workspace), request.lock)
        self.selector = selectors.DefaultSelector()
        self.show = Show(**request.show)
        self.view = View(self.show, request.heartbeat)
        self.jobs = JobServer(request, self.workspace, self.selector, self.view.note)
        self.stall = stall.Watch(request.patience)
        self.next_look = 0.0
        self.stopped = False
        self.reason = ""
        self.urgent = False
        self.finished = False
        self.flagged = False
        self.builder = 0
        self.builder_status = 0
        self.guard = 0
        self.guard_pipe = -1

    # Starting.

    def start(self) -> None:
        """Become the owner of what follows, then fork the guard and the builder."""
        set_name("seb-super")
        set_subreaper(True)
        for descriptor in (self.request.lock, self.request.lifeline, self.show.terminal):
            # What escapes with a copy of the lock would make the workspace look alive for ever.
            if descriptor >= 0:
                os.set_inheritable(descriptor, False)
        self._watch_signals()
        self._watch_process(self.request.hook, 0, "the hook process is gone")
        if self.request.frontend:
            self._watch_process(self.request.frontend, self.request.frontend_start, "the frontend is gone")
        self._watch(self.request.lifeline, self._read_lifeline)
        self.jobs.listen()
        self._start_guard()
        self.builder = self._fork_builder()

    def _watch(self, descriptor: int, handler: Callable[[], None]) -> None:
        self.selector.register(descriptor, selectors.EVENT_READ, handler)

    def _watch_signals(self) -> None:
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for number in HANDLED:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, lambda *_: None)
        # Who started us may ignore or block it; then we would never hear that the builder has ended.
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
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

    def _start_guard(self) -> None:
        self.guard, self.guard_pipe = guard.start(self.workspace, self.request.hook, self.show)

    def _fork_builder(self) -> int:
        parent = os.getpid()
        pid = os.fork()
        if pid:
            return pid
        try:
            begin_child(parent)
            raise_stack(STACK)
            os.execve(self.request.command[0], self.request.command, self.request.environ)
        finally:
            os._exit(127)

    # Events.

    def run(self) -> None:
        """Serve until the build has ended, in whatever way."""
        while not self.finished and not self.reason:
            for key, _ in self.selector.select(self._timeout()):
                key.data()
            self.jobs.step()
            self._look_for_halt()
            self._tell()
            self._flag_failure()
            if self.jobs.broker.stop_reason:
                self._tear_down(self.jobs.broker.stop_reason)
        self._clear_up()

    def _timeout(self) -> float:
        now = time.monotonic()
        others = (self.jobs.timeout(), self.view.timeout(now))
        return min(max(0.0, self.next_look - now), *(one for one in others if one is not None), 3600.0)

    def _look_for_halt(self) -> None:
        """Say which process everything waits for, when the build has used no CPU for long."""
        now = time.monotonic()
        if now < self.next_look:
            return
        self.next_look = now + self.stall.interval
        if self.stopped:
            return self.stall.restart()
        parents, spent = usage.spent_by_all()
        ours = {pid: spent[pid] for pid in stall.below(os.getpid(), parents)}
        if seconds := self.stall.observe(now, ours):
            self._say_halt(seconds)

    def _say_halt(self, seconds: float) -> None:
        broker = self.jobs.broker
        waiting = {job.pid for job in broker.jobs.values() if job.state == "waiting"}
        alive = {process.pid: process.parent for process in self._tree() if process.state not in "ZX"}
        blocked = stall.leaves(alive, waiting)
        sources = {job.pid: job.name for job in broker.jobs.values()}
        stall.say(stall.sentence(seconds, blocked, len(waiting), broker.held, sources))

    def _tell(self) -> None:
        """Show how far the build is."""
        if not self.stopped:
            self.view.update(self.jobs.status, bool(self.jobs.broker.jobs), time.monotonic())

    def _flag_failure(self) -> None:
        """Let the builder know whether it is known why the build fails: a compiler has said it, or we shall."""
        if bool(self.jobs.broker.failure or self.reason) == self.flagged:
            return
        self.flagged = not self.flagged
        flag = self.workspace.path / FAILED
        try:
            flag.touch() if self.flagged else flag.unlink(missing_ok=True)
        except OSError:
            pass  # a full disk costs a shorter output, not the teardown

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
                    self._tear_down(BUILDER_KILLED.format(status & 0x7F))
            elif pid == self.guard:
                os.close(self.guard_pipe)
                self._start_guard()
            else:
                self.jobs.child_ended(pid, status)

    def _read_lifeline(self) -> None:
        data = os.read(self.request.lifeline, 16)
        if not data:
            self.urgent = True
            self._tear_down("the hook process is gone")
        for byte in (data[index : index + 1] for index in range(len(data))):
            if byte in (STOP, CONTINUE):
                self.stopped = byte == STOP
                self.stall.restart()
            if byte == STOP:
                self.view.hide()
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

    # The end.

    def _clear_up(self) -> None:
        """Nothing survives: ask, then kill and reap until there is no child, then look for what escaped."""
        self.view.hide()
        self.jobs.stop(self.reason)
        if self.reason and not self.urgent:
            self._ask_to_end()
        stuck = end_all(self._tree)
        stuck += end_all(lambda: [process for process in marked(self.workspace.id) if process.pid != self.guard])
        self._save_verdict(stuck)
        if self.urgent or os.getppid() != self.request.hook:
            # Nobody comes after us. (The hook process may have been killed while we were busy above.)
            self._end_hook()
            self.workspace.remove()
            wake(forsaken_wards())
        try:
            os.write(self.guard_pipe, b"q")
            os.kill(self.guard, signal.SIGCONT)  # somebody may have stopped it
        except OSError:
            pass

    def _ask_to_end(self) -> None:
        """TERM and CONT to ninja and the job groups, so that each can remove its own temporary files."""
        asked = self.jobs.groups()
        for process in self._tree():
            if process.pid in asked or process.group in asked:
                send(process, signal.SIGTERM)
                send(process, signal.SIGCONT)
        command = self.builder if not self.request.frontend else 0
        for process in self._tree():
            if command and process.group == command:
                send(process, signal.SIGINT)
        deadline = time.monotonic() + (COMMAND_GRACE if command else GRACE)
        while self._tree() and time.monotonic() < deadline and not self.urgent:
            for key, _ in self.selector.select(0.01):
                key.data()

    def _save_verdict(self, stuck: list[Process]) -> None:
        verdict = Verdict(
            reason=self.reason,
            builder_status=self.builder_status,
            failure=asdict(self.jobs.broker.failure) if self.jobs.broker.failure else None,
            stuck=[f"{process.name} (pid {process.pid})" for process in stuck],
        )
        try:
            verdict.save(self.workspace.path / "verdict.json")
        except OSError:  # a full disk, most often; what the compiles have left there is of no use any more
            for name in ("tmp", "jobs"):
                shutil.rmtree(self.workspace.path / name, ignore_errors=True)
            with contextlib.suppress(OSError):
                verdict.save(self.workspace.path / "verdict.json")

    def _end_hook(self) -> None:
        """A hook process that is stopped cannot end by itself when its frontend is gone."""
        process = read(self.request.hook)
        if process and process.state in "Tt" and process.pid == os.getppid():
            send(process, signal.SIGKILL)


def main() -> None:
    supervisor = Supervisor(SupervisorRequest.load(Path(sys.argv[1])))
    try:
        supervisor.start()
    except OSError as error:  # no process can be started, no file be opened, or the disk is full
        if os.getppid() == supervisor.request.hook:  # else it is the workspace that is gone, with who wanted it
            print(f"safe-ext-build: the supervisor cannot start: {error}", file=sys.stderr)
        sys.exit(1)
    supervisor.run()
