"""Sets the stage for one supervised hook: workspace, shims, the builder's environment; and clears it away."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from . import events, store, ui
from .machine import read_machine
from .machine.neighbours import neighbours_root
from .plan import BuildPlan
from .report.summary import summarize
from .schedule.broker import Naming
from .schedule.forecast import Curve
from .schedule.history import History
from .schedule.history_key import scope
from .schedule.ninjafile import JOB
from .schedule.policy import Limits
from .schedule.shim import Config
from .settings import Settings
from .supervise import hook, shims, workspace
from .supervise.processes import ID_VARIABLE
from .supervise.protocol import HISTORY
from .supervise.workspace import Workspace
from .toolchain import cmake
from .toolchain.find import Cuda, Torch
from .toolchain.fingerprint import fingerprint, host_compiler

SHIMS_VARIABLE = "SAFE_EXT_BUILD_SHIMS"


@dataclass(frozen=True)
class Scene:
    """A hook of the inner backend, and all that was decided for it."""

    hook: str
    arguments: dict[str, Any]
    settings: Settings
    torch: Torch | None
    cuda: Cuda | None
    plan: BuildPlan
    compiles: bool


def run(scene: Scene) -> Any:
    """Run a hook in a supervised builder; returns its result. Raises SafeExtBuildError."""
    hook.leave_if_orphaned()
    cache = workspace.cache_root(dict(os.environ))
    root = scene.settings.workspace.dir or workspace.default_root(dict(os.environ))
    with hook.Signals() as signals:
        place = workspace.create(root, shim_roots())
        project = store.name(Path.cwd())
        history = History(cache / "history.sqlite")
        try:
            with workspace.writing(place.path):
                if scene.compiles:
                    _write_history(history.lookup_all(scope(project)), place)
                build = _stage(scene, place, project)
            return hook.run(build, place, signals)
        finally:
            seen = list(events.read(place.path / "events.jsonl"))
            place.remove()
            if line := summarize(seen):
                ui.say(line)
            history.record((one.entry, Curve(one.alone, one.curve)) for one in seen if one.outcome == "compiled")


def _write_history(known: dict[str, Curve], place: Workspace) -> None:
    text = json.dumps({entry: [curve.seconds, *curve.points] for entry, curve in known.items()})
    (place.path / HISTORY).write_text(text)


def shim_roots() -> list[Path]:
    """Where shims go when the workspace cannot hold them, best first."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    roots = [Path(runtime) / "safe-ext-build"] if runtime else []
    return [*roots, workspace.cache_root(dict(os.environ)) / "shims"]


def _stage(scene: Scene, place: Workspace, project: str) -> hook.Build:
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
    shims.write_ninja(place, _ninja_config(scene, place, moved))
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
    found = neighbours_root(os.environ)
    return hook.Build(
        hook=scene.hook,
        arguments=scene.arguments,
        backend=scene.settings.inner_backend,
        backend_path=scene.settings.inner_path,
        environ=environ,
        limits=asdict(Limits(scene.plan.most_jobs, scene.plan.cpus, scene.plan.guard)),
        compiles=asdict(_naming(scene, project, real)),
        neighbours=str(found or ""),
    )


def _naming(scene: Scene, project: str, real: dict[str, str]) -> Naming:
    compilers = {"cuda": scene.cuda.build if scene.cuda else "", "host": host_compiler(os.environ)}
    return Naming(real, project, str(Path.cwd()), compilers, scene.plan.free_threads)


def _ninja_config(scene: Scene, place: Workspace, moved: dict[str, str]) -> Config:
    project, cache = Path.cwd(), workspace.cache_root(dict(os.environ))
    mark = fingerprint(scene.torch, scene.cuda, os.environ)
    volatile = scene.torch.volatile if scene.torch else ()
    prefixes = {f"SEB_ENV{number}": str(path) for number, path in enumerate(volatile)}
    if sys.exec_prefix != sys.base_exec_prefix:
        # setuptools adds a virtual environment's headers: pip's own, or those of a build environment.
        prefixes["SEB_INCLUDE"] = f"{sys.exec_prefix}/include"
    return Config(
        ninja=str(shims.real_ninja()),
        socket=str(place.socket),
        workspace=str(place.path),
        prefixes={**prefixes, "SEB_WORKSPACE": str(place.path)},
        moved=moved,
        slots=scene.plan.most_jobs,
        pids=read_machine().pids_free or 0,
        source=str(project),
        store=str(store.place(project, scene.hook, scene.settings.build_dir, cache, mark) or ""),
        fingerprint=mark,
        may_touch=store.is_unpacked_sdist(project),
    )
