"""What a failed build is to be blamed on, when the project itself is at fault."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from ..errors import BuildFailed

_NAMED = 3
# The link under which an unpacked sdist is compiled, so that its objects can be used again (see schedule/shim.py).
_KEPT = re.compile(r"[^\s'\"]*/objects\d+/source/")


def missing_sources(names: Sequence[str], project: Path) -> BuildFailed:
    """The error for sources, relative to the project, that its build asks for and nobody has."""
    several = f"{', '.join(names[:_NAMED])}{' and more' if len(names) > _NAMED else ''}"
    who = "setup.py" if (project / "setup.py").is_file() else "the build"
    if (project / "PKG-INFO").is_file():  # only an sdist has one
        return BuildFailed(
            f"{who} names {several}, which this sdist does not contain",
            hint="Report it to its authors, or build from its repository.",
        )
    hint = "Write it, or take it out of the list of sources."
    if (project / ".gitmodules").is_file():
        hint = "Is it part of a submodule? Run: git submodule update --init --recursive"
    return BuildFailed(f"{who} names {several}, which {project} does not contain", hint=hint)


def missing_to_compiler(source: str, error: str) -> bool:
    """Whether a compiler that was called for a source has said that there is none: in the words of the one who
    runs it ("cc1plus: fatal error: x.cu: No such file or directory"; clang has "…directory: 'x.cu'")."""
    lower = error.lower()
    ends = (f": {source}: no such file or directory", f"no such file or directory: '{source}'")
    return bool(source) and lower.endswith(tuple(end.lower() for end in ends))


def as_in_the_project(text: str) -> str:
    """A compiler's words with the paths of an sdist's files as they are in the sdist."""
    return _KEPT.sub("", text)
