"""The parts of `safe-ext-build wheel` that need no build: arguments, archives, projects, requirements, indexes."""

from __future__ import annotations

import io
import sys
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from safe_ext_build.cli import fetch, main, wheel
from safe_ext_build.cli.environment import BuildEnvironment, Lent, without_lent
from safe_ext_build.cli.fetch import FetchError, parse_configuration
from safe_ext_build.cli.project import Project
from safe_ext_build.cli.target import find_target
from safe_ext_build.cli.unpack import SdistError, unpack
from safe_ext_build.errors import SafeExtBuildError
from safe_ext_build.settings import written_variable

# Arguments.


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main.main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out.startswith("safe-ext-build ")


def test_options_as_a_frontend_hands_them_on() -> None:
    given = ["jobs.max=1", "cmake.define.A=x=y", "cmake.define.B=1", "cmake.define.B=2", "empty="]
    expected = {"jobs.max": "1", "cmake.define.A": "x=y", "cmake.define.B": ["1", "2"], "empty": ""}
    assert wheel.read_options(given) == expected


def test_the_place_of_the_wheel_is_tried_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["wheel", "no-such-package", "--out", "/proc/out"]) == 1
    assert "error[SEB-8005]: no wheel can be written to /proc/out: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("https://x.example/y.tar.gz", "Download it first, and name the file"),
        ("y @ https://x.example/y.tar.gz", "Download it first"),
        ("file:///y.tar.gz", "Download it first"),
        ("git+https://x.example/y", "Clone it first"),
        ("https://x.example/y.git", "Clone it first"),
        ("git@x.example:y/y", "Clone it first"),
    ],
)
def test_a_url_is_not_taken_for_a_path(url: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["wheel", url]) == 1
    said = capsys.readouterr().err
    assert f"error[SEB-8102]: {url} is a URL, and URLs are not fetched" in said and f"hint: {hint}" in said


def test_an_option_without_a_value(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["wheel", "x", "-C", "jobs.max"]) == 1
    assert "hint: Write -C jobs.max=VALUE." in capsys.readouterr().err
    assert main.main(["wheel", "x", "-C", "=1"]) == 1
    assert "error[SEB-1010]: -C =1 has no name before the =\n" in capsys.readouterr().err


def test_an_empty_variable_is_no_directory(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["wheel", "x", "--out", ""]) == 1
    assert "error[SEB-8004]: --out is empty" in capsys.readouterr().err


@pytest.mark.parametrize("text", [".", "./a", "a/b", "/a", "~/a", "a-1.0.tar.gz", "a.zip"])
def test_paths(text: str) -> None:
    assert wheel.looks_like_path(text)


@pytest.mark.parametrize("text", ["flash-attn", "flash-attn==2.8.3.post2", "a>=1,<2"])
def test_names(text: str) -> None:
    assert not wheel.looks_like_path(text)


def test_a_python_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(SafeExtBuildError, match="does not run as a Python"):
        find_target(str(tmp_path))
    assert find_target(sys.prefix).environment.prefix == Path(sys.prefix)


# Archives.


