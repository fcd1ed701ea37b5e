"""Whether a build has come to a halt, and which of its processes waits for what. Standard library only.

Nothing is ever ended for it: a download may be slow, a licence server may come back.
"""

from __future__ import annotations

import os
import select
import socket
from collections import deque
from collections.abc import Collection, Iterator, Mapping

PATIENCE = 600.0
"""Seconds without CPU use after which a build counts as halted."""
# A process that only waits wakes up now and then.
SHARE = 0.005
_LOOKS = 20
_MOST_NAMED = 3
# System calls whose first argument is a descriptor, or that sleep, by number (syscall_64.tbl, unistd.h).
_CALLS = {
    "x86_64": {0: "read", 45: "read", 47: "read", 72: "lock", 73: "lock", 35: "sleep", 230: "sleep"},
    "aarch64": {63: "read", 207: "read", 212: "read", 25: "lock", 32: "lock", 101: "sleep", 115: "sleep"},
}
_ESTABLISHED, _CONNECTING = "01", "02"  # states in /proc/net/tcp (tcp_states.h)


class Watch:
    """Adds up what a process tree uses. Pure: times, and CPU seconds by process, are passed in."""

    def __init__(self, patience: float) -> None:
        self.patience = patience
        self.interval = patience / _LOOKS
        self.restart()

    def restart(self) -> None:
        """Begin anew: what was, was not seen, or the build was stopped meanwhile."""
        self.before: dict[int, float] = {}
        self.total = 0.0
        self.looks: deque[tuple[float, float]] = deque()
        self.halted = 0.0

    def observe(self, now: float, spent: Mapping[int, float]) -> float:
        """Take note of a look. Returns for how many seconds the tree has stood still, at the moment at which
        that is to be said (again); else 0."""
        if self.looks and now - self.looks[-1][0] > 3 * self.interval:
            self.restart()  # we were stopped ourselves, and so may they have been
        self.total += sum(max(0.0, used - self.before.get(pid, 0.0)) for pid, used in spent.items())
        self.before = dict(spent)
        self.looks.append((now, self.total))
        while len(self.looks) > 1 and now - self.looks[1][0] >= self.patience:
            self.looks.popleft()
        begun, then = self.looks[0]
        if now - begun < self.patience:
            return 0.0
        if self.total - then > SHARE * (now - begun):
            self.halted = 0.0
            return 0.0
        self.halted += now - begun
        self.looks = deque([(now, self.total)])
        return self.halted


def below(root: int, parents: Mapping[int, int]) -> list[int]:
    """The processes that descend from `root`. Pure."""
    children: dict[int, list[int]] = {}
    for pid, parent in parents.items():
        children.setdefault(parent, []).append(pid)
    found = list(children.get(root, ()))
    for pid in found:
        found.extend(children.get(pid, ()))
    return found


def leaves(parents: Mapping[int, int], besides: Collection[int]) -> list[int]:
    """The processes of a tree (each with its parent) that have no children: it is these that the others wait
    for. `besides`: those that are known to wait for us, or that we do not ask about. Pure."""
    with_children = set(parents.values())
    return sorted(pid for pid in parents if pid not in with_children and pid not in besides)


def sentence(seconds: float, blocked: list[int], waiting: int, held: str, sources: Mapping[int, str]) -> str:
    """What to say. `waiting`: compiles that wait for admission; `held`: why; `sources`: J -> what it compiles."""
    minutes = max(1, round(seconds / 60))
    named = [describe(pid, sources) for pid in blocked[:_MOST_NAMED]]
    if len(blocked) > _MOST_NAMED:
        named.append(f"{len(blocked) - _MOST_NAMED} more processes wait")
    if waiting:
        why = f" ({held})" if held else ""
        named.append(f"{waiting} {'compile waits' if waiting == 1 else 'compiles wait'} for admission{why}")
    what = "; ".join(named) or "no process is left that could"
    return f"nothing has used the CPU for {minutes} min: {what} (the build goes on; Ctrl-C ends it)"


def describe(pid: int, sources: Mapping[int, str]) -> str:
    """A process, what it is for, and what it waits for."""
    name = _text(f"/proc/{pid}/comm").strip() or "a process"
    label = "the setup script" if name == "seb-builder" else name
    source = next((sources[above] for above in _ancestors(pid) if above in sources), "")
    return f"{label} (pid {pid}{', compiling ' + source if source else ''}) {waits_for(pid)}"


def waits_for(pid: int) -> str:
    """What a process waits for, as far as the kernel tells."""
    kind, place = _call(pid)
    if peers := [*_peers(pid)]:
        return " and ".join(peers[:2])
    if kind == "sleep":
        return "sleeps"
    if kind in ("read", "lock") and place:
        return f"waits for {'data from' if kind == 'read' else 'a lock on'} {place}"
    state = _state(pid)
    if state in ("T", "t"):
        return "is stopped"
    where = _text(f"/proc/{pid}/wchan").strip("0 \n")
    inside = f" in the kernel's {where}" if where else ""
    return f"is stuck{inside}" if state == "D" else f"waits{inside}"


def _call(pid: int) -> tuple[str, str]:
    """The kind of system call that a process is in, and what it is about."""
    number, _, rest = _text(f"/proc/{pid}/syscall").partition(" ")
    kind = _CALLS.get(os.uname().machine, {}).get(int(number) if number.isdigit() else -1, "")
    if kind not in ("read", "lock"):
        return kind, ""
    place = _link(f"/proc/{pid}/fd/{int(rest.split()[0], 16)}")
    return kind, {"pipe": "a pipe", "socket": "a socket"}.get(place.partition(":")[0], place)


def _peers(pid: int) -> Iterator[str]:
    """The other ends of the TCP connections that a process has open."""
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return
    links = {_link(f"/proc/{pid}/fd/{name}") for name in names}
    inodes = {link.removeprefix("socket:[").removesuffix("]") for link in links if link.startswith("socket:")}
    for table in ("tcp", "tcp6") if inodes else ():
        for line in _text(f"/proc/{pid}/net/{table}").splitlines()[1:]:
            fields = line.split()
            if fields[9] in inodes and fields[3] in (_ESTABLISHED, _CONNECTING):
                verb = "is connected to" if fields[3] == _ESTABLISHED else "is trying to reach"
                yield f"{verb} {address(fields[2])}"


def address(text: str) -> str:
    """An address of /proc/net/tcp or tcp6: words of 32 bits in the machine's own order, then the port."""
    words, port = text.split(":")
    data = b"".join(bytes.fromhex(words[at : at + 8])[::-1] for at in range(0, len(words), 8))
    family = socket.AF_INET if len(data) == 4 else socket.AF_INET6
    host = socket.inet_ntop(family, data)
    return f"{host if family == socket.AF_INET else f'[{host}]'}:{int(port, 16)}"


def _ancestors(pid: int) -> Iterator[int]:
    while pid > 1:
        yield pid
        fields = _text(f"/proc/{pid}/stat").rpartition(")")[2].split()
        pid = int(fields[1]) if fields else 0


def _state(pid: int) -> str:
    return _text(f"/proc/{pid}/stat").rpartition(")")[2].strip()[:1]


def _text(path: str) -> str:
    try:
        with open(path, errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def say(text: str) -> None:
    """Write a line where the build's own output goes; never wait for one who does not read."""
    poll = select.poll()
    try:
        poll.register(2, select.POLLOUT)
        if poll.poll(0):  # a pipe that is ready takes a line whole (pipe(7))
            os.write(2, f"safe-ext-build: {text}\n".encode(errors="backslashreplace")[:4096])
    except OSError:
        pass
