"""The rooms of the house: imports point down only, and importing the front door costs nothing."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "safe_ext_build"
NAME = PACKAGE.name

# From the ground up. A module belongs to the longest name that it has here; what is equal may import each other.
FLOORS: dict[str, int] = {
    **dict.fromkeys(("errors", "ui", "events", "here", "probe", "shortage", "settings", "_settings_docs"), 0),
    **dict.fromkeys(("catalogue", "_errors_docs", ""), 0),
    **dict.fromkeys(("machine", "toolchain", "verify", "stamp", "apart", "launcher"), 1),
    **dict.fromkeys(("farm", "delivery"), 2),
    **dict.fromkeys(("plan", "advice"), 3),
    "schedule": 4,
    "supervise": 5,
    # Where each build's objects are kept and what it has cost, the stage, and one hook from beginning to end.
    **dict.fromkeys(("preflight", "store", "report", "checking", "caching"), 6),
    "scene": 7,
    "scenery": 8,
    "staging": 9,
    "driver": 10,
    "prebuilt": 11,
    "build_meta": 12,
    "cli": 12,
    "__main__": 13,
}
# These start fast, or run under `python -I -S -E`: they find nothing but the standard library and each other.
_IN_SUPERVISE = (
    *("supervisor", "guard", "linux", "processes", "protocol", "workspace", "memory"),
    *("job_server", "connection", "usage", "stall", "neighbourhood", "reasons"),
    *("status", "heartbeat", "progress", "terminal", "view", "cache_server", "farm", "lookout"),
)
_IN_SCHEDULE = (
    *("broker", "command", "fit", "policy", "claims", "relief", "away", "forecast", "history_key", "outcome"),
    *("job", "shim", "spelling", "ninjafile", "objects"),
)
BARE = (
    *(f"supervise.{name}" for name in _IN_SUPERVISE),
    *(f"schedule.{name}" for name in _IN_SCHEDULE),
    *(f"launcher.{name}" for name in ("call", "dryrun", "names", "redact", "storage", "verdict")),
    *("machine", "events", "errors", "probe", "shortage", "ui"),
)


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def dotted(path: Path) -> str:
    """`schedule.shim` for schedule/shim.py; "" for the package itself."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path, *, deferred: bool) -> Iterator[str]:
    """The absolute names of what a module imports; without `deferred`, only of what it imports at once."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree) if deferred else _at_import(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(path, node)
            yield from (f"{base}.{alias.name}" if _is_module(base, alias.name) else base for alias in node.names)


def _at_import(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        is_for_types = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test)
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) and not is_for_types:
            yield child
            yield from _at_import(child)


def _absolute(path: Path, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    package = (NAME, *path.relative_to(PACKAGE).parent.parts)
    base = package[: len(package) - (node.level - 1)]
    return ".".join((*base, *filter(None, [node.module])))


def _is_module(base: str, name: str) -> bool:
    place = PACKAGE.parent.joinpath(*base.split("."))
    return base.partition(".")[0] == NAME and ((place / f"{name}.py").exists() or (place / name).is_dir())


def inside(name: str) -> str | None:
    """The name below our package, or None where it is not ours."""
    if name.partition(".")[0] != NAME:
        return None
    return name.removeprefix(NAME).removeprefix(".")


def room(name: str) -> str:
    return name if name in FLOORS else name.partition(".")[0]


@pytest.mark.parametrize("path", modules(), ids=dotted)
def test_imports_point_down(path: Path) -> None:
    here = room(dotted(path))
    assert here in FLOORS, f"{here} has no floor: say in FLOORS where it belongs"
    for name in imports(path, deferred=True):
        there = inside(name)
        if there is None or room(there) == here:
            continue
        assert FLOORS[room(there)] <= FLOORS[here], f"{dotted(path)} imports {there}, which is above it"
        assert FLOORS[room(there)] == 0 or FLOORS[room(there)] < FLOORS[here], f"{dotted(path)} imports {there}"


def bare_modules() -> list[Path]:
    """The bare modules, and all of ours that is imported together with them."""
    paths = {dotted(path): path for path in modules()}
    found: set[str] = set()
    queue = [name for name in paths if name in BARE or room(name) in BARE]
    while queue:
        name = queue.pop()
        if name in paths and name not in found:
            found.add(name)
            queue += [
                there for other in imports(paths[name], deferred=False) if (there := inside(other)) is not None
            ]
    return [paths[name] for name in sorted(found)]


@pytest.mark.parametrize("path", bare_modules(), ids=dotted)
def test_bare_modules_import_the_standard_library_only(path: Path) -> None:
    for name in imports(path, deferred=False):
        there = inside(name)
        if there is None:
            assert name.partition(".")[0] in sys.stdlib_module_names, f"{dotted(path)} imports {name}"
        else:
            assert room(there) in {*BARE, "", "launcher", "schedule", "supervise"}, (
                f"{dotted(path)} imports {there}"
            )


def test_bare_modules_exist() -> None:
    missing = set(BARE) - {dotted(path) for path in modules()}
    assert missing == set()


@pytest.mark.parametrize("module", ["safe_ext_build.supervise.supervisor", "safe_ext_build.schedule.shim"])
def test_bare_modules_start_without_a_site(module: str) -> None:
    code = f"import sys; sys.path.append({str(PACKAGE.parent)!r}); import {module}"
    subprocess.run([sys.executable, "-I", "-S", "-E", "-c", code], check=True)


@pytest.mark.parametrize("module", ["safe_ext_build", "safe_ext_build.build_meta"])
def test_importing_is_clean(module: str) -> None:
    # What sys.modules holds before (a coverage tool, an editable finder) is not of our making.
    code = f"import sys; before = set(sys.modules); import {module}; print(*(set(sys.modules) - before))"
    output = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    loaded = {name.partition(".")[0] for name in output.split()}
    assert loaded.isdisjoint({"torch", "setuptools", "psutil", "packaging", "distutils", "subprocess", "asyncio"})


def test_importing_does_nothing() -> None:
    """A module of ours holds definitions, constants and imports; the one that Python runs as a script may act."""
    for path in modules():
        if path.parent.name == "site":
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        acts = [node for node in tree.body if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)]
        assert acts == [], f"{dotted(path)} does something when it is imported"
