"""The few kernel calls that supervision stands on. Standard library only."""

from __future__ import annotations

import ctypes
import functools
import os
import resource
import signal

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 1, 36, 37
# The same numbers on every architecture: both calls came after the tables were unified (pidfd_open(2)).
_SYS_PIDFD_SEND_SIGNAL, _SYS_PIDFD_OPEN = 424, 434


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def set_subreaper(enabled: bool) -> None:
    """Make this process the parent of every orphan among its descendants (prctl(2)), or stop being it."""
    _checked(_libc().prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(enabled), 0, 0, 0))


def is_subreaper() -> bool:
    value = ctypes.c_int()
    _checked(_libc().prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(value), 0, 0, 0))
    return bool(value.value)


def die_with_parent(parent: int) -> None:
    """Be killed when the thread that forked us ends; end now if it has ended already."""
    _checked(_libc().prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0))
    if os.getppid() != parent:
        os._exit(1)


def raise_stack(wanted: int) -> None:
    """Let what is started from here on have a stack of `wanted` bytes, or as near to it as we may go."""
    soft, hard = resource.getrlimit(resource.RLIMIT_STACK)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    for limits in ((wanted, max(hard, wanted) if hard != resource.RLIM_INFINITY else hard), (hard, hard)):
        try:
            resource.setrlimit(resource.RLIMIT_STACK, limits)
        except (OSError, ValueError):  # only root may raise the hard limit
            continue
        return


def set_name(name: str) -> None:
    """Set the name that `ps` and `top` show (at most 15 bytes)."""
    try:
        with open("/proc/self/comm", "w") as file:
            file.write(name)
    except OSError:
        pass


def pidfd_open(pid: int) -> int:
    """Open a pidfd; raises ProcessLookupError when there is no such process.

    conda's Pythons are built against headers that know no pidfd_open, so os.pidfd_open may be missing.
    """
    if hasattr(os, "pidfd_open"):
        return os.pidfd_open(pid)
    return _checked(_libc().syscall(_SYS_PIDFD_OPEN, pid, 0))


def pidfd_send_signal(pidfd: int, number: int) -> None:
    if hasattr(signal, "pidfd_send_signal"):
        signal.pidfd_send_signal(pidfd, number)
    else:
        _checked(_libc().syscall(_SYS_PIDFD_SEND_SIGNAL, pidfd, number, None, 0))


def begin_child(parent: int) -> None:
    """After a fork: a group of its own, an end with its parent, and signals as a program expects them, but that
    those stay ignored which whoever started us ignores (nohup)."""
    die_with_parent(parent)
    os.setpgid(0, 0)
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    for number in (signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
