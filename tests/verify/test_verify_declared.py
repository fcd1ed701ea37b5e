"""What setuptools is asked about the setup script that has just run."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from setuptools import Distribution, Extension
from setuptools.command.build_ext import build_ext

from safe_ext_build.verify.declared import declared_modules
from safe_ext_build.verify.findings import Declared

SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")


class Helper(build_ext):
    """Stands for torch's BuildExtension, which is known by its module."""


Helper.__module__ = "torch.utils.cpp_extension"


def ask(
    monkeypatch: pytest.MonkeyPatch,
    *extensions: Extension,
    environ: Mapping[str, str] | None = None,
    editable: bool = False,
    command: type[build_ext] = Helper,
    **more: Any,
) -> tuple[Declared, ...]:
    attributes = {"name": "sample", "ext_modules": list(extensions), "cmdclass": {"build_ext": command}, **more}
    # Where setup() leaves it.
    monkeypatch.setattr(sys.modules["distutils.core"], "_setup_distribution", Distribution(attributes))
    return declared_modules(editable, environ or {})


def cuda(*flags: str, **more: Any) -> Extension:
    arguments: Any = {"cxx": ["-O2"], "nvcc": list(flags)}
    return Extension("pkg._C", ["a.cpp", "b.cu"], extra_compile_args=arguments, **more)


def test_a_module_of_torchs_helper(monkeypatch: pytest.MonkeyPatch) -> None:
    (one,) = ask(monkeypatch, cuda("-O3"))
    assert one == Declared("pkg._C", f"pkg/_C{SUFFIX}", "", ("a.cpp", "b.cu"), takes_archs=True)


def test_where_an_editable_build_leaves_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (one,) = ask(monkeypatch, cuda(), editable=True, packages=["pkg"], package_dir={"": "src"})
    assert (one.path, one.built) == (f"pkg/_C{SUFFIX}", str(tmp_path / "src" / "pkg" / f"_C{SUFFIX}"))


@pytest.mark.parametrize(
    "flags",
    [
        ["-gencode", "arch=compute_80,code=sm_80"],
        ["-gencode=arch=compute_80,code=sm_80"],
        ["--generate-code=arch=compute_80"],
        ["-arch=sm_90"],
        ["--gpu-architecture", "sm_90"],
    ],
)
def test_arch_flags_of_its_own(flags: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    (by_flags,) = ask(monkeypatch, cuda(*flags))
    (by_variable,) = ask(monkeypatch, cuda(), environ={"NVCC_APPEND_FLAGS": " ".join(flags)})
    assert not by_flags.takes_archs and not by_variable.takes_archs


@pytest.mark.parametrize("flag", ["-march=native", "-I/data/research/include", "-Xcompiler=-march=haswell"])
def test_flags_that_torch_takes_for_arch_flags(flag: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (one,) = ask(monkeypatch, cuda("-O3", "-DTORCH_EXTENSION_NAME=search", flag))
    assert (one.takes_archs, one.misread) == (True, flag)


def test_modules_that_torch_adds_no_archs_to(monkeypatch: pytest.MonkeyPatch) -> None:
    (other_command,) = ask(monkeypatch, cuda(), command=build_ext)
    (no_cuda,) = ask(monkeypatch, Extension("pkg._C", ["a.cpp"]))
    assert not other_command.takes_archs and not no_cuda.takes_archs


def test_what_setuptools_does_not_compile_is_not_expected(monkeypatch: pytest.MonkeyPatch) -> None:
    found = ask(monkeypatch, Extension("cmake_project", []), cuda(optional=True))
    assert [(one.name, one.optional) for one in found] == [("pkg._C", True)]


def test_nothing_is_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ask(monkeypatch) == ()
    monkeypatch.delitem(sys.modules, "distutils.core")
    assert declared_modules(False, {}) == ()
