"""What the supervisor sees: usage of real process trees, memory domains, neighbours, history, messages."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from safe_ext_build.machine.memory import MemoryLimit
from safe_ext_build.machine.neighbours import Outlook, Share
from safe_ext_build.schedule.forecast import Curve
from safe_ext_build.schedule.policy import Memory
from safe_ext_build.supervise import connection as connections
from safe_ext_build.supervise.connection import Connection
from safe_ext_build.supervise.job_server import _history
from safe_ext_build.supervise.memory import binding
from safe_ext_build.supervise.neighbourhood import HOST, Neighbourhood
from safe_ext_build.supervise.usage import ANEW, Usage, Watch, look

GIB, MIB = 1 << 30, 1 << 20


# Usage.


class Tree:
    """A root with descendants: `sh -c script`, which says `ready` when it is so, and ends with its input."""

    def __init__(self, script: str) -> None:
        self.process = subprocess.Popen(["/bin/sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.process.stdout and self.process.stdout.readline() == b"ready\n"

    @property
    def pid(self) -> int:
        return self.process.pid

    def close(self) -> None:
        self.process.communicate(timeout=20)


@pytest.fixture
def trees() -> Iterator[list[Tree]]:
    found: list[Tree] = []
    yield found
    for tree in found:
        tree.close()


# Double quotes only: a shell wraps them in single ones.
PYTHON = f"{sys.executable} -S -c"
HOLD = 'import sys; data = bytearray([1]) * (50 << 20); print(\\"ready\\", flush=True); sys.stdin.read()'
BURN = "import time\nwhile time.process_time() < 0.5: pass"


def test_memory_of_a_tree_is_what_psutil_says(trees: list[Tree]) -> None:
    trees.append(Tree(f"sh -c '{PYTHON} \"{HOLD}\"; true'; true"))
    trees.append(Tree("echo ready; read line"))
    usage = look({1: trees[0].pid, 2: trees[1].pid})
    descendants = psutil.Process(trees[0].pid).children(recursive=True)
    expected = sum(process.memory_info().rss for process in descendants)
    assert len(descendants) == 2  # a shell, and Python
    assert expected > 50 * MIB
    assert abs(usage[1].held - expected) < 2 * MIB
    assert usage[2] == Usage(0, 0.0)  # the root itself does not count


def test_a_root_that_is_a_jobs_descendant_is_its_own_job(trees: list[Tree]) -> None:
    trees.append(Tree(f"sh -c '{PYTHON} \"{HOLD}\"; true'; true"))
    (shell,) = psutil.Process(trees[0].pid).children()
    usage = look({1: trees[0].pid, 2: shell.pid})
    assert usage[2].held > 50 * MIB > usage[1].held > 0


def test_cpu_seconds_of_children_that_have_ended_count(trees: list[Tree]) -> None:
    trees.append(Tree(f"sh -c '{PYTHON} \"{BURN}\"; echo ready; read line; true'; true"))
    spent = look({1: trees[0].pid})[1].spent
    assert 0.4 < spent < 1.5


def test_a_root_that_is_gone_uses_nothing() -> None:
    process = subprocess.Popen(["/bin/true"])
    process.wait()
    assert look({1: process.pid}) == {1: Usage(0, 0.0)}
    assert look({}) == {}


def test_names_of_processes_do_not_confuse(trees: list[Tree], tmp_path: Path) -> None:
    program = tmp_path / "a) R 1 (b"
    program.symlink_to("/bin/sh")
    trees.append(Tree(f"'{program}' -c 'echo ready; read line; true'; true"))
    assert look({1: trees[0].pid})[1].held > 0


def test_looking_again_sees_what_looking_once_sees(trees: list[Tree]) -> None:
    """A J that waits is nobody's; what it starts later belongs to its job."""
    watch = Watch()
    trees.append(Tree(f"echo ready; read line; sh -c '{PYTHON} \"{HOLD}\" <&3; true' 3<&0"))
    process = trees[0].process
    assert process.stdin and process.stdout
    for _ in range(3):
        assert watch.look({}) == {}
    process.stdin.write(b"\n")
    process.stdin.flush()
    assert process.stdout.readline() == b"ready\n"
    for _ in range(2 * ANEW):
        again, once = watch.look({1: trees[0].pid}), look({1: trees[0].pid})
        assert 50 * MIB < again[1].held <= once[1].held + MIB


