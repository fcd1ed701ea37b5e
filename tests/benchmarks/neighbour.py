"""A neighbour that takes most of the machine's memory in mid-build, all at once.

    python tests/benchmarks/neighbour.py [--gib 18] [--limit 20] [--jobs 8]

In a cgroup with a limit, so that the rest of the machine is safe. The build has twice as many compiles as run at
once, of 1.5 GiB each. The neighbour comes when they are under way, writes to all of its memory as fast as it can,
keeps it for 20 s, and goes. Prints what became of both, and whom the kernel killed.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.extend(str(Path(__file__).resolve().parents[1] / place) for place in ("..", ".", "memory"))

from memory_builds import STANDIN, StandinBuild
from real_cgroups import Group, made
from watched import watched

from safe_ext_build.machine import read_machine

GIB = 1 << 30
EACH = 1536
# Nobody else is to suffer, whatever happens: the kernel would take this process first.
NEIGHBOUR = """
import sys, time
open("/proc/self/oom_score_adj", "w").write("1000")
begun = time.monotonic()
block = bytearray(int(float(sys.argv[1]) * (1 << 30)))
print(f"{time.monotonic() - begun:.1f}", flush=True)
time.sleep(20)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--gib", type=float, default=18, help="what the neighbour takes")
    parser.add_argument("--limit", type=float, default=20, help="the limit of the cgroup, in GiB")
    parser.add_argument("--jobs", type=int, default=8)
    options = parser.parse_args()
    free = read_machine().budget.available / GIB
    if free < options.limit + 0.5:
        sys.exit(f"only {free:.1f} GiB are free")
    with tempfile.TemporaryDirectory(prefix="neighbour-") as place:
        build = prepare(Path(place), options.jobs)
        with made("memory", int(options.limit * GIB)) as group:
            group.forbid_swap(int(options.limit * GIB))
            meet(build, group, options.gib)


def prepare(place: Path, jobs: int) -> StandinBuild:
    compiler = place / "nvcc"
    subprocess.run(["cc", "-O1", "-o", compiler, STANDIN / "standin.c"], check=True)
    build = StandinBuild(place / "project", compiler, {"MAX_JOBS": str(jobs)})
    build.write_sources({f"k{number}": f"seconds=16 mib={EACH}" for number in range(2 * jobs)})
    return build


def meet(build: StandinBuild, group: Group, gib: float) -> None:
    with watched(group) as seen:
        process = build.start(group)
        wait_for_memory(process, group, GIB * 5)
        held = group.used / GIB
        command = group.inside([sys.executable, "-c", NEIGHBOUR, str(gib)])
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as neighbour:
            assert neighbour.stdout
            took = neighbour.stdout.readline().strip()
            beside = group.used / GIB - gib
            status = neighbour.wait()
        text = build.finish(process)
    found = re.search(r"(\d+) stopped for memory", text)
    stopped = found[1] if found else "no"
    print(f"the build held {held:.1f} GiB when {gib:.0f} came, {beside:.1f} when they were there, {took} s later;")
    print(f"the neighbour ended with {status}, the build with all {len(build.objects())} objects after")
    print(f"{seen.seconds:.0f} s; {stopped} compiles were stopped and run again, {group.oom_kills} killed by the")
    print(f"kernel; {max(seen.used) / GIB:.1f} GiB at most were in use")
    build.assert_nothing_left()


def wait_for_memory(process: subprocess.Popen[str], group: Group, least: int) -> None:
    while group.used < least:
        if process.poll() is not None:
            sys.exit("the build ended too early")
        time.sleep(0.1)


if __name__ == "__main__":
    main()
