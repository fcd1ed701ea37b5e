"""A build that is looked at from outside: what its supervisor tells, to whom, and that it does not mind."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kill_harness import Build, Project, started

from safe_ext_build.cli import builds
from safe_ext_build.machine.neighbours import Record, Share, living
from safe_ext_build.supervise import heartbeat
from safe_ext_build.supervise.heartbeat import Heartbeat
from safe_ext_build.supervise.registry import Found, Line
from safe_ext_build.supervise.status import ASK, Running, Status

GIB = 1 << 30


def command(project: Project, *words: str) -> subprocess.CompletedProcess[str]:
    full = [sys.executable, "-m", "safe_ext_build", *words]
    return subprocess.run(full, env=project.environ(), capture_output=True, text=True, timeout=60, check=False)


def listed(project: Project) -> list[dict[str, Any]]:
    answer: list[dict[str, Any]] = json.loads(command(project, "builds", "--json").stdout)
    return answer


def workspace(project: Project) -> Path:
    (record,) = living(project.environ())
    return Path(record.workspace)


def wait_for_compilers(build: Build, count: int = 2) -> None:
    build.wait_for("cicc", count)
    build.wait_until(lambda: bool(living(build.project.environ())), "the record")


def test_no_build_runs(project: Project) -> None:
    done = command(project, "builds")
    assert (done.returncode, done.stdout) == (0, "no build of yours runs on this machine\n")
    assert listed(project) == []


def test_a_build_is_listed(project: Project) -> None:
    project.write_sources(
        {"0_a": "seconds=0.05", "1_b": "seconds=60", "1_c": "seconds=60 mib=64", "1_d": "seconds=60"}
    )
    with started(project, project.hook()) as build:
        wait_for_compilers(build)
        time.sleep(1.2)  # for a look at the memory of what runs
        (one,) = listed(project)
        status = one["status"]
        assert (one["project"], one["pid"]) == ("project", build.named("seb-super")[0].pid)
        assert (status["pid"], status["root"]) == (one["pid"], str(project.root))
        assert (status["compiled"], status["total"], status["waiting"]) == (1, 4, 1)
        assert {Path(job["source"]).name for job in status["running"]} <= {f"1_{name}.cu" for name in "bcd"}
        assert len(status["running"]) == 2
        assert 0 < sum(job["held"] for job in status["running"]) == status["held"] < status["budget"]
        text = command(project, "builds").stdout
        os.kill(one["pid"], signal.SIGSTOP)
        stopped = command(project, "builds").stdout
        os.kill(one["pid"], signal.SIGCONT)
    assert f": its supervisor (pid {one['pid']}) does not answer (it is stopped)\n" in stopped
    assert re.match(rf"{one['id']}  project, for \d+ s: 1 of 4 compiled, 2 run, 1 waits?", text), text
    assert re.search(r"^    csrc/1_\w\.cu  \d+ s, 0\.\d GiB$", text, re.MULTILINE), text
    assert re.search(r"^    1 held back: the first one because (all CPUs|2 compiles run)", text, re.MULTILINE)


def test_who_watches_and_goes_away(project: Project) -> None:
    """`--watch | head -1` ends with its reader."""
    watch = [sys.executable, "-m", "safe_ext_build", "builds", "--watch"]
    with subprocess.Popen(watch, env=project.environ(), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(10) == 0


def test_who_has_seen_enough(project: Project) -> None:
    """Ctrl-C is how one leaves `--watch`."""
    watch = [sys.executable, "-m", "safe_ext_build", "builds", "--watch"]
    with subprocess.Popen(watch, env=project.environ(), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 0


def test_a_client_that_does_not_read_disturbs_nothing(project: Project) -> None:
    project.write_sources(dict.fromkeys("abc", "seconds=1"))
    with started(project, project.hook()) as build:
        wait_for_compilers(build)
        path = str(workspace(project) / "bin" / "socket")
        clients = [socket.socket(socket.AF_UNIX) for _ in range(3)]
        for client in clients:
            client.connect(path)
        question = b"\0\0\0\6status"
        clients[0].sendall(question * 5000)
        clients[1].sendall(question[:7])
        clients[2].sendall(b"\xff" * 8)
        with Line(workspace(project)) as line:
            status = line.ask(ASK)
        assert status is not None
        assert len(status.running) == 2
        assert build.wait() == 0, build.text()
        for client in clients:
            client.close()
    assert "compiled 3 objects" in build.text()


# Every minute a line.


def status(**changes: Any) -> Status:
    return replace(Status("b", 1, "p", "/p", "/w", 12, 73, (), 0, "", 0, 0, None), **changes)


def test_the_line() -> None:
    jobs = (Running("/p/csrc/x.cu", 185.0, 1, 9 * GIB, False), Running("/p/y.cu", 3.0, 1, GIB, False))
    full = status(running=jobs, waiting=2, why="it needs up to 4.1 GiB", held=10 * GIB, budget=22 * GIB)
    line = "12 of 73 compiled, 2 run (longest: x.cu, 3 min), 10.0 of 22.0 GiB, 2 wait for memory"
    assert heartbeat.sentence(full) == line
    one = status(total=0, running=jobs[1:], waiting=1, why="all CPUs are busy", held=GIB, budget=1 << 60)
    assert heartbeat.sentence(one) == "12 compiled, 1 runs (longest: y.cu, 3 s), 1.0 GiB, 1 waits for a CPU"
    failed = status(failed="z.cu")
    assert heartbeat.sentence(failed) == "12 of 73 compiled, z.cu has failed, and what runs is waited for"


def test_what_is_on_the_farm_is_said() -> None:
    jobs = (Running("/p/csrc/x.cu", 185.0, 2, GIB, False, True), Running("/p/y.cu", 3.0, 1, GIB, False))
    full = status(running=jobs, held=2 * GIB, budget=22 * GIB, hits=1, farmed=5, remote=1, slots=6)
    assert heartbeat.sentence(full) == (
        "12 of 73 compiled (1 from the cache, 5 on the farm), 2 run (longest: x.cu, 3 min), 1 of them on the farm "
        "(6 slots), 2.0 of 22.0 GiB"
    )
    record = Record("b", 1, "p", 1.0, Share(2, 0), "/w")
    assert list(builds.describe(Found(record, full, 60.0))) == [
        (
            "b  p, for 1 min: 12 of 73 compiled (1 from the cache, 5 on the farm), 2 run, 1 of them on the farm "
            "(6 slots), 2.0 of 22.0 GiB"
        ),
        "    in /p, supervisor 1",
        "    csrc/x.cu  3 min on the farm, 1.0 GiB here, 2 threads",
        "    y.cu  3 s, 1.0 GiB",
    ]
    assert builds.as_data(Found(record, full, 60.0))["status"]["slots"] == 6


def test_a_status_survives_the_way() -> None:
    there = status(running=(Running("a", 1.0, 2, 3, True, True),), expected=7.5, remote=1, slots=4, farmed=2)
    assert Status.parse(there.to_line()) == there
    newer = json.loads(there.to_line()) | {"news": 1}
    newer["running"][0]["news"] = 2
    assert Status.parse(json.dumps(newer).encode()) == there, "a newer build knows more"
    older = {name: value for name, value in newer.items() if name not in ("hits", "farmed", "remote", "slots")}
    del older["running"][0]["remote"]
    assert Status.parse(json.dumps(older).encode()).slots == 0
    with pytest.raises(KeyError):
        Status.parse(b"{}\n")


def test_the_first_line_comes_after_a_minute_of_compiling() -> None:
    beat = Heartbeat(60.0)
    looks = [(now, beat.is_due(now, compiling=now >= 100)) for now in range(0, 400, 10)]
    assert [now for now, due in looks if due] == [160, 220, 280, 340]
    idle = Heartbeat(60.0)
    assert not any(idle.is_due(now, compiling=False) for now in range(1000))


def test_a_build_says_how_far_it_is(project: Project) -> None:
    project.write_sources({"0_a": "seconds=0.05", "1_b": "seconds=60", "1_c": "seconds=60", "1_d": "seconds=60"})
    hurried = project.hook()
    hurried[2] = f"from safe_ext_build.supervise import heartbeat; heartbeat.INTERVAL = 0.7; {hurried[2]}"
    with started(project, hurried) as build:
        build.wait_until(lambda: build.text().count(" of 4 compiled") >= 2, "two lines")
        text = build.text()
    pattern = (
        r"^safe-ext-build: [01] of 4 compiled, 2 run \(longest: 1_\w\.cu, \d s\), 0\.\d of \d+\.\d GiB, "
        r"1 waits (for a CPU|\(2 compiles run, as many as allowed\))$"
    )
    assert re.search(pattern, text, re.MULTILINE), text
