"""What a build would end with once its own code runs, as far as that can be told without running any of it."""

from __future__ import annotations

import ast
import importlib.util
import warnings
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from ..advice import GET_TORCH
from ..errors import BuildFailed, SafeExtBuildError
from ..settings import Settings
from ..toolchain.find import Torch
from .project import Project

# Who brings no build backend but its own: with others in `requires`, we cannot know what they would bring.
_NO_BACKENDS = {"safe-ext-build", "setuptools", "wheel", "torch", "numpy", "ninja", "packaging", "pybind11"}


def foreseen(project: Project, chosen: Settings, torch: Torch | None) -> SafeExtBuildError | None:
    """The error that the build would surely end with before its first compile; None where none is known."""
    return _no_backend(project, chosen) or _no_torch(project, chosen, torch)


def _no_backend(project: Project, chosen: Settings) -> SafeExtBuildError | None:
    root = chosen.inner_backend.partition(":")[0].partition(".")[0]
    places = [project.source / entry for entry in chosen.inner_path]
    in_tree = any((place / root).exists() or (place / f"{root}.py").exists() for place in places)
    if in_tree or not names(project) <= _NO_BACKENDS or _is_installed(root):
        return None
    what = f"the backend {chosen.inner_backend} is not installed, and nothing in build-system.requires brings it"
    hint = "Name another backend, or list the package that brings it in build-system.requires."
    return BuildFailed(what, code="SEB-1015", hint=hint)


def names(project: Project) -> set[str]:
    """The packages that the project requires for its build."""
    found = set()
    for text in project.requires:
        try:
            found.add(str(canonicalize_name(Requirement(text).name)))
        except InvalidRequirement:
            found.add(text)
    return found


def _is_installed(root: str) -> bool:
    try:
        return importlib.util.find_spec(root) is not None
    except (ImportError, ValueError):
        return False


def _no_torch(project: Project, chosen: Settings, torch: Torch | None) -> SafeExtBuildError | None:
    if torch is None or torch.source.kind != "none" or not chosen.uses_setuptools or "torch" in names(project):
        return None
    line = imports_torch(project.source / "setup.py")
    if not line:
        return None
    what = f"setup.py imports torch (line {line}), and there is {torch.source.line}"
    return BuildFailed(what, code="SEB-6109", hint=GET_TORCH)


def imports_torch(script: Path) -> int:
    """The line in which a script imports torch whatever comes; 0 where none does, or only under a condition."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(script.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return 0
    for node in tree.body:
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and not node.level:
            modules = [node.module or ""]
        if any(module.partition(".")[0] == "torch" for module in modules):
            return node.lineno
    return 0
