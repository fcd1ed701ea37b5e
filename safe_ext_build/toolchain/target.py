"""The target: the environment that will import the result, found from the frontend that runs our hooks."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .. import probe
from ..errors import TorchError


@dataclass(frozen=True)
class Environment:
    """What an interpreter says about itself."""

    python: Path
    prefix: Path
    version: tuple[int, int]
    abi: str
    """The suffix of extension modules, such as `.cpython-313t-x86_64-linux-gnu.so`."""
    path: tuple[str, ...]
    """What exists of its `sys.path`, absolute, without the entry for the current directory."""
    torch: Path | None
    """The package's directory, found without importing it."""


@dataclass(frozen=True)
class Process:
    """What the kernel says about a process."""

    exe: Path
    argv: tuple[str, ...]
    environ: Mapping[str, str]
    cwd: Path


@dataclass(frozen=True)
class Choice:
    """An interpreter that may be the target's, and what made us think so."""

    python: Path
    why: str


# The path is cleaned before anything is searched on it: the current directory may be a checkout of torch.
# The answer has a file of its own, since `.pth` files and sitecustomize modules print to standard output.
_PROBE = """
import sys
sys.path[:] = [entry for entry in sys.path if entry]
import importlib.machinery, importlib.util, os
try:
    spec = importlib.util.find_spec("torch")
except Exception:
    spec = None
package = spec is not None and spec.origin and spec.submodule_search_locations
answer = [sys.executable, sys.prefix, str(sys.version_info[0]), str(sys.version_info[1]),
          importlib.machinery.EXTENSION_SUFFIXES[0], os.path.dirname(spec.origin) if package else ""]
answer += [os.path.abspath(entry) for entry in sys.path if os.path.exists(entry)]
with open(int(sys.argv[1]), "wb") as file:
    file.write(b"\\0".join(map(os.fsencode, answer)))
"""


def ask(python: Path, environ: Mapping[str, str], cwd: Path | None = None) -> Environment | None:
    """Have an interpreter describe itself in a process of its own (35 ms); None when it cannot."""
    where = cwd if cwd is not None and cwd.is_dir() else None
    try:
        with tempfile.TemporaryFile(dir=probe.scratch()) as answer:
            command = [str(python), "-c", _PROBE, str(answer.fileno())]
            status, _ = probe.run(command, environ, cwd=where, pass_fds=(answer.fileno(),))
            answer.seek(0)
            return _parse(answer.read()) if status == 0 else None
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None


def _parse(answer: bytes) -> Environment | None:
    fields = [os.fsdecode(field) for field in answer.split(b"\0")]
    if len(fields) < 7:
        return None
    python, prefix, major, minor, abi, torch, *path = fields
    return Environment(
        python=Path(python),
        prefix=Path(prefix),
        version=(int(major), int(minor)),
        abi=abi,
        path=tuple(path),
        torch=Path(torch) if torch else None,
    )


def own() -> Environment:
    """The environment that this process runs in, isolation included, without starting another."""
    from importlib.machinery import EXTENSION_SUFFIXES

    # Relative entries are an in-tree backend's directory: a project may well have a folder named torch.
    path = tuple(entry for entry in sys.path if Path(entry).is_absolute())
    return Environment(
        python=Path(sys.executable),
        prefix=Path(sys.prefix),
        version=sys.version_info[:2],
        abi=EXTENSION_SUFFIXES[0],
        path=path,
        torch=_own_torch(path),
    )


def _own_torch(path: Sequence[str]) -> Path | None:
    from importlib.machinery import PathFinder

    for finder in sys.meta_path:
        spec = finder.find_spec("torch", path if finder is PathFinder else None)
        if spec is not None and spec.origin is not None and spec.submodule_search_locations:
            return Path(spec.origin).parent
    return None


def find_target(
    parent: int, environ: Mapping[str, str], own: Environment, proc: Path = Path("/proc")
) -> tuple[Environment | None, str]:
    """The environment that will import what the frontend with process id `parent` has us build.

    The text says where it was found, as a noun phrase; without a target, it says why there is none.
    """
    process = read_process(parent, proc) or _unseen(environ, own)
    found: tuple[Environment, str] | None = None
    for choice in choices(process, own):
        environment = _answer(choice, process, environ, own)
        if environment is not None and environment.torch is not None:
            return environment, choice.why
        if environment is not None and found is None:
            found = environment, choice.why
    return found or (None, f"{frontend(process)} names no environment that could import the result")


