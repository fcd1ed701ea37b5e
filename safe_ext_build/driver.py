"""One hook from beginning to end: find out, plan, set the stage, run it under supervision, say what it cost."""

from __future__ import annotations

import contextlib
import os
import platform
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import advice, plan, store, ui
from .errors import BuildFailed, CompileFailed, FarmError, HookMissing, PlaceError, SafeExtBuildError, ToolkitError
from .here import here
from .launcher import tools
from .launcher.tools import Launcher
from .machine import read_machine
from .plan import BuildPlan
from .settings import Settings
from .shortage import shortage
from .toolchain import find
from .toolchain.find import Cuda, Torch
from .toolchain.host import Host

if TYPE_CHECKING:
    from .farm.share import Share
    from .supervise.turn import Turn

# A setup script that makes extensions with torch's helper; and one that has its own mind about the host compiler.
_COMPILES = re.compile(r"cpp_extension|CUDAExtension|CppExtension|\.cu\b")
_OWN_HOST = re.compile(r"allow-unsupported-compiler|ccbin")
_BUILD_FILES = ("setup.py", "CMakeLists.txt", "meson.build")


@dataclass(frozen=True)
class Task:
    """A hook of the inner backend. `compiles`: it builds, so the toolkit matters and the plan is worth saying.
    `optional`: a backend may do without it, and the result is then None."""

    hook: str
    arguments: dict[str, Any]
    compiles: bool = False
    optional: bool = False


@dataclass(frozen=True)
class Decisions:
    """What a hook is going to do, and why.

    `lines` and `warnings` are what a build says. `no_host`: why no host compiler was found, where that need not
    matter. `obstacle`: why the build ends here.
    """

    torch: Torch | None
    cuda: Cuda | None
    plan: BuildPlan
    lines: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    no_host: str = ""
    obstacle: SafeExtBuildError | None = None


def run(task: Task, settings: Settings) -> Any:
    """Run a hook behind the one error boundary: an expected error is shown, and ends the process with 1."""
    try:
        with _cache_held(), sheltered(settings):
            return _run(task, settings)
    except SafeExtBuildError as error:
        if task.optional and isinstance(error, HookMissing):
            return None
        ui.show_error(error)
        raise SystemExit(1) from None
    except (OSError, RuntimeError, MemoryError) as unexpected:
        lacking = shortage(unexpected)
        if lacking is None:
            raise
        ui.show_error(lacking)
        raise SystemExit(1) from None


def _cache_held() -> AbstractContextManager[None]:
    cache = _cache()
    return store.using(cache) if cache else contextlib.nullcontext()


def sheltered(settings: Settings) -> AbstractContextManager[None]:
    """For all that a hook asks and does: whatever becomes of it and of its frontend, nothing of that is left."""
    if not _is_linux():
        return contextlib.nullcontext()
    from .supervise import shelter, workspace

    return shelter.sheltered(lambda: workspace.root(settings.workspace.dir, dict(os.environ)))


def _cache() -> Path | None:
    if not _is_linux():
        return None
    from .supervise.workspace import cache_root

    return cache_root(dict(os.environ))


def _run(task: Task, settings: Settings) -> Any:
    if not (task.compiles and _is_linux()):
        return _attempt(task, settings, decide(task, settings, os.getppid(), _cache()), None)
    from .supervise.turn import Taken

    while True:
        try:
            return _attempt(task, settings, *_decide_in_turn(task, settings))
        except Taken:
            continue


def _decide_in_turn(task: Task, settings: Settings) -> tuple[Decisions, Turn | None]:
    """What is decided once no other build of the project runs: that one may have had the memory."""
    while True:
        decided = decide(task, settings, os.getppid(), _cache())
        turn = _turn(task, settings, decided)
        if decided.obstacle or not turn.await_it():
            return decided, turn


