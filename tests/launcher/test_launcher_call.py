"""What a compile is called with, so that a cache hits where it may and only there."""

from __future__ import annotations

import fcntl
import os
from dataclasses import replace
from pathlib import Path

import pytest

from safe_ext_build.launcher import names
from safe_ext_build.launcher.call import FOR_COMPILERS, Called, Compile, Launching, call, on_farm
from safe_ext_build.launcher.dryrun import rewritten
from safe_ext_build.launcher.redact import is_secret
from safe_ext_build.schedule.command import without_launchers

CWD = "/home/u/p/build/temp"
PLACES = {"/home/u/p": "src", "/tmp/env-1/lib": "env00", "/opt/cuda-13.0": "cuda"}
LAUNCHING = Launching(
    tool="ccache",
    programs={"ccache": "/bin/ccache", "sccache": "/bin/sccache"},
    digests={"cuda": "/ws/cuda", "host": "/ws/host"},
    busters={"cuda": "c1", "host": "h1"},
    places=PLACES,
    toolkit="/opt/cuda-13.0",
    front="/ws/bin/front/bin/nvcc",
)


def compile_of(*words: str, cuda: bool = False, prepend: str = "", append: str = "") -> Compile:
    return Compile(words, prepend, append, cuda, "/home/u/p/csrc/a.cu", CWD, "/ws/jobs/1")


def through(tool: str, compile: Compile, *, named: bool = True) -> Called:
    return call(compile, LAUNCHING, tool, "", named=named)


def test_directories_get_names_that_every_build_has() -> None:
    words = ("g++", "-I/tmp/env-1/lib/torch", "-isystem", "/opt/cuda-13.0/include", "-MF", f"{CWD}/a.o.d")
    called = through("ccache", compile_of(*words, "-c", "/home/u/p/csrc/a.cu", "-o", f"{CWD}/a.o", "-MQ", "x.o"))
    assert called.words == (
        *("/bin/ccache", "g++", "-I.seb/env00/torch", "-isystem", ".seb/cuda/include", "-MF", ".seb/here/a.o.d"),
        *("-c", ".seb/src/csrc/a.cu", "-o", ".seb/here/a.o", "-MQ", "x.o"),
    )
    assert called.used == {
        "env00": "/tmp/env-1/lib",
        "cuda": "/opt/cuda-13.0",
        "here": CWD,
        "src": "/home/u/p",
    }


@pytest.mark.parametrize(
    "word",
    [
        *("-DDATA=/home/u/p/data", "-fdebug-prefix-map=/home/u/p=.", "-I/home/u/pp", "-Wl,-rpath,/home/u/p"),
        *("-I/usr/include", "-Irelative", "-DX", "--sysroot=/home/u/p/root"),
    ],
)
def test_what_is_no_path_for_certain_stays(word: str) -> None:
    assert names.mapped([word], "", PLACES) == ([word], {})


def test_the_value_of_a_macro_stays() -> None:
    assert names.mapped(["-D", "/home/u/p", "-I", "/home/u/p"], "", PLACES)[0] == [
        "-D",
        "/home/u/p",
        "-I",
        ".seb/src",
    ]


def test_two_directories_do_not_share_a_name() -> None:
    places = {"/kept/source": "src", "/home/u/p": "src"}
    words, used = names.mapped(["-I/kept/source/a", "-I/home/u/p/b"], "", places)
    assert (words, used) == (["-I.seb/src/a", "-I/home/u/p/b"], {"src": "/kept/source"})


def test_ccache_looks_at_what_nvcc_reads() -> None:
    """In depend mode: what `nvcc -E` prints lacks what is for the host only."""
    nvcc = ("/opt/cuda-13.0/bin/nvcc", "-c", "/home/u/p/csrc/a.cu")
    without = through("ccache", compile_of(*nvcc, cuda=True))
    assert without.words[1] == ".seb/cuda/bin/nvcc"
    assert without.words[-3:] == ("-MD", "-MF", "/ws/jobs/1/depends")
    assert without.variables["CCACHE_DEPEND"] == "1"
    user = through("ccache", compile_of(*nvcc, "-MMD", "-MF", "d", cuda=True))
    assert user.words[-3:] == ("-MD", "-MF", "d")
    long = ("--generate-dependencies-with-compile", "--dependency-output", "d")
    assert through("ccache", compile_of(*nvcc, *long, cuda=True)).words[-3:] == ("-MD", "-MF", "d")


