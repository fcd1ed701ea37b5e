"""The `ninja` that stands first on PATH: rewrites a copy of build.ninja, runs the real ninja, tells how it ended.

Started as `python -I -S -E` by a shell script, with the file that configures it and ninja's own arguments.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import sys
from dataclasses import dataclass

from . import ninjafile
from .job import FORWARDED, Lease, Signals, write

_TAKES_VALUE = "CfjkldtTw"
# Each job of ninja holds a pipe; the rest is for ninja itself and for what we were started with.
_OTHER_FILES = 64
# J's beyond the slots let the supervisor choose whom to admit.
_SPARE_JOBS = 32
_INTERRUPTED = b"ninja: build stopped: interrupted by user.\n"


@dataclass(frozen=True)
class Config:
    """What the shim needs to know.

    `ninja`: the real one. `prefixes`: variable -> path. `moved`: path of ours -> what it stands for, which
    the next build will find in the same place. `slots`: compiles at a time. `pids`: room, or 0.
    """

    ninja: str
    socket: str
    workspace: str
    prefixes: dict[str, str]
    moved: dict[str, str]
    slots: int
    pids: int


@dataclass(frozen=True)
class Arguments:
    """ninja's command line: what we replace (directory, file), and what is passed on."""

    directory: str
    file: str
    rest: tuple[str, ...]
    builds: bool


def parse_arguments(arguments: list[str]) -> Arguments:
    directory, file, rest, builds = "", "build.ninja", [], True
    words = iter(arguments)
    for word in words:
        if word in ("--version", "-h", "--help", "-n"):
            builds = False
        if len(word) < 2 or word[0] != "-" or word[1] not in _TAKES_VALUE or word.startswith("--"):
            rest.append(word)
            continue
        option, value = word[:2], word[2:] or next(words, "")
        if option == "-C":
            directory = value
        elif option == "-f":
            file = value
        elif option == "-t":
            builds = False
        elif option != "-j":
            rest += [option, value]
    return Arguments(directory, file, tuple(rest), builds)


def parallelism(edges: int, slots: int, files: int, pids: int) -> int:
    """ninja's -j: every J that waits is, to ninja, a job that runs. `pids` of 0 means that there is no limit."""
    limit = min(edges, slots + _SPARE_JOBS, (files - _OTHER_FILES) // 2)
    if pids:
        limit = min(limit, pids // 8)
    return max(1, limit)


def source_cost(path: str) -> float:
    """A forecast without a history: device code costs most, and more source costs more."""
    try:
        size = os.stat(path).st_size
    except OSError:
        size = 0
    return size + (1e9 if path.endswith(".cu") else 0.0)


def main() -> None:
    with open(sys.argv[1]) as file:
        config = Config(**json.load(file))
    arguments = parse_arguments(sys.argv[2:])
    if not arguments.builds:
        os.execv(config.ninja, ["ninja", *sys.argv[2:]])
    if arguments.directory:
        os.chdir(arguments.directory)
    command = ["ninja", *_prepared(config, arguments), *arguments.rest]
    try:
        lease = Lease(config.socket)
    except OSError:
        write(2, b"safe-ext-build: the build that this ninja belongs to is over\n")
        sys.exit(1)
    sys.exit(Run(config, lease, command).finish())


def _prepared(config: Config, arguments: Arguments) -> list[str]:
    """Write the rewritten copy; returns the options that make ninja use it."""
    try:
        with open(arguments.file, errors="surrogateescape") as file:
            text = file.read()
    except OSError:
        return ["-f", arguments.file, "-j", str(config.slots)]  # ninja says best what is wrong
    if ninjafile.is_generated(text):
        return ["-f", arguments.file, "-j", str(config.slots)]
    for path, stable in config.moved.items():
        # Dependencies are recorded by their path: headers below one that vanishes would rebuild everything.
        text = text.replace(path, stable) if ninjafile.is_plain(stable) else text
    rewritten = ninjafile.rewrite(text, config.prefixes, source_cost)
    copy = os.path.join(config.workspace, f"{os.getpid()}.ninja")
    with open(copy, "w", errors="surrogateescape") as file:
        file.write(rewritten.text)
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return ["-f", copy, "-j", str(parallelism(rewritten.edges, config.slots, files, config.pids))]


class Run:
    """One run of the real ninja, whose output passes through us."""

    def __init__(self, config: Config, lease: Lease, command: list[str]) -> None:
        self.lease = lease
        with open("/proc/self/comm", "w") as file:
            file.write("seb-ninja")
        self.signals = Signals()
        self.output, writer = os.pipe()
        actions = [(os.POSIX_SPAWN_DUP2, writer, 1)]
        if os.path.sameopenfile(1, 2):
            actions.append((os.POSIX_SPAWN_DUP2, writer, 2))
        environ = {**os.environ, **config.prefixes}
        self.pid = os.posix_spawn(config.ninja, command, environ, file_actions=actions)
        os.close(writer)
        lease.send(b"ninja", b"%d" % self.pid)
        self.interrupted = False
        self.held_back = b""

    def finish(self) -> int:
        """Wait for ninja's end; returns our exit status, or dies by the signal that ninja died by."""
        self._pump()
        _, status = os.waitpid(self.pid, 0)
        write(1, self.held_back.removesuffix(_INTERRUPTED))
        self.lease.send(b"ninja-done", b"%d" % status)
        if self.interrupted:
            return 1
        if os.WIFSIGNALED(status):
            signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
            os.kill(os.getpid(), os.WTERMSIG(status))
        return os.waitstatus_to_exitcode(status)

    def _pump(self) -> None:
        poll = select.poll()
        for descriptor in (self.output, self.lease.socket.fileno(), self.signals.reader):
            poll.register(descriptor, select.POLLIN)
        while True:
            for descriptor, _ in poll.poll():
                if descriptor == self.output and not self._pass_on():
                    return
                if descriptor == self.signals.reader:
                    for number in self.signals.take() & set(FORWARDED):
                        self._kill(number)
                if descriptor == self.lease.socket.fileno() and not self._listen():
                    poll.unregister(descriptor)

    def _pass_on(self) -> bool:
        data = os.read(self.output, 1 << 16)
        if self.interrupted:
            self.held_back += data
        else:
            write(1, data)
        return bool(data)

    def _listen(self) -> bool:
        if self.lease.receive() is None:
            self._kill(signal.SIGKILL)  # the supervisor is gone
            return False
        # A compile has failed and has said why. ninja would now wait for those that only wait for admission.
        self.interrupted = True
        self._kill(signal.SIGINT)
        return True

    def _kill(self, number: int) -> None:
        try:
            os.kill(self.pid, number)
        except OSError:
            pass