def _turn(task: Task, settings: Settings, decided: Decisions) -> Turn:
    """The turn to write where this build does."""
    from .scene import naming
    from .supervise.turn import Turn

    project, place = here(), None
    if store.is_passing(project) and (cache := _cache()):
        fields = naming(decided.torch, decided.cuda, decided.plan)
        place = store.where(project, task.hook, settings.build_dir, cache, fields)
    name, source = store.name(project), settings.source("on-running")
    return Turn(place or project, name, settings.on_running, source, settings.progress, os.environ)


def _attempt(task: Task, settings: Settings, decided: Decisions, turn: Turn | None) -> Any:
    if task.compiles:
        for line in decided.lines:
            ui.say(line)
        for line in decided.warnings:
            ui.warn(line)
    if decided.obstacle:
        raise decided.obstacle
    torch, cuda = decided.torch, decided.cuda
    try:
        return _execute(task, settings, torch, cuda, decided.plan, turn)
    except BuildFailed as error:
        error.hint = error.hint or _about_the_place(task, str(error))
        if isinstance(error, CompileFailed):
            from .supervise.blame import missing_header

            error.hint = error.hint or missing_header(str(error)) or _own_source(torch, cuda)
        else:
            error.hint = error.hint or decided.no_host or advice.afterthought(str(error), torch, cuda)
        raise


def decide(task: Task, settings: Settings, parent: int, cache: Path | None) -> Decisions:
    """All that is decided for a hook in this directory before anything runs, and in what words.

    `parent`: the process id of the frontend. `cache`: where a toolkit that has to be completed is put together;
    None leaves it as it is, and then nothing is written. Raises TorchError, and ToolkitError where no toolkit
    fits: without either nothing else is known.
    """
    # Without a setup script, setuptools runs no code that could ask for torch; what others run we cannot know.
    has_code = Path("setup.py").is_file() or not settings.uses_setuptools
    torch = find.find_torch(settings, parent, os.environ) if has_code and _is_linux() else None
    cuda = _find_cuda(task, settings, torch, cache) if torch else None
    host, no_host, unfit = None, "", None
    if task.compiles:
        try:
            host, no_host = _find_host(torch, cuda)
        except ToolkitError as error:
            unfit = error
    planned, refused = _plan(settings, torch, cuda, host, task, has_code)
    warnings, obstacle = _concerns(settings, torch, cuda) if task.compiles else ([], _no_room(settings, torch))
    return Decisions(
        torch=torch,
        cuda=cuda,
        plan=planned,
        lines=planned.lines if has_code else (),
        warnings=tuple(warnings),
        no_host=no_host,
        obstacle=unfit or obstacle or refused,
    )


def _plan(
    settings: Settings, torch: Torch | None, cuda: Cuda | None, host: Host | None, task: Task, has_code: bool
) -> tuple[BuildPlan, FarmError | None]:
    """The plan; and why there is to be no build, where it needs a farm that is not to be had."""
    line = _torch_line(torch)
    try:
        return make_plan(settings, cuda, line, host, task.compiles, farm=has_code), None
    except FarmError as error:
        return make_plan(settings, cuda, line, host, task.compiles, farm=False), error


def make_plan(
    settings: Settings,
    cuda: Cuda | None,
    torch_line: str,
    host: Host | None,
    compiles: bool = True,
    farm: bool = True,
) -> BuildPlan:
    """The plan for this machine, once it is known what is built with. Raises SafeExtBuildError."""
    launcher: Launcher | None = None
    share: Share | None = None
    if compiles and _is_linux():
        from .farm.share import choose

        launcher = tools.choose(settings.launcher, settings.source("launcher"), os.environ)
        share = choose(settings, launcher, os.environ) if farm else None
    return plan.make(settings, cuda, torch_line, read_machine(), host, launcher, share)


