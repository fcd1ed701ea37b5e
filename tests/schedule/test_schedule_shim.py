"""The ninja that stands first on PATH: its arguments, its parallelism, and whole runs of the real ninja."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
from schedule_server import Connection, Server

from safe_ext_build.schedule import job as job_module
from safe_ext_build.schedule.broker import Broker, Naming, Sight
from safe_ext_build.schedule.policy import Limits, Memory
from safe_ext_build.schedule.shim import Arguments, Config, parallelism, parse_arguments, source_cost
from safe_ext_build.supervise.hook import python_command
from safe_ext_build.supervise.shims import real_ninja


@pytest.mark.parametrize(
    ("line", "directory", "file", "rest", "builds"),
    [
        ("", "", "build.ninja", "", True),
        ("-v", "", "build.ninja", "-v", True),
        ("-v -j 4", "", "build.ninja", "-v", True),
        ("-vj4", "", "build.ninja", "-v", True),
        ("-j4 -k0 all", "", "build.ninja", "-k 0 all", True),
        ("all -j 4 -v", "", "build.ninja", "-v all", True),
        ("-C dir -f x.ninja a b", "dir", "x.ninja", "a b", True),
        ("-Cdir -fx.ninja", "dir", "x.ninja", "", True),
        ("-d stats -l 2.5 -w dupbuild=err", "", "build.ninja", "-d stats -l 2.5 -w dupbuild=err", True),
        ("--verbose --quiet", "", "build.ninja", "--verbose --quiet", True),
        ("--version", "", "build.ninja", "--version", False),
        ("-h", "", "build.ninja", "-h", False),
        ("--help", "", "build.ninja", "--help", False),
        ("-nv", "", "build.ninja", "-n -v", False),
        ("-- -odd", "", "build.ninja", "-- -odd", True),
        # What is none of ours is handed on untouched.
        ("-t clean -r rule", "", "build.ninja", "-t clean -r rule", False),
        ("-tdeps", "", "build.ninja", "-t deps", False),
        ("-C dir -t compdb", "", "build.ninja", "-C dir -t compdb", False),
        ("--unknown", "", "build.ninja", "--unknown", False),
        ("-j", "", "build.ninja", "-j", False),
    ],
)
def test_arguments(line: str, directory: str, file: str, rest: str, builds: bool) -> None:
    assert parse_arguments(line.split()) == Arguments(directory, file, tuple(rest.split()), builds)


@pytest.mark.parametrize(
    ("edges", "slots", "files", "pids", "jobs"),
    [
        (40, 2, 65536, 0, 34),
        (3, 8, 65536, 0, 3),
        (1500, 64, 1024, 0, 96),
        (1500, 1000, 1024, 0, 480),
        (1500, 64, 100, 0, 18),
        (1500, 64, 32, 0, 1),
        (1500, 64, 65536, 160, 20),
        (1500, 64, 65536, 3, 1),
        (0, 4, 1024, 0, 1),
    ],
)
def test_parallelism(edges: int, slots: int, files: int, pids: int, jobs: int) -> None:
    assert parallelism(edges, slots, files, pids) == jobs


def test_device_code_costs_more_and_more_source_costs_more(tmp_path: Path) -> None:
    for name, size in (("small.cpp", 1), ("large.cpp", 1000), ("a.cu", 1)):
        (tmp_path / name).write_text("x" * size)
    names = ["a.cu", "large.cpp", "small.cpp", "none.cpp"]
    costs = [source_cost(str(tmp_path / name)) for name in names]
    assert costs == sorted(costs, reverse=True)


PLENTY = Sight(Memory(available=1 << 60, reserve=0, floor=0, total=1 << 60), oom_kills=0, low=False)


class Supervisor:
    """The real broker behind a real socket, in a thread. Memory without end, and no teardown."""

    def __init__(self, path: Path, slots: int) -> None:
        self.server = Server(path)
        self.open: dict[int, Connection] = {}
        self.edges: dict[int, int] = {}
        self.sources: list[str] = []
        self.ended: list[bytes] = []
        self.most = 0
        naming = Naming({}, "project", "/", {}, free_threads=False)
        self.broker = Broker(
            Limits(slots, 64), naming, str(path.parent / "jobs"), {}, self._send, lambda event: None
        )
        self.closing = threading.Event()
        self.thread = threading.Thread(target=self._serve)
        self.thread.start()

    def _send(self, number: int, fields: list[bytes]) -> None:
        if fields[0] == b"run":
            self.sources.append(Path(self.broker.jobs[number].name).name)
            self.most = max(self.most, len(self.broker.running()))
        with contextlib.suppress(OSError):  # it is gone, and its end of the connection will tell
            self.open[number].send(*fields)

    def _serve(self) -> None:
        while not self.closing.is_set():
            ready, _, _ = select.select([self.server.socket.fileno(), *self.open], [], [], 0.01)
            for item in ready:
                self._attend(item)
                self.broker.step(time.monotonic(), PLENTY)
            if self.broker.stop_reason:  # here the real one tears down
                for connection in self.open.values():
                    connection.client.shutdown(socket.SHUT_RDWR)
            pid = self.broker.ready_to_interrupt
            if pid and not Path(f"/proc/{self.edges[pid]}").exists():
                self.broker.interrupt_ninja()
            if self.broker.interrupted and self.broker.ninjas:
                for job in self.broker.jobs.values():  # as the real one does: a forking shell swallows a SIGINT
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(job.pid, signal.SIGINT)

    def _attend(self, item: int) -> None:
        if item not in self.open:
            connection = self.server.accept()
            self.open[connection.client.fileno()] = connection
            self.edges[connection.pid] = edge(connection.pid)
            return
        fields = self.open[item].receive()
        if fields:
            self.ended += fields[1:] if fields[0] == b"ninja-done" else []
            self.broker.receive(item, self.open[item].pid, fields, time.monotonic(), PLENTY)
        else:
            self.broker.gone(item)
            self.open.pop(item).close()

    def close(self) -> None:
        self.closing.set()
        self.thread.join()
        for connection in self.open.values():
            connection.close()
        self.server.close()


def edge(pid: int) -> int:
    """What ninja waits for: the J `pid` itself or, where `sh -c` does not exec, its shell; 0 when it is gone."""
    try:
        parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        return parent if Path(f"/proc/{parent}/comm").read_text() == "sh\n" else pid
    except OSError:
        return 0


COMPILER = """#!/bin/sh
while [ $# -gt 0 ]; do
  case "$1" in -o) out=$2; shift;; *.cpp) src=$1;; esac
  shift
