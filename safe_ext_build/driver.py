"""One hook from beginning to end: find out, plan, set the stage, run it under supervision, say what it cost."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import plan, store, ui
from .errors import BuildFailed, CompileFailed, HookMissing, SafeExtBuildError, ToolkitError
from .machine import read_machine
from .plan import BuildPlan
from .settings import Settings
from .toolchain import find
from .toolchain.find import Cuda, Torch

NO_COMPILER = "no CUDA compiler was found, so only what needs none can be built"


_BUILD_FILES = ("setup.py", "CMakeLists.txt", "meson.build")


@dataclass(frozen=True)
class Task:
    """A hook of the inner backend. `compiles`: it builds, so the toolkit matters and the plan is worth saying.
    `optional`: a backend may do without it, and the result is then None."""

    hook: str
    arguments: dict[str, Any]
    compiles: bool = False
    optional: bool = False


def run(task: Task, settings: Settings) -> Any:
    """Run a hook behind the one error boundary: an expected error is shown, and ends the process with 1."""
    try:
        return _run(task, settings)
    except SafeExtBuildError as error:
        if task.optional and isinstance(error, HookMissing):
            return None
        ui.show_error(error)
        raise SystemExit(1) from None


def _run(task: Task, settings: Settings) -> Any:
    # Without a setup script, setuptools runs no code that could ask for torch; what others run we cannot know.
    has_code = Path("setup.py").is_file() or not settings.uses_setuptools
    torch = find.find_torch(settings, os.getppid(), os.environ) if has_code and _is_linux() else None
    cuda = _find_cuda(task, settings, torch) if torch else None
    planned = plan.make(settings, cuda, _torch_line(torch), read_machine())
    if task.compiles and has_code:
        for line in planned.lines:
            ui.say(line)
    try:
        return _execute(task, settings, torch, cuda, planned)
    except CompileFailed as error:
        error.hint = error.hint or _own_source(torch, cuda)
        raise
    except BuildFailed as error:
        error.hint = error.hint or _afterthought(torch, cuda)
        raise


def _own_source(torch: Torch | None, cuda: Cuda | None) -> str:
    """That it is the package which does not fit, and not the machine: for those who did not write it."""
    if torch is None or torch.facts is None or not store.is_unpacked_sdist(Path.cwd()):
        return ""
    nvcc = f" and nvcc {cuda.build.removeprefix('V')}" if cuda else ""
    return (
        f"It is the package's own source that does not compile with {torch.facts.describe()}{nvcc}: the "
        "compiler's message is above. A newer release of the package may; else correct the source."
    )


def _torch_line(torch: Torch | None) -> str:
    """Which torch, and why; that there is none is worth saying only to who has asked for it."""
    if torch is None or (torch.source.kind == "none" and "torch" not in _setup_script().lower()):
        return ""
    return torch.source.line


def _setup_script() -> str:
    """What says how the project is built, whatever builds it."""
    return "\n".join(map(_text, _BUILD_FILES))


def _text(file: str) -> str:
    try:
        return Path(file).read_text(errors="replace")
    except OSError:
        return ""


def _is_linux() -> bool:
    return platform.system() == "Linux"


def _find_cuda(task: Task, settings: Settings, torch: Torch) -> Cuda | None:
    from .supervise.workspace import cache_root

    try:
        cuda = find.find_cuda(settings, torch, os.environ, cache_root(dict(os.environ)))
    except ToolkitError:
        if task.compiles:
            raise
        return None  # metadata and source distributions need no compiler
    if cuda is None and task.compiles and torch.facts and torch.facts.cuda:
        ui.warn(f"{torch.facts.describe()}: {NO_COMPILER}")
    return cuda


def _execute(task: Task, settings: Settings, torch: Torch | None, cuda: Cuda | None, planned: BuildPlan) -> Any:
    if not _is_linux():
        return _in_process(task, settings, planned)
    from . import staging

    return staging.run(staging.Scene(task.hook, task.arguments, settings, torch, cuda, planned, task.compiles))


def _in_process(task: Task, settings: Settings, planned: BuildPlan) -> Any:
    """Elsewhere than on Linux: the backend as it is, with the planned number of jobs; the rest needs Linux."""
    from .supervise.backend import load

    os.environ.update(planned.environment)
    hook = getattr(load(settings.inner_backend, settings.inner_path, Path.cwd()), task.hook, None)
    if hook is None:
        raise HookMissing(f"{settings.inner_backend} has no hook {task.hook}")
    return hook(**task.arguments)


def _afterthought(torch: Torch | None, cuda: Cuda | None) -> str:
    """What may be behind a failure that did not explain itself."""
    if torch and torch.source.kind == "none":
        return _torch_line(torch)
    if cuda is None and torch and torch.facts and torch.facts.cuda:
        return NO_COMPILER
    return ""
