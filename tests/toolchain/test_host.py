"""Host compilers made of shell scripts: which one is called, whether it fits, what is used instead."""

from __future__ import annotations

import os
import re
import shutil
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import fakes
import pytest

from safe_ext_build.errors import ToolkitError
from safe_ext_build.toolchain.fingerprint import fingerprint
from safe_ext_build.toolchain.host import (
    Bounds,
    Host,
    compiler_of,
    fit_host,
    named_for_nvcc,
    probe,
    read_bounds,
    survey,
)
from safe_ext_build.toolchain.torch import read_torch

HEADER = """
#if defined(__GRCO_CLANG_COMPILER__)
#if (__GRCO_CLANG_COMPILER__ == 1) && ((__clang_major__ < 16) || (__clang_major__ > 19))
#error -- unsupported Grace clang version! The version must be 16.x to 19.x.
#endif
#endif
#if defined(__GNUC__)

#if __GNUC__ > 14

#error -- unsupported GNU version! gcc versions later than 14 are not supported!

#endif /* __GNUC__ > 14 */
#if (__clang_major__ >= 19) || (__clang_major__ < 3) || ((__clang_major__ == 3) &&  (__clang_minor__ < 3))
#error -- unsupported HOS clang version!
#endif
#if (__clang_major__ >= 20) || (__clang_major__ < 3) || ((__clang_major__ == 3) &&  (__clang_minor__ < 3))
#error -- unsupported clang version! clang version must be less than 20 and greater than 3.2 .

#endif
#endif
"""
NVCC = "V13.0.88"
BOTH = "nvcc 13.0.88 with torch 2.14.1+cu130"


class Machine:
    """A machine of scripts: a toolkit, a torch, and compilers on PATH and elsewhere."""

    def __init__(self, place: Path, *, knows_ccbin: bool = True) -> None:
        self.root = place
        self.path = place / "bin"
        self.path.mkdir()
        for tool in ("sh", "echo"):
            (self.path / tool).symlink_to(str(shutil.which(tool)))
        self.home = place / "cuda"
        fakes.files(self.home, ["include/crt/host_config.h", "bin/nvcc"])
        (self.home / "include" / "crt" / "host_config.h").write_text(HEADER)
        (self.home / "bin" / "nvcc").write_text("NVCC_CCBIN" if knows_ccbin else "")
        self.torch = read_torch(fakes.torch(place / "site"), [])

    def gcc(self, name: str, version: str, place: str = "bin") -> Path:
        body = f'case "$1" in --version) echo "gcc (Some) {version}";; -dump*) echo {version};; *) exit 1;; esac'
        return fakes.script(self.root / place / name, body)

    def clang(self, name: str, version: str) -> Path:
        return fakes.script(self.path / name, f'echo "Some clang version {version} (somewhere)"')

    def compilers(self, version: str) -> None:
        """What every machine has: gcc, g++ and c++ on PATH."""
        for name in ("gcc", "g++", "c++"):
            self.gcc(name, version)

    def fit(self, **environ: str) -> Host:
        return fit_host(self.torch, self.home, NVCC, {"PATH": str(self.path), **environ}, self.root)

    def refusal(self, **environ: str) -> tuple[str, str]:
        with pytest.raises(ToolkitError) as caught:
            self.fit(**environ)
        return str(caught.value), caught.value.hint


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setattr(sysconfig, "get_config_var", {"CC": "gcc -pthread"}.get)
    return Machine(tmp_path)


def test_bounds_are_read_from_nvccs_own_header() -> None:
    assert read_bounds(HEADER) == Bounds("nvcc", {"gcc": (0, 14), "clang": (3, 19)})
    assert read_bounds("") == Bounds("nvcc", {})
    assert read_bounds("#if __GNUC__ > 12\n#error -- unsupported GNU version!").majors == {"gcc": (0, 12)}


@pytest.mark.cuda
def test_bounds_of_the_real_toolkit() -> None:
    headers = sorted(Path("/usr/local").glob("cuda*/include/crt/host_config.h"))
    if not headers:
        pytest.skip("there is no toolkit in /usr/local")
    for header in headers:
        majors = read_bounds(header.read_text(errors="replace")).majors
        assert 6 <= majors["gcc"][1] < 99 and 3 <= majors["clang"][0] < majors["clang"][1] < 99


@pytest.mark.parametrize("version", ["11.4.0", "14.2.1", "13"])
def test_what_fits_is_left_alone(machine: Machine, version: str) -> None:
    machine.compilers(version)
    assert machine.fit() == Host()


def chosen(path: Path) -> dict[str, str]:
    return dict.fromkeys(("CXX", "NVCC_CCBIN", "CUDAHOSTCXX"), str(path))


