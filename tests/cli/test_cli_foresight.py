"""What `plan` says that a build would end with, without running any of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from safe_ext_build import settings
from safe_ext_build.cli.foresight import foreseen, imports_torch
from safe_ext_build.cli.project import Project
from safe_ext_build.errors import SafeExtBuildError
from safe_ext_build.toolchain.borrow import TorchSource
from safe_ext_build.toolchain.find import Torch
from safe_ext_build.toolchain.target import Environment

NONE = TorchSource("none", None, "no torch to build against: /env has no torch")
TORCH = Torch(NONE, Environment(Path("/b/bin/python"), Path("/b"), (3, 11), ".so", (), None))
NEEDS = "import os\nfrom torch.utils import cpp_extension\n"


def end(
    place: Path, script: str, torch: Torch = TORCH, requires: str = "", **options: str
) -> SafeExtBuildError | None:
    (place / "setup.py").write_text(script)
    text = f"[build-system]\nrequires = [{requires}]\nbuild-backend = 'safe_ext_build.build_meta'\n"
    (place / "pyproject.toml").write_text(text)
    return foreseen(Project.read(place), settings.load(place, options, {})[0], torch)


def test_a_script_that_needs_a_torch_which_is_nowhere(tmp_path: Path) -> None:
    error = end(tmp_path, NEEDS, requires="'setuptools', 'safe-ext-build'")
    assert error is not None and error.code == "SEB-6109"
    assert str(error) == f"setup.py imports torch (line 2), and there is {NONE.line}"
    assert error.hint.startswith("Install torch into that environment first")


def test_a_torch_that_there_is_or_will_be(tmp_path: Path) -> None:
    assert end(tmp_path, NEEDS, requires="'torch>=2'") is None
    own = replace(TORCH, source=TorchSource("own", Path("/b/torch"), ""))
    assert end(tmp_path, NEEDS, own) is None


@pytest.mark.parametrize(
    ("script", "line"),
    [
        ("import torch.utils", 1),
        ("import torchvision", 0),
        ("try:\n    import torch\nexcept ImportError:\n    torch = None", 0),
        ("def later():\n    import torch", 0),
        ("print 'old'\nimport torch", 0),
        ("from . import torch", 0),
    ],
)
def test_what_surely_imports_torch(tmp_path: Path, script: str, line: int) -> None:
    (tmp_path / "setup.py").write_text(script)
    assert imports_torch(tmp_path / "setup.py") == line
    assert imports_torch(tmp_path / "none.py") == 0


def test_a_backend_that_nobody_brings(tmp_path: Path) -> None:
    error = end(tmp_path, "", requires="'safe-ext-build'", backend="nosuch.backend")
    assert error is not None and error.code == "SEB-1015"
    assert end(tmp_path, "", requires="'safe-ext-build', 'meson-python'", backend="mesonpy") is None
    (tmp_path / "nosuch.py").touch()
    assert end(tmp_path, "", backend="nosuch:hooks", **{"backend-path": "."}) is None  # type: ignore[arg-type]
