"""What supervision costs, side by side with plain setuptools.build_meta in one run.

    python tests/benchmarks/overhead.py [--runs 9] [--compiles 200]

Two figures: what `build_wheel` costs for a package without extensions (with and without a setup script), and
what each compile of no length costs, through ninja at the same number of jobs. Medians of alternating runs,
each hook in a process of its own, as frontends call it. Wall time, and the CPU time of the whole tree, which
says more where the machine is busy with something else.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

PROJECTS = Path(__file__).resolve().parents[1] / "projects"
PLAIN, OURS = "setuptools.build_meta", "safe_ext_build.build_meta"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--runs", type=int, default=9, help="runs of each kind")
    parser.add_argument("--compiles", type=int, default=200)
    options = parser.parse_args()
    load = os.getloadavg()[0]
    print(f"{os.cpu_count()} CPUs, load {load:.1f} at the start, medians of {options.runs} alternating runs")
    with tempfile.TemporaryDirectory(prefix="overhead-") as directory:
        place = Path(directory)
        hooks(place, options.runs)
        compiles(place, options.runs, options.compiles)


def hooks(place: Path, runs: int) -> None:
    project = Path(shutil.copytree(PROJECTS / "plain", place / "plain"))
    compare("build_wheel, no setup script", project, runs)
    (project / "setup.py").write_text("from setuptools import setup\nsetup()\n")
    compare("build_wheel, with a setup script", project, runs)


def compiles(place: Path, runs: int, count: int) -> None:
    """The difference between many compiles and one: what is done once per build falls out of it."""
    environ = {"STANDIN_COMPILER": str(stand_in(place)), "MAX_JOBS": str(os.cpu_count())}
    first = alternate(standin_project(place / "one", 1), runs, environ)
    rest = alternate(standin_project(place / "many", count), runs, environ)
    report(f"{count} compiles at {os.cpu_count()} jobs", rest)
    each = {name: (rest[name] - first[name]) / (count - 1) for name in first}
    report("of that, each compile", each)


def compare(what: str, project: Path, runs: int) -> None:
    report(what, alternate(project, runs, {}))


def report(what: str, medians: Mapping[str, Cost]) -> None:
    plain, ours = medians[PLAIN], medians[OURS]
    print(f"{what}:")
    for kind, one, other in (("wall", plain.wall, ours.wall), ("CPU", plain.cpu, ours.cpu)):
        added = f"{1000 * (other - one):+.1f} ms, x{other / one:.2f}" if one > 0 else "too short to tell"
        print(f"  {kind:4} {1000 * one:8.1f} ms plain, {1000 * other:8.1f} ms ours: {added}", flush=True)


@dataclass(frozen=True)
class Cost:
    """Seconds."""

    wall: float
    cpu: float

    def __sub__(self, other: Cost) -> Cost:
        return Cost(self.wall - other.wall, self.cpu - other.cpu)

    def __truediv__(self, count: int) -> Cost:
        return Cost(self.wall / count, self.cpu / count)


def alternate(project: Path, runs: int, environ: Mapping[str, str]) -> dict[str, Cost]:
    """Medians for the plain backend and for ours; what warms up the machine is not counted."""
    costs: dict[str, list[Cost]] = {PLAIN: [], OURS: []}
    for number in range(runs + 1):
        for backend, found in costs.items():
            forget(project)
            cost = build(backend, project, environ)
            if number:
                found.append(cost)
    return {
        backend: Cost(statistics.median(one.wall for one in found), statistics.median(one.cpu for one in found))
        for backend, found in costs.items()
    }


def build(backend: str, project: Path, environ: Mapping[str, str]) -> Cost:
    """One process that calls one hook."""
    # Plain builds take ninja from PATH.
    path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]])
    command = [sys.executable, "-c", f"from {backend} import build_wheel; build_wheel('dist')"]
    everything = {**os.environ, **environ, "PATH": path}
    everything.pop("PYTHONDONTWRITEBYTECODE", None)  # what is installed has its bytecode
    log = project.parent / "log"
    start = time.perf_counter()
    with open(log, "wb") as output:
        process = subprocess.Popen(command, cwd=project, env=everything, stdout=output, stderr=output)
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{backend} failed:\n{log.read_text(errors='replace')}")
    return Cost(time.perf_counter() - start, usage.ru_utime + usage.ru_stime)


def forget(project: Path) -> None:
    for name in ("build", "dist"):
        shutil.rmtree(project / name, ignore_errors=True)
    (project / "dist").mkdir()


def stand_in(place: Path) -> Path:
    """The stand-in compiler, by the name of what it stands for."""
    compiler = place / "nvcc"
    subprocess.run(["cc", "-O2", "-o", compiler, PROJECTS / "standin" / "standin.c"], check=True)
    return compiler


def standin_project(place: Path, count: int) -> Path:
    """The stand-in project with this many sources, each of which compiles at once."""
    project = Path(shutil.copytree(PROJECTS / "standin", place))
    shutil.rmtree(project / "csrc")
    (project / "csrc").mkdir()
    for number in range(count):
        (project / "csrc" / f"source{number}.cu").write_text("//! seconds=0 mib=0\n")
    return project


if __name__ == "__main__":
    main()
