"""Processes of ours whose installation, or whose hook process, goes away while they start: they end in silence."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

import safe_ext_build

OURS = Path(safe_ext_build.__file__).parent
# Starts a process of ours, with the installation at argv[1], and tells its output and status.
START = """
import os, subprocess, sys
sys.path.insert(0, sys.argv[1])
from safe_ext_build.supervise.hook import child_command
command = child_command("safe_ext_build.supervise.supervisor", sys.argv[2], isolated=True, parent=os.getpid())
{prepare}
print("ready", flush=True)
child = subprocess.Popen(command, stdout=sys.stderr, stderr=sys.stderr)
{then}
"""
REMOVE = "(__import__('pathlib').Path(sys.argv[1]) / 'safe_ext_build/supervise/processes.py').unlink()"
WAIT = "sys.exit(child.wait())"


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A copy of ours, without caches: a module that is gone cannot be imported."""
    root = tmp_path / "site"
    shutil.copytree(OURS, root / OURS.name, ignore=shutil.ignore_patterns("__pycache__"))
    return root


def start(installed: Path, prepare: str, then: str) -> subprocess.Popen[str]:
    code = START.format(prepare=prepare, then=then)
    command = [sys.executable, "-I", "-B", "-c", code, str(installed), str(installed / "no-request.json")]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_the_installation_is_being_removed(installed: Path) -> None:
    with start(installed, REMOVE, WAIT) as starter:
        assert starter.stdout
        assert starter.stdout.readline() == "ready\n"
        time.sleep(0.2)
        shutil.rmtree(installed)
        _, said = starter.communicate(timeout=30)
    assert said == ""
    assert starter.returncode == 1


@pytest.mark.parametrize("prepare", [REMOVE, ""])
def test_the_hook_process_is_gone(installed: Path, prepare: str) -> None:
    """It was killed, and so the workspace, with what the supervisor is to do, was removed."""
    with start(installed, prepare, "child.returncode = 0") as starter:
        _, said = starter.communicate(timeout=30)  # until the supervisor, which holds the pipe, has ended
    assert said == ""


@pytest.mark.parametrize(("prepare", "what"), [(REMOVE, "ModuleNotFoundError"), ("", "no-request.json")])
def test_a_broken_installation_is_shown(installed: Path, prepare: str, what: str) -> None:
    with start(installed, prepare, WAIT) as starter:
        _, said = starter.communicate(timeout=30)
    assert what in said.splitlines()[-1]
    assert starter.returncode == 1