def test_a_gcc_that_is_too_new_is_passed_over(machine: Machine) -> None:
    machine.compilers("99.0.0")
    machine.gcc("g++-12", "12.2.0")
    newest = machine.gcc("g++-14", "14.1.0")
    machine.gcc("g++-15", "15.1.0")
    machine.clang("clang++-18", "18.1.3")
    found = machine.fit()
    assert found.environment == chosen(newest)
    (line,) = found.lines
    assert line == (
        f"gcc 99.0.0 ({machine.path / 'gcc'}) does not fit: {BOTH} takes gcc 11 to 14; C++ and nvcc's host code "
        f"are compiled with gcc 14.1.0 ({newest})"
    )


def test_each_is_looked_at_alone(machine: Machine) -> None:
    machine.compilers("12.2.0")
    machine.gcc("gcc", "99.0.0")
    usable = machine.path / "g++"
    found = machine.fit()
    assert found.environment == {"NVCC_CCBIN": str(usable), "CUDAHOSTCXX": str(usable)}
    assert found.lines[0].endswith(f"; nvcc's host code is compiled with gcc 12.2.0 ({usable})")
    machine.gcc("gcc", "12.2.0")
    machine.gcc("c++", "99.0.0")
    assert machine.fit().environment == {"CXX": str(usable)}
    (machine.path / "gcc").unlink()
    assert machine.fit(CXX="g++").lines == (
        f"there is no gcc on PATH; nvcc's host code is compiled with gcc 12.2.0 ({usable})",
    )


def test_an_older_nvcc_is_told_by_its_flags(tmp_path: Path) -> None:
    machine = Machine(tmp_path, knows_ccbin=False)
    machine.compilers("99.0.0")
    usable = machine.gcc("g++-12", "12.2.0")
    found = machine.fit(NVCC_PREPEND_FLAGS="-lineinfo")
    expected = {"CXX": str(usable), "CUDAHOSTCXX": str(usable), "NVCC_PREPEND_FLAGS": f"-ccbin {usable} -lineinfo"}
    assert found.environment == expected


def test_a_clang_is_better_than_nothing(machine: Machine) -> None:
    machine.compilers("99.0.0")
    machine.clang("clang++-21", "21.0.0")
    usable = machine.clang("clang++-18", "18.1.3")
    assert machine.fit().environment["NVCC_CCBIN"] == str(usable)


@pytest.mark.parametrize("place", ["usr/bin", "opt/rh/gcc-toolset-13/root/usr/bin", "conda/bin"])
def test_compilers_beside_path_are_found(machine: Machine, place: str) -> None:
    machine.compilers("99.0.0")
    usable = machine.gcc("x86_64-conda-linux-gnu-g++" if "conda" in place else "g++", "13.3.0", place)
    assert machine.fit(CONDA_PREFIX=str(machine.root / "conda")).environment["NVCC_CCBIN"] == str(usable)


def test_nothing_that_fits_is_an_error_that_says_what_to_install(machine: Machine) -> None:
    machine.compilers("99.0.0")
    message, hint = machine.refusal()
    assert message == (
        f"C++ is compiled with c++: gcc 99.0.0 ({machine.path / 'c++'}) does not fit, as {BOTH} takes gcc 11 to 14"
    )
    assert hint.startswith("install a gcc from 11 to 14: apt install g++-14, dnf install gcc-toolset-14, or conda")


def test_a_gcc_that_is_too_old_for_torch(machine: Machine) -> None:
    machine.compilers("10.2.1")
    usable = machine.gcc("g++-12", "12.2.0")
    assert machine.fit().environment == chosen(usable)
    without_cuda = fit_host(machine.torch, None, "", {"PATH": str(machine.path)}, machine.root)
    assert without_cuda.environment == {"CXX": str(usable)}
    (line,) = without_cuda.lines
    assert "torch 2.14.1+cu130 needs gcc 11 or later; C++ is compiled with gcc 12.2.0" in line


def test_no_compiler_at_all(machine: Machine) -> None:
    message, hint = machine.refusal()
    assert message == "no C++ compiler that fits was found: there is no c++ on PATH, and no g++ or clang++"
    assert "apt install g++" in hint


