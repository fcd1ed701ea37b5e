"""What a compile farm gains: builds of compiles that take their time, on 1, 2, 3 servers and on none, in one run.

    sudo python tests/benchmarks/farm.py [--servers 3] [--cpus 2] [--jobs 24] [--seconds 6] [--rounds 1]

The servers are real ones of sccache-dist, all of one size, in network namespaces of this machine. The compiler
sleeps in place of compiling, so that a machine with two cores can be all of them; what is measured is all that is
around it. Toolchains are warm: a build before has sent them. Prints the makespan of the compiles, its ratio to the
one without a farm, and the share of the compiles that ran there; then what each compile costs that takes no time.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

sys.path.extend(str(Path(__file__).resolve().parents[1] / place) for place in ("..", ".", "farm", "supervise"))

import farm_harness
from farm_builds import compiled_here, make_compiler, project_on, record, write
from kill_harness import Project


@dataclass(frozen=True)
class Build:
    """Seconds: from the first compile's begin to the last one's end, and of each compile here and there."""

    makespan: float
    here: tuple[float, ...]
    there: tuple[float, ...]

    @property
    def away(self) -> float:
        """The share of the compiles that ran on the farm."""
        return len(self.there) / (len(self.here) + len(self.there))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--servers", type=int, default=3, help="the most that there are to be")
    parser.add_argument("--cpus", type=int, default=2, help="of each server")
    parser.add_argument("--jobs", type=int, default=24, help="compiles of a build")
    parser.add_argument("--seconds", type=float, default=6, help="what each takes")
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="farm-") as directory:
        place = Path(directory)
        compiler = make_compiler(place / "compiler")
        for number in range(options.rounds):
            print(f"round {number + 1}: load {os.getloadavg()[0]:.1f}, MAX_JOBS=2", flush=True)
            scaling(place / f"scaling{number}", compiler, options)
            overhead(place / f"overhead{number}", compiler, options.cpus)


def scaling(place: Path, compiler: Path, options: argparse.Namespace) -> None:
    print(f"{options.jobs} compiles of {options.seconds:g} s\nservers slots  makespan  ratio  there")
    alone = 0.0
    plan = f"seconds={options.seconds}"
    for count in range(options.servers + 1):
        found = build_on(place / str(count), compiler, max(1, count), options.cpus, options.jobs, plan, count > 0)
        alone = alone or found.makespan
        slots, ratio = count * options.cpus, alone / found.makespan
        print(f"{count:7} {slots:5} {found.makespan:7.1f} s  {ratio:5.2f}  {100 * found.away:4.0f}%", flush=True)


def overhead(place: Path, compiler: Path, cpus: int, jobs: int = 40) -> None:
    """A compile that takes no time: what is around it."""
    here = build_on(place / "here", compiler, 1, cpus, jobs, "seconds=0", away=False).here
    there = build_on(place / "there", compiler, 1, cpus, jobs, "seconds=0", away=True).there
    for name, seconds in (("here", here), ("on the farm", there)):
        median = f"{1000 * statistics.median(seconds):.0f} ms" if seconds else "none was"
        print(f"a compile of no length, {name}: {median} (median of {len(seconds)})", flush=True)


def build_on(place: Path, compiler: Path, servers: int, cpus: int, jobs: int, plan: str, away: bool) -> Build:
    """One build, of a project of its own, on a farm of its own that knows the compiler."""
    with farm_harness.farm(place / "farm", servers=servers, memory=1 << 30, cpus=cpus) as farm:
        if away:
            warm = project_on(farm, place / "warm", compiler)
            write(warm, {f"w{number}": "seconds=0.5" for number in range(4 * servers * cpus)})
            build(warm)
        more = {} if away else {"SAFE_EXT_BUILD_JOBS_REMOTE": "0"}
        project = project_on(farm, place / "project", compiler, **more)
        write(project, {f"s{number:03}": plan for number in range(jobs)})
        build(project)
    here = {name for name, _, _ in compiled_here(project)}
    found = record(project)
    spans = [(Path(run["source"]).name, run["end"] - run["start"]) for run in found["runs"]]
    return Build(
        found["compiling"],
        tuple(seconds for name, seconds in spans if name in here),
        tuple(seconds for name, seconds in spans if name not in here),
    )


def build(project: Project) -> None:
    command = project.hook()
    done = subprocess.run(
        command, cwd=project.root, env=project.environ(), capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"the build failed:\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    main()
