"""What watching costs the supervisor: CPU time of one pass, and the share of a core at the rate it chooses.

    python tests/benchmarks/sensors.py [--passes 48] [500 760 1000]

Starts so many sleeping processes, in trees of four below one job each, as nvcc's tools are; and once more as
strangers, which belong to no job. "First" is a pass that reads everybody, as one in 16 does.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from safe_ext_build.supervise.job_server import SAMPLE, SHARE_OF_CPU, SLOWEST
from safe_ext_build.supervise.memory import MemoryWatch
from safe_ext_build.supervise.usage import Watch

# A root, and below it three that sleep.
TREE = "sleep 1000 & one=$!; sleep 1000 & two=$!; sleep 1000 & three=$!; echo; read line; kill $one $two $three"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("counts", type=int, nargs="*", default=[500, 760, 1000])
    parser.add_argument("--passes", type=int, default=48)
    options = parser.parse_args()
    print("| processes of jobs | others | first pass, ms | the others, ms | passes a second | share of a core |")
    print("|---|---|---|---|---|---|")
    for count in options.counts:
        with trees(count // 4) as pids:
            measure(dict(enumerate(pids)), 3 * len(pids), options.passes)
            measure(dict(enumerate(pids[:8])), 24, options.passes)


@contextmanager
def trees(count: int) -> Iterator[list[int]]:
    """The roots of so many trees."""
    shell = ["sh", "-c", TREE]
    started = [subprocess.Popen(shell, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(count)]
    try:
        for process in started:
            assert process.stdout
            process.stdout.readline()
        yield [process.pid for process in started]
    finally:
        for process in started:
            process.communicate()


def measure(roots: dict[int, int], ours: int, passes: int) -> None:
    """What the supervisor does in one pass: usage of the jobs, and memory of the domains."""
    watch, memory = Watch(), MemoryWatch()
    costs = []
    for _ in range(passes):
        begun = time.process_time()
        watch.look(roots)
        memory.look({})
        costs.append(time.process_time() - begun)
    first, usual = costs[0], statistics.median(costs[1:])
    mean = statistics.mean(costs)
    every = max(SAMPLE, min(SLOWEST, usual / SHARE_OF_CPU))
    others = sum(path.name.isdigit() for path in Path("/proc").iterdir()) - ours
    print(
        f"| {ours} | {others} | {first * 1000:.1f} | {usual * 1000:.1f} | {1 / every:.1f} | {mean / every:.1%} |",
        flush=True,
    )


if __name__ == "__main__":
    main()