@pytest.mark.parametrize(
    ("variable", "value", "what"),
    [
        ("CC", "gcc-15", "CC is 'gcc-15'"),
        ("CC", "ccache gcc-15 -m64", "CC is 'ccache gcc-15 -m64'"),
        ("NVCC_CCBIN", "gcc-15", "NVCC_CCBIN is 'gcc-15'"),
        ("NVCC_PREPEND_FLAGS", "-O2 -ccbin gcc-15", "-ccbin in NVCC_PREPEND_FLAGS is 'gcc-15'"),
        ("NVCC_APPEND_FLAGS", "--compiler-bindir=gcc-15", "-ccbin in NVCC_APPEND_FLAGS is 'gcc-15'"),
    ],
)
def test_what_the_user_named_wins_and_must_fit(machine: Machine, variable: str, value: str, what: str) -> None:
    machine.compilers("12.2.0")
    machine.gcc("gcc-15", "15.1.0")
    message, hint = machine.refusal(**{variable: value})
    assert message.startswith(f"{what}: gcc 15.1.0 (") and "takes gcc 11 to 14" in message
    assert "fits: name it instead" in hint


def test_cxx_must_fit_too(machine: Machine) -> None:
    """torch's helper refuses a C++ compiler that nvcc would refuse."""
    machine.compilers("12.2.0")
    machine.gcc("g++-15", "15.1.0")
    machine.gcc("g++-9", "9.4.0")
    for value, version in (("g++-9 -m64", "9.4.0"), ("g++-15", "15.1.0")):
        message, hint = machine.refusal(CXX=value)
        assert message.startswith(f"CXX is {value!r}: gcc {version} (") and message.endswith("takes gcc 11 to 14")
        assert "fits: name it instead" in hint


def test_torch_does_not_ask_a_launcher_for_its_version(machine: Machine) -> None:
    machine.compilers("12.2.0")
    for value in ("ccache g++", "g++ -m64"):
        assert machine.fit(CXX=value) == Host({"TORCH_DONT_CHECK_COMPILER_ABI": "1"})
    assert machine.fit(CXX="g++") == Host()


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("CC", "/no/such/gcc", "CC is '/no/such/gcc', but /no/such/gcc does not exist"),
        ("CXX", "ccache g++-77", "CXX is 'ccache g++-77', but g++-77 is not on PATH"),
        ("NVCC_CCBIN", "icpc", "NVCC_CCBIN is 'icpc', but icpc is not on PATH"),
        ("CC", "mute", "CC is 'mute', which tells no version when it is run with --version"),
    ],
)
def test_what_is_named_and_not_there(machine: Machine, variable: str, value: str, message: str) -> None:
    machine.compilers("12.2.0")
    fakes.script(machine.path / "mute", "exit 1")
    found, hint = machine.refusal(**{variable: value})
    assert found == message
    assert hint == f"unset {variable} to have a compiler found, or name one that is installed"


def test_nvcc_may_be_given_a_directory(machine: Machine) -> None:
    machine.compilers("12.2.0")
    machine.gcc("gcc", "99.0.0", "other")
    message, _ = machine.refusal(NVCC_CCBIN=str(machine.root / "other"))
    assert f"gcc 99.0.0 ({machine.root / 'other' / 'gcc'}) does not fit" in message


def test_a_compiler_that_nobody_knows_is_believed(machine: Machine) -> None:
    machine.compilers("12.2.0")
    fakes.script(machine.path / "icpx", 'echo "Some Compiler 2031.1"')
    assert machine.fit(CXX="icpx") == Host()
    assert machine.fit(NVCC_CCBIN="icpx") == Host()


@pytest.mark.parametrize("name", ["NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS"])
def test_a_compiler_that_nvcc_is_told_to_allow(machine: Machine, name: str) -> None:
    machine.compilers("99.0.0")
    found = machine.fit(**{name: "-allow-unsupported-compiler"})
    assert found.lines == ("-allow-unsupported-compiler is set: the host compiler is not checked",)
    assert found.environment == {"TORCH_DONT_CHECK_COMPILER_ABI": "1"}


def test_two_compilers_are_named(machine: Machine) -> None:
    machine.compilers("12.2.0")
    machine.gcc("gcc-11", "11.4.0")
    machine.gcc("g++-11", "11.4.0")
    (line,) = machine.fit(CC="gcc-11").lines
    assert line == f"CC is 'gcc-11' and CXX is not set: C++ is compiled with gcc 12.2.0 ({machine.path / 'c++'})"
    assert machine.fit(CC="gcc-11", CXX="g++-11") == machine.fit(CC="gcc") == Host()


def test_an_empty_variable_names_no_program(machine: Machine) -> None:
    machine.compilers("12.2.0")
    found = machine.fit(CC="", CXX=" ")
    assert found.environment == {"CC": "gcc", "CXX": "c++"}
    assert found.lines == ("CC is empty: taken as gcc", "CXX is empty: taken as c++")
    machine.compilers("99.0.0")
    usable = machine.gcc("g++-12", "12.2.0")
    assert machine.fit(CC="").environment["CC"] == str(usable)


