"""The `ninja` that stands first on PATH: rewrites a copy of build.ninja, runs the real ninja, tells how it ended.

Started as `python -I -S -E` by a shell script, with the file that configures it and ninja's own arguments.
"""

from __future__ import annotations

import contextlib
import getopt
import json
import os
import resource
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NoReturn

from . import ninjafile, objects
from .job import FORWARDED, IGNORED_BY_PYTHON, Lease, Signals, execute, write
from .spelling import Spelling

_OPTIONS = "d:f:j:k:l:nt:vw:C:h"  # as in ninja.cc
_LONG_OPTIONS = ["help", "version", "verbose", "quiet"]
# Each job of ninja holds a pipe; the rest is for ninja itself and for what we were started with.
_OTHER_FILES = 64
# In the workspace: the sources that a build.ninja names and nobody has, one a line, relative to the project.
MISSING = "missing-sources"
# J's beyond the slots let the supervisor choose whom to admit.
_SPARE_JOBS = 32
_INTERRUPTED = b"ninja: build stopped: interrupted by user.\n"


@dataclass(frozen=True)
class Config:
    """What the shim needs to know.

    `ninja`: the real one. `prefixes`: variable -> path. `moved`: path of ours -> what it stands for, which
    the next build will find in the same place. `slots`: compiles at a time. `pids`: room, or 0. `source`: the
    project's directory. `store`: where objects are kept when that does not last, or ''. `fingerprint` and
    `may_touch`: see `objects.Trust`.
    """

    ninja: str
    socket: str
    workspace: str
    prefixes: dict[str, str]
    moved: dict[str, str]
    slots: int
    pids: int
    source: str
    store: str
    fingerprint: str
    may_touch: bool


@dataclass(frozen=True)
class Arguments:
    """ninja's command line: what we replace (directory, file), and what is passed on."""

    directory: str
    file: str
    rest: tuple[str, ...]
    builds: bool


def parse_arguments(arguments: list[str]) -> Arguments:
    """Read ninja's command line as ninja does; what it would not take is left to it to complain about."""
    if "-t" in arguments:
        return Arguments("", "build.ninja", tuple(arguments), builds=False)  # what follows is the tool's
    try:
        options, targets = getopt.gnu_getopt(arguments, _OPTIONS, _LONG_OPTIONS)
    except getopt.GetoptError:
        return Arguments("", "build.ninja", tuple(arguments), builds=False)
    given = dict(options)
    rest = [word for option in options if option[0] not in ("-C", "-f", "-j") for word in option if word]
    builds = not given.keys() & {"--version", "-h", "--help", "-n", "-t"}
    separator = ["--"] if any(target.startswith("-") for target in targets) else []
    rest += [*separator, *targets]
    return Arguments(given.get("-C", ""), given.get("-f", "build.ninja"), tuple(rest), builds)


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
        execute([config.ninja, *sys.argv[2:]])
    try:
        os.chdir(arguments.directory or ".")
    except OSError:
        execute([config.ninja, *sys.argv[2:]])  # ninja says best what is wrong
    try:
        lease = Lease(config.socket)
    except OSError:
        write(2, b"safe-ext-build: error[SEB-5011]: the build that this ninja belongs to is over\n")
        sys.exit(1)
    with contextlib.ExitStack() as stack:
        try:
            ready = _prepare(config, arguments, stack)
        except OSError as error:
            write(2, f"safe-ext-build: error: ninja cannot be run: {error}\n".encode(errors="replace"))
            sys.exit(1)
        stack.callback(ready.after)
        run = Run(config, lease, ["ninja", *ready.options, *arguments.rest], ready.directory)
        code = run.finish()
    _end(code)


@dataclass(frozen=True)
class Ready:
    """How the real ninja is to be run, where, and what is to be done afterwards."""

    options: tuple[str, ...]
    directory: str
    after: Callable[[], None] = lambda: None


def _prepare(config: Config, arguments: Arguments, stack: contextlib.ExitStack) -> Ready:
    here = os.getcwd()
    untouched = Ready(("-f", arguments.file, "-j", str(config.slots)), here)
    try:
        with open(arguments.file, errors="surrogateescape") as file:
            text = file.read()
    except OSError:
        return untouched  # ninja says best what is wrong
    if ninjafile.is_generated(text):
        return untouched
    for path, stable in config.moved.items():
        # Dependencies are recorded by their path: headers below one that vanishes would rebuild everything.
        text = text.replace(path, stable) if ninjafile.is_plain(stable) else text
    for store in _stores(config):
        kept = os.path.join(store, f"objects{_number(config.workspace, here)}")
        moved = _moved(config, text, here, kept)
        try:
            if moved and stack.enter_context(objects.locked(kept)):
                return _prepare_kept(config, moved, here, kept)
        except OSError as error:  # a full disk, or somebody's file in the place of the cache
            write(2, f"safe-ext-build: no objects are kept in {kept}: {error.strerror}\n".encode(errors="replace"))
    return _prepare_in_place(config, text, here, config.source)


