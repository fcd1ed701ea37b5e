"""An error's id on its way: into the record of the build, and from there to whoever reads it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from safe_ext_build import settings
from safe_ext_build.errors import BuildFailed
from safe_ext_build.events import Event
from safe_ext_build.plan import BuildPlan
from safe_ext_build.report import account, record, shelf
from safe_ext_build.report.html import to_html
from safe_ext_build.report.text import to_text


def settled(cache: Path, error: Exception) -> record.Record:
    """The record that a build leaves which ends with this error."""
    plan = BuildPlan(environment={}, lines=(), jobs=1, most_jobs=1, cpus=1, guard=True, free_threads=False)
    kept = account.Account("sample", "build_wheel", settings.load(cache, {}, {})[0], plan, "", "", cache)
    kept.settle("0a1b", [Event("start", kept.began, source="a.cu", job=1)], "failed", error)
    return shelf.load(shelf.find(cache))


def test_the_record_of_a_failed_build_has_the_id(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = settled(tmp_path, BuildFailed("a.cu does not compile: error: no", code="SEB-6001"))
    assert (made.error_code, made.error) == ("SEB-6001", "a.cu does not compile: error: no")
    assert json.loads(record.dump(made))["error_code"] == "SEB-6001"
    assert "error[SEB-6001]: a.cu does not compile: error: no" in list(to_text(made))
    assert '<p class="error" role="note"><strong>SEB-6001</strong> a.cu does not compile' in to_html(made)
    assert "report of this build" in capsys.readouterr().err


def test_what_is_not_expected_has_none(tmp_path: Path) -> None:
    made = settled(tmp_path, RuntimeError("the reactor is too hot"))
    assert (made.error_code, made.error) == ("", "the reactor is too hot")
    assert "error: the reactor is too hot" in list(to_text(made))


def test_records_of_before_there_were_ids_are_read(tmp_path: Path) -> None:
    values = json.loads(record.dump(settled(tmp_path, RuntimeError("hot"))))
    del values["error_code"]
    assert record.parse(json.dumps(values)).error_code == ""
