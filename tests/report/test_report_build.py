"""The record of real builds: of one that succeeds, of one that fails, and of one that is interrupted."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from safe_ext_build import ui
from safe_ext_build.events import Event
from safe_ext_build.plan import BuildPlan
from safe_ext_build.report import shelf
from safe_ext_build.report.account import Account
from safe_ext_build.report.record import Record
from safe_ext_build.schedule.history import History
from safe_ext_build.schedule.history_key import scope
from safe_ext_build.settings import Settings

STANDIN = Path(__file__).parents[1] / "projects" / "standin"
HOOK = "import sys; from safe_ext_build import build_meta; build_meta.build_wheel(sys.argv[1])"


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("compiler") / "nvcc"
    subprocess.run(["gcc", "-O1", str(STANDIN / "standin.c"), "-o", str(program)], check=True)
    return program


class Build:
    """A copy of the stand-in project in a home of its own."""

    def __init__(self, place: Path, compiler: Path, **sources: str) -> None:
        self.home, self.project, self.compiler = place / "home", place / "home" / "gadget", compiler
        shutil.copytree(STANDIN, self.project)
        shutil.rmtree(self.project / "csrc")
        (self.project / "csrc").mkdir()
        for name, plan in sources.items():
            (self.project / "csrc" / f"{name}.cu").write_text(f"//! {plan}\n")

    def start(self, **variables: str) -> subprocess.Popen[str]:
        kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
        own = {
            "HOME": str(self.home),
            "STANDIN_COMPILER": str(self.compiler),
            "STANDIN_FLAGS": "-gencode=arch=compute_80,code=sm_80",
            "MAX_JOBS": "2",
            "SECRET_TOKEN": "hunter2",
        }
        return subprocess.Popen(
            [sys.executable, "-c", HOOK, str(self.home / "dist")],
            cwd=self.project,
            env={**kept, **own, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, status: int = 0, **variables: str) -> str:
        process = self.start(**variables)
        text, _ = process.communicate(timeout=120)
        assert process.returncode == status, text
        return text

    @property
    def cache(self) -> Path:
        return self.home / ".cache" / "safe-ext-build"

    def record(self) -> Record:
        return shelf.load(shelf.find(self.cache))


def test_a_build_leaves_a_record_and_what_was_asked_for(tmp_path: Path, compiler: Path) -> None:
    build = Build(tmp_path, compiler, one="seconds=2.5 mib=40", two="seconds=0.2", three="seconds=0.2")
    said = build.run(SAFE_EXT_BUILD_REPORT_PATH="~/out/report.html")
    assert f"safe-ext-build: report: {build.home}/out/report.html" in said
    record = build.record()
    assert (record.outcome, record.project, record.hook) == ("built", "gadget", "build_wheel")
    assert sorted(run.source for run in record.runs) == ["csrc/one.cu", "csrc/three.cu", "csrc/two.cu"]
    assert {(run.outcome, run.archs, run.torch_header) for run in record.runs} == {("compiled", "80", False)}
    assert max(sample.held for sample in record.samples) > 0
    times = [sample.time for sample in record.samples]
    assert all(after - before > 1.9 for before, after in itertools.pairwise(times))
    assert any("compiles at a time" in line for line in record.plan.lines)
    assert record.plan.settings["jobs.max"].source == "MAX_JOBS in the environment"
    assert record.plan.settings["report.path"].value == "~/out/report.html"
    page = (build.home / "out" / "report.html").read_text()
    assert "csrc/one.cu" in page
    for text in (page, shelf.find(build.cache).read_text()):
        assert "hunter2" not in text and str(build.home) not in text


def test_a_build_that_fails_says_where_its_record_is(tmp_path: Path, compiler: Path) -> None:
    build = Build(tmp_path, compiler, good="seconds=0.2", bad="fail=1 say=oops")
    said = build.run(1)
    assert f"safe-ext-build: report of this build: {shelf.find(build.cache)}" in said
    record = build.record()
    assert record.outcome == "failed" and "bad.cu does not compile" in record.error
    assert "failed" in {run.outcome for run in record.runs}


def test_a_report_that_cannot_be_written_fails_nothing(tmp_path: Path, compiler: Path) -> None:
    build = Build(tmp_path, compiler, one="seconds=0.1")
    (build.home / "file").touch()
    said = build.run(SAFE_EXT_BUILD_REPORT_PATH="~/file/report.json")
    assert f"safe-ext-build: warning: no report in {build.home}/file/report.json: " in said
    assert (build.home / "dist" / "standin-1.0-py3-none-any.whl").exists()
    said = build.run(SAFE_EXT_BUILD_REPORT_PATH="~/again.json")
    assert json.loads((build.home / "again.json").read_text())["runs"] == []  # everything was there already


def test_without_a_wish_nothing_is_said(tmp_path: Path, compiler: Path) -> None:
    said = Build(tmp_path, compiler, one="seconds=0.1").run()
    assert "report" not in said and "compiled 1 object" in said


def test_an_interrupted_build_leaves_a_record_and_what_it_has_learned(tmp_path: Path, compiler: Path) -> None:
    build = Build(tmp_path, compiler, a_short="seconds=1 burn=1 mib=40", long="seconds=60")
    process = build.start(SAFE_EXT_BUILD_REPORT_PATH="~/report.trace.json")
    objects = build.project / "build"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (
        list(objects.rglob("long.seb-*.o")) and list(objects.rglob("a_short.o"))
    ):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    text, _ = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT, text
    assert "compiled 1 object" in text
    record = build.record()
    assert (record.outcome, record.error) == ("interrupted", "")
    outcomes = {run.source: run.outcome for run in record.runs}
    assert outcomes.pop("csrc/a_short.cu") == "compiled"
    assert outcomes in ({"csrc/long.cu": "unfinished"}, {"csrc/long.cu": "stopped"})
    assert len(History(build.cache / "history.sqlite").lookup_all(scope("gadget"))) == 1
    assert "traceEvents" in json.loads((build.home / "report.trace.json").read_text())


def test_a_mistake_of_ours_fails_no_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("ours")

    said: list[str] = []
    monkeypatch.setattr(shelf, "conclude", fail)
    monkeypatch.setattr(ui, "warn", said.append)
    plan = BuildPlan(1, 1, 1, True, True, {})
    account = Account("gadget", "build_wheel", Settings(), plan, "", "", tmp_path)
    account.settle("id", [Event("start", account.began)], "built")
    assert said == ["no report of this build: ZeroDivisionError('ours')"]
    account.settle("id", [Event("start", account.began)], "interrupted")
    assert len(said) == 1
