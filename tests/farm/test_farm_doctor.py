"""What doctor and plan say of a farm: at once, also of one that says nothing itself."""

from __future__ import annotations

import socket
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import farm_stub
import pytest

from safe_ext_build.cli import checkup, plan
from safe_ext_build.cli.checkup import Finding
from safe_ext_build.farm import client
from safe_ext_build.farm.share import Share
from safe_ext_build.settings import Settings

TOKEN = "s3cr3t-of-the-clients"


def look(place: Path, scheduler: str, **changes: Any) -> list[Finding]:
    """What doctor finds where sccache is told of this scheduler, with the settings `remote` and `required`."""
    auth = f'[dist.auth]\ntype = "token"\ntoken = "{TOKEN}"\n'
    (place / "config").write_text(f'[dist]\nscheduler_url = "{scheduler}"\n{auth}' if scheduler else "")
    plain = Settings()
    jobs = replace(plain.jobs, remote=changes.get("remote"))
    farm = replace(plain.farm, required=changes.get("required", False))
    settings = replace(plain, jobs=jobs, farm=farm, launcher=changes.get("launcher", "auto"))
    found = list(checkup.compile_farm(settings, {"SCCACHE_CONF": str(place / "config")}))
    assert TOKEN not in repr(found)
    return found


def test_a_farm_that_takes_work(tmp_path: Path) -> None:
    with farm_stub.scheduler(servers=2, token=TOKEN) as url:
        (found,) = look(tmp_path, url)
    assert (found.topic, found.status) == ("compile farm", "ok")
    assert found.text.startswith("up to 8 compiles at a time on the farm of http://127.0.0.1:")
    assert found.text.endswith(": 2 servers, 8 CPUs, 0 in use")
    assert found.values == {"scheduler": url, "slots": 8}


@pytest.mark.parametrize(("required", "status"), [(False, "note"), (True, "problem")])
def test_what_is_wrong_has_its_fix(tmp_path: Path, required: bool, status: str) -> None:
    (found,) = look(tmp_path, farm_stub.nobody(), required=required)
    assert (found.status, found.code) == (status, "SEB-9004")
    assert "nobody listens at http://127.0.0.1:" in found.text and "Start it there" in found.fix
    with farm_stub.scheduler(token="another") as url:
        (found,) = look(tmp_path, url, required=required)
    assert (found.status, found.code) == (status, "SEB-9009")
    (found,) = look(tmp_path, "http://h:1/path", required=required)
    assert (found.status, found.code) == (status, "SEB-9003")


def test_without_the_launcher_there_is_no_way_to_it(tmp_path: Path) -> None:
    with farm_stub.scheduler(token=TOKEN) as url:
        (found,) = look(tmp_path, url, launcher="none")
    assert found.code == "SEB-9053" and found.text.startswith("not used: ")


def test_nothing_is_said_where_none_is_wanted(tmp_path: Path) -> None:
    assert look(tmp_path, "") == []
    assert look(tmp_path, farm_stub.nobody(), remote=0) == []


def test_one_that_says_nothing_does_not_keep_doctor_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither one that hangs, nor one whose name nobody knows for a long time."""
    with farm_stub.scheduler(hangs=True) as url:
        (found,) = look(tmp_path, url)
        assert found.code == "SEB-9005" and "says nothing within 1 s" in found.text

    def slow(*_: object) -> client.Status:
        time.sleep(3)
        raise socket.gaierror(-3, "Temporary failure in name resolution")

    monkeypatch.setattr(client, "ask", slow)
    begun = time.monotonic()
    (found,) = look(tmp_path, "http://farm.example")
    assert time.monotonic() - begun < 3
    assert found.code == "SEB-9005" and "has not answered within 1.5 s" in found.text


def test_plan_tells_programs_of_it() -> None:
    share = Share(6, ("a line",), "http://user:secret@10.0.0.1:10600", fixed=True)
    assert plan.farm_document(share) == {"scheduler": "http://***@10.0.0.1:10600", "slots": 6, "fixed": True}
    assert plan.farm_document(None) is None