def test_ccache_preprocesses_for_the_host() -> None:
    called = through("ccache", compile_of("g++", "-MMD", "-MF", "d", "-c", "a.cpp"))
    assert "-MMD" in called.words
    assert called.variables == {"CCACHE_STATSLOG": "/ws/jobs/1/verdict", "CCACHE_EXTRAFILES": "/ws/host"}


@pytest.mark.parametrize("tool", ["ccache", "sccache"])
def test_the_flags_in_the_environment_count(tool: str) -> None:
    nvcc = compile_of("nvcc", "-MD", "-c", "a.cu", cuda=True, prepend="-O1  -g", append="-DA=1 -DB")
    called = through(tool, nvcc)
    assert called.words[2:] == ("-O1", "-g", "-MD", "-c", "a.cu", "-DA=1", "-DB")
    assert (called.prepend, called.append) == ("", "")


def test_sccache_gets_a_front_of_nvcc_and_the_compilers_content() -> None:
    called = through("sccache", compile_of("/opt/cuda-13.0/bin/nvcc", "-c", "/home/u/p/csrc/a.cu", cuda=True))
    assert called.words == ("/bin/sccache", "/ws/bin/front/bin/nvcc", "-c", ".seb/src/csrc/a.cu")
    assert called.variables == {"SCCACHE_C_CUSTOM_CACHE_BUSTER": "c1"}
    assert called.used["cuda"] == "/opt/cuda-13.0"
    other = through("sccache", compile_of("/elsewhere/bin/nvcc", "-c", "/home/u/p/csrc/a.cu", cuda=True))
    assert other.words[1] == "/elsewhere/bin/nvcc"


def test_a_toolkit_that_has_no_name_of_its_own_is_called_by_its_path() -> None:
    """Debian's lies in /usr."""
    usr = replace(LAUNCHING, toolkit="/usr")
    nvcc = compile_of("/usr/bin/nvcc", "-c", "/home/u/p/csrc/a.cu", cuda=True)
    assert call(nvcc, usr, "ccache", "", named=True).words[1] == "/usr/bin/nvcc"
    assert call(nvcc, usr, "sccache", "", named=True).words[1] == "/ws/bin/front/bin/nvcc"


def test_without_names_the_command_is_as_it_was() -> None:
    words = ("g++", "-I/home/u/p/include", "-c", "/home/u/p/csrc/a.cu")
    called = through("sccache", compile_of(*words), named=False)
    assert (called.words, called.used) == (("/bin/sccache", *words), {})


@pytest.mark.parametrize(
    ("command", "rest", "own"),
    [
        (["ccache", "g++", "-c"], ["g++", "-c"], "ccache"),
        (["/usr/bin/sccache", "ccache", "nvcc"], ["nvcc"], "/usr/bin/sccache"),
        (["g++", "ccache"], ["g++", "ccache"], ""),
        (["ccache", "--version"], ["ccache", "--version"], ""),
        (["ccache"], ["ccache"], ""),
    ],
)
def test_launchers_of_the_command_are_taken_off(command: list[str], rest: list[str], own: str) -> None:
    assert without_launchers(command) == (rest, own)


@pytest.mark.parametrize(
    ("tool", "keeps", "own", "chosen"),
    [
        ("ccache", True, "", "ccache"),
        ("ccache", True, "/usr/bin/sccache", "ccache"),
        ("", True, "/usr/bin/sccache", "sccache"),
        ("", False, "/usr/bin/sccache", ""),
        ("", True, "", ""),
    ],
)
def test_exactly_one_tool_is_chosen(tool: str, keeps: bool, own: str, chosen: str) -> None:
    assert replace(LAUNCHING, tool=tool, keeps=keeps).choose(own) == chosen


