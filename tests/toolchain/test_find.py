"""What `cuda.provision` makes of the toolkits there are: what is asked for, and what is then taken."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import fakes
import pytest

from safe_ext_build import settings
from safe_ext_build.errors import ToolkitError
from safe_ext_build.settings import Settings
from safe_ext_build.toolchain import find
from safe_ext_build.toolchain.borrow import TorchSource
from safe_ext_build.toolchain.find import Cuda, Torch
from safe_ext_build.toolchain.target import Environment
from safe_ext_build.toolchain.torch import read_torch

ASKED = ("cuda-toolkit[nvcc,cccl]==13.0.3",)


@dataclass(frozen=True)
class Place:
    """A machine with a target environment, an isolated one, and toolkits where a test puts them."""

    root: Path
    torch: Torch

    @property
    def isolated(self) -> Path:
        return self.root / "isolated" / "site"

    def toolkit(self, version: str, **options: Any) -> Path:
        return fakes.toolkit(self.root / f"cuda-{version}", version, **options)

    def fetch(self) -> Path:
        """What a frontend does when it is asked for the compiler."""
        return fakes.toolkit(self.isolated / "nvidia" / "cu13", math=False, lib="lib")

    def environ(self, *toolkits: Path, **more: str) -> dict[str, str]:
        path = ":".join([*(f"{home}/bin" for home in toolkits), "/nowhere"])
        return {"PATH": path, "CUDA_VISIBLE_DEVICES": "", **more}

    def settings(self, environ: dict[str, str], **options: str) -> Settings:
        named = {f"cuda.{name}": value for name, value in options.items()}
        return settings.load(self.root, named, environ)[0]

    def asked(self, *toolkits: Path, environ: dict[str, str] | None = None, **options: str) -> tuple[str, ...]:
        environ = self.environ(*toolkits, **environ or {})
        return find.compiler_requirements(self.settings(environ, **options), self.torch, environ)

    def taken(self, *toolkits: Path, environ: dict[str, str] | None = None, **options: str) -> Cuda | None:
        environ = self.environ(*toolkits, **environ or {})
        return find.find_cuda(self.settings(environ, **options), self.torch, environ, self.root / "cache")


def line(cuda: Cuda | None) -> str:
    """What was said of the toolkit."""
    assert cuda is not None
    return next(line for line in cuda.lines if line.startswith("CUDA"))


def environment(prefix: Path) -> Environment:
    return Environment(prefix / "bin" / "python", prefix, (3, 11), ".so", (str(prefix / "site"),), None)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setattr("safe_ext_build.toolchain.cuda._SYSTEM", ())
    monkeypatch.setattr("safe_ext_build.toolchain.cuda._HPC_SDK", "nowhere")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    site = tmp_path / "target" / "site"
    fakes.wheels(site)
    package = fakes.torch(site)
    fakes.metadata(site, "torch", "2.14.1", "cuda-toolkit[cudart]==13.0.3")
    target, own = environment(tmp_path / "target"), environment(tmp_path / "isolated")
    source = TorchSource("borrowed", package, "")
    return Place(tmp_path, Torch(source, own, read_torch(package), target, "pip"))


def test_auto_asks_when_nothing_is_there(place: Place) -> None:
    assert place.asked() == ASKED
    assert place.asked(provision="never") == ()


@pytest.mark.parametrize(
    ("version", "mismatch", "asked"),
    [
        ("13.0", "exact", False),
        ("13.1", "exact", True),
        ("14.0", "exact", True),
        ("13.1", "minor", False),
        ("14.0", "minor", True),
        ("12.8", "minor", True),
        ("14.0", "any", False),
    ],
)
def test_auto_asks_when_nothing_is_within_the_mismatch(
    place: Place, version: str, mismatch: str, asked: bool
) -> None:
    home = place.toolkit(version)
    assert place.asked(home, mismatch=mismatch) == (ASKED if asked else ())
    place.fetch()
    taken = place.taken(home, mismatch=mismatch)
    assert taken is not None
    origin = "nvcc on PATH" if version == "13.0" else "wheels"
    assert f"({origin}): the CUDA of torch" in line(taken), "what is installed is taken, asked for or not"


def test_auto_asks_for_what_a_system_compiler_lacks(place: Place) -> None:
    home = place.toolkit("13.0", math=False)
    assert place.asked(home) == (), "torch's wheels have it"
    shutil.rmtree(home / "include" / "cccl")
    assert place.asked(home) == ASKED
    alone = place.taken(home)
    assert alone is not None and any("lacks thrust/complex.h" in line for line in alone.lines)
    place.fetch()
    taken = place.taken(home)
    assert taken is not None and not any("lacks" in line for line in taken.lines)
    assert (taken.home / "include" / "cccl" / "thrust" / "complex.h").exists()


def test_always_passes_over_what_the_machine_has(place: Place) -> None:
    home = place.toolkit("13.0")
    named = {"CUDA_HOME": str(home)}
    assert place.asked(home, provision="always") == ASKED
    assert place.asked(environ=named, provision="always") == ASKED
    place.fetch()
    fetched = f"CUDA 13.0 in {place.isolated}/nvidia/cu13 (wheels): the CUDA of torch"
    assert line(place.taken(home, provision="always")) == fetched
    assert line(place.taken(environ=named, provision="always")) == (
        f'CUDA_HOME in the environment is {home}: not used, as -C cuda.provision is "always". {fetched}'
    )
    assert place.asked(provision="always", home=str(home)) == ()
    taken = place.taken(provision="always", home=str(home))
    assert line(taken).startswith(f"CUDA 13.0 in {home}"), "cuda.home names it for this build"


def test_always_says_what_to_install_where_nobody_has(place: Place) -> None:
    with pytest.raises(ToolkitError, match="the wheels of the compiler are not installed"):
        place.taken(provision="always")
    with pytest.raises(ToolkitError) as caught:
        place.taken(place.toolkit("13.0"), provision="always")
    assert str(caught.value) == ('-C cuda.provision is "always", and the wheels of the compiler are not installed')
    assert caught.value.hint.startswith(
        f'{place.root}/target/bin/python -m pip install "cuda-toolkit[nvcc,cccl]==13.0.3", or '
    )


def test_always_does_not_hide_a_mistake(place: Place) -> None:
    place.fetch()
    with pytest.raises(ToolkitError, match=r"^-C cuda.home is .*, which has no bin/nvcc: not a CUDA toolkit"):
        place.taken(provision="always", home=str(place.root / "target"))


def test_what_was_named_is_not_replaced(place: Place) -> None:
    environ = {"CUDA_HOME": str(place.toolkit("12.8"))}
    assert place.asked(environ=environ) == ()
    place.fetch()
    with pytest.raises(ToolkitError) as caught:
        place.taken(environ=environ)
    assert "and fits: name that, or name none to have it found" in caught.value.hint


def test_a_named_place_without_a_compiler(place: Place) -> None:
    assert place.asked(environ={"CUDA_HOME": str(place.root)}) == ASKED, "a variable is passed over"
    assert place.asked(home=str(place.root)) == (), "a setting is not"


def test_conda_has_it_beside_torch_though_nobody_activated_it(place: Place) -> None:
    fakes.toolkit(place.root / "target")
    assert place.asked() == ()
    assert line(place.taken()).startswith(f"CUDA 13.0 in {place.root}/target (the environment of torch)")


def test_cuda_12_has_no_compiler_in_wheels(place: Place) -> None:
    assert place.torch.facts is not None
    old = Place(place.root, replace(place.torch, facts=replace(place.torch.facts, cuda="12.8")))
    assert old.asked() == old.asked(provision="always") == ()
    taken = old.taken(place.toolkit("12.8"), provision="always")
    assert line(taken).startswith("CUDA 12.8 in ")


def test_a_cpu_torch_asks_for_nothing(place: Place) -> None:
    assert place.torch.facts is not None
    cpu = Place(place.root, replace(place.torch, facts=replace(place.torch.facts, cuda=None)))
    assert cpu.asked(provision="always") == () and cpu.taken() is None
    assert cpu.torch.how_to_install() == ""


def test_what_is_fetched_outlives_the_isolated_environment(place: Place) -> None:
    place.fetch()
    taken = place.taken()
    assert taken is not None and taken.home.is_relative_to(place.root / "cache")
    shutil.rmtree(place.root / "isolated")
    for name in ("bin/nvcc", "nvvm/bin/cicc", "include/cusparse.h", "include/cccl/thrust/complex.h"):
        assert (taken.home / name).exists()
    assert (taken.home / "lib64" / "libcudart.so").exists()
    place.fetch()
    assert place.taken() == taken, "and is used again"


def test_torch_on_pythonpath_does_not_hide_that_the_rest_is_isolated(place: Place) -> None:
    """Then torch is importable in the build as it is in the target, and is not borrowed."""
    site = place.root / "target" / "site"
    own = replace(place.torch.own, path=(str(site), *place.torch.own.path))
    torch = replace(place.torch, source=TorchSource("own", site / "torch", ""), own=own)
    assert torch.volatile == (place.root / "isolated",)
    same = replace(torch, own=environment(place.root / "target"))
    assert same.volatile == ()


def test_how_to_install_depends_on_the_environment(place: Place) -> None:
    assert place.torch.how_to_install().startswith(f"{place.root}/target/bin/python -m pip install")
    assert replace(place.torch, frontend="uv").how_to_install().startswith("uv pip install --python ")
    declared = replace(place.torch, source=TorchSource("declared", place.root, ""))
    assert declared.how_to_install().startswith("add ")
    (place.root / "target" / "pyvenv.cfg").write_text("home = /usr\nuv = 0.13.9\n")
    assert place.torch.how_to_install().startswith("uv pip install --python ")


def test_what_there_is(place: Place) -> None:
    (place.root / "empty").mkdir()
    environ = place.environ(CONDA_PREFIX=str(place.root / "empty"))
    said = find.what_there_is(place.settings(environ), place.torch, environ)
    assert said == f"{place.root}/empty (CONDA_PREFIX) has no bin/nvcc: not a CUDA toolkit"


def test_a_cache_that_cannot_hold_a_toolkit_is_gone_without(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, scratch = place.toolkit("13.0", math=False), tmp_path / "scratch"
    scratch.mkdir()
    cache = place.root / "cache"
    cache.mkdir(exist_ok=True)
    (cache / "toolkits").write_text("somebody's")
    monkeypatch.setattr("safe_ext_build.probe.scratch", lambda: str(scratch))
    taken = place.taken(home)
    assert taken is not None and taken.home.is_relative_to(scratch / "toolkits")
    assert (taken.home / "include" / "cusparse.h").exists()
    assert f"{cache} cannot hold a toolkit (File exists): put together for this build only" in taken.lines
    (scratch / "toolkits").rename(scratch / "old")
    (scratch / "toolkits").write_text("")
    with pytest.raises(
        ToolkitError, match=r"cannot be completed: .*cache cannot hold a toolkit .*, nor can .*scratch"
    ):
        place.taken(home)
