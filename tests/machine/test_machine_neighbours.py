"""Builds that share a machine: real processes, killed at any moment; and the arithmetic of a fair share."""

from __future__ import annotations

import fcntl
import itertools
import os
import random
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from machine_trees import CGROUP, GIB, NO_LIMIT, grow, host, memory_v1, memory_v2, mount_v1, mount_v2, mounts, own

import safe_ext_build
from safe_ext_build.machine import read_memory
from safe_ext_build.machine.neighbours import (
    NOTHING,
    Neighbours,
    Outlook,
    Share,
    domains,
    fair_share,
    neighbours_root,
)

HOME = str(Path(safe_ext_build.__file__).parents[1])
IDLE, BUSY = Share(0, 0), Share(8, 100, (1 << 30, 5), 8)
# A build in a process of its own, started as the supervisor is.
BUILD = """
import sys, time
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from safe_ext_build.machine.neighbours import Neighbours, Share
build = Neighbours(Path(sys.argv[2]), sys.argv[3], "project-" + sys.argv[3])
"""
STAYS = (
    BUILD + "build.open(); build.publish(Share(4, 9, (12345,), 2)); print('ready', flush=True); time.sleep(600)"
)

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a build; gives its process once it has said that it is there."""
    processes: list[subprocess.Popen[str]] = []

    def run(code: str = STAYS, name: str = "other", *, wait: bool = True) -> subprocess.Popen[str]:
        command = [sys.executable, "-I", "-S", "-E", "-c", code, HOME, str(tmp_path / "n" / "host"), name]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        processes.append(process)
        if wait and process.stdout:
            assert process.stdout.readline() == "ready\n"
        return process

    yield run
    for process in processes:
        process.kill()
        process.wait()
        if process.stdout:
            process.stdout.close()


@pytest.fixture
def build(tmp_path: Path) -> Iterator[Neighbours]:
    neighbours = Neighbours(tmp_path / "n" / "host", "mine", "my-project")
    neighbours.open()
    yield neighbours
    neighbours.close()


def files(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "n").rglob("*") if path.is_file())


# The arithmetic.


@pytest.mark.parametrize(
    ("cpus", "mine", "others", "expected"),
    [
        (16, Share(0, 100), [], 16),
        (16, Share(2, 0), [], 16),  # idle cores may be used for more threads
        (1, Share(0, 9), [], 1),
        (1, Share(0, 9), [BUSY], 1),
        (2, Share(0, 9), [BUSY] * 3, 1),
        (16, Share(0, 100), [BUSY], 8),
        (16, Share(16, 100), [BUSY], 8),
        (17, Share(0, 100), [BUSY], 9),
        (16, Share(0, 100), [BUSY, BUSY], 6),
        (16, Share(0, 100), [IDLE], 16),
        (16, Share(0, 100), [Share(2, 0)], 14),
        (16, Share(0, 100), [Share(2, 0), BUSY], 7),
        (16, Share(2, 0), [BUSY], 2),
        (16, Share(3, 2), [BUSY], 5),
        (16, Share(2, 0), [Share(4, 0)], 7),  # ten that nobody wants, five each
        (16, Share(4, 0), [Share(2, 0)], 9),
        (16, IDLE, [BUSY], 1),
        (16, IDLE, [], 16),
        (0, BUSY, [], 1),
        (0, BUSY, [BUSY], 1),
    ],
)
def test_a_fair_share(cpus: int, mine: Share, others: list[Share], expected: int) -> None:
    assert fair_share(cpus, mine, others) == expected


def test_shares_cover_the_machine_and_not_much_more() -> None:
    wants = [0, 1, 3, 7, 40]
    for cpus, chosen in itertools.product((1, 2, 5, 16, 33), itertools.product(wants, repeat=3)):
        shares = [Share(0, want) for want in chosen]
        got = [fair_share(cpus, shares[i], shares[:i] + shares[i + 1 :]) for i in range(3)]
        assert min(got) >= 1
        assert min(cpus, sum(chosen)) <= sum(got) <= cpus + 3 or sum(got) == 3
        for want, share in zip(chosen, got, strict=True):
            assert share >= min(want, cpus // 3)


# Domains.


def test_the_host_is_always_a_domain(tmp_path: Path) -> None:
    root = grow(tmp_path, host(), {"proc/sys/kernel/random/boot_id": "3f2a4c11-aaaa-bbbb-cccc-000000000000"})
    assert domains(root) == {"host": "host-3f2a4c11aaaa"}


def test_a_domain_for_each_limit_under_the_name_of_the_limit(tmp_path: Path) -> None:
    root = grow(
        tmp_path,
        host(),
        mounts(mount_v2()),
        own("0::/pod/a/b"),
        memory_v2(f"{CGROUP}/pod/a/b", 8 * GIB, GIB),
        memory_v2(f"{CGROUP}/pod/a", "max", GIB),
        memory_v2(f"{CGROUP}/pod", 16 * GIB, GIB),
    )
    found = domains(root)
    assert list(found) == [limit.name for limit in read_memory(root)]
    assert list(found) == ["host", "cgroup /pod/a/b", "cgroup /pod"]
    assert len(set(found.values())) == 3
    assert found["cgroup /pod"].startswith(f"cgroup2-{(root / CGROUP / 'pod').stat().st_ino}-")


def test_a_group_without_a_limit_is_no_domain(tmp_path: Path) -> None:
    root = grow(
        tmp_path, host(), mounts(mount_v1("memory")), own("4:memory:/job"), memory_v1("/job", NO_LIMIT, GIB)
    )
    assert list(domains(root)) == ["host"]


def test_the_domains_of_this_machine_are_those_of_its_limits() -> None:
    names = [limit.name for limit in read_memory()]
    assert list(domains()) == names
    assert all("/" not in directory for directory in domains().values())


# Where records are kept.


def test_the_runtime_directory_is_preferred_and_private(tmp_path: Path) -> None:
    found = neighbours_root({"XDG_RUNTIME_DIR": str(tmp_path)})
    assert found == tmp_path / "safe-ext-build" / "neighbours"
    assert found.stat().st_mode & 0o777 == 0o700
    assert found.parent.stat().st_mode & 0o777 == 0o700


def test_a_directory_that_others_may_read_is_closed_to_them(tmp_path: Path) -> None:
    found = neighbours_root({"XDG_RUNTIME_DIR": str(tmp_path)})
    assert found
    found.chmod(0o777)
    assert neighbours_root({"XDG_RUNTIME_DIR": str(tmp_path)}) == found
    assert found.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("kind", ["file", "link", "relative", "missing", "nul"])
def test_a_runtime_directory_that_will_not_do_is_passed_over(tmp_path: Path, kind: str) -> None:
    runtime = {"relative": "run", "missing": str(tmp_path / "no"), "nul": "/a\0b"}.get(kind, str(tmp_path))
    if kind == "file":
        (tmp_path / "safe-ext-build").touch()
    elif kind == "link":
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "safe-ext-build").symlink_to(tmp_path / "elsewhere")
    found = neighbours_root({"XDG_RUNTIME_DIR": runtime})
    assert found is None or not found.is_relative_to(tmp_path)
    assert not list(tmp_path.glob("elsewhere/*"))


def test_somebody_elses_directory_is_never_used(tmp_path: Path) -> None:
    stranger = os.getuid() + 4711
    (tmp_path / "safe-ext-build").mkdir()
    found = neighbours_root({"XDG_RUNTIME_DIR": str(tmp_path)}, user=stranger)
    # What was made in the common places belongs to us, not to him: it is not his either.
    assert found is None
    for place in ("/var/tmp", "/tmp"):
        left = Path(place) / f"safe-ext-build-{stranger}.neighbours"
        if left.exists():
            left.rmdir()


def test_a_user_without_a_runtime_directory_has_one_in_var_tmp() -> None:
    found = neighbours_root({})
    assert found
    assert found == neighbours_root({"XDG_RUNTIME_DIR": "/nowhere"})
    assert found.name != f"safe-ext-build-{os.getuid()}", "workspaces are collected there"
    with suppress(OSError):
        found.rmdir()  # a build may be using it


def test_domains_that_killed_builds_left_are_swept(tmp_path: Path) -> None:
    root = neighbours_root({"XDG_RUNTIME_DIR": str(tmp_path)})
    assert root
    live = Neighbours(root / "host-2", "live", "p")
    live.open()
    (root / "cgroup2-77-1").mkdir()
    (root / "cgroup2-77-1" / "dead.0.build").write_text("{")
    assert neighbours_root({"XDG_RUNTIME_DIR": str(tmp_path)}) == root
    assert [path.name for path in root.iterdir()] == ["host-2"]
    assert len(list((root / "host-2").iterdir())) == 1
    live.close()
    assert not list(root.iterdir())


# Records.


def test_two_builds_see_each_other_and_not_themselves(tmp_path: Path, build: Neighbours) -> None:
    assert build.others() == []
    other = Neighbours(tmp_path / "n" / "host", "mine", "same-id-elsewhere")
    other.open()
    assert build.others() == [NOTHING]
    other.publish(Share(3, 5, (7 * GIB,), 2))
    build.publish(Share(1, 0, (), 1))
    assert build.others() == [Share(3, 5, (7 * GIB,), 2)]
    assert other.others() == [Share(1, 0, (), 1)]
    (record,) = build.records()
    assert (record.build, record.project, record.pid) == ("mine", "same-id-elsewhere", os.getpid())
    assert abs(record.started - time.time()) < 60
    other.close()
    other.close()
    assert build.others() == []


def test_nothing_is_left(tmp_path: Path, build: Neighbours) -> None:
    build.publish(BUSY)
    assert len(files(tmp_path)) == 1
    build.close()
    build.publish(BUSY)
    assert not (tmp_path / "n" / "host").exists()
    assert build.others() == []


@pytest.mark.parametrize("name", ["../../x", "a/b", "", "ü" * 300, "x" * 300, "a\0b", "a\nb"])
def test_any_name_of_a_build_will_do(tmp_path: Path, build: Neighbours, name: str) -> None:
    other = Neighbours(tmp_path / "n" / "host", name, name * 100)
    other.open()
    other.publish(BUSY)
    assert build.others() == [BUSY]
    assert build.records()[0].build == name
    assert len(files(tmp_path)) == 2
    other.close()


def test_a_killed_build_falls_away(tmp_path: Path, build: Neighbours, start: Start) -> None:
    others = [start(name=f"b{number}") for number in range(4)]
    assert build.others() == [Share(4, 9, (12345,), 2)] * 4
    others[0].kill()
    others[0].wait()
    assert [record.build for record in build.records()] == ["b1", "b2", "b3"]
    assert len(files(tmp_path)) == 4
    for other in others:
        other.kill()
        other.wait()
    assert build.others() == []
    assert len(files(tmp_path)) == 1


def test_a_stopped_build_still_holds_its_memory(build: Neighbours, start: Start) -> None:
    other = start()
    other.send_signal(signal.SIGSTOP)
    assert build.others() == [Share(4, 9, (12345,), 2)]


def test_a_record_ends_with_its_build_though_a_child_lives_on(build: Neighbours, start: Start) -> None:
    code = BUILD + (
        "import os\n"
        "build.open()\n"
        "if not os.fork(): os.execv('/bin/sleep', ['sleep', '5'])\n"
        "print('ready', flush=True)\n"
        "time.sleep(600)"
    )
    other = start(code)
    assert len(build.others()) == 1
    time.sleep(0.1)
    other.kill()
    other.wait()
    assert build.others() == []


def test_builds_killed_at_any_moment_leave_nothing(tmp_path: Path, build: Neighbours, start: Start) -> None:
    """Kill builds that open, publish and close as fast as they can, while we look."""
    code = BUILD + (
        "print('ready', flush=True)\n"
        "while True:\n"
        "    build.open()\n"
        "    for size in (1, 10**15, 3): build.publish(Share(size, size, (size,), size)); build.others()\n"
        "    build.close()"
    )
    rng = random.Random(1)
    for _ in range(3):
        others = [start(code, f"b{number}") for number in range(3)]
        deadline = time.monotonic() + 0.3 + rng.random() / 10
        while time.monotonic() < deadline:
            for share in build.others():
                assert share.cpus in (0, 1, 10**15, 3)
                assert share.cpus == share.waiting == sum(share.claimed) == share.jobs
        for other in others:
            other.kill()
            other.wait()
        assert build.others() == []
        assert len(files(tmp_path)) == 1


def test_a_creator_meets_those_who_take_its_file_for_a_dead_ones(tmp_path: Path) -> None:
    directory = tmp_path / "n" / "host"
    stop = threading.Event()

    def look() -> None:
        watcher = Neighbours(directory, "watcher", "p")
        while not stop.is_set():
            watcher.others()

    threads = [threading.Thread(target=look) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for number in range(100):
            mine = Neighbours(directory, f"b{number}", "p")
            other = Neighbours(directory, "other", "p")
            mine.open()
            other.open()
            mine.publish(BUSY)
            assert other.others() == [BUSY]
            mine.close()
            other.close()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert files(tmp_path) == []


@pytest.mark.parametrize("data", [b"", b"\0" * 50, b"{}", b"00000000 {}\n", b"5c", os.urandom(300), b"x" * 9000])
def test_a_record_that_makes_no_sense_says_what_it_said_before(
    tmp_path: Path, build: Neighbours, data: bytes
) -> None:
    other = Neighbours(tmp_path / "n" / "host", "other", "p")
    other.open()
    other.publish(BUSY)
    assert build.others() == [BUSY]
    (path,) = (tmp_path / "n" / "host").glob("other.*")
    path.write_bytes(data)
    assert build.others() == [BUSY]
    newcomer = Neighbours(tmp_path / "n" / "host", "newcomer", "p")
    assert [record.build for record in newcomer.records()] == ["mine"]
    other.publish(IDLE)
    assert build.others() == [IDLE]
    other.close()


def test_the_outlook_adds_up_what_others_claim_and_tells_who_is_the_eldest(
    tmp_path: Path, build: Neighbours
) -> None:
    others = [Neighbours(tmp_path / "n" / "host", name, "p") for name in ("younger", "youngest")]
    for other, claimed in zip(others, ((1, 2), (10, 20, 30)), strict=True):
        other.open()
        other.publish(Share(1, 0, claimed, 1))
    build.publish(Share(1, 0, (100,), 1))
    assert build.outlook() == Outlook((11, 22, 30), first=True)
    assert others[1].outlook() == Outlook((101, 2), first=False)
    build.publish(Share(0, 0))  # it does not compile, and so it does not come first
    assert others[0].outlook() == Outlook((10, 20, 30), first=True)
    for other in others:
        other.close()


def test_a_record_torn_between_two_versions_is_never_believed(tmp_path: Path, build: Neighbours) -> None:
    other = Neighbours(tmp_path / "n" / "host", "other", "p")
    other.open()
    other.publish(Share(1, 1, (1111,), 1))
    (path,) = (tmp_path / "n" / "host").glob("other.*")
    old = path.read_bytes()
    other.publish(Share(2, 2, (999999999,), 2))
    new = path.read_bytes()
    assert build.others() == [Share(2, 2, (999999999,), 2)]
    for cut in range(1, len(old)):
        path.write_bytes(old[:cut] + new[cut:])
        assert build.others()[0] in (Share(1, 1, (1111,), 1), Share(2, 2, (999999999,), 2))
    other.close()


# What may go wrong with the directory.


def test_a_record_that_was_cleaned_away_comes_back(tmp_path: Path, build: Neighbours) -> None:
    other = Neighbours(tmp_path / "n" / "host", "other", "p")
    other.open()
    for path in (tmp_path / "n" / "host").iterdir():
        path.unlink()
    assert other.others() == []
    (tmp_path / "n" / "host").rmdir()
    (tmp_path / "n").rmdir()
    assert other.others() == []
    build.publish(BUSY)
    assert other.others() == [BUSY]
    other.close()


@pytest.mark.parametrize("where", ["/proc/nowhere/n/host", "/dev/null/n", "n\0n/host", "file/host"])
def test_without_a_directory_there_are_no_neighbours(tmp_path: Path, where: str) -> None:
    (tmp_path / "file").touch()
    build = Neighbours(tmp_path / where, "mine", "p")
    build.open()
    build.publish(BUSY)
    assert build.others() == []
    with build.admission() as obtained:
        assert obtained
    build.close()


def test_other_files_are_left_alone(tmp_path: Path, build: Neighbours) -> None:
    directory = tmp_path / "n" / "host"
    (directory / "README").write_text("mine")
    (directory / "d.build").mkdir()
    (directory / "l.build").symlink_to(directory / "README")
    os.mkfifo(directory / "f")
    assert build.others() == []
    assert {"README", "d.build", "l.build", "f"} <= {path.name for path in directory.iterdir()}


def test_a_full_disk_costs_the_record_only(tmp_path: Path, build: Neighbours) -> None:
    import resource

    other = Neighbours(tmp_path / "n" / "host", "other", "p" * 200)
    other.open()
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, old[1]))  # what is written beyond fails, as on a full disk
    try:
        other.publish(BUSY)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
    build.others()
    other.publish(BUSY)
    assert build.others() == [BUSY]
    other.close()


# The lock.


def test_one_build_decides_at_a_time(tmp_path: Path, build: Neighbours, start: Start) -> None:
    code = BUILD + (
        "build.open()\nwith build.admission() as ok:\n    print('ready', flush=True)\n    time.sleep(600)"
    )
    holder = start(code)
    before = time.monotonic()
    with build.admission() as obtained:
        assert not obtained
    assert time.monotonic() - before < 0.2
    holder.kill()
    holder.wait()
    with build.admission() as obtained:
        assert obtained
        with pytest.raises(BlockingIOError):
            descriptor = os.open(tmp_path / "n" / "host", os.O_RDONLY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            finally:
                os.close(descriptor)
    with build.admission() as obtained:
        assert obtained


def test_what_is_claimed_under_the_lock_never_exceeds_what_there_is(tmp_path: Path, start: Start) -> None:
    """Three builds claim from 10 units as they can; each checks the sum of all while it holds the lock."""
    code = BUILD + (
        "import random\n"
        "rng = random.Random(sys.argv[3])\n"
        "build.open()\n"
        "print('ready', flush=True)\n"
        "end = time.monotonic() + 1.0\n"
        "granted = worst = 0\n"
        "while time.monotonic() < end:\n"
        "    with build.admission() as obtained:\n"
        "        if obtained:\n"
        "            taken = sum(build.outlook().promised)\n"
        "            want = rng.randint(1, 10)\n"
        "            fits = want if taken + want <= 10 else 0\n"
        "            build.publish(Share(0, 0, (fits,)))\n"
        "            granted += bool(fits); worst = max(worst, taken + fits)\n"
        "    time.sleep(rng.random() / 500)\n"
        "print(granted, worst, flush=True)\n"
    )
    others = [start(code, f"b{number}") for number in range(3)]
    for other in others:
        assert other.stdout
        assert select.select([other.stdout], [], [], 30)[0]
        granted, worst = map(int, other.stdout.readline().split())
        assert granted > 10
        assert worst <= 10


# What it costs.


def test_it_is_cheap_beside_five_builds(build: Neighbours, start: Start) -> None:
    for number in range(5):
        start(name=f"b{number}")

    def best(action: Callable[[], object]) -> float:
        times = []
        for _ in range(30):
            before = time.perf_counter()
            action()
            times.append(time.perf_counter() - before)
        return min(times)

    assert len(build.others()) == 5
    assert best(build.others) < 0.001
    assert best(lambda: build.publish(BUSY)) < 0.001
