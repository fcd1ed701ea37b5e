"""What is said about errors of setup scripts."""

from __future__ import annotations

from pathlib import Path
from socket import gaierror
from urllib.error import URLError

import pytest

from safe_ext_build.supervise.reasons import Project, cause_of


def hint_for(error: BaseException, project: Project) -> str:
    cause = cause_of(error, project)
    return cause.hint if cause else ""


def missing(name: str) -> ModuleNotFoundError:
    return ModuleNotFoundError(f"No module named {name!r}", name=name)


@pytest.mark.parametrize(
    ("module", "distribution"),
    [
        ("psutil", "psutil"),
        ("wheel.bdist_wheel", "wheel"),
        ("yaml", "pyyaml"),
        ("setuptools_scm", "setuptools-scm"),
    ],
)
def test_a_module_that_nobody_declared(module: str, distribution: str) -> None:
    assert hint_for(missing(module), Project()) == (
        f'the build needs {module.partition(".")[0]}, which was not installed for it: add "{distribution}" to '
        f"build-system.requires in pyproject.toml; without build isolation: python -m pip install {distribution}"
    )


def test_what_setuptools_has_dropped() -> None:
    for name in ("pkg_resources", "pkg_resources.extern"):
        assert '"setuptools<82" into build-system.requires' in hint_for(missing(name), Project())


def test_a_module_of_the_project_itself() -> None:
    hint = hint_for(missing("build_tools.cuda"), Project(beside=frozenset({"build_tools", "setup"})))
    assert hint.startswith("build_tools lies beside setup.py, and build frontends do not put that directory on")
    assert "sys.path.insert(0" in hint


def test_what_is_behind_an_error_counts() -> None:
    error = RuntimeError("this package needs psutil")
    error.__cause__ = missing("psutil")
    assert "psutil" in hint_for(error, Project())
    gave_up = SystemExit("install psutil first")
    gave_up.__context__ = missing("psutil")
    assert "psutil" in hint_for(gave_up, Project())
    handled = RuntimeError("something else")
    handled.__context__ = missing("psutil")
    assert hint_for(handled, Project()) == ""


def test_torch_is_explained_elsewhere() -> None:
    assert hint_for(missing("torch"), Project()) == ""


def test_a_limited_api_without_a_lock() -> None:
    error = ValueError(
        "`py_limited_api='cp310'` not supported. `Py_LIMITED_API` is currently incompatible with "
        "`Py_GIL_DISABLED`."
    )
    assert hint_for(error, Project()).startswith("this Python is free-threaded, and has no limited API")


PROBING = "import torch, os\nif torch.cuda.device_count() == 0: raise RuntimeError('No GPUs found')\n"


@pytest.mark.parametrize(
    "error",
    [RuntimeError("No GPUs found. Please specify"), IndexError("list index out of range"), SystemExit("no GPU")],
)
def test_a_script_that_looks_for_gpus(error: BaseException) -> None:
    project = Project(PROBING, archs="8.0;9.0", has_gpu=False)
    assert hint_for(error, project) == (
        "setup.py looks for GPUs, and there are none here, although TORCH_CUDA_ARCH_LIST=8.0;9.0 is exported to "
        "it; let it read from that variable what to compile for"
    )
    reading = Project(PROBING + "os.environ.get('FORCE_CUDA', '0')\nos.getenv('MAX_JOBS')", has_gpu=False)
    assert hint_for(error, reading) == (
        "setup.py looks for GPUs, and there are none here; it reads FORCE_CUDA: one of them may tell it what to "
        "compile for"
    )


def test_other_errors_are_left_alone() -> None:
    assert hint_for(RuntimeError("no GPU"), Project(PROBING, has_gpu=True)) == ""
    assert hint_for(RuntimeError("the reactor is too hot"), Project(PROBING, has_gpu=False)) == ""
    assert hint_for(RuntimeError("no GPU"), Project("import torch", has_gpu=False)) == ""


def test_a_project_is_read(tmp_path: Path) -> None:
    assert Project.read(tmp_path) == Project()
    (tmp_path / "setup.py").write_text("script")
    (tmp_path / "helper.py").touch()
    (tmp_path / "build_tools").mkdir()
    found = Project.read(tmp_path)
    assert (found.script, found.beside) == ("script", frozenset({"setup", "helper", "build_tools"}))


def test_a_script_that_downloads_is_told_how_not_to() -> None:
    refused = URLError(gaierror(-2, "Name or service not known"))
    given_up = SystemExit(f"error: {refused}")
    given_up.__context__ = refused  # as setuptools does
    script = 'FORCE = os.getenv("CAUSAL_CONV1D_FORCE_BUILD", "FALSE") == "TRUE"'
    assert hint_for(given_up, Project(script=script)).endswith(
        "CAUSAL_CONV1D_FORCE_BUILD=TRUE lets it compile instead"
    )
    assert hint_for(refused, Project()) == "setup.py wants something from the network, and does not get it"
    assert hint_for(OSError("disk full"), Project(script=script)) == ""
