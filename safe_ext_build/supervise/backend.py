"""Finds the inner backend as PEP 517 says a frontend does. Runs in the builder: this imports project code."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import BuildFailed


def load(name: str, path: Sequence[str], project: Path) -> Any:
    """The object that holds the hooks. `name` is `module` or `module:object`, `path` are the directories of an
    in-tree backend, relative to the project. Raises BuildFailed when it is not there."""
    places = [(project / entry).resolve() for entry in path]
    sys.path[:0] = map(str, places)
    module_name, _, attributes = name.partition(":")
    module = _imported(module_name)
    found = Path(module.__file__ or "").resolve()
    if places and not any(place in found.parents for place in places):
        raise BuildFailed(
            f"the backend {module_name} lies in {found.parent}, not in backend-path ({', '.join(path)})",
            code="SEB-1014",
            hint="Name the directory that holds it in backend-path, or leave backend-path out if it is installed.",
        )
    result: Any = module
    for attribute in filter(None, attributes.split(".")):
        result = getattr(result, attribute)
    return result


def hook_hint(backend: str) -> str:
    """What to do when a backend does not have the hook that is asked for."""
    return f"Ask for a wheel instead of an editable install, or for a newer {backend.partition('.')[0]}."


def _imported(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and not f"{name}.".startswith(f"{error.name}."):
            raise  # it is there, and misses something else
        raise BuildFailed(
            f"the backend {name} is not installed where the build runs",
            code="SEB-1015",
            hint=f"List the package that brings {name} in build-system.requires (without isolation: install it).",
        ) from None
