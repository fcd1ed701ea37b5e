from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from safe_ext_build.errors import ToolkitError
from safe_ext_build.toolchain.cuda import Candidate, Rejected, Toolkit
from safe_ext_build.toolchain.rank import Mismatch, choose, driver_line, foreign_hint, knows, lacking_line


def toolkit(version: str, *archs: str, **changes: object) -> Toolkit:
    major, minor = (int(number) for number in version.split("."))
    home = Path(f"/opt/cuda-{version}")
    base = Toolkit(home, "/opt/cuda-*", (major, minor), f"V{version}.88", home / "bin/nvcc", home / "include")
    return replace(base, archs=archs, **changes)  # type: ignore[arg-type]


def chosen(torch: str, mismatch: Mismatch, *found: Toolkit, archs: tuple[str, ...] = ()) -> str:
    best = choose(torch, found, (), mismatch, archs).toolkit
    return f"{best.version[0]}.{best.version[1]}"


@pytest.mark.parametrize(
    ("torch", "mismatch", "versions", "expected"),
    [
        ("13.0", "exact", "12.4 13.0 13.1", "13.0"),
        ("13.0", "minor", "13.1 13.0", "13.0"),
        ("12.6", "minor", "12.1 12.4 12.8", "12.4"),
        ("12.6", "minor", "12.9 12.8 13.0", "12.8"),
        ("12.6", "minor", "13.0 11.8 12.0", "12.0"),
        ("12.6", "any", "13.0 12.9", "12.9"),
        ("12.6", "any", "13.0 11.8", "11.8"),
        ("12.6", "any", "13.2 13.0", "13.2"),
        ("13", "exact", "13.0", "13.0"),
    ],
)
def test_ranking(torch: str, mismatch: Mismatch, versions: str, expected: str) -> None:
    assert chosen(torch, mismatch, *map(toolkit, versions.split())) == expected


def test_those_that_know_every_wanted_arch_come_first() -> None:
    old, new = toolkit("12.4", "80", "90"), toolkit("12.8", "80", "90", "120")
    assert chosen("12.6", "minor", old, new, archs=("8.0", "12.0+PTX")) == "12.8"
    assert chosen("12.6", "minor", old, new, archs=("8.0", "9.0a")) == "12.4"
    assert chosen("12.4", "minor", old, new, archs=("12.0",)) == "12.4", "an exact match is kept"
    assert knows(toolkit("11.0"), ("12.0",)), "an nvcc that cannot tell is believed"
    assert knows(old, ("all", "native"))


def test_among_equals_a_complete_one_then_the_first() -> None:
    part = toolkit("13.0", missing=("cusparse.h",))
    whole, other = toolkit("13.0", origin="conda"), toolkit("13.0", origin="wheels")
    assert choose("13.0", [part, whole, other], (), "minor", ()).toolkit is whole
    assert choose("13.0", [part, replace(part, origin="second")], (), "minor", ()).toolkit is part


@pytest.mark.parametrize(
    ("found", "torch", "line"),
    [
        (toolkit("13.0"), "13.0", "CUDA 13.0 in /opt/cuda-13.0 (/opt/cuda-*): the CUDA of torch"),
        (
            toolkit("13.1"),
            "13.0",
            (
                "CUDA 13.1 in /opt/cuda-13.1 (/opt/cuda-*): same major version as torch's CUDA 13.0, "
                "the best there is"
            ),
        ),
        (
            toolkit("12.4", explicit=True, origin="CUDA_HOME"),
            "13.0",
            (
                "CUDA 12.4 in /opt/cuda-12.4 (CUDA_HOME): another major version than torch's CUDA 13.0, "
                "as it was named"
            ),
        ),
    ],
)
def test_line(found: Toolkit, torch: str, line: str) -> None:
    assert choose(torch, [found], (), "any", ()).line == line


def test_what_the_user_named_wins() -> None:
    named = toolkit("13.1", explicit=True, origin="CUDA_HOME")
    assert choose("13.0", [named, toolkit("13.0")], (), "minor", ()).toolkit is named


def test_what_the_user_named_and_does_not_fit() -> None:
    named = toolkit("12.4", explicit=True, origin="CUDA_HOME")
    with pytest.raises(ToolkitError) as caught:
        choose("13.0", [named, toolkit("13.0")], (), "minor", ())
    assert str(caught.value) == (
        "CUDA 12.4 in /opt/cuda-12.4 (CUDA_HOME) does not fit torch's CUDA 13.0 (cuda.mismatch is 'minor'); "
        "looked at:\n"
        "  CUDA 12.4 in /opt/cuda-12.4 (CUDA_HOME): another major version\n"
        "  CUDA 13.0 in /opt/cuda-13.0 (/opt/cuda-*): not considered, as CUDA_HOME names another"
    )
    assert caught.value.hint.splitlines()[0] == (
        "/opt/cuda-13.0 is CUDA 13.0, and fits: name that, or name none to have it found"
    )


