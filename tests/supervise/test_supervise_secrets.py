"""What opens a shared cache reaches nobody who is shown what a build says or keeps, whatever the tool prints."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from cached_standin import slow_compiler, sources, variables
from kill_harness import Project, make_project, started

pytestmark = pytest.mark.frontend

IN_ENVIRONMENT, IN_FILE, IN_ACCESS = "hunter-1111", "hunter-2222", "hunter-3333"
SECRETS = (IN_ENVIRONMENT, IN_FILE, IN_ACCESS)
COMMANDS = (
    ("doctor",),
    ("doctor", "--json"),
    ("plan",),
    ("plan", "--json"),
    ("builds",),
    ("report",),
    ("report", "--json"),
)


def machine(place: Path, tool: str, **more: str) -> Project:
    settings = {**variables(place / "cache"), "SAFE_EXT_BUILD_LAUNCHER": tool, "CCACHE_DIR": str(place / "ccache")}
    home = {"HOME": str(place), "AWS_SECRET_ACCESS_KEY": IN_ACCESS}
    project = make_project(place, slow_compiler(place / "bin"), **settings, **home, **more)
    project.write_sources(sources({"a": "0, 0"}))
    return project


def everything(project: Project, status: int) -> str:
    """What a build, and the commands after it, show and keep."""
    with started(project, project.hook()) as build:
        assert bool(build.wait()) == bool(status), build.text()
        shown = [build.text()]
    for words in COMMANDS:
        command = [sys.executable, "-m", "safe_ext_build", *words]
        done = subprocess.run(
            command, cwd=project.root, env=project.environ(), capture_output=True, text=True, timeout=90
        )
        shown += [done.stdout, done.stderr]
    html = project.scratch / "report.html"
    command = [sys.executable, "-m", "safe_ext_build", "report", "--html", str(html)]
    subprocess.run(command, cwd=project.root, env=project.environ(), check=True, capture_output=True)
    ours = project.scratch / "cache" / "safe-ext-build"
    kept = list((ours / "reports").iterdir())
    assert kept
    return "\n".join([*shown, html.read_text(), *(path.read_text(errors="replace") for path in kept)])


def test_an_error_of_ccache_that_shows_its_storage(tmp_path: Path) -> None:
    """Its file names one without a scheme; the error shows it, password and all."""
    project = machine(tmp_path, "ccache")
    (tmp_path / "ccache").mkdir()
    (tmp_path / "ccache" / "ccache.conf").write_text(f"remote_storage = {IN_FILE}@cache\n")
    text = everything(project, 1)
    assert "URL scheme must not be empty: ***@cache" in text
    assert [secret for secret in SECRETS if secret in text] == []


def test_an_sccache_whose_file_cannot_be_read(tmp_path: Path) -> None:
    """It shows the line, and the build goes on."""
    url = f"redis://:{IN_ENVIRONMENT}@127.0.0.1:9"
    (tmp_path / "config").write_text(f"[cache.redis]\npassword = {IN_FILE}\n")
    text = everything(machine(tmp_path, "sccache", SCCACHE_CONF=str(tmp_path / "config"), SCCACHE_REDIS=url), 0)
    assert "the sccache server of this build is lost" in text
    assert "its cache: Redis (redis://***@127.0.0.1:9)" in text
    assert [secret for secret in SECRETS if secret in text] == []
