"""A build that has come to a halt: when it counts as one, and what is said of it."""

from __future__ import annotations

import fcntl
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kill_harness import Project, compile_c, started

from safe_ext_build.supervise import stall
from safe_ext_build.supervise.stall import Watch

PATIENCE = 600.0
STEP = PATIENCE / 20


def looks(watch: Watch, use: dict[int, float], until: float, begin: float = 0.0) -> list[float]:
    """What a watch says of a process that has used `use` CPU seconds from each time on."""
    said, now = [], begin
    while now <= until:
        spent = max(seconds for since, seconds in use.items() if since <= now)
        said.append(watch.observe(now, {7: spent}))
        now += STEP
    return [seconds for seconds in said if seconds]


def test_a_halt_is_said_every_ten_minutes() -> None:
    assert looks(Watch(PATIENCE), {0: 5.0}, until=3700) == [600, 1200, 1800, 2400, 3000, 3600]


def test_a_little_now_and_then_is_no_progress_but_work_is() -> None:
    idle: dict[int, float] = {minute * 60: 0.2 * minute for minute in range(100)}
    assert looks(Watch(PATIENCE), idle, until=900) == [600]
    working: dict[int, float] = {minute * 60: 2.0 * minute for minute in range(100)}
    assert looks(Watch(PATIENCE), working, until=3600) == []


def test_after_work_the_count_begins_anew() -> None:
    assert looks(Watch(PATIENCE), {0: 1.0, 700: 100.0}, until=1500) == [600, 600]


def test_processes_that_come_and_go_are_work() -> None:
    watch = Watch(PATIENCE)
    said = [watch.observe(now * STEP, {now: 0.5, now + 1: 0.5}) for now in range(60)]
    assert not any(said)


def test_time_in_which_we_were_stopped_ourselves_does_not_count() -> None:
    watch = Watch(PATIENCE)
    assert looks(watch, {0: 1.0}, until=500) == []
    assert looks(watch, {0: 1.0}, until=5500, begin=5000) == []


def test_it_is_the_leaves_that_are_asked() -> None:
    parents = {2: 1, 3: 2, 4: 3, 5: 3, 6: 1, 9: 5}
    assert stall.below(2, parents) == [3, 4, 5, 9]
    assert stall.leaves({3: 2, 4: 3, 5: 3, 9: 5}, {4}) == [9]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("0100007F:1F90", "127.0.0.1:8080"),
        ("00000000000000000000000001000000:0050", "[::1]:80"),
        ("B80D01200000000067452301EFCDAB89:01BB", "[2001:db8::123:4567:89ab:cdef]:443"),
    ],
)
@pytest.mark.skipif(sys.byteorder != "little", reason="these are what a little-endian machine shows")
def test_addresses(text: str, shown: str) -> None:
    assert stall.address(text) == shown


@pytest.fixture
def silent() -> Iterator[int]:
    """The port of a server that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


CASES = {
    "time.sleep(60)": "sleeps",
    "os.kill(os.getpid(), signal.SIGSTOP)": "is stopped",
    "socket.create_connection(('127.0.0.1', PORT)).recv(1)": "is connected to 127.0.0.1:PORT",
    "os.read(os.pipe()[0], 1)": "waits for data from a pipe",
    "fcntl.flock(open(PATH), fcntl.LOCK_EX)": "waits for a lock on PATH",
}


@pytest.mark.parametrize("statement", CASES)
def test_what_a_process_waits_for(statement: str, silent: int, tmp_path: Path) -> None:
    path = tmp_path / "held"
    path.touch()
    code = statement.replace("PORT", str(silent)).replace("PATH", repr(str(path)))
    expected = CASES[statement].replace("PORT", str(silent)).replace("PATH", str(path))
    with path.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        process = subprocess.Popen([sys.executable, "-c", f"import fcntl, os, signal, socket, time; {code}"])
        try:
            deadline = time.monotonic() + 20
            while (said := stall.waits_for(process.pid)) != expected and time.monotonic() < deadline:
                time.sleep(0.05)
            assert said == expected
        finally:
            process.kill()
            process.wait()


def test_a_process_that_is_gone_is_no_error() -> None:
    assert stall.describe(2**22 + 1, {}) == f"a process (pid {2**22 + 1}) waits"


def hurried(project: Project) -> list[str]:
    """A build that is soon out of patience."""
    command = project.hook()
    command[2] = f"from safe_ext_build.supervise import stall; stall.PATIENCE = 1.0; {command[2]}"
    return command


def test_a_setup_script_that_waits_for_a_silent_server_is_named(project: Project, silent: int) -> None:
    setup = project.root / "setup.py"
    waiting = f"import socket\nsocket.create_connection(('127.0.0.1', {silent})).recv(1)\n"
    setup.write_text(waiting + setup.read_text())
    with started(project, hurried(project)) as build:
        build.wait_until(lambda: build.text().count("nothing has used the CPU") >= 2, "two lines")
        (builder,) = build.named("seb-builder")
        assert build.process.poll() is None, "it is never ended for that"
        text = build.text()
    expected = f": the setup script (pid {builder.pid}) is connected to 127.0.0.1:{silent} (the build goes on"
    assert all(expected in line for line in text.splitlines() if "nothing has used" in line), text


def test_a_compile_that_waits_is_named_with_its_source(project: Project, silent: int, tmp_path: Path) -> None:
    program = f"""
        #include <arpa/inet.h>
        #include <string.h>
        #include <sys/socket.h>
        #include <unistd.h>
        int main(int argc, char **argv) {{
          if (argc > 1 && !strcmp(argv[1], "--version")) return 0;
          struct sockaddr_in to = {{AF_INET, htons({silent}), {{htonl(INADDR_LOOPBACK)}}}};
          int fd = socket(AF_INET, SOCK_STREAM, 0);
          char byte;
          connect(fd, (struct sockaddr *)&to, sizeof to);
          return (int)read(fd, &byte, 1);
        }}"""
    folder = tmp_path / "licensed"
    folder.mkdir()
    licensed = Project(project.root, compile_c(program, folder / "nvcc"), project.scratch, {"MAX_JOBS": "1"})
    with started(licensed, hurried(licensed)) as build:
        build.wait_until(lambda: "nothing has used the CPU" in build.text(), "a line")
        text = next(line for line in build.text().splitlines() if "nothing has used" in line)
    assert f"nvcc (pid {int(text.partition('nvcc (pid ')[2].partition(',')[0])}, compiling {project.root}" in text
    assert f"is connected to 127.0.0.1:{silent}; 2 compiles wait for admission" in text