def test_500_processes_cost_little(trees: list[Tree], capsys: pytest.CaptureFixture[str]) -> None:
    start = 'for i in $(seq 500); do sleep 60 >/dev/null & all="$all $!"; done'
    trees.append(Tree(f"sh -c '{start}; echo ready; read line; kill $all'; true"))
    costs = []
    for _ in range(10):
        before = time.process_time()
        usage = look({1: trees[0].pid})
        costs.append(time.process_time() - before)
    assert usage[1].held > 500 * 100_000
    with capsys.disabled():
        count = len(psutil.pids())
        print(f"\none pass over {count} processes: {sorted(costs)[5] * 1000:.1f} ms of CPU", end=" ")
    assert sorted(costs)[5] < 0.1  # generous: 2% of a core at two passes a second would be 10 ms


# Memory.

HOST_64 = MemoryLimit("host", 64 * GIB, 60 * GIB)


@pytest.mark.parametrize(
    ("limits", "promised", "total", "promise"),
    [
        ((HOST_64,), {}, 64, 0),
        ((HOST_64,), {"host": 5, "cgroup /gone": 9}, 64, 5),
        ((HOST_64, MemoryLimit("cgroup /a", 8 * GIB, 8 * GIB)), {}, 8, 0),
        # What is free counts after the reserve: 1 GiB of 8, but 3.84 of 64.
        ((MemoryLimit("host", 64 * GIB, 9 * GIB), MemoryLimit("cgroup /a", 8 * GIB, 7 * GIB)), {}, 64, 0),
        # And after what neighbours have said they will take.
        ((HOST_64, MemoryLimit("cgroup /a", 32 * GIB, 32 * GIB)), {"host": 40}, 64, 40),
        ((HOST_64, MemoryLimit("cgroup /a", 32 * GIB, 32 * GIB)), {"cgroup /a": 3, "host": 10}, 32, 3),
        ((MemoryLimit("host", 64 * GIB, 0),), {}, 64, 0),
    ],
)
def test_the_domain_that_leaves_least_binds(
    limits: tuple[MemoryLimit, ...], promised: dict[str, int], total: int, promise: int
) -> None:
    outlooks = {name: Outlook((0, size * GIB), first=size != 40) for name, size in promised.items()}
    found = binding(limits, outlooks, 3.5)
    limit = next(limit for limit in limits if limit.total == total * GIB)
    reserve, floor = max(GIB, total * GIB * 6 // 100), max(GIB // 2, total * GIB * 3 // 100)
    promises = (0, promise * GIB) if promise else ()
    assert found == Memory(limit.available, reserve, floor, limit.total, 3.5, promises, first=promise != 40)


def test_where_nothing_can_be_read_nothing_is_guarded() -> None:
    found = binding((), {"host": Outlook((GIB,))}, 0.0)
    assert found.available > 1 << 50 and found.reserve == found.floor == 0 and not found.promised


# Neighbours.


def test_two_builds_see_each_other_and_share(tmp_path: Path) -> None:
    one, two = (Neighbourhood(str(tmp_path), (), name, "project") for name in ("one", "two"))
    assert (one.outlooks(), one.cpus(8)) == ({HOST: Outlook()}, 4)  # what nobody wants is split evenly
    one.publish(Share(cpus=6, waiting=20, claimed=(3 * GIB, GIB), jobs=6))
    two.publish(Share(cpus=1, waiting=20, claimed=(GIB,), jobs=1))
    assert one.outlooks() == {HOST: Outlook((GIB,), first=True)}
    assert two.outlooks() == {HOST: Outlook((3 * GIB, GIB), first=False)}
    assert (one.cpus(8), two.cpus(8)) == (4, 4)
    with one.turn() as ours, two.turn() as also:
        assert (ours, also) == (True, False)
    with two.turn() as ours:
        assert ours
    one.close()
    assert (two.outlooks(), two.cpus(8)) == ({HOST: Outlook()}, 8)
    two.close()
    assert not any(path.is_file() for path in tmp_path.rglob("*"))


def test_after_the_end_nothing_is_published(tmp_path: Path) -> None:
    one, two = (Neighbourhood(str(tmp_path), (), name, "project") for name in ("one", "two"))
    one.close()
    one.publish(Share(cpus=8, waiting=8))
    assert two.cpus(8) == 8
    two.close()


@pytest.mark.parametrize("root", ["", "/proc/nowhere"])
def test_without_a_place_for_records_there_are_no_neighbours(root: str) -> None:
    alone = Neighbourhood(root, (), "one", "project")
    assert (set(alone.outlooks().values()) <= {Outlook()}, alone.cpus(8)) == (True, 8)
    with alone.turn() as ours:
        assert ours
    alone.publish(Share(cpus=6, waiting=20))
    assert alone.cpus(8) == 8
    alone.close()


# History.


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a:1": [12.5, 1, 2, 3], "b:2": [3, 7]}', {"a:1": Curve(12.5, (1, 2, 3)), "b:2": Curve(3.0, (7,))}),
        ('{"a:1": [0, 5]}', {"a:1": Curve(0.05, (5,))}),
        ("{}", {}),
        *((text, {}) for text in ("", "nonsense", "[]", "3", '{"a": 1}', '{"a": []}', '{"a": [1]}')),
        *((text, {}) for text in ('{"a": [1, "x"]}', '{"a": ["x", 1]}', '{"a": [1, NaN]}')),
        ('{"a": [1, Infinity]}', {}),
    ],
)
def test_history(tmp_path: Path, text: str, expected: dict[str, Curve]) -> None:
    (tmp_path / "history.json").write_text(text)
    assert _history(tmp_path / "history.json") == expected


