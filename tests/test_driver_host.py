"""When a host compiler that does not fit ends a build, and when it only explains a failure."""

from __future__ import annotations

from pathlib import Path

import pytest

from safe_ext_build import driver
from safe_ext_build.errors import ToolkitError
from safe_ext_build.settings import Settings
from safe_ext_build.toolchain import find, host, target
from safe_ext_build.toolchain.borrow import TorchSource
from safe_ext_build.toolchain.find import Torch
from safe_ext_build.toolchain.torch import TorchFacts

FACTS = TorchFacts("2.14.1", "13.0", None, Path("/torch"), 20)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    def refuse(*_: object) -> host.Host:
        raise ToolkitError("gcc 99 does not fit", code="SEB-2104", hint="install another")

    monkeypatch.setattr(host, "fit_host", refuse)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def found() -> tuple[host.Host | None, str]:
    source = TorchSource("own", Path("/torch"), "building against torch 2.14.1")
    return driver._find_host(Torch(source, target.own(), FACTS), None)


@pytest.mark.parametrize("script", ["CUDAExtension('x', ['a.cu'])", "from torch.utils.cpp_extension import load"])
def test_a_script_that_compiles_ends_at_once(script: str, project: Path) -> None:
    (project / "setup.py").write_text(script)
    with pytest.raises(ToolkitError, match="gcc 99 does not fit"):
        found()


@pytest.mark.parametrize(
    "script", ["setup()", "CUDAExtension(extra_compile_args=['-allow-unsupported-compiler'])"]
)
def test_any_other_is_let_try(script: str, project: Path) -> None:
    (project / "setup.py").write_text(script)
    assert found() == (None, "gcc 99 does not fit; install another")


def test_without_torch_nothing_is_looked_at(project: Path) -> None:
    assert driver._find_host(None, None) == (None, "")


def test_what_is_known_is_kept_beside_the_reason_why_a_build_ends(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "setup.py").write_text("CUDAExtension('x', ['a.cu'])")
    source = TorchSource("own", Path("/torch"), "building against torch 2.14.1")
    monkeypatch.setattr(find, "find_torch", lambda *_: Torch(source, target.own(), FACTS))
    monkeypatch.setattr(find, "find_cuda", lambda *_: None)
    monkeypatch.setattr(find, "what_there_is", lambda *_: "")
    decided = driver.decide(driver.Task("build_wheel", {}, compiles=True), Settings(), 0, None)
    assert str(decided.obstacle) == "gcc 99 does not fit"
    assert decided.lines[0] == "building against torch 2.14.1"
    assert decided.warnings[0].startswith("torch 2.14.1 (CUDA 13.0): no CUDA compiler was found")
