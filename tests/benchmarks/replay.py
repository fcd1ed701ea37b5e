"""Builds for real: a stand-in compiler that holds what real compilers held, many at once, in a memory cgroup.

    python tests/benchmarks/replay.py [--jobs 64] [--mib 3072] [--smaller 60] [--faster 20] [--times 2]

The curves of traces/, with memory and time divided; the first run knows nothing, the later ones have a history.
Prints for each how long it took, beside the least that any schedule takes, how many compilers ran at once, and
whom the kernel killed. Needs the right to make a memory cgroup.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.extend(str(Path(__file__).resolve().parents[1] / place) for place in ("..", ".", "memory"))

from memory_builds import STANDIN, StandinBuild
from real_cgroups import MIB, Group, made
from recorded import Recorded, bound, recorded
from watched import watched

RESERVE = 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--jobs", type=int, default=64, help="compiles, and how many may run at once")
    parser.add_argument("--mib", type=int, default=3072, help="the limit of the cgroup")
    parser.add_argument("--smaller", type=float, default=60, help="memory is divided by this")
    parser.add_argument("--faster", type=float, default=20, help="time is divided by this")
    parser.add_argument("--times", type=int, default=2)
    options = parser.parse_args()
    compiles = recorded(options.jobs, options.smaller, options.faster)
    peaks = sum(one.peak for one in compiles.values())
    longest = max(one.seconds for one in compiles.values())
    print(f"{options.jobs} compiles of up to {longest:.0f} s, {peaks} MiB at their peaks, in {options.mib} MiB")
    with tempfile.TemporaryDirectory(prefix="replay-") as place:
        build = prepare(Path(place), compiles)
        for number in range(options.times):
            shutil.rmtree(build.root / "build", ignore_errors=True)
            with made("memory", options.mib * MIB) as group:
                measure("warm" if number else "cold", build, compiles, group, options.mib)


def prepare(place: Path, compiles: dict[str, Recorded]) -> StandinBuild:
    compiler = place / "nvcc"
    subprocess.run(["cc", "-O1", "-o", compiler, STANDIN / "standin.c"], check=True)
    build = StandinBuild(place / "project", compiler, {"MAX_JOBS": str(len(compiles))})
    build.write_sources({name: one.plan for name, one in compiles.items()})
    return build


def measure(what: str, build: StandinBuild, compiles: dict[str, Recorded], group: Group, mib: int) -> None:
    with watched(group) as seen:
        text = build.finish(build.start(group))
    stopped = re.search(r"(\d+) stopped for memory", text)
    least = bound(compiles, mib - RESERVE, len(compiles))
    running = [count for count in seen.compilers if count]
    print(
        f"{what}: {seen.seconds:.0f} s, {seen.seconds / least:.2f} times the bound of {least:.0f} s;"
        f" at most {seen.most} at once, {sum(running) / len(running):.0f} on average,"
        f" {max(seen.used) // MIB} MiB at most in use; {stopped[1] if stopped else 0} stopped for memory,"
        f" {group.oom_kills} killed by the kernel",
        flush=True,
    )
    build.assert_nothing_left()


if __name__ == "__main__":
    main()