def test_a_variable_that_leads_nowhere_is_passed_over_but_a_setting_is_not() -> None:
    place = Candidate("/usr/lib/cuda", "CUDA_HOME", explicit=True)
    passed = Rejected(place, "has no bin/nvcc: a runtime-only CUDA")
    line = choose("13.0", [toolkit("13.0")], [passed], "minor", ()).line
    assert line == (
        "CUDA_HOME is /usr/lib/cuda, which has no bin/nvcc: a runtime-only CUDA: not used. "
        "CUDA 13.0 in /opt/cuda-13.0 (/opt/cuda-*): the CUDA of torch"
    )
    setting = replace(place, origin="cuda.home in pyproject.toml", required=True)
    with pytest.raises(
        ToolkitError, match=r"^cuda.home in pyproject.toml is /usr/lib/cuda, which has no"
    ) as caught:
        choose("13.0", [toolkit("13.0")], [replace(passed, candidate=setting)], "minor", ())
    assert "/opt/cuda-13.0 is CUDA 13.0, and fits" in caught.value.hint


def test_no_match_lists_every_candidate() -> None:
    rejected = [
        Rejected(Candidate("/opt/conda", "CONDA_PREFIX"), "has no bin/nvcc: a runtime-only CUDA"),
        Rejected(Candidate("/usr/bin/nvcc", "nvcc on PATH"), "nvcc does not answer within 20 s"),
    ]
    with pytest.raises(ToolkitError) as caught:
        choose("13.0", [toolkit("13.1"), toolkit("11.8")], rejected, "exact", (), install="install it")
    assert str(caught.value) == (
        "no CUDA toolkit fits torch's CUDA 13.0 (cuda.mismatch is 'exact'); looked at:\n"
        "  CUDA 13.1 in /opt/cuda-13.1 (/opt/cuda-*): another minor version\n"
        "  CUDA 11.8 in /opt/cuda-11.8 (/opt/cuda-*): another major version\n"
        "  /opt/conda (CONDA_PREFIX): has no bin/nvcc: a runtime-only CUDA\n"
        "  /usr/bin/nvcc (nvcc on PATH): nvcc does not answer within 20 s"
    )
    assert caught.value.hint.splitlines() == [
        "install it",
        "a toolkit in another place is named by CUDA_HOME=/its/directory",
        'cuda.mismatch = "minor" takes what was found',
    ]


@pytest.mark.parametrize("mismatch", ["exact", "minor", "any"])
def test_nothing_anywhere(mismatch: Mismatch) -> None:
    with pytest.raises(ToolkitError, match="there is none on PATH, under /usr/local") as caught:
        choose("12.8", [], [], mismatch, (), install="install it")
    assert caught.value.hint.splitlines() == [
        "install it",
        "a toolkit in another place is named by CUDA_HOME=/its/directory",
    ]


def test_another_major_version_is_offered_with_its_risk() -> None:
    with pytest.raises(ToolkitError) as caught:
        choose("13.0", [toolkit("12.4")], [], "exact", ())
    assert caught.value.hint.splitlines()[-1] == (
        'cuda.mismatch = "any" takes what was found, at the risk of what is built failing at run time'
    )


def test_one_that_can_be_completed_comes_before_one_that_cannot() -> None:
    part = toolkit("13.0", missing=("thrust/complex.h",), lacks=("thrust/complex.h",))
    wheels = toolkit("13.0", origin="wheels", missing=("lib64", "cusparse.h"))
    assert choose("13.0", [part, wheels], (), "exact", ()).toolkit is wheels
    assert choose("13.0", [part, toolkit("13.1")], (), "minor", ()).toolkit is part, "the version comes first"
    assert lacking_line(part, "install it") == (
        "CUDA 13.0 in /opt/cuda-13.0 (/opt/cuda-*) lacks thrust/complex.h, and so do torch's wheels: "
        "a source that includes torch's CUDA headers will not compile; install it"
    )
    assert lacking_line(wheels, "install it") == ""


@pytest.mark.parametrize(
    ("version", "driver", "line"),
    [
        ((13, 0), None, ""),
        ((13, 0), (13, 0), ""),
        ((12, 8), (13, 0), ""),
        (
            (13, 1),
            (13, 0),
            (
                "CUDA 13.1 is newer than the driver here, which knows CUDA 13.0: code compiled for these GPUs "
                "runs, PTX (+PTX in the list of architectures) does not"
            ),
        ),
        (
            (13, 0),
            (12, 8),
            (
                "CUDA 13.0 is newer than the driver here, which knows CUDA 12.8: the result will not run on this "
                "machine until the driver is updated"
            ),
        ),
    ],
)
def test_a_driver_older_than_nvcc(version: tuple[int, int], driver: tuple[int, int] | None, line: str) -> None:
    assert driver_line(version, driver) == line


def test_torch_does_not_say_which_versions_it_refuses() -> None:
    assert foreign_hint("V14.0.88", "13.0") == (
        "nvcc is of CUDA 14 and torch of CUDA 13.0, as cuda.mismatch allows; "
        "torch's BuildExtension refuses another major version"
    )
    assert foreign_hint("V13.1.80", "13.0") == ""


def test_a_torch_with_a_strange_cuda() -> None:
    with pytest.raises(ToolkitError, match="names its CUDA 'nightly', which is no version"):
        choose("nightly", [], [], "any", ())
