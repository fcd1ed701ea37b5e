"""What a build may have of a farm, and what sccache is told where there is to be none."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import farm_stub
import pytest
from farm_harness import SCCACHE_DIST

from safe_ext_build.errors import FarmError
from safe_ext_build.farm.share import Share, choose, local_configuration
from safe_ext_build.launcher.tools import Launcher, Tool
from safe_ext_build.settings import load

TOOL = Tool("sccache", Path("/bin/sccache"), "0.16.0", "")
INSTALLED = Launcher(TOOL, (), (TOOL,))


def config(place: Path, scheduler: str, token: str = "right") -> dict[str, str]:
    path = place / "config"
    path.write_text(f'[dist]\nscheduler_url = "{scheduler}"\n[dist.auth]\ntype = "token"\ntoken = "{token}"\n')
    path.chmod(0o600)
    return {"SCCACHE_CONF": str(path)}


def share(
    environ: Mapping[str, str], launcher: Launcher | None = INSTALLED, remote: Any = "auto", required: bool = False
) -> Share | None:
    told = {"jobs.remote": str(remote), "farm.required": str(required).lower()}
    settings, _ = load(Path("/nowhere"), told, {})
    return choose(settings, launcher, environ)


def refused(*arguments: Any, **more: Any) -> str:
    with pytest.raises(FarmError) as caught:
        share(*arguments, **more)
    return f"{caught.value.code} {caught.value}"


def test_without_a_farm_there_is_nothing_to_say(tmp_path: Path) -> None:
    nowhere = {"SCCACHE_CONF": str(tmp_path / "missing")}
    assert share(nowhere) is None
    assert share(config(tmp_path, farm_stub.nobody()), remote=0) is None, "it is not even asked"
    assert refused(nowhere, required=True).startswith("SEB-9051 ")


def test_as_much_as_it_has_or_as_somebody_says(tmp_path: Path) -> None:
    with farm_stub.scheduler(status=b'{"num_servers": 2, "num_cpus": 12, "in_progress": 5}') as url:
        environ = config(tmp_path, url)
        found, told = share(environ), share(environ, remote=3)
    assert found and (found.slots, found.fixed, found.scheduler) == (7, False, url)
    assert told and (told.slots, told.fixed) == (3, True)
    assert found.lines[0].startswith("up to 7 compiles at a time on the farm of ")
    assert found.lines[0].endswith(": 2 servers, 12 CPUs, 5 in use")
    assert ", as -C jobs.remote says: " in told.lines[0]


def test_a_farm_that_others_use_up_still_takes_one(tmp_path: Path) -> None:
    with farm_stub.scheduler(status=b'{"num_servers": 1, "num_cpus": 4, "in_progress": 9}') as url:
        found = share(config(tmp_path, url))
    assert found and found.slots == 1 and "up to 1 compile at a time" in found.lines[0]


def test_required_is_an_error_where_else_it_is_a_line(tmp_path: Path) -> None:
    with farm_stub.scheduler() as url:
        environ = config(tmp_path, url, token="wrong")
        code, _, what = refused(environ, required=True).partition(" ")
        assert share(environ) == Share(0, (f"the compile farm is not used: {what}",))
    assert code == "SEB-9009" and "wrong" not in what
    gone = config(tmp_path, farm_stub.nobody())
    assert refused(gone, required=True).startswith("SEB-9004 ")
    line = share(gone)
    assert line and line.slots == 0 and "nobody listens" in line.lines[0]


def test_required_and_zero_contradict_each_other(tmp_path: Path) -> None:
    text = refused(config(tmp_path, farm_stub.nobody()), remote=0, required=True)
    assert text.startswith("SEB-9052 ") and "jobs.remote" in text and "farm.required" in text


@pytest.mark.parametrize(
    ("launcher", "what"),
    [
        (None, "is not installed"),
        (Launcher(None, ()), "is not installed"),
        (Launcher(None, (), (replace(TOOL, version="0.1.0"),)), "is not installed"),
        (Launcher(None, (), (TOOL,), keeps=False), 'launcher is "none"'),
    ],
)
def test_it_is_reached_through_sccache_only(tmp_path: Path, launcher: Launcher | None, what: str) -> None:
    environ = config(tmp_path, farm_stub.nobody())
    found = share(environ, launcher)
    assert found and found.slots == 0 and what in found.lines[0]
    text = refused(environ, launcher, required=True)
    assert text.startswith("SEB-9053 ") and what in text


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("tolchain_cache_size = 5\n", "it does not know the name tolchain_cache_size (at line 3, column 1)"),
        ('toolchains = "s3cr3t"\n', "it does not take it (at line 3, column 14)"),
    ],
)
def test_what_sccache_does_not_read_is_no_farm(tmp_path: Path, line: str, what: str) -> None:
    text = f'[dist]\nscheduler_url = "{farm_stub.nobody()}"\n{line}{AUTH}'
    (tmp_path / "config").write_text(text)
    environ = {"SCCACHE_CONF": str(tmp_path / "config"), "HOME": str(tmp_path)}
    real = replace(TOOL, path=SCCACHE_DIST.with_name("sccache"))
    refusal = refused(environ, Launcher(real, (), (real,)), required=True)
    assert refusal.startswith("SEB-9002 ") and refusal.endswith(what)


AUTH = '[dist.auth]\ntype = "token"\ntoken = "s3cr3t"\n'


@pytest.mark.parametrize(
    "text",
    [
        f'server_startup_timeout_ms = 9\n[dist]\nscheduler_url = "http://h"\n{AUTH}[cache.disk]\ndir = "/c"\n',
        (
            'server_startup_timeout_ms = 9\ndist.scheduler_url = "http://h"\ndist.auth.token = "s3cr3t"\n'
            'cache.disk.dir = "/c"\n'
        ),
        (
            'server_startup_timeout_ms = 9\ndist = { scheduler_url = "http://h", auth = { token = "s3cr3t" } }\n'
            'cache = { disk = { dir = "/c" } }\n'
        ),
        (
            'server_startup_timeout_ms = 9  # [dist]\n["dist"]  # the farm\n[ dist . auth ]\ntoken = """\n'
            '[cache.disk]\ns3cr3t"""\n[[dist.toolchains]]\ntype = "path_override"\n[cache.disk]\ndir = "/c"\n'
        ),
    ],
)
def test_however_a_farm_is_written_it_is_left_out(tmp_path: Path, text: str) -> None:
    (tmp_path / "config").write_text(text)
    local = local_configuration({"SCCACHE_CONF": str(tmp_path / "config")}, tmp_path)
    assert local and json.loads(local.read_text()) == {
        "server_startup_timeout_ms": 9,
        "cache": {"disk": {"dir": "/c"}},
    }
    assert local.suffix == ".json", "which is how sccache knows"
    assert local.stat().st_mode & 0o777 == 0o600, "it may hold other secrets"


def test_what_looks_like_a_farm_stays(tmp_path: Path) -> None:
    text = '[cache.redis]\nkey_prefix = """\n[dist]\nscheduler_url"""\n[dist]\n'
    (tmp_path / "config").write_text(text)
    local = local_configuration({"SCCACHE_CONF": str(tmp_path / "config")}, tmp_path)
    assert local
    assert json.loads(local.read_text()) == {"cache": {"redis": {"key_prefix": "[dist]\nscheduler_url"}}}


def test_json_is_left_as_it_is_without_it(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text('{"dist": {"scheduler_url": "http://h"}, "cache": {"disk": {"size": 1}}}')
    local = local_configuration({"SCCACHE_CONF": str(tmp_path / "c.json")}, tmp_path)
    assert local and json.loads(local.read_text()) == {"cache": {"disk": {"size": 1}}}


def test_a_configuration_without_a_farm_needs_no_other(tmp_path: Path) -> None:
    (tmp_path / "config").write_text('[cache.disk]\ndir = "/c"\n')
    assert local_configuration({"SCCACHE_CONF": str(tmp_path / "config")}, tmp_path) is None
    assert local_configuration({"SCCACHE_CONF": str(tmp_path / "missing")}, tmp_path) is None
