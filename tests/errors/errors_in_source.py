"""Where our own code makes errors, read from its syntax."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "safe_ext_build"
DATA = ("catalogue", "_errors_docs")
CODE = re.compile(r"SEB-\d{4}")
GIVEN = re.compile(r"^SEB-\d{4}$|(?<=safe-ext-build: error\[)SEB-\d{4}(?=\]: [^.])")


@dataclass(frozen=True)
class Made:
    """An error that is constructed: where, and its `code` argument; None where it has none."""

    place: str
    function: str
    code: ast.expr | None

    @property
    def literals(self) -> list[str] | None:
        """The ids that it may have; None where they are not written out."""
        if isinstance(self.code, ast.IfExp):
            branches: list[ast.expr] = [self.code.body, self.code.orelse]
        else:
            branches = [self.code] if self.code else []
        values = [branch.value for branch in branches if isinstance(branch, ast.Constant)]
        return [str(value) for value in values] if branches and len(values) == len(branches) else None


def trees() -> Iterator[tuple[str, ast.Module]]:
    """Our modules by their dotted names, without the catalogue itself."""
    for path in sorted(PACKAGE.rglob("*.py")):
        name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        if name not in DATA:
            yield name, ast.parse(path.read_text(encoding="utf-8"))


def error_classes() -> set[str]:
    """SafeExtBuildError and all that derives from it."""
    bases = {
        node.name: {base.id for base in node.bases if isinstance(base, ast.Name)}
        for _, tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }
    found = {"SafeExtBuildError"}
    while more := {name for name, above in bases.items() if above & found} - found:
        found |= more
    return found


def made() -> Iterator[Made]:
    """Every error that is constructed anywhere."""
    classes = error_classes()
    for name, tree in trees():
        for function, call in _calls(tree, ""):
            if isinstance(call.func, ast.Name) and call.func.id in classes:
                code = next((one.value for one in call.keywords if one.arg == "code"), None)
                yield Made(f"{name}:{call.lineno}", f"{name}.{function}", code)


def _calls(node: ast.AST, function: str) -> Iterator[tuple[str, ast.Call]]:
    for child in ast.iter_child_nodes(node):
        inside = child.name if isinstance(child, ast.FunctionDef) else function
        if isinstance(child, ast.Call):
            yield inside, child
        yield from _calls(child, inside)


def used() -> set[str]:
    """Every id that our code gives an error, or writes before one itself; an example in a text is none."""
    found: set[str] = set()
    for _, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant):
                text = node.value.decode() if isinstance(node.value, bytes) else node.value
                found.update(GIVEN.findall(text) if isinstance(text, str) else [])
    return found
