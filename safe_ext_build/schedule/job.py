"""J, one for each compile: asks the supervisor for admission, runs the compiler, reports what it cost.

Started as `python -I -S -E job.py SOCKET REAL COMMAND...` by a shim. It must start fast: hence `_socket` and
`_signal` (whose Python halves cost 16 ms), no `subprocess`, and no parsing; the supervisor parses.
REAL, when not empty, is the compiler that the shim stands for: it takes COMMAND's place.

Messages are NUL-separated fields behind a length of four bytes:
    job CWD PREPEND APPEND COMMAND...       -> pass                              run it, unmanaged
                                            -> run DIR OUT FINAL DEP NUMBER PREPEND APPEND COMMAND...
    started PID                             (and `signalled NUMBER`, when somebody sends us a signal)
    done STATUS MAXRSS CPU EXCERPT          -> end CODE | run ... (again)
                                            -> say TEXT (before any of these)    print it
                                            -> with NAMES VARIABLES SECRETS KEEPS (before run) for this compile:
                                               `name=directory`, `NAME=value`, what is not to be shown, and the
                                               variables that it has of ours, where these are not all; one a line
The open connection is the lease: when it breaks, the supervisor is gone, and so is the compiler.
"""

from __future__ import annotations

import _socket
import os
import select
import stat
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing itself costs more than all of this file
    import resource
    import signal as _signal
    from collections.abc import Sequence
    from typing import NoReturn
else:
    import _signal

JOB_VARIABLE = b"SAFE_EXT_BUILD_JOB"
NVCC_FLAGS = (b"NVCC_PREPEND_FLAGS", b"NVCC_APPEND_FLAGS")
EXCERPT = 8192
# Python ignores these from its start on; a compiler must find them as they are everywhere else.
IGNORED_BY_PYTHON = (_signal.SIGPIPE, _signal.SIGXFSZ)
FORWARDED = (_signal.SIGINT, _signal.SIGTERM, _signal.SIGHUP, _signal.SIGQUIT)


class Lease:
    """The connection to the supervisor. A message of None means that it is gone."""

    def __init__(self, path: str) -> None:
        self.socket = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        self.socket.connect(path)
        self.names: list[list[bytes]] = []
        self.variables: list[list[bytes]] = []
        self.keeps: list[bytes] = []
        self.secrets: list[bytes] = []

    def send(self, *fields: bytes) -> None:
        body = b"\0".join(fields)
        data = len(body).to_bytes(4, "big") + body
        try:
            while data:
                data = data[self.socket.send(data) :]
        except OSError:
            pass  # the next receive tells

    def receive(self) -> list[bytes] | None:
        head = self._exactly(4)
        body = self._exactly(int.from_bytes(head, "big")) if head else None
        return body.split(b"\0") if body else None

    def _exactly(self, count: int) -> bytes | None:
        data = b""
        while len(data) < count:
            try:
                part = self.socket.recv(count - len(data))
            except OSError:
                part = b""
            if not part:
                return None
            data += part
        return data


class Signals:
    """Turns signals into bytes on a pipe, so that one poll waits for everything."""

    def __init__(self) -> None:
        self.reader, writer = os.pipe()
        os.set_blocking(self.reader, False)
        os.set_blocking(writer, False)
        _signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for number in (_signal.SIGCHLD, *FORWARDED):
            if _signal.getsignal(number) is not _signal.SIG_IGN:
                _signal.signal(number, lambda *_: None)

    def take(self) -> set[int]:
        try:
            return set(os.read(self.reader, 64))
        except BlockingIOError:
            return set()


def be_expendable() -> None:
    """If the kernel must kill, let it be a compiler; and leave the desktop responsive."""
    try:
        with open("/proc/self/comm", "w") as file:
            file.write("seb-job")
        with open("/proc/self/oom_score_adj", "r+") as file:
            score = min(1000, int(file.read()) + 500)
            file.seek(0)
            file.write(str(score))
        os.nice(3)
    except OSError:
        pass


def execute(command: list[str]) -> NoReturn:
    for number in IGNORED_BY_PYTHON:
        _signal.signal(number, _signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        complain(command, error)
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)


def complain(command: Sequence[str | bytes], error: OSError) -> None:
    write(2, b"safe-ext-build: cannot run %s: %s\n" % (os.fsencode(command[0]), str(error.strerror).encode()))


def write(descriptor: int, data: bytes) -> None:
    try:
        while data:
            try:
                data = data[os.write(descriptor, data) :]
            except BlockingIOError:  # somebody has made our terminal or pipe non-blocking
                select.select([], [descriptor], [])
    except OSError:
        pass  # nobody reads (EPIPE), or the disk is full: the exit status still tells


