"""What this process was refused for want of something: said in words, and not as a traceback."""

from __future__ import annotations

import errno
import os

from .errors import PlaceError

_OPEN_FILES = "Raise the limit of open files, `ulimit -n 1024`, and start again."
_PROCESSES = "Raise the limit of processes (`ulimit -u`, or pids of the container), or wait until there are fewer."
_MEMORY = "Raise the limit of memory (`ulimit -v`, or that of the container), or wait until there is more."
_ROOM = "Free some room there (`df -h` and `df -i` show it), or raise the quota."
_HINTS = {
    errno.EMFILE: _OPEN_FILES,
    errno.ENFILE: _OPEN_FILES,
    errno.EAGAIN: _PROCESSES,
    errno.ENOMEM: _MEMORY,
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: _ROOM,
}


def shortage(error: BaseException) -> PlaceError | None:
    """An unexpected error as one for the user, if it comes from a want of files, processes, memory or room."""
    if isinstance(error, MemoryError):
        return PlaceError("there is not enough memory to go on", code="SEB-4013", hint=_MEMORY)
    if isinstance(error, RuntimeError) and "start new thread" in str(error):
        return PlaceError("no more threads can be started", code="SEB-4013", hint=_PROCESSES)
    if isinstance(error, OSError) and error.errno in _HINTS:
        return _refused(error.errno, error.filename)
    return _not_copied(error)


def _not_copied(error: BaseException) -> PlaceError | None:
    """shutil.copytree goes on after the first file that it could not copy, and knows the rest in words alone."""
    import shutil

    if isinstance(error, shutil.Error) and error.args and isinstance(error.args[0], list):
        for _, copy, reason in error.args[0]:
            for number in _HINTS:
                if str(reason).startswith(f"[Errno {number}]"):
                    return _refused(number, copy)
    return None


def _refused(number: int, where: object) -> PlaceError:
    at = f": {where}" if where else ""
    what = f"the system refuses to go on: {os.strerror(number)}{at}"
    return PlaceError(what, code="SEB-4013", hint=_HINTS[number])