def test_no_history(tmp_path: Path) -> None:
    assert _history(tmp_path / "none") == {}


def test_history_is_what_the_hook_writes(tmp_path: Path) -> None:
    known = {"entry": Curve(2.5, tuple(range(16)))}
    text = json.dumps({key: [curve.seconds, *curve.points] for key, curve in known.items()})
    (tmp_path / "history.json").write_text(text)
    assert _history(tmp_path / "history.json") == known


# Messages.


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, Connection]]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    yield theirs, Connection(ours, 1)
    theirs.close()
    ours.close()


def frame(*fields: bytes) -> bytes:
    body = b"\0".join(fields)
    return len(body).to_bytes(4, "big") + body


def test_messages_come_whole_however_they_are_cut(pair: tuple[socket.socket, Connection]) -> None:
    theirs, ours = pair
    messages = [[b"job", b"", b"a b", b"\xff"], [b""], [b"done", b"0"]]
    seen = []
    for byte in b"".join(frame(*fields) for fields in messages):
        theirs.send(bytes([byte]))
        assert ours.read()
        seen += ours.messages()
    assert seen == messages
    theirs.sendall(b"".join(frame(*fields) for fields in messages) + frame(b"half")[:6])
    assert ours.read() and ours.messages() == messages and ours.messages() == []
    assert ours.read()  # nothing there, and nobody gone
    theirs.close()
    assert not ours.read() and ours.messages() == []


def test_a_huge_command_line_comes_through(pair: tuple[socket.socket, Connection]) -> None:
    theirs, ours = pair
    fields = [b"job", *[b"x" * 1000] * 6000]
    thread = threading.Thread(target=theirs.sendall, args=(frame(*fields),))
    thread.start()
    found: list[list[bytes]] = []
    deadline = time.monotonic() + 20
    while not found and time.monotonic() < deadline:
        ours.read()
        found = ours.messages()
    thread.join()
    assert found == [fields]


@pytest.mark.parametrize("data", [b"GET / HTTP/1.0\r\n", b"\xff" * 8])
def test_what_is_no_message_is_refused(pair: tuple[socket.socket, Connection], data: bytes) -> None:
    theirs, ours = pair
    theirs.sendall(data)
    assert ours.read()
    with pytest.raises(ValueError, match="not a message"):
        ours.messages()


def test_a_word_to_somebody_who_is_gone_is_lost(pair: tuple[socket.socket, Connection]) -> None:
    theirs, ours = pair
    ours.send([b"run", b"", b"x"])
    assert theirs.recv(100) == frame(b"run", b"", b"x")
    theirs.close()
    ours.send([b"end", b"0"])


def test_who_does_not_listen_holds_nobody_up_for_ever(
    pair: tuple[socket.socket, Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "PATIENCE", 0.1)
    begun = time.monotonic()
    pair[1].send([b"x" * (8 * MIB)])
    assert time.monotonic() - begun < 2


def test_only_this_user_is_let_in(tmp_path: Path) -> None:
    server = connections.listen(str(tmp_path / "s"))
    assert (tmp_path / "s").stat().st_mode & 0o777 == 0o600
    assert connections.accept(server) is None  # nobody there
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(tmp_path / "s"))
        found = connections.accept(server)
        assert found and found.pid == os.getpid() and not found.socket.getblocking()
        found.socket.close()
    server.close()
