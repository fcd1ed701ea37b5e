"""An unrelated program on the machine, and how fast it answers: allocates 50 MB, touches them, lets go."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

LOOP = """
import json, mmap, sys, time
took, end = [], time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    begun = time.perf_counter()
    with mmap.mmap(-1, 50_000_000, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        for page in range(0, 50_000_000, 4096):
            memory[page] = 1
    took.append(time.perf_counter() - begun)
    time.sleep(0.05)
print(json.dumps(took))
"""


@dataclass(frozen=True)
class Latency:
    """Seconds that one round took."""

    rounds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.rounds)

    @property
    def p95(self) -> float:
        return sorted(self.rounds)[int(0.95 * len(self.rounds))]


class Bystander:
    """Runs for some seconds; `through` is a command that runs another."""

    def __init__(self, seconds: float, through: Sequence[str] = ()) -> None:
        command = [*through, sys.executable, "-c", LOOP, str(seconds)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def latency(self) -> Latency:
        """Waits for the end."""
        said, _ = self._process.communicate(timeout=120)
        assert self._process.returncode == 0
        return Latency(tuple(json.loads(said)))