def _prepare_in_place(config: Config, text: str, directory: str, source: str) -> Ready:
    rewritten = ninjafile.rewrite(text, config.prefixes, source_cost)
    copy = os.path.join(config.workspace, f"{os.getpid()}.ninja")
    with open(copy, "w", errors="surrogateescape") as file:
        file.write(rewritten.text)
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    _note_missing(config, ninjafile.missing(rewritten.edges, directory), directory, source)
    jobs = parallelism(len(rewritten.edges), config.slots, files, config.pids)
    trust = objects.Trust(directory, source, config.fingerprint, config.may_touch)
    ready = Ready(("-f", copy, "-j", str(jobs)), directory)
    with contextlib.suppress(OSError):  # a full disk: then ninja will say so
        ages = trust.establish(rewritten.edges, objects.read_deps(config.ninja, copy, directory))
        ready = replace(ready, after=ages.give_back)
    return ready


def _note_missing(config: Config, paths: list[str], directory: str, source: str) -> None:
    """ninja will stop at each of these; what it says of them names neither the project nor a way out."""
    if paths:
        names = [os.path.relpath(os.path.join(directory, path), source) for path in paths]
        with open(os.path.join(config.workspace, MISSING), "a", errors="surrogateescape") as file:
            file.writelines(f"{name}\n" for name in names)


def _stores(config: Config) -> list[str]:
    """Where objects may be kept under a path that does not change. A project whose own path a build.ninja
    cannot hold is compiled under such a path at any rate, if need be one that ends with the build."""
    stores = [config.store] if config.store else []
    if not ninjafile.can_name(config.source):
        stores.append(config.workspace)
    return list(filter(ninjafile.is_plain, stores))


def _moved(config: Config, text: str, here: str, kept: str) -> str:
    """The build.ninja that works in `kept` in place of `here`; '' where not all of it can."""
    places = {config.source: os.path.join(kept, "source"), here: os.path.join(kept, "objects")}
    moved = ninjafile.move(text, places)
    outputs = [path for edge in ninjafile.edges(moved) for path in edge.outputs]
    return moved if all(path.startswith(places[here] + os.sep) for path in outputs) else ""


def _number(workspace: str, directory: str) -> int:
    """The how-manieth directory this build runs ninja in: their names change, their order does not."""
    path, name = os.path.join(workspace, "ninja-directories"), ascii(directory)
    with open(path, "a+") as file:
        file.seek(0)
        known = file.read().splitlines()
        if name not in known:
            known.append(name)
            file.write(name + "\n")
    return known.index(name)


def _prepare_kept(config: Config, text: str, here: str, kept: str) -> Ready:
    """Let ninja see the project under a path that does not change, and keep the objects beside it."""
    source = os.path.join(kept, "source")
    objects.point(source, config.source)
    place = os.path.join(kept, "objects")
    os.makedirs(place, exist_ok=True)
    made = [path for edge in ninjafile.edges(text) for path in edge.outputs]
    ready = _prepare_in_place(config, text, place, source)

    def deliver() -> None:
        ready.after()
        for path in filter(os.path.exists, made):
            objects.deliver(path, here + path.removeprefix(place))

    return Ready(ready.options, place, deliver)


def _end(code: int) -> NoReturn:
    """End with ninja's exit status, or by the signal that it died by."""
    if code < 0:
        with contextlib.suppress(OSError):  # KILL has no other than its default
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


def count_compiles(ninja: str, arguments: list[str], environ: Mapping[str, str]) -> int:
    """How many of our jobs a ninja is going to run, as it says itself when it only pretends to (`-n`)."""
    quiet = {"--quiet", "-v", "--verbose"}
    command = [ninja, "-n", "-v", *(word for word in arguments if word not in quiet)]
    try:
        done = subprocess.run(command, env=environ, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    except OSError:
        return 0
    word = f"{ninjafile.JOB} ".encode()
    return sum(word in line for line in done.stdout.splitlines())


class Run:
    """One run of the real ninja, whose output passes through us."""

    def __init__(self, config: Config, lease: Lease, command: list[str], directory: str) -> None:
        self.lease = lease
        os.chdir(directory)
        compiles = count_compiles(config.ninja, command[1:], {**os.environ, **config.prefixes})
        with open("/proc/self/comm", "w") as file:
            file.write("seb-ninja")
        self.signals = Signals()
        self.output, writer = os.pipe()
        actions = [(os.POSIX_SPAWN_DUP2, writer, 1)]
        if os.path.sameopenfile(1, 2):
            actions.append((os.POSIX_SPAWN_DUP2, writer, 2))
        environ = {**os.environ, **config.prefixes}
        self.pid = os.posix_spawn(
            config.ninja, command, environ, file_actions=actions, setsigdef=IGNORED_BY_PYTHON
        )
        os.close(writer)
        lease.send(b"ninja", b"%d" % self.pid, b"%d" % compiles)
        self.spelling = Spelling(config.prefixes)
        self.interrupted = False
        self.held_back = b""

    def finish(self) -> int:
        """Wait for ninja's end; returns its exit status, or minus the signal that it died by."""
        self._pump()
        _, status = os.waitpid(self.pid, 0)
        write(1, self.held_back.removesuffix(_INTERRUPTED))
        self.lease.send(b"ninja-done", b"%d" % status)
        return 1 if self.interrupted else os.waitstatus_to_exitcode(status)

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
        said = self.spelling.out(data)
        if self.interrupted:
            self.held_back += said
        else:
            write(1, said)
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
