"""Sets the stage for one supervised hook: workspace, shims, the builder's environment; and clears it away."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import caching, checking, events, preflight, stamp, store, ui
from .delivery import deliver
from .errors import PlaceError
from .here import here
from .launcher.call import Launching
from .machine import read_machine
from .machine.neighbours import neighbours_root
from .plan import BuildPlan
from .report.summary import summarize
from .schedule import objects
from .schedule.broker import Naming
from .schedule.fit import Fit
from .schedule.forecast import Curve
from .schedule.history import History
from .schedule.history_key import scope
from .schedule.ninjafile import JOB
from .schedule.policy import Limits
from .schedule.shim import Config
from .settings import Settings
from .stamp import Stamp
from .supervise import hook, shelter, shims, workspace
from .supervise.processes import ID_VARIABLE
from .supervise.protocol import HISTORY
from .supervise.turn import Taken, Turn
from .supervise.workspace import Workspace
from .toolchain import cmake
from .toolchain.find import Cuda, Torch
from .toolchain.fingerprint import fingerprint, host_compiler

if TYPE_CHECKING:
    from .report.account import Account
    from .report.record import Outcome

_WRITABLE = "Make it yours to write, or build from a copy of it; or free room where temporary files go."
SHIMS_VARIABLE = "SAFE_EXT_BUILD_SHIMS"
# In a hook's place: a command of the user's own.
COMMAND = "command"
# The argument of the hooks that build a wheel.
_WHEELS = "wheel_directory"
_BUILD_FILES = ("setup.py", "pyproject.toml", "CMakeLists.txt", "meson.build", "Makefile", "build.ninja")


@dataclass(frozen=True)
class Scene:
    """A hook of the inner backend, or COMMAND, and all that was decided for it. `label`: what is built, where the
    directory does not say. `turn`: what it takes part in, so that no other build of the project runs beside it."""

    hook: str
    arguments: dict[str, Any]
    settings: Settings
    torch: Torch | None
    cuda: Cuda | None
    plan: BuildPlan
    compiles: bool
    label: str = ""
    turn: Turn | None = None

    @property
    def project(self) -> str:
        return self.label or store.name(here())


def run(scene: Scene) -> Any:
    """Run a hook in a supervised builder; returns its result. Raises SafeExtBuildError, and Taken."""
    hook.leave_if_orphaned()
    cache = workspace.cache_root(dict(os.environ))
    account = _account(scene, cache) if scene.compiles else None
    with hook.Signals() as signals:
        place = _workspace(scene, frontend=True)
        project = scene.project
        history = History(cache / "history.sqlite")
        outcome: Outcome = "failed"
        error: Exception | None = None
        try:
            with workspace.writing(place.path):
                if scene.compiles:
                    _write_history(history.lookup_all(scope(project)), place)
                build = _stage(scene, place, project, _ground(scene, place))
            with _trusted_modules(scene, Path(build.cwd)) as give_back:

                def take_leave() -> None:
                    give_back()
                    _conclude(place, account, history, "interrupted")

                result = hook.run(build, place, signals, take_leave)
            if build.check:
                checking.settle(scene.settings, scene.torch, scene.cuda, place.path)
            if _WHEELS in scene.arguments:
                _deliver(place, result, here() / scene.arguments[_WHEELS])
            outcome = "built"
            return result
        except Exception as reason:
            error = reason
            raise
        finally:
            _conclude(place, account, history, outcome, error)


def run_command(scene: Scene, command: list[str]) -> tuple[int, int]:
    """Run a command of the user's on a stage; returns its exit status, and the signal that it died by or that we
    were sent, or 0. Raises SafeExtBuildError, and Taken."""
    cache = workspace.cache_root(dict(os.environ))
    account, history = _account(scene, cache), History(cache / "history.sqlite")
    with hook.Signals() as signals:
        place = _workspace(scene)
        status, number = 1, 0
        error: Exception | None = None
        try:
            with workspace.writing(place.path):
                _write_history(history.lookup_all(scope(scene.project)), place)
                tree = _tree(scene, place, scene.project, _command_ground(place))
                tree = _with_nvcc_on_path(tree) if scene.cuda else tree
            status, number = hook.run_program(command, tree, place, signals)
        except Exception as reason:
            error = reason
            raise
        finally:
            failed: Outcome = "interrupted" if number else "failed"
            _conclude(place, account, history, failed if status or number else "built", error)
    return status, number


def _workspace(scene: Scene, frontend: bool = False) -> Workspace:
    """A workspace that has the turn to build. Raises SafeExtBuildError; Taken when another build has it."""
    root = workspace.root(scene.settings.workspace.dir, dict(os.environ))
    place = shelter.stage(root, shim_roots(), frontend)
    try:
        if scene.turn:
            scene.turn.claim(place)
    except Taken:
        place.remove()
        raise
    return place


def is_project(directory: Path) -> bool:
    """Whether something is built from what lies in a directory itself."""
    return any((directory / name).is_file() for name in _BUILD_FILES)


def _command_ground(place: Workspace) -> Path:
    """Where the sources are: in a directory that is no project, a command is about what it unpacks itself."""
    return here() if is_project(here()) else place.path / "tmp"


def _with_nvcc_on_path(tree: hook.Tree) -> hook.Tree:
    """A Makefile may call nvcc by its name."""
    path = os.pathsep.join([str(Path(tree.environ["CUDA_HOME"], "bin")), tree.environ["PATH"]])
    return replace(tree, environ={**tree.environ, "PATH": path})


def _conclude(
    place: Workspace, account: Account | None, history: History, outcome: Outcome, error: Exception | None = None
) -> None:
    """After a build, however it ended: clear its workspace away, say what it has cost, and remember it."""
    seen = list(events.read(place.path / "events.jsonl"))
    place.remove()
    if line := summarize(seen):
        ui.say(line)
    if account:
        account.settle(place.id, seen, outcome, error)
    history.record(
        (one.entry, Curve(one.alone, one.curve)) for one in seen if one.outcome == "compiled" and one.curve
    )


def _stamp(scene: Scene) -> Stamp:
    facts, wanted = scene.torch.facts if scene.torch else None, scene.settings.torch
    if facts is None or scene.hook not in stamp.HOOKS:
        return Stamp()
    return Stamp(
        stamp.requirement(facts.version) if wanted.pin else "",
        stamp.label(facts.version, facts.cuda, facts.hip) if wanted.label else "",
    )


def _deliver(place: Workspace, name: str, directory: Path) -> None:
    hint = "Free some room there, or have the wheel put elsewhere."
    deliver(place.path / "wheel" / name, directory, hint, note=place.path / "jobs" / "wheel" / "output")


def _account(scene: Scene, cache: Path) -> Account:
    from .report.account import Account

    facts, cuda = scene.torch.facts if scene.torch else None, scene.cuda
    toolkit = f"{cuda.build} in {cuda.home}" if cuda else ""
    torch = facts.describe() if facts else ""
    return Account(scene.project, scene.hook, scene.settings, scene.plan, toolkit, torch, cache)


def _write_history(known: dict[str, Curve], place: Workspace) -> None:
    text = json.dumps({entry: [curve.seconds, *curve.points] for entry, curve in known.items()})
    (place.path / HISTORY).write_text(text)


def shim_roots() -> list[Path]:
    """Where shims go when the workspace cannot hold them, best first."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    roots = [Path(runtime) / "safe-ext-build"] if runtime else []
    last = Path(f"/var/tmp/safe-ext-build-{os.getuid()}.shims")  # a home may be long, or execute nothing
    return [*roots, workspace.cache_root(dict(os.environ)) / "shims", last]


