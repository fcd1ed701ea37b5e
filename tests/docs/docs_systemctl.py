"""A stand-in for systemctl: starts what units say, and returns once the farm knows of it.

Its arguments: a directory, the scheduler's URL, and what systemctl is given. In the directory, each machine has a
directory with its units; the ids of what was started go into the file `pids`.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

from safe_ext_build.errors import FarmError
from safe_ext_build.farm import client


def start(unit: Path) -> subprocess.Popen[bytes]:
    """Run what a unit says, on the CPUs that it says."""
    text = unit.read_text()
    command = re.findall(r"^ExecStart=(.*)", text, re.MULTILINE)[0]
    cpus = re.findall(r"^CPUAffinity=(.*)", text, re.MULTILINE)
    environ = dict(re.findall(r"^Environment=([^=]*)=(.*)", text, re.MULTILINE))
    with unit.with_suffix(".log").open("w") as log:
        return subprocess.Popen(
            [*(["taskset", "-c", cpus[0]] if cpus else []), *shlex.split(command)],
            env={**os.environ, **environ},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def servers(scheduler: str) -> int:
    """How many are registered; -1 where nobody answers."""
    try:
        answer = client.exchange(scheduler, "it", "GET", client.STATUS, 1.0)
        return client.read_status(answer, "it").servers
    except FarmError:
        return -1


def main(root: Path, scheduler: str, *given: str) -> str | None:
    """Returns what went wrong."""
    if given[0] != "enable":
        return None
    for unit in sorted(root.glob(f"units*/{given[-1]}.service")):
        process = start(unit)
        with (root / "pids").open("a") as pids:
            pids.write(f"{process.pid}\n")
        unit.rename(unit.with_suffix(".started"))
        wanted = len(list(root.glob("units*/sccache-server.started")))
        until = time.monotonic() + 20
        while servers(scheduler) != wanted:
            if process.poll() is not None or time.monotonic() > until:
                return unit.with_suffix(".log").read_text()
            time.sleep(0.05)
    return None


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *sys.argv[2:]))
