"""The one way in which we run a tool to ask it something: nvcc its version, a Python its path.

A tool that is asked may hang, and have started others; whoever asks may be killed meanwhile. So each has a session
of its own, which is ended when it does not answer in time, and while a hook or a command runs it is sheltered: it
carries a marker and a TMPDIR by which somebody else ends it and clears up after it (see supervise.shelter).
Standard library only.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, TypeVar

from .shortage import shortage

if TYPE_CHECKING:
    import subprocess
    from concurrent.futures import ThreadPoolExecutor

MARKER = "SAFE_EXT_BUILD_PROBE"
"""The variable that tells which shelter a process belongs to."""
TIMEOUT = 20.0
"""Seconds after which a tool (often a wrapper script) that says nothing is given up."""
_AT_ONCE = 8
_OURS = (errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM)
_GLANCE = 0.1

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class _State:
    """What runs in this process, and what shelters it: called once a tool is to run, for its variables."""

    shelter: Callable[[], Mapping[str, str]] | None = None
    running: set[subprocess.Popen[bytes]]
    stopping = False

    def __init__(self) -> None:
        self.running = set()
        self.lock = threading.Lock()


_state = _State()


@contextlib.contextmanager
def sheltered(shelter: Callable[[], Mapping[str, str]]) -> Iterator[None]:
    """Meanwhile, every tool gets these variables on top of its environment."""
    before, _state.shelter = _state.shelter, shelter
    try:
        yield
    finally:
        _state.shelter = before


def scratch() -> str | None:
    """The directory for temporary files about what is asked; None where the usual one will do."""
    return _shelter().get("TMPDIR")


def run(
    command: Sequence[str],
    environ: Mapping[str, str],
    timeout: float | None = None,
    *,
    cwd: Path | None = None,
    pass_fds: Sequence[int] = (),
) -> tuple[int, str]:
    """Run a tool that answers at once; its status, and all that it printed. `timeout` is in seconds.

    Raises OSError, ValueError (for what no environment can hold) and subprocess.TimeoutExpired; and PlaceError
    where it is us who lack files, processes or memory: that is no fault of the tool.
    """
    try:
        return _run(command, environ, timeout, cwd, pass_fds)
    except OSError as error:
        if error.errno in _OURS and (lacking := shortage(error)):
            raise lacking from error
        raise


def _run(
    command: Sequence[str],
    environ: Mapping[str, str],
    timeout: float | None,
    cwd: Path | None,
    pass_fds: Sequence[int],
) -> tuple[int, str]:
    import subprocess

    shelter = _shelter()
    with (
        _sink(shelter) as output,
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**environ, **shelter},
            cwd=cwd,
            pass_fds=pass_fds,
            start_new_session=True,
        ) as process,
    ):
        try:
            _state.running.add(process)
            _wait(process, TIMEOUT if timeout is None else timeout)
        except BaseException:
            _kill(process)
            raise
        finally:
            _state.running.discard(process)
        output.seek(0)
        return process.returncode, output.read().decode(errors="replace")


def _sink(shelter: Mapping[str, str]) -> IO[bytes]:
    """What a tool prints to: no pipe, which would have us wait for all that it has started. In a shelter it has a
    name, which tells whom a process belongs to even if its environment was wiped."""
    with contextlib.suppress(OSError, AttributeError):  # there is none in conda's Pythons
        return open(os.memfd_create(shelter.get(MARKER, "safe-ext-build")), "w+b")
    return tempfile.TemporaryFile()


def _shelter() -> Mapping[str, str]:
    with _state.lock:
        return _state.shelter() if _state.shelter else {}


def _wait(process: subprocess.Popen[bytes], timeout: float) -> None:
    """Wait for its end; look up now and then, for whoever wanted to know may be about to end."""
    import subprocess

    deadline = time.monotonic() + timeout
    while True:
        try:
            process.wait(min(_GLANCE, timeout))
            return
        except subprocess.TimeoutExpired:
            if _state.stopping or time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(process.args, timeout) from None


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def each(ask: Callable[[_Item], _Result], items: Iterable[_Item]) -> list[_Result]:
    """Ask about several things at a time; the answers in the same order. Who is interrupted does not wait."""
    from concurrent.futures import ThreadPoolExecutor, wait

    with ThreadPoolExecutor(max_workers=_AT_ONCE) as pool:
        try:
            asked = [pool.submit(ask, item) for item in items]
            # A signal that comes just before we begin to wait is only seen when we look up.
            while wait(asked, timeout=_GLANCE).not_done:
                pass
            return [answer.result() for answer in asked]
        except BaseException:
            _stop(pool)
            raise


def _stop(pool: ThreadPoolExecutor) -> None:
    """End what is asked, here and in what was asked for more than one answer, and wait for that."""
    _state.stopping = True
    try:
        for process in list(_state.running):
            _kill(process)
        pool.shutdown(cancel_futures=True)
    finally:
        _state.stopping = False