def _concerns(
    settings: Settings, torch: Torch | None, cuda: Cuda | None
) -> tuple[list[str], SafeExtBuildError | None]:
    """What is to be known before anything is compiled: CUDA that is missing, another torch than the target's,
    little room; and what makes the build impossible."""
    warnings = [*_no_compiler(settings, torch, cuda), *_about_torch(settings, torch)]
    if torch and settings.require_cuda and (error := advice.unmet(settings.source("require-cuda"), torch, cuda)):
        return warnings, error
    if not _is_linux():
        return warnings, None
    from . import preflight

    try:
        return [*warnings, *preflight.check(settings, _with_torch(torch))], None
    except PlaceError as error:
        return warnings, error


def _no_room(settings: Settings, torch: Torch | None) -> PlaceError | None:
    """Why a hook that compiles nothing cannot even begin."""
    if not _is_linux():
        return None
    from . import preflight

    try:
        preflight.check_workspaces(settings, _with_torch(torch))
    except PlaceError as error:
        return error
    return None


def _with_torch(torch: Torch | None) -> bool:
    return torch is not None and torch.facts is not None and "torch" in _setup_script()


def _no_compiler(settings: Settings, torch: Torch | None, cuda: Cuda | None) -> Iterator[str]:
    if torch is None or cuda is not None or not (torch.facts and torch.facts.cuda):
        return
    looked_at = find.what_there_is(settings, torch, os.environ)
    what = f"{advice.NO_COMPILER} (looked at: {looked_at})" if looked_at else advice.NO_COMPILER
    yield f"{torch.facts.describe()}: {what}; to have one: {torch.how_to_install()}"


def _about_torch(settings: Settings, torch: Torch | None) -> Iterator[str]:
    for name, wanted in (("torch.pin", settings.torch.pin), ("torch.label", settings.torch.label)):
        if wanted and not (torch and torch.facts):
            yield f"{settings.source(name)} asks for the version of torch, and there is no torch"
    if torch is not None and torch.source.warning:
        yield torch.source.warning


def compiler_requirements(settings: Settings) -> list[str]:
    """What the frontend is to install for a project that asks for CUDA; a line says so.

    A mistake is no matter here: who only wants metadata needs no compiler, and a build will tell.
    """
    if settings.cuda.provision == "never" or not _is_linux():
        return []
    try:
        with sheltered(settings):
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


def _own_source(torch: Torch | None, cuda: Cuda | None) -> str:
    """That it is the package which does not fit, and not the machine: for those who did not write it."""
    if torch is None or torch.facts is None or not store.is_passing(here()):
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


def _find_cuda(task: Task, settings: Settings, torch: Torch, cache: Path | None) -> Cuda | None:
    try:
        return find.find_cuda(settings, torch, os.environ, cache)
    except ToolkitError:
        if task.compiles:
            raise
        return None  # metadata and source distributions need no compiler


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


def _execute(
    task: Task,
    settings: Settings,
    torch: Torch | None,
    cuda: Cuda | None,
    planned: BuildPlan,
    turn: Turn | None,
) -> Any:
    if not _is_linux():
        return _in_process(task, settings, planned)
    from . import staging
    from .scene import Scene

    scene = Scene(task.hook, task.arguments, settings, torch, cuda, planned, task.compiles, turn=turn)
    return staging.run(scene)


def _in_process(task: Task, settings: Settings, planned: BuildPlan) -> Any:
    """Elsewhere than on Linux: the backend as it is, with the planned number of jobs; the rest needs Linux."""
    from .supervise.backend import hook_hint, load

    os.environ.update(planned.environment)
    hook = getattr(load(settings.inner_backend, settings.inner_path, here()), task.hook, None)
    if hook is None:
        what = f"the build backend {settings.inner_backend} has no hook {task.hook}"
        raise HookMissing(what, code="SEB-1016", hint=hook_hint(settings.inner_backend))
    return hook(**task.arguments)


def _about_the_place(task: Task, message: str) -> str:
    from . import preflight

    try:
        project = here()
    except PlaceError:
        return "The project's directory was deleted while the build ran."
    if "editable" in task.hook and (blocked := preflight.unwritable(project)):
        return f"{blocked} cannot be written, and an editable install puts its modules there."
    return preflight.missing_submodules(project, message)