def tar(path: Path, files: Mapping[str, str | tarfile.TarInfo]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            info = content if isinstance(content, tarfile.TarInfo) else tarfile.TarInfo(name)
            data = b"" if isinstance(content, tarfile.TarInfo) else content.encode()
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def special(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def test_an_sdist_is_unpacked(tmp_path: Path) -> None:
    archive = tar(tmp_path / "a-1.0.tar.gz", {"a-1.0/setup.py": "x", "a-1.0/csrc/b.cu": "y"})
    place = unpack(archive, tmp_path / "out")
    assert place == tmp_path / "out" / "a-1.0"
    assert (place / "csrc" / "b.cu").read_text() == "y"


def test_a_zip_is_unpacked(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a-1.0.zip", "w") as archive:
        archive.writestr("a-1.0/setup.py", "x")
    assert (unpack(tmp_path / "a-1.0.zip", tmp_path / "out") / "setup.py").read_text() == "x"


HOSTILE: dict[str, dict[str, Any]] = {
    "upwards": {"a/setup.py": "", "a/../../evil": "x"},
    "absolute": {"a/setup.py": "", "/tmp/evil": "x"},
    "link outside": {"a/setup.py": "", "a/link": special("a/link", tarfile.SYMTYPE, "../../..")},
    "through a link": {"a/link": special("a/link", tarfile.SYMTYPE, "/tmp"), "a/link/evil": "x"},
    "hard link outside": {"a/link": special("a/link", tarfile.LNKTYPE, "../../etc/passwd")},
    "device": {"a/null": special("a/null", tarfile.CHRTYPE)},
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_nothing_is_unpacked_outside(tmp_path: Path, kind: str) -> None:
    archive = tar(tmp_path / "a-1.0.tar.gz", HOSTILE[kind])
    with pytest.raises(SdistError, match=r"a-1\.0\.tar\.gz cannot be unpacked") as caught:
        unpack(archive, tmp_path / "out")
    assert "damaged or hostile" in caught.value.hint
    assert not list(tmp_path.rglob("evil"))


@pytest.mark.parametrize("name", ["../evil", "/evil", "a\\..\\..\\evil"])
def test_nothing_is_unzipped_outside(tmp_path: Path, name: str) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("a/setup.py", "")
        archive.writestr(name, "x")
    with pytest.raises(SdistError, match="lies outside of it"):
        unpack(tmp_path / "a.zip", tmp_path / "out")


@pytest.mark.parametrize("files", [{"a/x": "", "b/x": ""}, {"setup.py": ""}, {}])
def test_what_is_no_sdist(tmp_path: Path, files: dict[str, str]) -> None:
    with pytest.raises(SdistError, match="where an sdist has one directory"):
        unpack(tar(tmp_path / "a-1.0.tar.gz", files), tmp_path / "out")


@pytest.mark.parametrize("cut", [0, 10, 60])
def test_a_damaged_archive(tmp_path: Path, cut: int) -> None:
    whole = tar(tmp_path / "a-1.0.tar.gz", {"a-1.0/setup.py": "x" * 5000}).read_bytes()
    (tmp_path / "cut.tar.gz").write_bytes(whole[:cut])
    with pytest.raises(SdistError, match=r"cut\.tar\.gz (cannot be unpacked|is no sdist)"):
        unpack(tmp_path / "cut.tar.gz", tmp_path / "out")


def test_what_is_no_archive(tmp_path: Path) -> None:
    for name, code, words, hint in (
        ("setup.py", "SEB-8204", "setup.py is no sdist: it is neither a tar nor a zip", f"wheel {tmp_path}/"),
        ("passwd", "SEB-8204", "passwd is no sdist: ", "Name an sdist"),
        (
            "a-1.tar.gz",
            "SEB-8203",
            "a-1.tar.gz cannot be unpacked: it is damaged, or no archive",
            "Fetch it again",
        ),
    ):
        (tmp_path / name).write_text("root:x:0:0:root:/root:/bin/sh\n")
        with pytest.raises(SdistError, match=f"^{words}") as caught:
            unpack(tmp_path / name, tmp_path / "out")
        assert caught.value.code == code and hint in caught.value.hint


def test_what_need_not_be_unpacked(tmp_path: Path) -> None:
    with pytest.raises(SdistError, match="is a wheel already"):
        unpack(tmp_path / "a-1.0-py3-none-any.whl", tmp_path / "out")
    with pytest.raises(SdistError, match="does not exist"):
        unpack(tmp_path / "a-1.0.tar.gz", tmp_path / "out")


# Projects.


def project(tmp_path: Path, text: str) -> Project:
    (tmp_path / "pyproject.toml").write_text(text)
    return Project.read(tmp_path)


def test_the_backend_of_a_project_runs_inside(tmp_path: Path) -> None:
    text = '[build-system]\nrequires = ["x"]\nbuild-backend = "back"\nbackend-path = [".", "b"]\n'
    read = project(tmp_path, text)
    assert read.requires == ("x",)
    assert read.with_backend({"a": "1"}, {}) == {"a": "1", "backend": "back", "backend-path": ".;b"}


def test_a_named_backend_wins(tmp_path: Path) -> None:
    read = project(tmp_path, '[build-system]\nrequires = []\nbuild-backend = "back"\n')
    assert read.with_backend({"backend": "mine"}, {}) == {"backend": "mine"}
    assert read.with_backend({}, {"SAFE_EXT_BUILD_BACKEND": "mine"}) == {}


def test_a_project_that_is_ours_already(tmp_path: Path) -> None:
    read = project(tmp_path, '[build-system]\nrequires = []\nbuild-backend = "safe_ext_build.build_meta"\n')
    assert read.with_backend({}, {}) == {}


@pytest.mark.parametrize(
    "text", [None, "", '[project]\nname = "x"\n', "[build-system]\nrequires = ['setuptools']\n"]
)
def test_without_a_backend_it_is_legacy_setuptools(tmp_path: Path, text: str | None) -> None:
    (tmp_path / "setup.py").write_text("")
    read = project(tmp_path, text) if text is not None else Project.read(tmp_path)
    assert read.requires == ("setuptools",)
    assert read.with_backend({}, {}) == {"backend": "setuptools.build_meta:__legacy__"}


def test_what_is_no_project(tmp_path: Path) -> None:
    with pytest.raises(SafeExtBuildError, match=r"has neither pyproject\.toml nor setup\.py"):
        Project.read(tmp_path)
    with pytest.raises(SafeExtBuildError, match=r"pyproject\.toml is not valid TOML"):
        project(tmp_path, "[build-system")
    with pytest.raises(SafeExtBuildError, match="not as PEP 517 and PEP 518 say"):
        project(tmp_path, "[build-system]\nrequires = 'setuptools'\n")


# Requirements.

LENT = Lent({"torch": "2.14.1+cu130", "sympy": "1.14.0"})


@pytest.mark.parametrize(
    ("requirement", "wanted"),
    [
        ("torch", False),
        ("Torch>=2.0", False),
        ("sympy", False),
        ("sympy>=2", True),
        ("numpy<3", True),
        ("safe-ext-build>=0.1", False),
    ],
)
def test_what_is_borrowed_is_not_installed(requirement: str, wanted: bool) -> None:
    assert without_lent([requirement], LENT) == ([requirement] if wanted else [], [])


def test_another_torch_is_not_installed_but_said() -> None:
    wanted, lines = without_lent(["torch==2.4.*"], LENT)
    assert wanted == []
    assert lines == [
        "the package asks for torch==2.4.*; it is built against torch 2.14.1+cu130, which will import it"
    ]


def test_without_a_torch_to_borrow_all_is_installed() -> None:
    assert without_lent(["torch==2.4.*", "numpy"], Lent({})) == (["torch==2.4.*", "numpy"], [])


def test_the_hooks_see_their_own_environment_and_the_named_target(tmp_path: Path) -> None:
    environ = {"PATH": "/bin", "PYTHONPATH": "/mine", "VIRTUAL_ENV": "/mine", "HOME": "/h"}
    unnamed = BuildEnvironment(tmp_path, find_target(None), Lent({})).variables(environ)
    assert unnamed == {"PATH": f"{tmp_path}/bin:/bin", "HOME": "/h", "PYTHONNOUSERSITE": "1"}
    named = BuildEnvironment(tmp_path, find_target(sys.executable), Lent({})).variables(environ)
    runtime = "SAFE_EXT_BUILD_TORCH_RUNTIME"
    assert named == {**unnamed, runtime: sys.executable, written_variable(runtime): "--python"}


def test_a_torch_in_development_is_borrowed_all_the_same() -> None:
    assert without_lent(["torch"], Lent({"torch": "of unknown version"})) == ([], [])


def test_a_requirement_that_is_none() -> None:
    with pytest.raises(
        SafeExtBuildError,
        match=r"^'a b' in build-system\.requires or --with is no requirement: Expected semicolon [^\n]*$",
    ):
        without_lent(["a b"], LENT)


# Indexes.


def test_pips_configuration_by_weight() -> None:
    text = """\
:env:.find-links='/from/environment'
download.timeout='7'
global.find-links='/from/file'
global.index-url='file:///index'
global.timeout='5'
install.trusted-host='a b'
freeze.timeout='9'
"""
    assert parse_configuration(text) == {
        "find-links": "/from/environment",
        "timeout": "7",
        "index-url": "file:///index",
        "trusted-host": "a b",
    }


@pytest.fixture
def links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """All that pip knows: a directory with two sdists, and a wheel that is newer."""
    place = tmp_path / "links"
    place.mkdir()
    for version in ("1.0", "2.0"):
        tar(place / f"seb_sample-{version}.tar.gz", {f"seb_sample-{version}/setup.py": version})
    (place / "seb_sample-3.0-py3-none-any.whl").write_bytes(b"")
    options = {"no-index": "true", "find-links": str(place)}
    monkeypatch.setattr(fetch, "pip_configuration", lambda: options)
    return place


@pytest.mark.parametrize(("wanted", "found"), [("seb-sample", "2.0"), ("seb_sample==1.0", "1.0")])
def test_the_sdist_is_found(links: Path, tmp_path: Path, wanted: str, found: str) -> None:
    archive = fetch.fetch(wanted, find_target(None), tmp_path / "download")
    assert archive.name == f"seb_sample-{found}.tar.gz"
    assert (unpack(archive, tmp_path / "out") / "setup.py").read_text() == found


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ("seb-sample==3.0", r"no sdist of seb-sample==3\.0 was found; there are versions 2\.0, 1\.0"),
        ("seb-other", "no sdist of seb-other was found"),
        ("seb sample", "'seb sample' is neither a requirement nor a path"),
        ("seb-sample @ file:///x", "URLs are not fetched"),
    ],
)
def test_what_is_not_found(links: Path, tmp_path: Path, wanted: str, message: str) -> None:
    with pytest.raises(FetchError, match=message):
        fetch.fetch(wanted, find_target(None), tmp_path / "download")


def test_an_index_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "pip_configuration", lambda: {"index-url": "http://127.0.0.1:9/simple"})
    with pytest.raises(FetchError, match="seb-sample cannot be fetched: ") as caught:
        fetch.fetch("seb-sample", find_target(None), tmp_path)
    assert (caught.value.code, "pip config list" in caught.value.hint) == ("SEB-8103", True)


def test_nowhere_to_look() -> None:
    with pytest.raises(FetchError, match="nowhere to look"):
        fetch.make_finder({"no-index": "1"}, "seb-sample", find_target(None))
