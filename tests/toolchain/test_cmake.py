"""What CMake is told through the environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from safe_ext_build.toolchain.cmake import architectures, environment

LAUNCHERS = [f"CMAKE_{language}_COMPILER_LAUNCHER" for language in ("C", "CXX", "CUDA")]


@pytest.mark.parametrize(
    ("torch", "cmake"),
    [
        ("8.0", "80-real"),
        ("8.0+PTX", "80"),
        ("7.5;8.6;12.0+PTX", "75-real;86-real;120"),
        ("9.0a;12.0f", "90a-real;120f-real"),
    ],
)
def test_architectures(torch: str, cmake: str) -> None:
    assert architectures(torch) == cmake


def test_all_is_said() -> None:
    assert environment(Path("/cuda"), "8.0", 3, "job", {}) == {
        "CUDACXX": "/cuda/bin/nvcc",
        "CUDAToolkit_ROOT": "/cuda",
        "CUDAARCHS": "80-real",
        "CMAKE_BUILD_PARALLEL_LEVEL": "3",
        **dict.fromkeys(LAUNCHERS, "job"),
    }


def test_without_a_toolkit_only_the_jobs() -> None:
    expected = {"CMAKE_BUILD_PARALLEL_LEVEL": "3", **dict.fromkeys(LAUNCHERS, "job")}
    assert environment(None, "", 3, "job", {}) == expected


def test_what_the_user_says_wins() -> None:
    theirs = {"CUDACXX": "/my/nvcc", "CUDAARCHS": "native", "CMAKE_BUILD_PARALLEL_LEVEL": "9"}
    said = environment(Path("/cuda"), "8.0", 3, "job", theirs)
    assert said == {"CUDAToolkit_ROOT": "/cuda", **dict.fromkeys(LAUNCHERS, "job")}


@pytest.mark.parametrize(("theirs", "all_of_them"), [("ccache", "job;ccache"), ("job;ccache", "job;ccache")])
def test_a_launcher_of_the_users_comes_after_ours(theirs: str, all_of_them: str) -> None:
    said = environment(None, "", 3, "job", {"CMAKE_CUDA_COMPILER_LAUNCHER": theirs})
    assert said["CMAKE_CUDA_COMPILER_LAUNCHER"] == all_of_them
