"""One hook from beginning to end: find out, plan, set the stage, run it under supervision, say what it cost."""

from __future__ import annotations

import contextlib
import os
import platform
import re
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import advice, plan, ui
from .errors import BuildFailed, SafeExtBuildError, ToolkitError
from .machine import read_machine
from .plan import BuildPlan
from .settings import Settings
from .toolchain import find
from .toolchain.find import Cuda, Torch
from .toolchain.host import Host

# A setup script that makes extensions with torch's helper; and one that has its own mind about the host compiler.
_COMPILES = re.compile(r"cpp_extension|CUDAExtension|CppExtension|\.cu\b")
_OWN_HOST = re.compile(r"allow-unsupported-compiler|ccbin")


@dataclass(frozen=True)
class Task:
    """A hook of the inner backend. `compiles`: it builds, so the toolkit matters and the plan is worth saying."""

    hook: str
    arguments: dict[str, Any]
    compiles: bool = False


def run(task: Task, settings: Settings) -> Any:
    """Run a hook behind the one error boundary: an expected error is shown, and ends the process with 1."""
    try:
        with _cache_held():
            return _run(task, settings)
    except SafeExtBuildError as error:
        ui.show_error(error)
        raise SystemExit(1) from None


def _cache_held() -> AbstractContextManager[None]:
    if not _is_linux():
        return contextlib.nullcontext()
    from . import store
    from .supervise.workspace import cache_root

    return store.using(cache_root(dict(os.environ)))


def _run(task: Task, settings: Settings) -> Any:
    # A project without a setup script has no code that could ask for torch.
    has_code = Path("setup.py").is_file()
    torch = find.find_torch(settings, os.getppid(), os.environ) if has_code and _is_linux() else None
    cuda = _find_cuda(task, settings, torch) if torch else None
    host, no_host = _find_host(torch, cuda) if task.compiles else (None, "")
    planned = plan.make(settings, cuda, _torch_line(torch), read_machine(), host)
    if task.compiles and has_code:
        for line in planned.lines:
            ui.say(line)
    if task.compiles:
        _mind(settings, torch, cuda)
    if task.compiles and _is_linux():
        from . import preflight

        with_torch = torch is not None and torch.facts is not None and "torch" in _setup_script()
        for line in preflight.check(settings, with_torch):
            ui.warn(line)
    try:
        return _execute(task, settings, torch, cuda, planned)
    except BuildFailed as error:
        error.hint = error.hint or no_host or _about_the_place(task, str(error))
        error.hint = error.hint or advice.afterthought(str(error), torch, cuda)
        raise


def _mind(settings: Settings, torch: Torch | None, cuda: Cuda | None) -> None:
    """What is to be known before anything is compiled: another torch than the target's, CUDA that is missing."""
    if settings.torch.pin and not (torch and torch.facts):
        ui.warn(
            f"{settings.source('torch.pin')} asks for a requirement of torch, and there is no torch to require"
        )
    if torch is None:
        return
    if torch.source.warning:
        ui.warn(torch.source.warning)
    if settings.require_cuda and (error := advice.unmet(settings.source("require-cuda"), torch, cuda)):
        raise error


def compiler_requirements(settings: Settings) -> list[str]:
    """What the frontend is to install for a project that asks for CUDA; a line says so.

    A mistake is no matter here: who only wants metadata needs no compiler, and a build will tell.
    """
    if settings.cuda.provision == "never" or not _is_linux():
        return []
    try:
        torch = find.find_torch(settings, os.getppid(), os.environ)
        wanted = find.compiler_requirements(settings, torch, os.environ)
    except SafeExtBuildError:
        return []
    if wanted and torch.facts:
        why = f"no toolkit here is one for {torch.facts.describe()}"
        if settings.cuda.provision == "always":
            why = f'{settings.source("cuda.provision")} is "always", for {torch.facts.describe()}'
        ui.say(f"{why}: the build environment is to get {', '.join(wanted)}")
    return list(wanted)


def _torch_line(torch: Torch | None) -> str:
    """Which torch, and why; that there is none is worth saying only to who has asked for it."""
    if torch is None or (torch.source.kind == "none" and "torch" not in _setup_script()):
        return ""
    return torch.source.line


def _setup_script() -> str:
    try:
        return Path("setup.py").read_text(errors="replace")
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
        looked_at = find.what_there_is(settings, torch, os.environ)
        what = f"{advice.NO_COMPILER} (looked at: {looked_at})" if looked_at else advice.NO_COMPILER
        ui.warn(f"{torch.facts.describe()}: {what}; to have one: {torch.how_to_install()}")
    return cuda


def _find_host(torch: Torch | None, cuda: Cuda | None) -> tuple[Host | None, str]:
    """The host compilers; or why there are none, which ends a build at once only where its setup script surely
    compiles, and leaves the choice to us."""
    if torch is None or torch.facts is None:
        return None, ""
    from .toolchain.host import fit_host

    try:
        return fit_host(torch.facts, cuda.home if cuda else None, cuda.build if cuda else "", os.environ), ""
    except ToolkitError as error:
        script = _setup_script()
        if _COMPILES.search(script) and not _OWN_HOST.search(script):
            raise
        return None, f"{error}; {error.hint}"


def _execute(task: Task, settings: Settings, torch: Torch | None, cuda: Cuda | None, planned: BuildPlan) -> Any:
    if not _is_linux():
        return _in_process(task, planned)
    from . import staging

    return staging.run(staging.Scene(task.hook, task.arguments, settings, torch, cuda, planned, task.compiles))


def _in_process(task: Task, planned: BuildPlan) -> Any:
    """Elsewhere than on Linux: setuptools as it is, with the planned number of jobs; the rest needs Linux."""
    from setuptools import build_meta

    os.environ.update(planned.environment)
    return getattr(build_meta, task.hook)(**task.arguments)


def _about_the_place(task: Task, message: str) -> str:
    from . import preflight

    if "editable" in task.hook and (blocked := preflight.unwritable(Path.cwd())):
        return f"{blocked} cannot be written, and an editable install puts its modules there."
    return preflight.missing_submodules(Path.cwd(), message)
