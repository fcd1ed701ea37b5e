"""What a compiler is, by its content: a cache must not take one for another behind the same path.

ccache looks at nvcc itself, not at the tools that it runs; sccache at the tools, not at their libraries; neither
looks at gcc's cc1plus.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

from .. import probe

_TOOLKIT = (
    *("bin/nvcc", "bin/nvcc.profile", "bin/cudafe++", "bin/ptxas", "bin/fatbinary", "bin/nvlink"),
    *("nvvm/bin/cicc", "nvvm/libdevice/libdevice.10.bc"),
)
_PARTS = ("cc1", "cc1plus", "as")


def of_toolkit(home: Path, memory: Memory) -> str:
    """All of a toolkit that turns source into device code; what is missing counts too."""
    return _together(memory.digest(home / name) for name in _TOOLKIT)


def of_compiler(program: str, environ: Mapping[str, str], memory: Memory) -> str:
    """A host compiler: its driver, and what that runs."""
    found = shutil.which(program, path=environ.get("PATH"))
    if found is None:
        return ""
    parts = [
        Path(path)
        for path in (shutil.which(_part(found, name, environ), path=environ.get("PATH")) for name in _PARTS)
        if path
    ]
    return _together(memory.digest(path) for path in (Path(found), *parts))


def _part(compiler: str, name: str, environ: Mapping[str, str]) -> str:
    try:
        status, said = probe.run([compiler, f"-print-prog-name={name}"], environ)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return ""
    return "" if status else said.strip()


def _together(digests: Iterable[str]) -> str:
    return hashlib.blake2b("\0".join(digests).encode(), digest_size=16).hexdigest()


class Memory:
    """Digests of files, remembered for as long as a file is untouched: some hundred MB need not be read again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._known: dict[str, str] = {}
        with contextlib.suppress(OSError, ValueError, AttributeError):
            self._known = dict(json.loads(path.read_text()).items())
        self._used: dict[str, str] = {}

    def digest(self, path: Path) -> str:
        """The digest of a file's content; '' where it cannot be read."""
        try:
            status = path.stat()
            # Whoever replaces a file and puts its time back cannot put back when its status changed.
            fields = (path, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
            key = " ".join(map(str, fields))
            if key not in self._known:
                with open(path, "rb") as file:
                    self._known[key] = _read(file.fileno())
        except OSError:
            return ""
        self._used[key] = self._known[key]
        return self._known[key]

    def save(self) -> None:
        """Keep what was asked for now; a build goes on without it."""
        with contextlib.suppress(OSError):
            temporary = self.path.with_name(f"{self.path.name}.{os.getpid()}")
            temporary.write_text(json.dumps(self._used))
            temporary.replace(self.path)


def _read(descriptor: int) -> str:
    found = hashlib.blake2b(digest_size=16)
    while block := os.read(descriptor, 1 << 20):
        found.update(block)
    return found.hexdigest()
