"""Builds with a farm: the stand-in project, its compiler, and what belongs to a build and what to the servers."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
from farm_harness import SCCACHE_DIST, Farm

sys.path.insert(0, str(Path(__file__).parents[1] / "supervise"))

from kill_harness import Build, Project, default_signals, make_project, without_core_files

SOURCE = Path(__file__).with_name("farm_compiler.c")


def make_compiler(folder: Path) -> Path:
    """The compiler of farm_compiler.c, by a name that makes a command a compile."""
    folder.mkdir(parents=True, exist_ok=True)
    compiler = folder / "g++"
    subprocess.run(["gcc", "-O1", "-static", "-no-pie", "-o", compiler, SOURCE], check=True)
    return compiler


def project_on(farm: Farm, place: Path, compiler: Path, token: str | None = None, **more: str) -> Project:
    """The stand-in project of a user who has the farm, with a home of his own."""
    for name in ("home", "bin"):
        (place / name).mkdir(parents=True)
    # Not by its compiler is it told what belongs to the build: servers run that, too.
    return make_project(
        place,
        place / "none",
        STANDIN_COMPILER=str(compiler),
        STANDIN_DEPENDENCIES="-MMD -MF",
        STANDIN_FLAGS="-x c++",
        HOME=str(place / "home"),
        PATH=os.pathsep.join([str(SCCACHE_DIST.parent), os.environ["PATH"]]),
        SCCACHE_CONF=str(farm.client_config(place / "sccache.toml", token)),
        SCCACHE_DIR=str(place / "objects"),
        **more,
    )


def write(project: Project, plans: Mapping[str, str]) -> None:
    """`plans`: name -> what the compiler is to do; what it compiles here is written down."""
    log = project.scratch / "compiled"
    log.touch()
    project.write_sources({name: f"{plan} log={log}\nint {name}_;" for name, plan in plans.items()})


def compiled_here(project: Project) -> list[tuple[str, float, float]]:
    """The compiles that have come to their end on this machine: name, begin and end."""
    lines = (project.scratch / "compiled").read_text().splitlines()
    return [(name, float(begin), float(end)) for name, begin, end in map(str.split, lines)]


def at_a_time(compiles: list[tuple[str, float, float]]) -> int:
    """How many ran at most at a time."""
    return max((sum(b <= begin < e for _, b, e in compiles) for _, begin, _ in compiles), default=0)


class FarmBuild(Build):
    """Its processes are told by their home: what leaves for a farm takes along no marker of ours."""

    farm: Farm

    def _if_ours(self, pid: int) -> psutil.Process | None:
        try:
            process = psutil.Process(pid)
            ours = process.environ().get("HOME") == self.project.variables["HOME"]
            if not ours or process.status() == psutil.STATUS_ZOMBIE:
                return None
        except psutil.Error:
            return None
        return None if any(pid in server.processes() for server in self.farm.servers) else process

    def compilers_away(self) -> list[int]:
        """Of this build, on the servers."""
        found = []
        for pid in (pid for server in self.farm.servers for pid in server.processes()):
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(pid)
                if process.name() == "g++" and process.environ().get("HOME") == self.project.variables["HOME"]:
                    found.append(pid)
        return found

    def wait_until_away(self, count: int) -> None:
        """Until so many compilers run on the servers."""
        self.wait_until(lambda: len(self.compilers_away()) >= count, f"{count} compilers on the farm")

    def parent_of(self, name: str, parent: str) -> psutil.Process:
        """The process of that name below one of another."""
        return next(one for one in self.named(name) if above(one) == parent)


def above(process: psutil.Process) -> str:
    """The name of its parent; '' of one that is gone, as a client is that has its answer."""
    try:
        parent = process.parent()
        return parent.name() if parent else ""
    except psutil.Error:
        return ""


@contextlib.contextmanager
def started(farm: Farm, project: Project, command: list[str] | None = None) -> Iterator[FarmBuild]:
    """A build that is ended, whatever the test finds."""
    with default_signals(), without_core_files():
        build = FarmBuild(project, command or project.hook())
    build.farm = farm
    try:
        yield build
    finally:
        build.close()


def record(project: Project) -> dict[str, Any]:
    """The report of the last build."""
    places = (project.scratch / "cache" / "safe-ext-build" / "reports").glob("*.json*")
    found: dict[str, Any] = json.loads(max(places, key=lambda path: path.stat().st_mtime).read_text())
    return found