def named_target(
    path: Path, source: str, parent: int, environ: Mapping[str, str], own: Environment, proc: Path = Path("/proc")
) -> tuple[Environment, str]:
    """The environment that `torch.runtime` names, by its directory or its Python; and `source`, who said so.

    Raises TorchError when it is none.
    """
    hint = "Set torch.runtime to a Python (/path/to/env/bin/python), or to the directory of an environment."
    if not path.exists():
        raise TorchError(f"{source} is {path}, which does not exist", code="SEB-3002", hint=hint)
    choice = next(_in_prefix(path, source), None) if path.is_dir() else Choice(path, source)
    if choice is None:
        raise TorchError(f"{source} is {path}, a directory without bin/python", code="SEB-3003", hint=hint)
    process = read_process(parent, proc) or _unseen(environ, own)
    found = _answer(choice, process, environ, own)
    if found is None:
        what = f"{source} is {path}, but {choice.python} does not run as a Python"
        raise TorchError(what, code="SEB-3004", hint=hint)
    return found, source


def read_process(pid: int, proc: Path = Path("/proc")) -> Process | None:
    """A process as the kernel shows it, or None where it may not or cannot be looked at."""
    directory = proc / str(pid)
    try:
        exe = str((directory / "exe").readlink()).removesuffix(" (deleted)")
        cwd = str((directory / "cwd").readlink()).removesuffix(" (deleted)")
        argv = _strings(directory / "cmdline")
        environ = dict(entry.split("=", 1) for entry in _strings(directory / "environ") if "=" in entry)
    except OSError:
        return None
    return Process(exe=Path(exe), argv=tuple(argv), environ=environ, cwd=Path(cwd))


def _strings(file: Path) -> list[str]:
    return [os.fsdecode(part) for part in file.read_bytes().split(b"\0")[:-1]]


def _unseen(environ: Mapping[str, str], own: Environment) -> Process:
    """Without /proc: taken for pip, whose isolation is undone by forgetting what it puts into environ."""
    isolation = {"PYTHONPATH", "PYTHONHOME", "PYTHONNOUSERSITE"}
    outside = {name: value for name, value in environ.items() if name not in isolation}
    return Process(exe=own.python, argv=(str(own.python), "-m", "pip"), environ=outside, cwd=Path.cwd())


def _answer(choice: Choice, process: Process, environ: Mapping[str, str], own: Environment) -> Environment | None:
    isolating = ("PYTHONPATH", "PYTHONNOUSERSITE")
    same_path = all(process.environ.get(name, "") == environ.get(name, "") for name in isolating)
    if same_path and choice.python.parent.parent == own.prefix:
        return own
    return ask(choice.python, process.environ, process.cwd)


def choices(process: Process, own: Environment) -> Sequence[Choice]:
    """Interpreters of the target, best first: the first that has torch is it, else the first that answers."""
    name = frontend(process)
    if name == "pip":
        # pip runs hooks with its own interpreter, and installs into nothing else.
        return [Choice(own.python, "the environment of pip")]
    if name == "uv":
        return list(_uv(process))[:1]
    active = _prefixes(process, ("VIRTUAL_ENV", "CONDA_PREFIX"), name)
    if _is_python(process.exe):
        return [Choice(interpreter(process), f"the environment of {name}"), *active]
    return [*active, Choice(own.python, "the environment that runs the hooks")]


def frontend(process: Process) -> str:
    """A short name for the program that called us: `pip`, `uv`, `build`, `bash`."""
    if not _is_python(process.exe):
        return "uv" if process.exe.name == "uvx" else process.exe.name
    name = _python_program(process.argv) or process.exe.name
    return "pip" if re.fullmatch(r"pip([\d.]*|-.*|\.pyz)|__pip-runner__\.py", name) else name


def _python_program(argv: Sequence[str]) -> str:
    """The module or script that a Python command line runs."""
    arguments = iter(argv[1:])
    for argument in arguments:
        if argument in {"-X", "-W"}:
            next(arguments, None)
        elif argument == "-m":
            return next(arguments, "").partition(".")[0]
        elif not argument.startswith("-"):
            script = Path(argument)
            return script.parent.name if script.name == "__main__.py" else script.name
    return ""


def _is_python(exe: Path) -> bool:
    return re.match(r"python|pypy", exe.name) is not None


def interpreter(process: Process) -> Path:
    """The path by which a Python was called: unlike the executable, it tells the virtual environment."""
    named = _which(process.argv[0], process) if process.argv else None
    if named is not None and os.path.realpath(named) == os.path.realpath(process.exe):
        return named
    return process.exe


def _which(command: str, process: Process) -> Path | None:
    if "/" in command:
        return process.cwd / command
    directories = process.environ.get("PATH", os.defpath).split(os.pathsep)
    files = (process.cwd / directory / command for directory in directories)
    return next((file for file in files if os.access(file, os.X_OK)), None)