def _ground(scene: Scene, place: Workspace) -> Path:
    """The directory that the builder works in: the project's, or a copy of one that cannot be written.

    An editable install is about the project's own directory: there, setuptools has to say what it cannot do.
    """
    project = here()
    blocked = preflight.unwritable(project)
    why = f"{blocked} cannot be written" if blocked else ""
    if not preflight.is_text(project):
        why = f"the path of {project} is not UTF-8, in which torch writes it down"
        if "editable" in scene.hook:
            hint = "Rename the directory: an editable install is about its very path."
            raise PlaceError(why, code="SEB-4016", hint=hint)
    if not why or "editable" in scene.hook:
        return project
    if scene.compiles:
        ui.say(f"{why}, so a copy of {project} is built")
    try:
        return preflight.copy(project, place.path / "copy")
    except shutil.Error as error:
        _, _, reason = error.args[0][0]
        what = f"{why}, nor can it be copied to be built elsewhere: {reason}"
        raise PlaceError(what, code="SEB-4001", hint=_WRITABLE) from error


def _tree(scene: Scene, place: Workspace, project: str, ground: Path) -> hook.Tree:
    """The stage: shims, the environment that leads to them, and what the supervisor has to know."""
    environ = {**os.environ, **scene.plan.environment}
    real: dict[str, str] = {}
    moved: dict[str, str] = {}
    if scene.cuda:
        home, real = shims.write_cuda_home(place, scene.cuda.home)
        environ |= {"CUDA_HOME": str(home), "CUDA_PATH": str(home)}
        moved[str(home)] = str(scene.cuda.home)
    environ |= cmake.environment(
        scene.cuda.home if scene.cuda else None,
        scene.cuda.archs if scene.cuda else "",
        scene.plan.most_jobs,
        JOB,
        environ,
    )
    shims.write_job(place)
    shims.write_ninja(place, _ninja_config(scene, place, moved, ground))
    if scene.torch and scene.torch.source.borrowed:
        from .toolchain import borrow

        borrow.write_config(scene.torch.source.borrowed, place.path / "borrowed")
        borrow.install_site(place.shims / "site")
        environ = borrow.environment(place.shims / "site", place.path / "borrowed", environ)
    environ |= {
        "PATH": os.pathsep.join([str(place.shims), environ.get("PATH", os.defpath)]),
        "TMPDIR": str(place.path / "tmp"),
        SHIMS_VARIABLE: str(place.shims),
        ID_VARIABLE: place.id,
    }
    prepared = _prepare_cache(scene, place, ground, environ)
    environ |= prepared.variables
    found = neighbours_root(os.environ)
    return hook.Tree(
        environ=environ,
        limits=asdict(Limits(scene.plan.most_jobs, scene.plan.cpus, scene.plan.guard)),
        compiles=asdict(replace(_naming(scene, project, real, ground), launching=prepared.launching)),
        neighbours=str(found or ""),
        progress=scene.settings.progress,
    )