def test_nvcc_gets_the_compiler_alone(machine: Machine) -> None:
    machine.compilers("12.2.0")
    assert machine.fit(NVCC_CCBIN="ccache gcc").environment == {"NVCC_CCBIN": str(machine.path / "gcc")}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, None),
        ({"NVCC_CCBIN": "a"}, ("a", "NVCC_CCBIN")),
        ({"NVCC_CCBIN": "a", "NVCC_PREPEND_FLAGS": "-ccbin b"}, ("b", "-ccbin in NVCC_PREPEND_FLAGS")),
        ({"CC": "c", "NVCC_CCBIN": "a", "NVCC_PREPEND_FLAGS": "-ccbin=b"}, ("c", "CC")),
        ({"CC": "c", "NVCC_APPEND_FLAGS": "-ccbin x -ccbin d"}, ("d", "-ccbin in NVCC_APPEND_FLAGS")),
    ],
)
def test_which_name_counts_for_nvcc(environ: dict[str, str], expected: tuple[str, str] | None) -> None:
    assert named_for_nvcc(environ) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("g++", "g++"), ("ccache /usr/bin/g++ -m64", "/usr/bin/g++"), ("ccache", "ccache"), ("", "")],
)
def test_the_compiler_in_several_words(text: str, expected: str) -> None:
    assert compiler_of(text) == expected


def test_the_real_compiler_is_read() -> None:
    path = shutil.which("c++")
    assert path, "these tests need a C++ compiler"
    found = probe(Path(path), os.environ)
    assert found and found.kind in ("gcc", "clang") and re.fullmatch(r"\d+(\.\d+)*", found.version)


@pytest.mark.parametrize(
    "change",
    [("CC", "ccache gcc-11"), ("NVCC_CCBIN", "gcc-11"), ("NVCC_APPEND_FLAGS", "-ccbin gcc-11"), ("CXX", "g++-11")],
)
def test_another_compiler_is_another_fingerprint(machine: Machine, change: Sequence[str]) -> None:
    machine.compilers("12.2.0")
    name, value = change
    environ = {"PATH": str(machine.path)}
    before = fingerprint(None, None, environ)
    after = fingerprint(None, None, {**environ, name: value})
    machine.gcc(value.split()[-1], "11.4.0")
    assert len({before, after, fingerprint(None, None, {**environ, name: value})}) == 3


def test_compilers_that_are_not_on_path_bring_their_tools(machine: Machine) -> None:
    """gcc calls `as` and `ld` by their names, and setuptools calls `gcc`."""
    found = machine.gcc("g++", "13.2.0", "usr/bin")
    machine.gcc("gcc", "13.2.0", "usr/bin")
    host = machine.fit()
    assert host.environment == {**chosen(found), "PATH": f"{machine.path}:{found.parent}"}
    assert host.lines == (
        f"there is no gcc on PATH; C++ and nvcc's host code are compiled with gcc 13.2.0 ({found})",
        f"PATH is given {found.parent} as well, for the tools of the compiler",
    )


def test_without_the_c_compiler_that_setuptools_calls(machine: Machine) -> None:
    cxx, c = machine.clang("clang++-18", "18.1.3"), machine.clang("clang-18", "18.1.3")
    host = machine.fit()
    assert host.environment == {**chosen(cxx), "CC": str(c)}
    assert host.lines[-1] == f"there is no gcc on PATH; C is compiled with {c}"
    assert "CC" not in machine.fit(CC=str(cxx)).environment


def surveyed(machine: Machine, **environ: str) -> list[str]:
    found = survey(machine.torch, machine.home, NVCC, {"PATH": str(machine.path), **environ}, machine.root)
    return [one.describe() for one in found]


def test_a_survey_begins_with_what_is_named_whatever_it_is_called(machine: Machine) -> None:
    machine.compilers("12.2.0")
    mine, odd = machine.gcc("mycc", "13.1.0"), fakes.script(machine.path / "oddcc", "echo Odd 1")
    gxx = f"gcc 12.2.0 ({machine.path / 'g++'}): fits"
    assert surveyed(machine) == [gxx]
    assert surveyed(machine, CXX="mycc") == [f"gcc 13.1.0 ({mine}) (of CXX): fits", gxx]
    assert surveyed(machine, CXX="mycc", CC="mycc") == [f"gcc 13.1.0 ({mine}) (of CXX, CC): fits", gxx]
    assert surveyed(machine, CXX="oddcc", NVCC_CCBIN="g++") == [
        f"{odd} (of CXX): taken as it is, of a kind that is not known",
        f"gcc 12.2.0 ({machine.path / 'g++'}) (of NVCC_CCBIN): fits",
    ]
    assert surveyed(machine, CXX="not-there") == [gxx]
