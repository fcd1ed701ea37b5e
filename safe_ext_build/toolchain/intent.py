"""Whether a project asks for CUDA, told from its files: a compiler is fetched for no other one.

The setup script is not run for it: that costs seconds, and may need the compiler. It is parsed, together with
those of the project's own modules that it imports. What counts are names and strings, not comments or
docstrings: `CUDAExtension`, `CUDA_HOME`, nvcc, a file that ends with `.cu`. A project that describes itself as
made for CUDA does not ask for a compiler, and neither does a `CppExtension`. Where the script uses torch's
helper, and the sources are collected in a way that names none, CUDA sources in the project's directory tell.
Of CMake's and meson's scripts the first one counts, if it turns the language on or looks for the toolkit.
A project that hides it even from that (from a Makefile, say) sets `cuda.provision` to "always".
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from pathlib import Path

_ASKS = re.compile(r"CUDAExtension|CUDA_HOME|\bnvcc\b|\.cu\b|\bwith_cuda\b")
_HELPER = re.compile(r"\bcpp_extension\b")
_OTHERS = {
    "CMakeLists.txt": re.compile(
        r"\b(?:project|enable_language|check_language)\s*\([^)]*\bCUDA\b|\bfind_package\s*\(\s*CUDA", re.IGNORECASE
    ),
    "meson.build": re.compile(r"\b(?:project|add_languages)\s*\([^)]*'cuda'|\bimport\s*\(\s*'(?:unstable-)?cuda'"),
}
_MOST_MODULES = 50
_MOST_DIRECTORIES = 2000
# Never the project's own sources: environments, earlier builds.
_NOT_SOURCES = {"build", "dist", "node_modules", "__pycache__", "site-packages"}


def has_script(project: Path) -> bool:
    """Whether a project has any script that could compile."""
    return any((project / name).is_file() for name in ("setup.py", *_OTHERS))


def asks_for_cuda(project: Path) -> bool:
    """Whether the setup script of a project, or a module of the project that it imports, asks for CUDA."""
    if any(asks.search(_without_comments(project / name)) for name, asks in _OTHERS.items()):
        return True
    words = [word for text in _scripts(project) for word in _words(text)]
    if any(_ASKS.search(word) for word in words):
        return True
    return any(_HELPER.search(word) for word in words) and _has_cuda_sources(project)


def _without_comments(path: Path) -> str:
    try:
        return re.sub("#.*", "", path.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return ""


def _scripts(project: Path) -> Iterator[str]:
    """The texts of the setup script and, as far as they are the project's, of the modules behind it."""
    queue, seen = [project / "setup.py"], set[Path]()
    while queue and len(seen) < _MOST_MODULES:
        path = queue.pop(0)
        if path in seen:
            continue
        seen.add(path)
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        yield text
        queue += _imported(text, path, project)


def _parse(text: str) -> ast.AST | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError):
        return None


def _imported(text: str, path: Path, project: Path) -> Iterator[Path]:
    """The project's modules that the script in `path` imports, by any spelling."""
    tree = _parse(text)
    for node in ast.walk(tree) if tree else ():
        if isinstance(node, ast.Import):
            places = [_place(project, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            bases = [project, *path.parents]
            module = _place(bases[min(node.level, len(bases) - 1)], node.module or "")
            places = [module, *(module / alias.name for alias in node.names)]
        else:
            continue
        for place in places:
            yield from (file for file in (Path(f"{place}.py"), place / "__init__.py") if file.is_file())


def _place(base: Path, module: str) -> Path:
    return base.joinpath(*module.split("."))


def _words(text: str) -> Iterator[str]:
    """The names and strings of a script; a text that cannot be parsed counts as a whole."""
    tree = _parse(text)
    if tree is None:
        yield text
        return
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.alias):
            yield node.name
        elif isinstance(node, ast.keyword):
            yield node.arg or ""
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value


def _has_cuda_sources(project: Path) -> bool:
    for count, (_, directories, files) in enumerate(os.walk(project)):
        if any(name.endswith(".cu") for name in files):
            return True
        directories[:] = [name for name in directories if name[0] != "." and name not in _NOT_SOURCES]
        if count > _MOST_DIRECTORIES:
            return False
    return False