def _prepare_cache(scene: Scene, place: Workspace, ground: Path, environ: Mapping[str, str]) -> caching.Prepared:
    """The compiler cache that was chosen, made ready; without a choice there is none."""
    launcher = scene.plan.launcher
    if launcher is None:
        return caching.Prepared(Launching(), {})
    cache = workspace.cache_root(dict(os.environ))
    kept = json.loads((place.path / "ninja.json").read_text())["store"]
    home = Path(environ["CUDA_HOME"]) if scene.cuda else None
    where = caching.Ground(ground, Path(kept) if kept else None, home, cache)
    return caching.prepare(launcher, place, where, scene.torch, scene.cuda, environ)


def _stage(scene: Scene, place: Workspace, project: str, ground: Path) -> hook.Build:
    return hook.Build(
        **vars(_tree(scene, place, project, ground)),
        hook=scene.hook,
        arguments=_arguments(scene, place),
        backend=scene.settings.inner_backend,
        backend_path=scene.settings.inner_path,
        cwd=str(ground),
        check=checking.order(scene.settings, scene.torch) if scene.compiles else None,
        stamp=_stamp(scene),
    )


def _arguments(scene: Scene, place: Workspace) -> dict[str, Any]:
    """A frontend may give its directories relative to the project's, where the builder need not work; and a wheel
    is to be looked at before it goes to one of them."""
    given = scene.arguments
    paths = {key: str(here() / value) for key, value in given.items() if isinstance(value, str)}
    if _WHEELS in given:
        (place.path / "wheel").mkdir()
        paths[_WHEELS] = str(place.path / "wheel")
    return {**given, **paths}


