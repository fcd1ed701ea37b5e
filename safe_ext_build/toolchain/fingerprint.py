"""What an object depends on without any depfile naming it."""

from __future__ import annotations

import hashlib
import shutil
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path

from .. import __version__
from .find import Cuda, Torch
from .host import compiler_of, named_for_nvcc

# What changes an object without standing in its command line, which ninja compares itself.
_READ_BY_COMPILERS = (
    *("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "NVCC_CCBIN"),
    *("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH"),
)


def fingerprint(torch: Torch | None, cuda: Cuda | None, environ: Mapping[str, str]) -> str:
    """A digest of torch, toolkit, host compiler, Python and ourselves; another one means: compile again."""
    text = "\0".join(_parts(torch, cuda, environ))
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:16]


def host_compiler(environ: Mapping[str, str]) -> str:
    """What tells one C++ compiler from another: a digest of the program's identity."""
    return hashlib.sha256(_program(environ, "CXX", "c++").encode(errors="surrogateescape")).hexdigest()[:12]


def _parts(torch: Torch | None, cuda: Cuda | None, environ: Mapping[str, str]) -> Iterator[str]:
    yield __version__
    yield str(sysconfig.get_config_var("SOABI"))
    if torch and torch.facts:
        yield _content(torch.facts.package / "version.py")
    for tool in ("bin/nvcc", "nvvm/bin/cicc", "bin/ptxas", "bin/cudafe++") if cuda else ():
        assert cuda is not None
        yield _identity(cuda.home / tool)
    # Architectures that torch's helper dropped are added where ninja, which compares commands, does not see it.
    yield cuda.archs if cuda else ""
    yield _program(environ, "CC", "cc")
    yield _program(environ, "CXX", "c++")
    named = named_for_nvcc(environ)
    yield _compiler(named[0] if named else "gcc", environ)
    yield from (environ.get(variable, "") for variable in _READ_BY_COMPILERS)


def _program(environ: Mapping[str, str], variable: str, default: str) -> str:
    return _compiler(environ.get(variable) or default, environ)


def _compiler(text: str, environ: Mapping[str, str]) -> str:
    found = shutil.which(compiler_of(text), path=environ.get("PATH"))
    return f"{text} {_identity(Path(found)) if found else ''}"


def _content(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _identity(program: Path) -> str:
    """A program is the same while its file is: size and time stamp of what the path finally names."""
    try:
        path = program.resolve()
        status = path.stat()
    except OSError:
        return str(program)
    return f"{path} {status.st_size} {status.st_mtime_ns}"
