"""`safe-ext-build wheel`: builds any package with our backend in place of its own, which runs inside ours."""

from __future__ import annotations

import argparse
import os
import re
from pathlib import Path
from typing import Any

from .. import preflight, settings, ui
from ..delivery import deliver_or_keep, try_out
from ..errors import BuildFailed, SafeExtBuildError
from ..supervise import workspace
from . import fetch, session, unpack
from .environment import BuildEnvironment, own_requirements
from .project import OURS, Project
from .target import Target, find_target

_EPILOG = """
pip's own configuration (pip.conf, PIP_INDEX_URL, PIP_FIND_LINKS and the like) says where packages come from.
Settings are given as -C KEY=VALUE or in the environment, as for any build; what is no setting goes to the
package's own backend. What the pyproject.toml of a package that is unpacked says about where to write
(report.path, workspace.dir, build-dir) is not used; that of a directory which you name is.
"""
_URL = re.compile(r"([^/]*@\s*)?[A-Za-z][\w+.-]*://|git@|git\+")
_ANOTHER = "Name another directory: --out DIR."


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Declare the command."""
    what = "build a wheel of any package, unmodified, for the torch of an environment"
    parser = commands.add_parser("wheel", help=what, description=what.capitalize() + ".", epilog=_EPILOG)
    parser.add_argument("package", metavar="PACKAGE", help="NAME, NAME==VERSION, an sdist, or a directory (./DIR)")
    parser.add_argument("-o", "--out", default="dist", metavar="DIR", help="where the wheel goes (default: dist)")
    parser.add_argument("--python", metavar="PYTHON", help="the Python of the environment that will import it")
    repeated: dict[str, Any] = {"action": "append", "default": []}
    what = "installed for the build, too: what a setup script imports and does not declare (repeatable)"
    parser.add_argument("--with", dest="extra", metavar="REQUIREMENT", help=what, **repeated)
    what = "a setting, or an option of the package's own backend (repeatable)"
    parser.add_argument("-C", "--config-setting", dest="options", metavar="KEY=VALUE", help=what, **repeated)
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Build the wheel; the package's own failure, which has been shown, is a status of 1."""
    options = read_options(arguments.options)
    out = Path(arguments.out)
    if not arguments.out:
        hint = "Name a directory, which need not exist; is a variable empty?"
        raise SafeExtBuildError("--out is empty", code="SEB-8004", hint=hint)
    if (out.is_symlink() or out.exists()) and not out.is_dir():
        hint = "Name a directory, which need not exist."
        raise SafeExtBuildError(f"--out {out} is no directory", code="SEB-8004", hint=hint)
    _refuse_url(arguments.package)
    try_out(out, _ANOTHER)
    target = find_target(arguments.python)
    with_torch = target.environment.torch is not None
    preflight.check_place(session.root(), preflight.ENVIRONMENT_NEEDS, with_torch)
    with session.scratch() as place:
        source = _source(arguments.package, target, place)
        project = Project.read(source)
        options = project.with_backend(options, os.environ)
        is_unpacked = source.is_relative_to(place)
        environ = {**os.environ, settings.FOREIGN if is_unpacked else settings.APART: "1"}
        if is_unpacked:
            for said in settings.places(source):
                ui.warn(f"{said} is not used: a package that was unpacked here does not say where we write")
        chosen, _ = settings.load(source, options, environ)
        environment = BuildEnvironment.make(place / "environment", target, chosen.torch.match)
        environment.install([*own_requirements(), *project.requires, *arguments.extra])
        hooks = session.Hooks(source, OURS, environment.python, environment.variables(environ), place)
        built = _build(hooks, options, environment, place / "wheel")
        if built is None:
            return 1
        cache = workspace.cache_root(dict(os.environ))
        ui.say(f"built {deliver_or_keep(built, out, _ANOTHER, cache)}")
    return 0


def read_options(given: list[str]) -> dict[str, Any]:
    """`-C KEY=VALUE` as frontends hand it to a backend: what is given twice becomes a list."""
    result: dict[str, Any] = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or not key:
            what = "value" if key else "name before the ="
            hint = f"Write -C {key or 'KEY'}=VALUE."
            raise SafeExtBuildError(f"-C {text} has no {what}", code="SEB-1010", hint=hint)
        before = result.get(key)
        many = [*(before if isinstance(before, list) else [before]), value]
        result[key] = value if before is None else many
    return result


def _refuse_url(package: str) -> None:
    """What pip takes and we do not: it would be called a path that does not exist."""
    if not _URL.match(package) or Path(package).exists():
        return
    is_clone = package.startswith("git") or package.endswith(".git")
    hint = "Download it first, and name the file: safe-ext-build wheel ./FILE"
    if is_clone:
        hint = "Clone it first (git clone --recursive), and name the directory: safe-ext-build wheel ./DIRECTORY"
    raise fetch.FetchError(f"{package} is a URL, and URLs are not fetched", code="SEB-8102", hint=hint)


def _source(package: str, target: Target, place: Path) -> Path:
    """The directory that holds the package's source."""
    path = Path(package).expanduser()
    if looks_like_path(package) and path.is_dir():
        return path.resolve()
    if looks_like_path(package) or path.is_file():
        return unpack.unpack(path, place / "source")
    return unpack.unpack(fetch.fetch(package, target, place / "download"), place / "source")


def looks_like_path(package: str) -> bool:
    """As pip tells it: a bare word is a name, even where a directory of that name lies."""
    return os.sep in package or package.startswith((".", "~")) or package.endswith(unpack.SUFFIXES)


def _build(
    hooks: session.Hooks, options: dict[str, Any], environment: BuildEnvironment, wheels: Path
) -> Path | None:
    """Run the two hooks; None when one has failed, and has said why."""
    wheels.mkdir()
    try:
        more = hooks.call("get_requires_for_build_wheel", config_settings=options)
        environment.install(more)
        name: str = hooks.call("build_wheel", wheel_directory=str(wheels), config_settings=options)
    except session.HookFailed as error:
        if error.reason:
            hint = "Start it again: finished objects are kept and used again."
            raise BuildFailed(error.reason, code="SEB-5003", hint=hint) from None
        return None
    return wheels / name
