"""The words for what is the project's own fault."""

from __future__ import annotations

from pathlib import Path

import pytest

from safe_ext_build.supervise import blame


def test_an_sdist_that_lacks_sources(tmp_path: Path) -> None:
    (tmp_path / "setup.py").touch()
    (tmp_path / "PKG-INFO").touch()
    error = blame.missing_sources(["csrc/a.cu", "csrc/b.cu"], tmp_path)
    assert str(error) == "setup.py names csrc/a.cu, csrc/b.cu, which this sdist does not contain"
    assert error.hint == "Report it to its authors, or build from its repository."


def test_many_are_not_all_named(tmp_path: Path) -> None:
    error = blame.missing_sources([f"{name}.cu" for name in "abcde"], tmp_path)
    assert str(error) == f"the build names a.cu, b.cu, c.cu and more, which {tmp_path} does not contain"
    assert error.hint == "Write it, or take it out of the list of sources."


def test_a_checkout_without_its_submodules(tmp_path: Path) -> None:
    (tmp_path / ".gitmodules").touch()
    assert "git submodule update" in blame.missing_sources(["csrc/cutlass/a.cu"], tmp_path).hint


@pytest.mark.parametrize(
    ("error", "missing"),
    [
        ("cc1plus: fatal error: csrc/a.cu: No such file or directory", True),
        ("clang: error: no such file or directory: 'csrc/a.cu'", True),
        ("csrc/a.cu:1:10: fatal error: cute/tensor.hpp: No such file or directory", False),
        ("", False),
    ],
)
def test_what_a_compiler_says_of_a_missing_source(error: str, missing: bool) -> None:
    assert blame.missing_to_compiler("csrc/a.cu", error) is missing


def test_paths_as_the_sdist_has_them() -> None:
    kept = "/home/u/.cache/safe-ext-build/objects/pkg/0123/objects0/source"
    said = blame.as_in_the_project(f"{kept}/csrc/a.cu does not compile: {kept}/csrc/b.h(3): error: no")
    assert said == "csrc/a.cu does not compile: csrc/b.h(3): error: no"
