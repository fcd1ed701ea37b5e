"""What the hook process tells its parent, how it pauses, and what it leaves as it found it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from kill_harness import PROMISE, Build, Project, number_of, started

TREE = ("seb-builder", "seb-ninja", "ninja", "seb-job", "nvcc", "cicc")


@pytest.mark.parametrize("name", ["INT", "TERM", "HUP", "QUIT"])
def test_the_hook_process_dies_by_the_signal(project: Project, name: str) -> None:
    sleepy = Project(project.root, project.compiler, project.scratch, {"STANDIN_SLEEP": "60"})
    with started(sleepy, sleepy.hook()) as build:
        build.wait_for("seb-builder")
        build.hit("frontend", number_of(name))
        assert build.wait() == -number_of(name)
        assert build.seconds_to_clear() <= PROMISE
        assert build.leftovers() == []


def test_the_hook_process_dies_by_the_signal_though_nobody_reads(project: Project) -> None:
    """What it has printed cannot be written any more."""
    sleepy = Project(project.root, project.compiler, project.scratch, {"STANDIN_SLEEP": "60"})
    command = sleepy.hook()
    command[2] = "print('x' * 10)\n" + command[2]
    environ = {name: value for name, value in sleepy.environ().items() if name != "PYTHONUNBUFFERED"}
    hook = subprocess.Popen(command, cwd=sleepy.root, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert hook.stdout and hook.stderr
    try:
        _wait_for_child(hook.pid, "seb-super")
        hook.stdout.close()
        hook.stderr.close()
        hook.terminate()
        assert hook.wait(10) == -signal.SIGTERM
    finally:
        hook.kill()
        hook.wait()


def _wait_for_child(pid: int, name: str) -> None:
    deadline = time.monotonic() + 20
    while not any(child.name() == name for child in psutil.Process(pid).children()):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_signal_that_comes_before_the_supervisor(project: Project) -> None:
    """From the moment at which there is a workspace, somebody clears it away."""
    with started(project, project.hook("prepare_metadata_for_build_wheel")) as build:
        while not any(path.is_dir() for path in project.workspaces.iterdir()):
            assert build.process.poll() is None
        build.hit("frontend", signal.SIGTERM)
        assert build.wait() == -signal.SIGTERM
        assert build.seconds_to_clear() <= PROMISE
        assert build.leftovers() == []


def test_stopping_pauses_the_tree_and_continuing_resumes_it(project: Project) -> None:
    project.write_sources({"a": "seconds=1.5", "b": "seconds=1.5"})
    with started(project, project.hook()) as build:
        build.wait_for("cicc", 2)
        build.hit("frontend", signal.SIGTSTP)
        build.wait_until(lambda: _stopped(build), "a stopped tree")
        before = _cpu(build)
        time.sleep(0.5)
        assert _stopped(build)
        assert _cpu(build) == before
        build.hit("frontend", signal.SIGCONT)
        assert build.wait() == 0, build.text()
    assert project.half_written() == []


def _stopped(build: Build) -> bool:
    hook = build.frontend.pid
    watched = [process for process in build.processes() if process.name() in TREE or process.pid == hook]
    return all(process.status() == psutil.STATUS_STOPPED for process in watched)


def _cpu(build: Build) -> float:
    watched = [process for process in build.processes() if process.name() in TREE]
    return sum(sum(process.cpu_times()[:2]) for process in watched)


def test_a_stopped_build_can_be_ended(project: Project) -> None:
    project.write_sources({"a": "seconds=60 stubborn=1 escape=1", "b": "seconds=60"})
    with started(project, project.hook()) as build:
        build.wait_for("cicc", 2)
        build.hit("frontend", signal.SIGTSTP)
        build.wait_until(lambda: _stopped(build), "a stopped tree")
        build.hit("frontend", signal.SIGTERM)
        build.hit("frontend", signal.SIGCONT)
        assert build.seconds_to_clear() <= PROMISE, build.names()
        assert build.wait() == -signal.SIGTERM
        assert build.leftovers() == []


def test_nohup_is_respected(project: Project) -> None:
    project.write_sources({"a": "seconds=1", "b": "seconds=1"})
    with started(project, ["nohup", *project.hook()]) as build:
        build.wait_for("cicc", 2)
        # (ninja catches SIGHUP whatever it was, so it and what it runs are not told of nohup.)
        for victim in ("frontend", "seb-super", "seb-guard", "seb-builder", "seb-ninja"):
            build.hit(victim, signal.SIGHUP)
        assert build.wait() == 0, build.text()


def test_compilers_are_expendable_and_nice_and_hold_nothing_of_ours(project: Project) -> None:
    project.write_sources({"a": "seconds=1.5", "b": "seconds=1.5"})
    with started(project, project.hook()) as build:
        build.wait_for("cicc", 2)
        nice, score = build.frontend.nice(), _oom_score_adj(build.frontend)
        for name in ("seb-super", "seb-guard", "seb-builder", "seb-ninja", "ninja"):
            (process,) = build.named(name)
            assert (process.nice(), _oom_score_adj(process)) == (nice, score), name
        for name in ("seb-job", "nvcc", "cicc"):
            for process in build.named(name):
                assert (process.nice(), _oom_score_adj(process)) == (nice + 3, min(1000, score + 500)), name
        # The lock says that the build lives, so it must not live on in what it started.
        (workspace,) = [path for path in project.workspaces.iterdir() if path.is_dir()]
        holders = {process.name() for process in build.processes() if str(workspace) in _opened(process)}
        assert holders == {build.frontend.name(), "seb-super", "seb-guard"}
        assert build.wait() == 0, build.text()


def _oom_score_adj(process: psutil.Process) -> int:
    return int(Path(f"/proc/{process.pid}/oom_score_adj").read_text())


def _opened(process: psutil.Process) -> set[str]:
    folder = Path(f"/proc/{process.pid}/fd")
    return {str(path.readlink()) for path in folder.iterdir()}


TWICE = """
import ctypes, json, os, signal, subprocess, sys, threading
from safe_ext_build import build_meta

