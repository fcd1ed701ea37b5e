"""The caches of a build that has a farm: one server for it, one without."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from safe_ext_build.caching import Ground, Prepared, prepare
from safe_ext_build.farm.share import Share
from safe_ext_build.launcher.tools import Launcher, Tool
from safe_ext_build.supervise.workspace import Workspace

SCCACHE, CCACHE = (Tool(name, Path("/bin", name), "9.9", "") for name in ("sccache", "ccache"))
URL = "http://198.18.0.10:10600"
FARM = f'[dist]\nscheduler_url = "{URL}"\n[cache.disk]\ndir = "/c"\n'


def prepared(place: Path, launcher: Launcher, share: Share | None, config: str = FARM) -> Prepared:
    (place / "bin").mkdir()
    (place / "config").write_text(config)
    environ = {"SCCACHE_CONF": str(place / "config"), "PATH": "/usr/bin:/bin", "HOME": str(place)}
    ground = Ground(place / "project", None, None, place / "cache")
    return prepare(launcher, share, Workspace(place, -1), ground, None, None, environ)


@pytest.mark.parametrize(
    "launcher",
    [
        Launcher(SCCACHE, (), (CCACHE, SCCACHE)),
        Launcher(CCACHE, (), (CCACHE, SCCACHE)),
        Launcher(None, (), (SCCACHE,)),
    ],
)
def test_the_farm_has_a_server_of_its_own_whatever_caches(tmp_path: Path, launcher: Launcher) -> None:
    found = prepared(tmp_path, launcher, Share(6, (), URL)).launching
    assert (found.farm, found.server) == (str(tmp_path / "bin" / "farm"), str(tmp_path / "bin" / "sccache"))
    assert (found.slots, found.scheduler, found.shares) == (6, URL, True)
    assert json.loads(Path(found.config).read_text()) == {"cache": {"disk": {"dir": "/c"}}}
    assert set(found.busters) == {"host"}, "what is compiled there hits by the compiler's content"


def test_a_fixed_share_is_not_others_to_change(tmp_path: Path) -> None:
    assert not prepared(
        tmp_path, Launcher(SCCACHE, (), (SCCACHE,)), Share(2, (), URL, fixed=True)
    ).launching.shares


@pytest.mark.parametrize("share", [None, Share(0, ("the compile farm is not used: it does not answer",))])
def test_where_the_farm_is_not_used_nothing_goes_there(tmp_path: Path, share: Share | None) -> None:
    found = prepared(tmp_path, Launcher(SCCACHE, (), (SCCACHE,)), share).launching
    assert (found.farm, found.slots) == ("", 0)
    assert "dist" not in json.loads(Path(found.config).read_text())


def test_without_a_farm_sccache_reads_what_the_user_wrote(tmp_path: Path) -> None:
    found = prepared(tmp_path, Launcher(SCCACHE, (), (SCCACHE,)), None, '[cache.disk]\ndir = "/c"\n').launching
    assert found.config == ""


def test_a_damaged_configuration_is_no_end_of_a_build(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    both = prepared(tmp_path, Launcher(SCCACHE, (), (SCCACHE,)), None, "[dist\n")
    found = both.launching
    assert both.variables["SCCACHE_CONF"] == found.config, "what calls sccache reads it, too"
    assert json.loads(Path(found.config).read_text()) == {}, (
        "sccache may read what we do not, and use a farm in it"
    )
    assert "is no valid configuration of sccache" in capsys.readouterr().err