def _prefixes(process: Process, variables: Sequence[str], name: str) -> Iterator[Choice]:
    for variable in variables:
        if value := process.environ.get(variable):
            yield from _in_prefix(process.cwd / value, f"{variable} of {name}")


def _in_prefix(prefix: Path, why: str) -> Iterator[Choice]:
    for python in (prefix / "bin" / "python", prefix / "bin" / "python3"):
        if python.exists():
            yield Choice(python, why)
            return


# uv: what follows was read off uv 0.13's behaviour. --directory has already changed the process's directory.

_UV_VALUED = {"--allow-insecure-host", "--cache-dir", "--color", "--config-file", "--directory", "--project"}
_UV_PROJECT = {"add", "export", "lock", "remove", "run", "sync", "tree"}


def _uv(process: Process) -> Iterator[Choice]:
    command = _uv_command(process.argv)
    if process.exe.name == "uvx" or command == "tool":
        return  # an environment of its own, which does not exist yet
    if command in _UV_PROJECT:
        yield from _uv_project(process)
    else:
        yield from _uv_pip(process)


def _uv_command(argv: Sequence[str]) -> str:
    arguments = iter(argv[1:])
    for argument in arguments:
        if argument in _UV_VALUED:
            next(arguments, None)
        elif not argument.startswith("-"):
            return argument
    return ""


def _uv_project(process: Process) -> Iterator[Choice]:
    """Project commands install into the project's environment; an active one counts only with --active."""
    if "--active" in process.argv:
        yield from _prefixes(process, ("VIRTUAL_ENV",), "uv")
    named = process.environ.get("UV_PROJECT_ENVIRONMENT") or ".venv"
    start = _option(process.argv, "--project") or process.environ.get("UV_PROJECT") or "."
    for directory in _upwards(process.cwd / start):
        yield from _in_prefix(directory / named, "the project environment of uv")


def _uv_pip(process: Process) -> Iterator[Choice]:
    """`uv pip` and `uv build`: what is asked for, else the caller's, the active, the nearest environment."""
    environ = process.environ
    requested = _option(process.argv, "--python", "-p") or environ.get("UV_PYTHON", "")
    yield from _requested(process, requested)
    if "--system" in process.argv or environ.get("UV_SYSTEM_PYTHON", "").lower() in {"1", "true", "yes"}:
        yield from _on_path(process, virtual=False)
    if parent := environ.get("UV_INTERNAL__PARENT_INTERPRETER"):  # python -m uv
        yield Choice(Path(parent), "the Python that runs uv")
    conda_base = environ.get("CONDA_DEFAULT_ENV") in {"base", "root"}
    yield from _prefixes(process, ("VIRTUAL_ENV",) if conda_base else ("VIRTUAL_ENV", "CONDA_PREFIX"), "uv")
    for directory in _upwards(process.cwd):
        if (directory / ".venv" / "pyvenv.cfg").is_file():
            yield from _in_prefix(directory / ".venv", f"{directory / '.venv'}, found by uv")
    yield from _prefixes(process, ("CONDA_PREFIX",), "uv")
    yield from _on_path(process, virtual=True)


def _requested(process: Process, request: str) -> Iterator[Choice]:
    """A request such as `3.12` or `cpython@3.12` names no environment; neither does `v312`, to uv."""
    if not request or ("/" not in request and re.match(r"v?\d|[a-z]+[@-]?\d", request)):
        return
    path = process.cwd / request
    if path.is_dir():
        yield from _in_prefix(path, "--python of uv")
    elif path.is_file():
        yield Choice(path, "--python of uv")


def _on_path(process: Process, *, virtual: bool) -> Iterator[Choice]:
    for directory in process.environ.get("PATH", os.defpath).split(os.pathsep):
        python = process.cwd / directory / "python3"
        if os.access(python, os.X_OK) and (virtual or not (python.parent.parent / "pyvenv.cfg").exists()):
            yield Choice(python, "python3 on the PATH of uv")


def _upwards(directory: Path) -> Iterator[Path]:
    start = Path(os.path.normpath(directory))
    yield start
    yield from start.parents


def _option(argv: Sequence[str], *names: str) -> str | None:
    """The last value of an option, however it is written: `--name X`, `--name=X`, `-nX`."""
    value: str | None = None
    ours = argv[: argv.index("--")] if "--" in argv else argv
    for index, argument in enumerate(ours):
        for name in names:
            if argument == name and index + 1 < len(ours):
                value = ours[index + 1]
            elif argument.startswith(f"{name}="):
                value = argument.removeprefix(f"{name}=")
            elif not name.startswith("--") and not argument.startswith("--") and argument.startswith(name):
                value = argument.removeprefix(name) or value
    return value
