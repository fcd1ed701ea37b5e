"""The machines of the page about compile farms, all of them this one: what is typed on them is really done, with
other addresses and in other directories, and by a stand-in for systemd that starts what the units say."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Protocol

import fakes
from docs_shell import Shell

SYSTEMCTL = Path(__file__).with_name("docs_systemctl.py")


class Place(Protocol):
    """What a scene is given (see docs_scenes.Place)."""

    root: Path
    shell: Shell
    cleanup: ExitStack

    def put_on_path(self, directory: Path) -> None: ...


def farm(place: Place) -> None:
    """Machines at 10.0.0.1 (the scheduler's) to 10.0.0.3, which are entered by ssh and have systemd."""
    root = place.root / "farm"
    ports = _free_ports(3)
    programs = place.root / "machines"
    fakes.script(programs / "ssh", 'shift; exec "$@"')
    systemctl = [sys.executable, str(SYSTEMCTL), str(root), f"http://127.0.0.1:{ports[0]}"]
    fakes.script(programs / "systemctl", f'exec {shlex.join(systemctl)} "$@"')
    place.put_on_path(programs)
    for name in ("SCCACHE_CONF", "XDG_CONFIG_HOME"):
        place.shell.environ.pop(name, None)
    root.mkdir()
    place.cleanup.callback(end, root / "pids")
    for number, port in enumerate(ports, 1):
        where = f"--systemd {root}/units{number} --dir {root}/etc{'' if number == 1 else number}"
        data = "" if number == 1 else f" --data {root}/data{number}"
        place.shell.stands_for[f"--systemd --address 10.0.0.{number}"] = (
            f"--address 127.0.0.1:{port} {where}{data}"
        )
    place.shell.stands_for |= {"/etc/sccache-farm": f"{root}/etc", "farm check": f"farm check --dir {root}/etc2"}


def end(pids: Path) -> None:
    """End what `systemctl` has started."""
    for pid in map(int, pids.read_text().split() if pids.exists() else ()):
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        until = time.monotonic() + 5
        while Path("/proc", str(pid)).exists() and time.monotonic() < until:
            time.sleep(0.02)


def _free_ports(count: int) -> list[int]:
    taken = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [one.getsockname()[1] for one in taken]
    finally:
        for one in taken:
            one.close()