def _naming(scene: Scene, project: str, real: dict[str, str], ground: Path) -> Naming:
    host = host_compiler({**os.environ, **scene.plan.environment})
    compilers = {"cuda": scene.cuda.build if scene.cuda else "", "host": host}
    return Naming(real, project, str(ground), compilers, scene.plan.free_threads, _fit(scene))


def _fit(scene: Scene) -> Fit:
    """What the compiles have to fit."""
    fit = Fit(free_threaded=bool(sysconfig.get_config_var("Py_GIL_DISABLED")))
    torch, cuda = scene.torch.facts if scene.torch else None, scene.cuda
    if torch:
        headers = torch.package / "include"
        places = (str(headers), str(headers.resolve()))
        fit = replace(fit, torch=f"torch {torch.version}", standard=torch.cxx_standard, includes=places)
    if cuda:
        asked = scene.settings.source("cuda.archs") if scene.settings.cuda.archs else ""
        nvcc = f"nvcc {cuda.build.removeprefix('V')}"
        fit = replace(fit, nvcc=nvcc, known=cuda.known, planned=cuda.archs, asked=asked)
    return fit


def _ninja_config(scene: Scene, place: Workspace, moved: dict[str, str], ground: Path) -> Config:
    project, cache = here(), workspace.cache_root(dict(os.environ))
    lasts = ground == project
    fields = naming(scene.torch, scene.cuda, scene.plan)
    mark = fields["fingerprint"]
    volatile = scene.torch.volatile if scene.torch else ()
    prefixes = {f"SEB_ENV{number}": str(path) for number, path in enumerate(volatile)}
    if sys.exec_prefix != sys.base_exec_prefix:
        # setuptools adds a virtual environment's headers: pip's own, or those of a build environment.
        prefixes["SEB_INCLUDE"] = f"{sys.exec_prefix}/include"
    kept = None
    if lasts or scene.hook != COMMAND:  # else nobody knows what the objects belong to
        kept = store.place(project, scene.hook, scene.settings.build_dir, cache, fields, lasts)
    for path in (kept, scene.cuda.home if scene.cuda else None):
        if path:
            store.mark_used(path, cache)
    return Config(
        ninja=str(shims.real_ninja()),
        socket=str(place.socket),
        workspace=str(place.path),
        prefixes={**prefixes, "SEB_WORKSPACE": str(place.path)},
        moved=moved,
        slots=scene.plan.most_jobs,
        pids=read_machine().pids_free or 0,
        source=str(ground),
        store=str(kept or ""),
        fingerprint=mark,
        may_touch=store.is_passing(project) or not lasts,
    )


@contextlib.contextmanager
def _trusted_modules(scene: Scene, ground: Path) -> Iterator[Callable[[], None]]:
    """What setuptools takes for up to date while the hook runs really is. What is yielded gives the files back
    their own times, if the process is going to end before this does."""
    give_back: Callable[[], None] = _nothing
    project = here()
    if scene.compiles and ground == project and "editable" not in scene.hook:
        mark = naming(scene.torch, scene.cuda, scene.plan)["fingerprint"]
        with contextlib.suppress(OSError):  # a full disk: setuptools will say so
            give_back = objects.distrust_modules(str(project), mark)[1].give_back
    try:
        yield give_back
    finally:
        give_back()


def _nothing() -> None: ...


def naming(torch: Torch | None, cuda: Cuda | None, plan: BuildPlan) -> dict[str, str]:
    """What a build-dir of the project in this directory may be named after, the fingerprint among it."""
    return {
        "project": store.name(here()),
        "python": str(sysconfig.get_config_var("SOABI")),
        "torch": torch.facts.version if torch and torch.facts else "none",
        "cuda": cuda.build.removeprefix("V") if cuda else "none",
        "fingerprint": fingerprint(torch, cuda, {**os.environ, **plan.environment}),
    }