def handler(number, frame): pass

def state():
    subreaper = ctypes.c_int()
    ctypes.CDLL(None).prctl(37, ctypes.byref(subreaper), 0, 0, 0)
    wakeup = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(wakeup)
    handlers = [signal.getsignal(n) for n in (2, 15, 1, 3, signal.SIGTSTP, signal.SIGCONT)]
    return [repr(handlers), wakeup, subreaper.value, sorted(os.listdir("/proc/self/fd")), threading.active_count()]

signal.signal(signal.SIGTERM, handler)
signal.signal(signal.SIGHUP, signal.SIG_IGN)
child = subprocess.Popen(["sh", "-c", "sleep 0.2 & sleep 0.2; exit 7"])
quiet = subprocess.Popen(["sh", "-c", "while :; do sleep 0.05; done"])
states = [state()]
for _ in range(2):
    build_meta.prepare_metadata_for_build_wheel(sys.argv[1])
    states.append(state())
thread = threading.Thread(target=build_meta.prepare_metadata_for_build_wheel, args=[sys.argv[1]])
thread.start()
thread.join()
states.append(state())
lives = quiet.poll() is None
quiet.kill()
quiet.wait()
print(json.dumps({"states": states, "child": child.wait(), "lives": lives}))
"""


def test_a_process_that_runs_several_hooks_stays_what_it_was(project: Project) -> None:
    """Handlers, wakeup descriptor, subreaper, open files, and children of its own: neither ended nor reaped."""
    done = subprocess.run(
        [sys.executable, "-c", TWICE, str(project.wheels)],
        cwd=project.root,
        env=project.environ(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    first, *others = result["states"]
    for other in others:
        assert other == first
    assert (result["child"], result["lives"]) == (7, True)
    assert [path.name for path in project.workspaces.iterdir()] == [".lock"]
