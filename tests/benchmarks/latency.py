"""How responsive the machine stays while a build wants three times the memory that there is.

    python tests/benchmarks/latency.py [--mib 3072] [--times 3]

An unrelated program allocates 50 MB and touches them, again and again, in the cgroup of the build and outside.
The build has 16 compiles that keep a CPU busy, and hold three times the limit in all; first as many at a time as
there are CPUs, then with MAX_JOBS=16. Prints the median and the 95th percentile of a round, and how many times
longer they are than on the idle machine, which is measured before each build.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.extend(str(Path(__file__).resolve().parents[1] / place) for place in ("..", ".", "memory"))

from bystander import Bystander, Latency
from memory_builds import STANDIN, StandinBuild
from real_cgroups import MIB, Group, made

COMPILES = 16
IDLE = 5.0
BUILD = 12.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--mib", type=int, default=3072, help="the limit of the cgroup")
    parser.add_argument("--times", type=int, default=3)
    options = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f} at the start")
    print("| MAX_JOBS | where | idle: median, p95 (ms) | in a build | times the idle machine's |")
    print("|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="latency-") as place:
        build = prepare(Path(place), options.mib)
        for jobs in (os.cpu_count() or 1, COMPILES):
            build.variables["MAX_JOBS"] = str(jobs)
            for _ in range(options.times):
                measure(build, jobs, options.mib)


def prepare(place: Path, mib: int) -> StandinBuild:
    compiler = place / "nvcc"
    subprocess.run(["cc", "-O1", "-o", compiler, STANDIN / "standin.c"], check=True)
    build = StandinBuild(place / "project", compiler)
    build.write_sources(
        {f"k{number}": f"seconds=2 burn=1 mib={mib * 3 // COMPILES}" for number in range(COMPILES)}
    )
    return build


def measure(build: StandinBuild, jobs: int, mib: int) -> None:
    shutil.rmtree(build.root / "build", ignore_errors=True)
    with made("memory", mib * MIB) as group:
        before = both(group, IDLE)
        process = build.start(group)
        during = both(group, BUILD)
        build.finish(process)
        for where, idle, busy in zip(("outside", "inside"), before, during, strict=True):
            ratios = f"{busy.median / idle.median:.1f}, {busy.p95 / idle.p95:.1f}"
            print(f"| {jobs} | {where} | {figures(idle)} | {figures(busy)} | {ratios} |", flush=True)
        if group.oom_kills:
            sys.exit(f"the kernel has killed {group.oom_kills}")


def both(group: Group, seconds: float) -> list[Latency]:
    """One after the other: together they would measure each other."""
    return [Bystander(seconds / 2, through).latency() for through in ((), group.inside(()))]


def figures(latency: Latency) -> str:
    return f"{latency.median * 1000:.0f}, {latency.p95 * 1000:.0f}"


if __name__ == "__main__":
    main()
