"""The PEP 517 and PEP 660 hooks: the inner backend's own (setuptools', if no other is named), under supervision.

Frontends import this module for every hook that they call, so nothing is imported before it is needed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .settings import Settings

ConfigSettings = dict[str, Any] | None

__all__ = [
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_wheel",
]


def get_requires_for_build_wheel(config_settings: ConfigSettings = None) -> list[str]:
    requires = _get_requires("get_requires_for_build_wheel", config_settings, compiles=True)
    return [*requires, *_undeclared(_project())]


def get_requires_for_build_sdist(config_settings: ConfigSettings = None) -> list[str]:
    return _get_requires("get_requires_for_build_sdist", config_settings)


def prepare_metadata_for_build_wheel(metadata_directory: str, config_settings: ConfigSettings = None) -> str:
    return _prepare("prepare_metadata_for_build_wheel", "build_wheel", metadata_directory, config_settings)


def build_wheel(
    wheel_directory: str, config_settings: ConfigSettings = None, metadata_directory: str | None = None
) -> str:
    return _build("build_wheel", wheel_directory, config_settings, metadata_directory)


def build_sdist(sdist_directory: str, config_settings: ConfigSettings = None) -> str:
    return _run("build_sdist", config_settings, sdist_directory=sdist_directory)


def _get_requires_for_build_editable(config_settings: ConfigSettings = None) -> list[str]:
    requires = _get_requires("get_requires_for_build_editable", config_settings, compiles=True)
    return [*requires, *_undeclared(_project())]


def _prepare_metadata_for_build_editable(metadata_directory: str, config_settings: ConfigSettings = None) -> str:
    return _prepare("prepare_metadata_for_build_editable", "build_editable", metadata_directory, config_settings)


def _build_editable(
    wheel_directory: str, config_settings: ConfigSettings = None, metadata_directory: str | None = None
) -> str:
    return _build("build_editable", wheel_directory, config_settings, metadata_directory)


def __getattr__(name: str) -> Callable[..., Any]:
    """The editable hooks are optional: setuptools leaves them out when asked for its older kind of editable."""
    hooks: dict[str, Callable[..., Any]] = {
        "get_requires_for_build_editable": _get_requires_for_build_editable,
        "prepare_metadata_for_build_editable": _prepare_metadata_for_build_editable,
        "build_editable": _build_editable,
    }
    if name in hooks and "legacy-editable" not in os.environ.get("SETUPTOOLS_ENABLE_FEATURES", ""):
        return hooks[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _get_requires(hook: str, config_settings: ConfigSettings, compiles: bool = False) -> list[str]:
    settings, rest = _load(config_settings)
    compiler = _compiler_requirements(settings) if compiles else []
    if not _has_requires(settings):
        return compiler
    from . import driver

    result: list[str] | None = driver.run(driver.Task(hook, {"config_settings": rest}, optional=True), settings)
    return [*(result or []), *compiler]


def _compiler_requirements(settings: Settings) -> list[str]:
    """The wheels of a CUDA compiler, where the project asks for one and no toolkit here will do."""
    from .toolchain.intent import asks_for_cuda, has_script

    asks = has_script if settings.cuda.provision == "always" else asks_for_cuda
    if not asks(_project()):
        return []
    from . import driver

    return driver.compiler_requirements(settings)


def _has_requires(settings: Settings) -> bool:
    """setuptools would run setup.py to learn of `setup_requires`, which hardly any project has any more."""
    if not settings.uses_setuptools:
        return True
    return _mentions_setup_requires(_project()) and _torch_is_there(settings)


def _prepare(hook: str, builds: str, metadata_directory: str, config_settings: ConfigSettings) -> str:
    """A backend need not have this hook. The metadata is then that of the wheel, which is kept."""
    settings, rest = _load(config_settings)
    from . import driver, prebuilt

    arguments = {"metadata_directory": metadata_directory, "config_settings": rest}
    result: str | None = driver.run(driver.Task(hook, arguments, optional=True), settings)
    if result is None:
        wheel = _run(builds, config_settings, compiles=True, wheel_directory=metadata_directory)
        result = prebuilt.keep(Path(metadata_directory), wheel, builds)
    return result


def _build(
    hook: str, wheel_directory: str, config_settings: ConfigSettings, metadata_directory: str | None
) -> str:
    from . import prebuilt

    if metadata_directory and (wheel := prebuilt.take(Path(metadata_directory), Path(wheel_directory), hook)):
        return wheel
    directories = {"wheel_directory": wheel_directory, "metadata_directory": metadata_directory}
    return _run(hook, config_settings, compiles=True, **directories)


def _run(hook: str, config_settings: ConfigSettings, compiles: bool = False, **arguments: str | None) -> str:
    settings, rest = _load(config_settings)
    from . import driver

    task = driver.Task(hook, {**arguments, "config_settings": rest}, compiles)
    result: str = driver.run(task, settings)
    return result


def _load(config_settings: ConfigSettings) -> tuple[Settings, dict[str, Any] | None]:
    from . import settings, ui
    from .errors import SafeExtBuildError

    try:
        loaded, rest = settings.load(_project(), config_settings, os.environ)
    except SafeExtBuildError as error:
        ui.show_error(error)
        raise SystemExit(1) from None
    return loaded, rest or None


def _project() -> Path:
    """Where frontends run hooks: in the project's directory. Raises PlaceError."""
    from .here import here

    return here()


def _mentions_setup_requires(project: Path) -> bool:
    for name in ("setup.py", "setup.cfg"):
        try:
            if re.search(r"\bsetup_requires\b", (project / name).read_text(errors="replace")):
                return True
        except OSError:
            continue
    return False


def _undeclared(project: Path) -> list[str]:
    """What setup scripts import without declaring it, since every build used to have it: up to 70.0, setuptools
    itself asked for wheel."""
    try:
        script = (project / "setup.py").read_text(errors="replace")
    except OSError:
        return []
    return ["wheel"] if re.search(r"^\s*(?:from|import)\s+wheel\b", script, re.MULTILINE) else []


def _torch_is_there(settings: Settings) -> bool:
    """Without torch, a setup script that imports it would only fail here, before it could be installed."""
    from .driver import sheltered
    from .errors import TorchError
    from .toolchain import find

    try:
        with sheltered(settings):
            return find.find_torch(settings, os.getppid(), os.environ).source.kind != "none"
    except TorchError:
        return True  # the hook meets it again, and says so