class Run:
    """One run of the compiler: its output goes to files, so that a run that is not the last is never seen."""

    def __init__(
        self,
        directory: bytes,
        outputs: tuple[bytes, bytes, bytes],
        number: bytes,
        flags: tuple[bytes, bytes],
        command: list[bytes],
        names: Sequence[list[bytes]] = (),
        variables: Sequence[list[bytes]] = (),
        secrets: Sequence[bytes] = (),
        keeps: Sequence[bytes] = (),
    ) -> None:
        self.directory, self.outputs, self.number, self.flags = directory, outputs, number, flags
        self.command = command
        self.names, self.variables, self.secrets, self.keeps = names, variables, secrets, keeps
        self.temp = directory + b"/tmp"
        self.pid = 0
        self.files: list[bytes] = []

    def prepare(self) -> None:
        os.makedirs(self.temp, exist_ok=True)
        for name, path in zip((b"output", b"depfile"), (self.outputs[0], self.outputs[2]), strict=True):
            link = self.directory + b"/" + name
            if path and not os.path.lexists(link):
                os.symlink(path, link)

    def start(self) -> bool:
        first, second = os.fstat(1), os.fstat(2)
        names = [b"out", b"out" if (first.st_dev, first.st_ino) == (second.st_dev, second.st_ino) else b"err"]
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self.files = [self.directory + b"/" + name for name in names]
        for path in self.files:
            remove(path)
        opened = [os.open(path, flags, 0o600) for path in self.files]
        environ = {name: value for name, value in os.environb.items() if not self.keeps or name in self.keeps}
        environ[b"TMPDIR"] = self.temp
        environ[JOB_VARIABLE] = self.number
        for name, value in zip(NVCC_FLAGS, self.flags, strict=True):
            if value or name in environ:
                environ[name] = value
        environ.update((name, value) for name, value in self.variables)
        actions = [(os.POSIX_SPAWN_DUP2, opened[0], 1), (os.POSIX_SPAWN_DUP2, opened[1], 2)]
        try:
            self.pid = os.posix_spawnp(
                self.command[0],
                self.command,
                environ,
                file_actions=actions,
                setpgroup=0,
                setsigdef=IGNORED_BY_PYTHON,
            )
        except OSError as error:
            complain(self.command, error)
            return False
        finally:
            for descriptor in opened:
                os.close(descriptor)
        return True

    def signal(self, number: int) -> None:
        try:
            os.killpg(self.pid, number)
        except OSError:
            pass

    def collect(self) -> tuple[int, resource.struct_rusage]:
        """Reap the compiler, which has ended. Tools that a dead one leaves behind would hold the memory that
        the next run needs; as long as it is not reaped, its group's number is nobody else's."""
        info = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        if info and (info.si_code != os.CLD_EXITED or info.si_status):
            self.signal(_signal.SIGKILL)
        _, status, usage = os.wait4(self.pid, 0)
        return status, usage

    def excerpt(self) -> bytes:
        """The beginning of what it said on standard error, where the first error stands, and the end."""
        try:
            with open(self.files[1], "rb") as file:
                head = file.read(EXCERPT)
                file.seek(max(len(head), os.fstat(file.fileno()).st_size - EXCERPT))
                return self.readable((head + file.read()).replace(b"\0", b"?"))
        except OSError:
            return b""

    def in_full(self, text: bytes) -> bytes:
        """What the compiler says, with directories where it knows names (see launcher/names.py)."""
        for name, directory in self.names:
            text = text.replace(name + b"/", directory + b"/")
        return text

    def readable(self, text: bytes) -> bytes:
        """What was said, as it may be shown: a compiler cache's own errors may tell what opens its storage."""
        for secret in self.secrets:
            text = text.replace(secret, b"***")
        return self.in_full(text)

    def complete_depfile(self) -> None:
        """The names end with the build; what ninja reads must hold longer."""
        path = self.outputs[2]
        try:
            if not self.names or not path or not stat.S_ISREG(os.stat(path).st_mode):
                return
            with open(path, "r+b") as file:
                text = self.in_full(file.read())
                file.seek(0)
                file.write(text)
                file.truncate()
        except OSError:
            pass

    def publish(self) -> None:
        """The finished object appears under its name in one step, or not at all."""
        temporary, final, _ = self.outputs
        try:
            if final:
                os.rename(temporary, final)
        except FileNotFoundError:
            pass  # -fsyntax-only and the like write none

    def includes_torch_header(self) -> bytes:
        """Whether the source includes torch/extension.h: 1, 0, or nothing where no depfile says."""
        path = self.outputs[2]
        try:
            if not stat.S_ISREG(os.stat(path).st_mode):
                return b""  # a pipe has a reader of its own
            with open(path, "rb") as file:
                return b"%d" % (b"/torch/extension.h" in file.read())
        except OSError:
            return b""

    def replay(self) -> None:
        for descriptor, path in enumerate(dict.fromkeys(self.files), 1):
            with open(path, "rb") as file:
                if self.names or self.secrets:
                    write(descriptor, self.readable(file.read()))
                    continue
                while block := file.read(1 << 16):
                    write(descriptor, block)

    def discard(self) -> None:
        for path in (self.outputs[0], self.outputs[2]):
            try:
                if path and stat.S_ISREG(os.lstat(path).st_mode):  # never a device
                    remove(path)
            except OSError:
                pass

    def clean(self) -> None:
        for folder, folders, files in os.walk(self.directory, topdown=False):
            for name in files:
                remove(folder + b"/" + name)
            for name in folders:
                remove(folder + b"/" + name)
        try:
            os.rmdir(self.directory)
        except OSError:
            pass


