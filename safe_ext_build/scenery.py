"""What surrounds the project's code while it builds: shims, variables, a toolkit; and what its compiles are."""

from __future__ import annotations

import json
import os
import shutil
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from . import caching, checking, preflight, settings, stamp, store, ui
from .apart import Apart
from .here import here
from .launcher.call import Launching
from .machine import read_machine
from .machine.neighbours import neighbours_root
from .scene import COMMAND, WHEELS, Scene, naming
from .schedule.broker import Naming
from .schedule.fit import Fit
from .schedule.ninjafile import JOB, can_name
from .schedule.policy import Limits
from .schedule.shim import Config
from .stamp import Stamp
from .supervise import hook, shims, workspace
from .supervise.processes import ID_VARIABLE
from .supervise.workspace import Workspace
from .toolchain import cmake
from .toolchain.fingerprint import host_compiler

SHIMS_VARIABLE = "SAFE_EXT_BUILD_SHIMS"


def tree(scene: Scene, place: Workspace, project: str, ground: Path) -> hook.Tree:
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
    return caching.prepare(launcher, scene.plan.farm, place, where, scene.torch, scene.cuda, environ)


def build(scene: Scene, place: Workspace, project: str, ground: Path) -> hook.Build:
    return hook.Build(
        **vars(tree(scene, place, project, ground)),
        hook=scene.hook,
        arguments=_arguments(scene, place),
        backend=scene.settings.inner_backend,
        backend_path=scene.settings.inner_path,
        cwd=str(ground),
        check=checking.order(scene.settings, scene.torch) if scene.compiles else None,
        stamp=_stamp(scene),
        apart=_apart(scene, place) if ground == here() else None,
    )


def _apart(scene: Scene, place: Workspace) -> Apart | None:
    """Where setuptools writes when the project's directory is to stay as it is: objects where the next build finds
    them, the rest where it goes with this one."""
    if not os.environ.get(settings.APART):
        return None
    metadata = place.path / "metadata"
    metadata.mkdir()
    cache, fields = workspace.cache_root(dict(os.environ)), naming(scene.torch, scene.cuda, scene.plan)
    kept = store.of_directory(here(), cache, fields) / "build"
    if not (scene.compiles and can_name(str(kept))):
        return Apart(str(place.path / "build"), str(metadata))
    try:
        kept.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(kept).free
        why = "" if free >= preflight.TORCH_NEEDS else f"{free >> 20} MiB free there"
    except OSError as error:  # a cache that cannot be used is no reason to fail
        why = error.strerror or str(error)
    if why:
        ui.warn(f"no objects are kept in {kept}: {why}")
    store.mark_used(kept, cache)
    return Apart(str(place.path / "build" if why else kept), str(metadata))


def _arguments(scene: Scene, place: Workspace) -> dict[str, Any]:
    """A frontend may give its directories relative to the project's, where the builder need not work; and a wheel
    is to be looked at before it goes to one of them."""
    given = scene.arguments
    paths = {key: str(here() / value) for key, value in given.items() if isinstance(value, str)}
    if WHEELS in given:
        (place.path / "wheel").mkdir()
        paths[WHEELS] = str(place.path / "wheel")
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
        slots=scene.plan.most_jobs + scene.plan.slots,
        pids=read_machine().pids_free or 0,
        source=str(ground),
        store=str(kept or ""),
        fingerprint=mark,
        may_touch=store.is_passing(project) or not lasts,
    )


def _stamp(scene: Scene) -> Stamp:
    facts, wanted = scene.torch.facts if scene.torch else None, scene.settings.torch
    if facts is None or scene.hook not in stamp.HOOKS:
        return Stamp()
    return Stamp(
        stamp.requirement(facts.version) if wanted.pin else "",
        stamp.label(facts.version, facts.cuda, facts.hip) if wanted.label else "",
    )


def with_nvcc_on_path(tree: hook.Tree) -> hook.Tree:
    """A Makefile may call nvcc by its name."""
    path = os.pathsep.join([str(Path(tree.environ["CUDA_HOME"], "bin")), tree.environ["PATH"]])
    return replace(tree, environ={**tree.environ, "PATH": path})