done
. "./$src"
echo "object of $src" > "$out"
"""


class Site:
    """A project of toy sources (each is the shell script that `g++` runs for it), shims, and a supervisor."""

    def __init__(self, place: Path, slots: int = 2) -> None:
        self.place = place
        self.project = place / "project"
        self.bin = place / "bin"
        for folder in (self.project, self.bin, place / "w"):
            folder.mkdir()
        self.supervisor = Supervisor(place / "s", slots)
        config = Config(
            ninja=str(real_ninja()),
            socket=str(place / "s"),
            workspace=str(place / "w"),
            prefixes={"SEB_ENV": str(place)},
            moved={},
            slots=slots,
            pids=0,
            source=str(self.project),
            store="",
            fingerprint="same",
            may_touch=False,
        )
        (place / "ninja.json").write_text(json.dumps(asdict(config)))
        python = f"exec {sys.executable} -I -S -E"
        self.script("g++", COMPILER)
        self.script("seb-job", f"#!/bin/sh\n{python} {job_module.__file__} {place}/s '' \"$@\"\n")
        shim = python_command("safe_ext_build.schedule.shim", str(place / "ninja.json"), isolated=True)
        self.script("ninja", f'#!/bin/sh\nexec {shlex.join(shim)} "$@"\n')

    def script(self, name: str, text: str) -> None:
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def write(self, sources: dict[str, str]) -> None:
        text = f"rule cc\n  command = g++ -I{self.place} -c $in -o $out\n"
        for name, script in sources.items():
            (self.project / name).write_text(script)
            text += f"build {name}.o: cc {name}\n"
        (self.project / "build.ninja").write_text(text)

    def start(self, *arguments: str, cwd: Path | None = None) -> subprocess.Popen[str]:
        environ = {**os.environ, "PATH": f"{self.bin}:{os.environ['PATH']}"}
        return subprocess.Popen(
            [str(self.bin / "ninja"), *arguments],
            cwd=cwd or self.project,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def ninja(self, *arguments: str, cwd: Path | None = None) -> tuple[int, str]:
        process = self.start(*arguments, cwd=cwd)
        out, _ = process.communicate(timeout=20)
        return process.returncode, out


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    found = Site(tmp_path)
    yield found
    found.supervisor.close()


def test_a_build_with_the_largest_first_then_nothing_to_do(site: Site) -> None:
    site.write({"a.cpp": ":", "b.cpp": "# larger\n:", "my file.cpp".replace(" ", "-"): "# the very largest\n:"})
    code, out = site.ninja("-v", "-j", "1")
    assert code == 0, out
    assert out.count(f" g++ -I{site.place} -c ") == 3 and "SEB_ENV" not in out
    # ninja starts them in the file's order, and so do they ask, within what the scheduler lets through
    copies = list((site.place / "w").glob("*.ninja"))
    built = [line for copy in copies for line in copy.read_text().splitlines() if line.startswith("build ")]
    assert [line.split()[-1] for line in built] == ["my-file.cpp", "b.cpp", "a.cpp"]
    assert sorted(site.supervisor.sources) == ["a.cpp", "b.cpp", "my-file.cpp"]
    assert site.supervisor.most <= 2
    assert (site.project / "a.cpp.o").read_text() == "object of a.cpp\n"
    assert not list(site.project.glob("*.seb-*"))
    assert site.ninja()[1] == "ninja: no work to do.\n"
    assert site.supervisor.ended == [b"0", b"0"]


def test_a_first_failure_costs_at_most_the_running_jobs_and_is_the_last_that_is_said(site: Site) -> None:
    sources = {f"{number}.cpp": "sleep 0.5" for number in range(20)}
    sources["typo.cpp"] = (
        "# the largest, so it is first" + "." * 80 + "\necho typo.cpp:1: error: expected >&2; exit 1"
    )
    site.write(sources)
    code, out = site.ninja()
    assert code == 1
    begun = site.supervisor.sources  # in the order in which they asked
    assert len(begun) - begun.index("typo.cpp") <= 3
    # On a busy machine ninja may see two ends at once, and then names the compile that succeeded second.
    _, _, after = out.partition("\ntypo.cpp:1: error: expected\n")
    assert out.count("FAILED") == out.count("error") == 1, out
    assert all(line.startswith("[") for line in after.splitlines()) and "interrupted" not in out
    failure = site.supervisor.broker.failure
    assert failure and (failure.source, failure.error) == ("typo.cpp", "typo.cpp:1: error: expected")
    assert not site.supervisor.broker.stop_reason
    assert not list(site.project.glob("*.seb-*"))
    site.write(dict.fromkeys(sources, ":"))
    assert site.ninja()[0] == 0


def test_output_of_a_compiler_comes_in_one_block(site: Site) -> None:
    site.write({f"{number}.cpp": f"for n in 1 2 3; do echo {number}$n; sleep 0.02; done" for number in range(4)})
    lines = [line for line in site.ninja()[1].splitlines() if line.isdigit()]
    assert len(lines) == 12
    assert all(lines[n : n + 3] == [lines[n][0] + k for k in "123"] for n in range(0, 12, 3))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_goes_to_ninja(site: Site, number: signal.Signals) -> None:
    site.write({"a.cpp": "touch started; sleep 60"})
    process = site.start()
    while not (site.project / "started").exists():
        assert process.poll() is None
    process.send_signal(number)
    process.communicate(timeout=10)
    assert process.returncode != 0
    assert not list(site.project.glob("*.o"))


def test_a_killed_ninja_is_how_we_end_too(site: Site) -> None:
    site.write({"a.cpp": "touch started; sleep 1"})
    process = site.start()
    while not (site.project / "started").exists():
        assert process.poll() is None
    os.kill(_child_named(process.pid, "ninja"), signal.SIGKILL)
    process.communicate(timeout=10)
    assert process.returncode == -signal.SIGKILL
    assert site.supervisor.ended == [b"9"]


def _child_named(parent: int, name: str) -> int:
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = path.read_text()
        except OSError:
            continue
        if f"({name})" in text and int(text.rpartition(")")[2].split()[1]) == parent:
            return int(path.parent.name)
    raise AssertionError(f"{parent} has no child {name}")


def test_what_is_no_build_is_the_real_ninjas(site: Site) -> None:
    site.write({"a.cpp": ":"})
    assert site.ninja("--version")[1].startswith("1.")
    assert site.ninja("-t", "targets", "all") == (0, "a.cpp.o: cc\n")
    assert "seb-job" not in site.ninja("-n", "-v")[1]
    code, out = site.ninja("-C", "nowhere")
    assert code == 1 and "nowhere" in out and "Traceback" not in out
    code, out = site.ninja("-f", "none.ninja")
    assert code == 1 and "none.ninja" in out and "Traceback" not in out
    assert site.ninja("-C", "project", cwd=site.place)[0] == 0
    assert (site.project / "a.cpp.o").exists()


def test_when_there_is_no_supervisor_nothing_is_built(site: Site) -> None:
    (site.place / "s").unlink()
    site.write({"a.cpp": ":"})
    code, out = site.ninja()
    assert code == 1 and out.startswith("safe-ext-build: ") and "Traceback" not in out


def test_the_compiler_finds_signals_as_everywhere_else(site: Site) -> None:
    site.script("seb-job", '#!/bin/sh\nexec "$@"\n')
    site.write({"a.cpp": "grep SigIgn /proc/self/status"})
    line = next(line for line in site.ninja()[1].splitlines() if line.startswith("SigIgn"))
    assert int(line.split()[1], 16) & 0x7FFFFFFF == 0  # those above are libc's own


def test_1500_sources_under_a_limit_of_1024_files(site: Site) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    site.script("seb-job", "#!/bin/sh\nexit 0\n")
    site.write({f"{number}.cpp": ":" for number in range(1500)})
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(1024, hard), hard))
    try:
        code, out = site.ninja()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert code == 0 and "[1500/1500]" in out
