"""Names for undefined symbols, and the file of the project that should have defined them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from .. import probe
from .findings import Symbol

SUFFIXES = (".c", ".cc", ".cpp", ".cxx", ".cu")
_NOT_OURS = frozenset({"build", "dist", "node_modules", "__pycache__"})
_MOST_FILES, _MOST_BYTES = 3000, 1 << 20
_NO_DEFINITION = re.compile(r"\s*(if|else|while|for|switch|return|case)\b")


def describe(names: Sequence[str], project: Path, listed: Sequence[str]) -> tuple[Symbol, ...]:
    """The symbols with readable names, and where the project seems to define them. `listed`: what is compiled."""
    texts = demangle(names)
    compiled = {os.path.realpath(project / source) for source in listed}
    found = [_find(project, identifier(name), compiled) for name in names]
    return tuple(
        Symbol(name, text, source, os.path.realpath(project / source) in compiled)
        for name, text, source in zip(names, texts, found, strict=True)
    )


def demangle(names: Sequence[str]) -> list[str]:
    """Readable names: by c++filt where it is installed, else without their parameters."""
    if shutil.which("c++filt"):
        try:
            status, said = probe.run(["c++filt", "--", *names], os.environ)
            texts = said.splitlines()
            if not status and len(texts) == len(names):
                return texts
        except (OSError, ValueError, subprocess.TimeoutExpired):
            pass
    return ["::".join(parts(name)) or name for name in names]


def parts(name: str) -> list[str]:
    """The identifiers of a mangled name: ["c10", "Error", "what"] of `_ZNK3c105Error4whatEv`."""
    place = re.match(r"_Z(?:T[VISv])?(?:N[VKRO]*)?(?:St)?L?", name)
    if place is None:
        return []
    found, rest = [], name[place.end() :]
    while length := re.match(r"\d+", rest):
        end = length.end() + int(length[0])
        found.append(rest[length.end() : end])
        rest = re.sub(r"^B\d+cxx11", "", rest[end:])
    return found


def identifier(name: str) -> str:
    """The last identifier of a symbol, which a source that defines it holds."""
    return (parts(name) or [name])[-1]


def _find(project: Path, word: str, compiled: set[str]) -> str:
    """A source that seems to define `word`, best one that is not compiled; '' where there is none."""
    pattern = re.compile(rf"\b{re.escape(word)}\s*\([^;{{}}]*\)[^;{{}}()]*\{{")
    found = ""
    for path in sources(project):
        if _defines(path, pattern):
            if os.path.realpath(path) not in compiled:
                return str(path.relative_to(project))
            found = str(path.relative_to(project))
    return found


def _defines(path: Path, pattern: re.Pattern[str]) -> bool:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            text = file.read(_MOST_BYTES)
    except OSError:
        return False
    starts = (text.rfind("\n", 0, match.start()) + 1 for match in pattern.finditer(text))
    return any(not _NO_DEFINITION.match(text, start) for start in starts)


def sources(project: Path) -> Iterator[Path]:
    """The C, C++ and CUDA sources of a project, as far as it is not too large."""
    count = 0
    for directory, names, files in os.walk(project):
        names[:] = sorted(name for name in names if name not in _NOT_OURS and not name.startswith("."))
        for file in sorted(files):
            if file.endswith(SUFFIXES):
                yield Path(directory, file)
                count += 1
        if count > _MOST_FILES:
            return
