"""Sets the stage for one supervised hook: workspace, shims, the builder's environment; and clears it away."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import events, store, ui
from .machine import read_machine
from .plan import GIB, BuildPlan
from .schedule.shim import Config
from .settings import Settings
from .supervise import hook, shims, workspace
from .supervise.processes import ID_VARIABLE
from .supervise.workspace import Workspace
from .toolchain import borrow
from .toolchain.find import Cuda, Torch
from .toolchain.fingerprint import fingerprint

SHIMS_VARIABLE = "SAFE_EXT_BUILD_SHIMS"


@dataclass(frozen=True)
class Scene:
    """A hook of the inner backend, and all that was decided for it."""

    hook: str
    arguments: dict[str, Any]
    settings: Settings
    torch: Torch
    cuda: Cuda | None
    plan: BuildPlan


def run(scene: Scene) -> Any:
    """Run a hook in a supervised builder; returns its result. Raises SafeExtBuildError."""
    root = scene.settings.workspace.dir or workspace.default_root(dict(os.environ))
    with hook.Signals() as signals:
        place = workspace.create(root, _shim_roots())
        try:
            result = hook.run(_stage(scene, place), place, signals)
            _summarize(place)
            return result
        finally:
            place.remove()


def _shim_roots() -> list[Path]:
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    roots = [Path(runtime) / "safe-ext-build"] if runtime else []
    return [*roots, workspace.cache_root(dict(os.environ)) / "shims"]


def _stage(scene: Scene, place: Workspace) -> hook.Build:
    environ = {**os.environ, **scene.plan.environment}
    real: dict[str, str] = {}
    moved: dict[str, str] = {}
    if scene.cuda:
        home, real = shims.write_cuda_home(place, scene.cuda.home)
        environ |= {"CUDA_HOME": str(home), "CUDA_PATH": str(home)}
        moved[str(home)] = str(scene.cuda.home)
    shims.write_job(place)
    shims.write_ninja(place, _ninja_config(scene, place, moved))
    if scene.torch.source.borrowed:
        borrow.write_config(scene.torch.source.borrowed, place.path / "borrowed")
        borrow.install_site(place.shims / "site")
        environ = borrow.environment(place.shims / "site", place.path / "borrowed", environ)
    environ |= {
        "PATH": os.pathsep.join([str(place.shims), environ.get("PATH", os.defpath)]),
        "TMPDIR": str(place.path / "tmp"),
        SHIMS_VARIABLE: str(place.shims),
        ID_VARIABLE: place.id,
    }
    return hook.Build(scene.hook, scene.arguments, environ, scene.plan.jobs, scene.plan.cpus, real)


def _ninja_config(scene: Scene, place: Workspace, moved: dict[str, str]) -> Config:
    project, cache = Path.cwd(), workspace.cache_root(dict(os.environ))
    mark = fingerprint(scene.torch, scene.cuda, os.environ)
    prefixes = {f"SEB_ENV{number}": str(path) for number, path in enumerate(scene.torch.volatile)}
    if sys.exec_prefix != sys.base_exec_prefix:
        # setuptools adds a virtual environment's headers: pip's own, or those of a build environment.
        prefixes["SEB_INCLUDE"] = f"{sys.exec_prefix}/include"
    return Config(
        ninja=str(shims.real_ninja()),
        socket=str(place.socket),
        workspace=str(place.path),
        prefixes={**prefixes, "SEB_WORKSPACE": str(place.path)},
        moved=moved,
        slots=scene.plan.jobs,
        pids=read_machine().pids_free or 0,
        source=str(project),
        store=str(store.place(project, scene.hook, scene.settings.build_dir, cache, mark) or ""),
        fingerprint=mark,
        may_touch=store.is_unpacked_sdist(project),
    )


def _summarize(place: Workspace) -> None:
    """What the compiles cost, in one line."""
    jobs = [event for event in events.read(place.path / "events.jsonl") if event.kind == "job"]
    done = [event for event in jobs if event.outcome == "compiled"]
    if not done:
        return
    largest = max(done, key=lambda event: event.peak)
    elapsed = max(event.time for event in jobs) - min(event.time - event.seconds for event in jobs)
    again = sum(event.outcome == "memory" for event in jobs)
    ui.say(
        f"compiled {len(done)} {'object' if len(done) == 1 else 'objects'} in {elapsed:.0f} s "
        f"({sum(event.cpu for event in jobs):.0f} CPU s, peak {largest.peak / GIB:.1f} GiB "
        f"in {Path(largest.source).name}" + (f", {again} killed for memory and run again)" if again else ")")
    )