DRYRUN = """\
#$ TOP=.seb/cuda/bin/..
#$ PATH=.seb/cuda/bin/../nvvm/bin:.seb/cuda/bin:/bin
#$ gcc -E "-I.seb/cuda/bin/../include" "/home/u/p/csrc/a.cu" -o "/tmp/x.ii"
#$ cudafe++ --orig_src_file_name ".seb/src/a.cu" --orig_src_path_name "/home/u/p/csrc/a.cu" "/tmp/x.ii"
nvcc warning : "/home/u/p/csrc/a.cu"
"""


def test_the_steps_of_nvcc_name_the_source_as_every_build_does() -> None:
    """Its tools run elsewhere, so what leads to them is in full."""
    assert rewritten(DRYRUN, [("/home/u/p", ".seb/src")], CWD).splitlines() == [
        f"#$ TOP={CWD}/.seb/cuda/bin/..",
        f"#$ PATH={CWD}/.seb/cuda/bin/../nvvm/bin:{CWD}/.seb/cuda/bin:/bin",
        '#$ gcc -E "-I.seb/cuda/bin/../include" ".seb/src/csrc/a.cu" -o "/tmp/x.ii"',
        '#$ cudafe++ --orig_src_file_name ".seb/src/a.cu" --orig_src_path_name ".seb/src/csrc/a.cu" "/tmp/x.ii"',
        'nvcc warning : "/home/u/p/csrc/a.cu"',
    ]


# The links themselves.


def test_names_lead_to_their_directories_and_go_with_the_build(tmp_path: Path) -> None:
    work, source = tmp_path / "work", tmp_path / "source"
    for path in (work, source, tmp_path / "ws"):
        path.mkdir()
    (source / "a.h").write_text("a")
    places = names.Places(str(tmp_path / "ws"))
    assert places.establish(str(work), {"src": str(source), "here": str(work)})
    assert (work / ".seb" / "src" / "a.h").read_text() == "a"
    assert (work / ".seb" / "here").resolve() == work
    assert not places.establish(str(work), {"src": str(tmp_path)}), "a name has one meaning in a build"
    (folder,) = names.kept(str(tmp_path / "ws"))
    names.remove(folder)
    assert (work / ".seb").exists(), "the build still lives"
    places.close()
    names.remove(folder)
    assert list(work.iterdir()) == [] and (source / "a.h").exists()


def test_another_build_that_works_there_goes_without(tmp_path: Path) -> None:
    first, second = names.Places(str(tmp_path / "1")), names.Places(str(tmp_path / "2"))
    assert first.establish(str(tmp_path), {"src": "/a"})
    assert not second.establish(str(tmp_path), {"src": "/b"})
    assert (tmp_path / ".seb" / "src").readlink() == Path("/a")
    first.close()
    third = names.Places(str(tmp_path / "3"))
    assert third.establish(str(tmp_path), {"src": "/c"}), "what a dead build left is taken over"
    assert (tmp_path / ".seb" / "src").readlink() == Path("/c")
    third.close()


def test_a_directory_that_cannot_be_written_goes_without(tmp_path: Path) -> None:
    (tmp_path / ".seb").write_text("somebody's file")
    assert not names.Places(str(tmp_path / "1")).establish(str(tmp_path), {"src": "/a"})
    assert (tmp_path / ".seb").read_text() == "somebody's file"


def test_nothing_but_our_directory_is_removed(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    names.remove(str(tmp_path / "other"))
    (tmp_path / ".seb").symlink_to("other")
    names.remove(str(tmp_path / ".seb"))
    assert (tmp_path / "other").is_dir()
    descriptor = os.open(tmp_path / "other", os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(descriptor)


def test_what_leaves_for_a_farm_has_its_own_server_and_directory() -> None:
    farmed = replace(LAUNCHING, farm="/ws/bin/farm", log="/ws/sccache.log")
    called = through("sccache", compile_of("g++", "-c", "a.cpp"))
    away = on_farm(called, farmed)
    assert (away.words, away.used) == (called.words, called.used)
    assert away.variables == {
        "SCCACHE_C_CUSTOM_CACHE_BUSTER": "h1",
        "SCCACHE_SERVER_UDS": "/ws/bin/farm",
        "TMPDIR": "/ws/farm",
    }
    assert called.keeps == () and away.keeps == FOR_COMPILERS
    assert not any(is_secret(name) for name in FOR_COMPILERS)