def remove(path: bytes) -> None:
    if not path:
        return
    try:
        os.unlink(path)
    except IsADirectoryError:
        try:
            os.rmdir(path)
        except OSError:
            pass
    except OSError:
        pass


def lines(text: bytes) -> list[bytes]:
    return [line for line in text.split(b"\n") if line]


def pairs(text: bytes) -> list[list[bytes]]:
    return [line.split(b"=", 1) for line in text.split(b"\n") if b"=" in line]


def abandon(run: Run | None) -> NoReturn:
    """The supervisor is gone: nobody watches memory any more, so end the compiler, and never try again."""
    if run and run.pid:
        run.signal(_signal.SIGKILL)
        try:
            os.waitpid(run.pid, 0)
        except OSError:
            pass
    if run:
        run.discard()
        run.clean()
    os._exit(1)


def wait(lease: Lease, signals: Signals, run: Run) -> tuple[int, resource.struct_rusage]:
    """Wait for the compiler; returns its wait status and resource usage."""
    poll = select.poll()
    poll.register(lease.socket.fileno(), select.POLLIN)
    poll.register(signals.reader, select.POLLIN)
    while True:
        if os.waitid(os.P_PID, run.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            return run.collect()
        ready = [descriptor for descriptor, _ in poll.poll()]
        for number in signals.take():
            if number in FORWARDED:
                run.signal(number)
                lease.send(b"signalled", b"%d" % number)  # the compiler may ignore it; the supervisor will not
        if lease.socket.fileno() in ready and lease.receive() is None:
            abandon(run)


def wait_for_word(lease: Lease, signals: Signals, run: Run | None) -> list[bytes]:
    """Wait for the supervisor's word; a signal that comes meanwhile ends us as it would end a compiler."""
    poll = select.poll()
    poll.register(lease.socket.fileno(), select.POLLIN)
    poll.register(signals.reader, select.POLLIN)
    while True:
        ready = [descriptor for descriptor, _ in poll.poll()]
        for number in signals.take():
            if number in FORWARDED:
                if run:
                    run.discard()
                    run.clean()
                _signal.signal(number, _signal.SIG_DFL)
                os.kill(os.getpid(), number)
        if lease.socket.fileno() in ready:
            fields = lease.receive()
            if fields is None:
                abandon(run)
            if fields[0] == b"with":
                lease.names, lease.variables = (pairs(field) for field in fields[1:3])
                lease.secrets, lease.keeps = (lines(field) for field in fields[3:5])
            elif fields[0] == b"say":
                write(2, fields[1])
            else:
                return fields


def perform(lease: Lease, signals: Signals, fields: list[bytes]) -> tuple[Run, list[bytes]]:
    """Run the compiler as told; returns the run and the supervisor's next word."""
    directory, temporary, final, depfile, number, prepend, append, *command = fields[1:]
    outputs = (temporary, final, depfile)
    told = (lease.names, lease.variables, lease.secrets, lease.keeps)
    run = Run(directory, outputs, number, (prepend, append), command, *told)
    run.prepare()
    if not run.start():
        lease.send(b"done", b"%d" % (127 << 8), b"0", b"0", b"")
        return run, wait_for_word(lease, signals, run)
    lease.send(b"started", b"%d" % run.pid)
    status, usage = wait(lease, signals, run)
    if status == 0:
        run.complete_depfile()
        run.publish()
    else:
        run.discard()
    cpu = b"%.3f" % (usage.ru_utime + usage.ru_stime)
    said = (b"", run.includes_torch_header()) if status == 0 else (run.excerpt(),)
    lease.send(b"done", b"%d" % status, b"%d" % (usage.ru_maxrss * 1024), cpu, *said)
    return run, wait_for_word(lease, signals, run)


def main() -> None:
    path, real, *command = sys.argv[1:]
    if real:
        command[0] = real
    if JOB_VARIABLE in os.environb:
        execute(command)  # a compiler that a compiler runs belongs to its job
    be_expendable()
    try:
        lease = Lease(path)
    except OSError:
        write(2, b"safe-ext-build: error[SEB-5011]: the build that this compile belongs to is over\n")
        os._exit(1)
    signals = Signals()
    get = os.environb.get
    arguments = [os.fsencode(argument) for argument in command]
    lease.send(b"job", os.getcwdb(), *(get(name, b"") for name in NVCC_FLAGS), *arguments)
    run, fields = None, wait_for_word(lease, signals, None)
    while fields[0] == b"run":
        run, fields = perform(lease, signals, fields)
    if fields[0] == b"pass":
        execute(command)
    code = int(fields[1])
    if run:
        if run.pid:
            run.replay()
        run.clean()
    os._exit(code)


if __name__ == "__main__":
    main()
