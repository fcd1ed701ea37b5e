"""Borrowing torch: the target's torch and what it requires become importable in the build, and nothing else.

What is lent is decided here. In the build's Pythons, `site/sitecustomize.py` serves it; it reads what
`write_config` writes: fields that end with a NUL, which no path contains and which costs nothing to parse.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from ..errors import TorchError
from .target import Environment

CONFIG_VARIABLE = "SAFE_EXT_BUILD_BORROW"
# What drives the build is never the target's: their versions are the project's to choose.
_NEVER = frozenset({"ninja", "pip", "setuptools", "wheel"})
# A torch in development has no RECORD that would name them.
_TORCH_MODULES = ("torch", "torchgen", "functorch")
_FOR_AN_EXTRA = re.compile(r";\s*extra\s*==")
_NAMED_HINT = (
    "Name an environment whose torch the build's Python can import, or unset torch.runtime. Without build "
    "isolation, the build's Python is that of the environment itself."
)
_NOT_MODULES = frozenset({"bin", "__pycache__"})

Kind = Literal["torch", "module", "namespace"]


@dataclass(frozen=True)
class Module:
    """An importable name and the directory that holds it.

    `torch` goes before what is isolated, `module` after it, `namespace` is merged with it.
    """

    name: str
    location: Path
    kind: Kind


@dataclass(frozen=True)
class Borrowed:
    """All that is lent of a target environment."""

    python: Path
    abi: str
    torch: Path
    version: str
    modules: tuple[Module, ...]
    distributions: tuple[tuple[str, Path], ...]
    """Normalised names, torch first, and their metadata directories."""


@dataclass(frozen=True)
class TorchSource:
    """The torch that the extension is built against."""

    kind: Literal["own", "borrowed", "declared", "none"]
    package: Path | None
    line: str
    """Why, in one line; may be empty. Of `none`, it explains the ImportError that may follow."""
    borrowed: Borrowed | None = None
    warning: str = ""
    """That the target has another torch; may be empty."""


@dataclass(frozen=True)
class _Distribution:
    """An installed distribution's metadata. importlib.metadata would cost each hook 50 ms more."""

    info: Path
    """Its dist-info directory, or egg-info directory or file."""

    def read(self, *names: str) -> str:
        for file in (self.info / name for name in names):
            try:
                return file.read_text(encoding="utf-8", errors="replace")
            except OSError:
                continue
        return ""

    def header(self, name: str) -> list[str]:
        head = self.read("METADATA", "PKG-INFO", "").partition("\n\n")[0]
        prefix = f"{name}: "
        return [line.removeprefix(prefix) for line in head.splitlines() if line.startswith(prefix)]


class _Packages:
    """The distributions on a path, by normalised name, as Python would choose among them."""

    def __init__(self, path: Iterable[str]) -> None:
        self._path = tuple(dict.fromkeys(path))

    @cached_property
    def _directories(self) -> dict[str, list[Path]]:
        found: dict[str, list[Path]] = {}
        for directory in map(Path, self._path):
            for child in _listing(directory):
                if child.suffix in {".dist-info", ".egg-info"}:
                    found.setdefault(canonicalize_name(child.stem.partition("-")[0]), []).append(child)
        return found

    def find(self, name: str) -> _Distribution | None:
        candidates = self._directories.get(canonicalize_name(name), [])
        return next((_Distribution(info) for info in candidates if _has_metadata(info)), None)

    def location(self, module: str) -> Path | None:
        return next((entry for entry in map(Path, self._path) if _provides(entry, module)), None)


def _listing(directory: Path) -> list[Path]:
    try:
        return sorted(directory.iterdir())
    except OSError:
        return []


def _has_metadata(directory: Path) -> bool:
    """Whether this is more than what an interrupted uninstallation left behind."""
    return directory.is_file() or any((directory / name).is_file() for name in ("METADATA", "PKG-INFO"))


def _provides(base: Path, module: str) -> bool:
    return (base / module).is_dir() or (base / f"{module}.py").is_file() or any(base.glob(f"{module}.*.so"))


def decide(
    own: Environment,
    target: Environment | None,
    match: Literal["runtime", "declared"],
    why: str = "",
    *,
    named: bool = False,
) -> TorchSource:
    """Which torch to build against. `why` is what `find_target` said, or `named_target`, if the target is `named`.

    Raises TorchError when a named target's torch cannot be used.
    """
    if match == "declared":
        source = _declared(own, "torch.match is `declared`, and build-system.requires has no torch")
        return replace(source, warning=_difference(own, target, why))
    if target is None:
        return _declared(own, why or "no environment that could import the result was found", tell=True)
    if target.torch is None:
        refusal = f"{_place(target, why)} has no torch"
    elif own.torch is not None and _same(own.torch, target.torch):
        return TorchSource("own", own.torch, "")
    else:
        refusal = refuse(own, target)
    if refusal and named:
        what = f"{refusal}, but {why} says to build against it"
        raise TorchError(what, code="SEB-3005", hint=_NAMED_HINT)
    if refusal or target.torch is None:
        return replace(_declared(own, refusal, tell=True), warning=_difference(own, target, why))
    borrowed = borrow(target, target.torch)
    return TorchSource("borrowed", target.torch, _borrowed_line(own, target, borrowed), borrowed)


def _declared(own: Environment, reason: str, *, tell: bool = False) -> TorchSource:
    if own.torch is None:
        return TorchSource("none", None, f"no torch to build against: {reason}")
    version = torch_version(own.torch)
    line = f"building against the build environment's own torch {version}: {reason}" if tell else ""
    return TorchSource("declared", own.torch, line)


def _difference(own: Environment, target: Environment | None, why: str) -> str:
    """That what is built is for another torch than the target's; empty when it is not."""
    if own.torch is None or target is None or target.torch is None or _same(own.torch, target.torch):
        return ""
    ours, theirs = torch_version(own.torch), torch_version(target.torch)
    if ours == theirs:
        return ""
    return (
        f"the result is for torch {ours}, and {_place(target, why)} has torch {theirs}: it may not load there. "
        f"Let the project depend on torch=={ours.partition('+')[0]}, or build against the other"
    )


def _borrowed_line(own: Environment, target: Environment, borrowed: Borrowed) -> str:
    line = f"building against torch {borrowed.version} of {target.prefix}, which will import the result"
    declared = torch_version(own.torch) if own.torch is not None else borrowed.version
    if declared != borrowed.version:
        line += f"; the build environment's own torch {declared} is not used"
    return line


def _place(target: Environment, why: str) -> str:
    return f"{target.prefix} ({why})" if why else str(target.prefix)


def _same(one: Path, other: Path) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


def torch_version(package: Path) -> str:
    """The full version, such as `2.14.1+cu130`, of the torch in a directory."""
    try:
        text = (package / "version.py").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    said = re.search(r"""^__version__\s*(?::[^=]*)?=\s*["']([^"']+)""", text, re.MULTILINE)
    return said[1] if said else "of unknown version"


def refuse(own: Environment, target: Environment) -> str:
    """Why the target's torch cannot be used by the build's Python; empty when it can."""
    if own.version != target.version:
        theirs, ours = (".".join(map(str, e.version)) for e in (target, own))
        return f"the torch of {target.prefix} is for Python {theirs}, and the build runs Python {ours}"
    if own.abi != target.abi:
        theirs, ours = (e.abi.strip(".").removesuffix(".so") for e in (target, own))
        return f"the torch of {target.prefix} is for {theirs}, and the build runs {ours}"
    return _violation(own, target)


def _violation(own: Environment, target: Environment) -> str:
    torch = _target_packages(target).find("torch")
    isolated = _Packages(own.path)
    for requirement in _requirements(torch, [""]):
        package = isolated.find(requirement.name)
        version = next(iter(package.header("Version")), None) if package else None
        if version is not None and not _satisfies(requirement, version):
            return (
                f"the torch of {target.prefix} requires {requirement.name}{requirement.specifier}, "
                f"and the build environment has {requirement.name} {version}"
            )
    return ""


def _satisfies(requirement: Requirement, version: str) -> bool:
    try:
        return requirement.specifier.contains(Version(version), prereleases=True)
    except InvalidVersion:
        return True


def _target_packages(target: Environment) -> _Packages:
    # A torch in development is reached through a finder: what lies beside it is not on the path.
    beside = [str(target.torch.parent)] if target.torch is not None else []
    return _Packages([*target.path, *beside])


def _requirements(distribution: _Distribution | None, extras: Collection[str]) -> Iterator[Requirement]:
    """What a distribution requires here, with these extras of its own; "" stands for none of them."""
    for text in distribution.header("Requires-Dist") if distribution is not None else ():
        # Most requirements are for some extra only, and parsing them is most of the work.
        if not any(extras) and _FOR_AN_EXTRA.search(text) and " or " not in text:
            continue
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in extras):
            yield requirement


def _closure(packages: _Packages, root: str) -> dict[str, _Distribution]:
    """A distribution and all that it requires, directly or not, as far as it is installed."""
    found: dict[str, _Distribution] = {}
    queue, seen = [Requirement(root)], set[tuple[str, str]]()
    while queue:
        requirement = queue.pop(0)
        name = canonicalize_name(requirement.name)
        distribution = None if name in _NEVER else packages.find(name)
        if distribution is None:
            continue
        found[name] = distribution
        extras = [extra for extra in ("", *sorted(requirement.extras)) if (name, extra) not in seen]
        seen.update((name, extra) for extra in extras)
        if extras:
            queue += _requirements(distribution, extras)
    return found


def borrow(target: Environment, torch: Path) -> Borrowed:
    """All that a build needs of the target: torch, what it requires, and their metadata."""
    packages = _target_packages(target)
    closure = _closure(packages, "torch")
    modules = list(_torch_modules(torch, closure))
    for name, distribution in closure.items():
        if name != "torch":
            modules += _modules(packages, name, distribution)
    return Borrowed(
        python=target.python,
        abi=target.abi,
        torch=torch,
        version=torch_version(torch),
        modules=tuple(dict.fromkeys(modules)),
        distributions=tuple((name, distribution.info) for name, distribution in closure.items()),
    )


def _torch_modules(torch: Path, closure: Mapping[str, _Distribution]) -> Iterator[Module]:
    recorded = _top_level(closure["torch"], "torch") if "torch" in closure else set()
    for name in sorted(recorded.union(_TORCH_MODULES)):
        if _provides(torch.parent, name):
            yield Module(name, torch.parent, "torch")


def _modules(packages: _Packages, name: str, distribution: _Distribution) -> Iterator[Module]:
    home = distribution.info.parent
    for module in sorted(_top_level(distribution, name)):
        location = home if _provides(home, module) else packages.location(module)
        if location is not None:
            yield Module(module, location, "namespace" if _is_namespace(location / module) else "module")


def _is_namespace(directory: Path) -> bool:
    return directory.is_dir() and not any(directory.glob("__init__.*"))


def _top_level(distribution: _Distribution, name: str) -> set[str]:
    """Importable names, from RECORD, else top_level.txt, else the distribution's own name."""
    record = distribution.read("RECORD")
    first = {line.lstrip('"').partition(",")[0].partition("/")[0] for line in record.splitlines()}
    names = {module for entry in first if (module := _module_name(entry)) is not None}
    if not names:
        names = set(distribution.read("top_level.txt").split())
    return names or {name.replace("-", "_")}


def _module_name(entry: str) -> str | None:
    stem, dot, suffix = entry.partition(".")
    if not stem.isidentifier() or stem in _NOT_MODULES:
        return None
    return stem if not dot or suffix == "py" or suffix.endswith("so") else None


def write_config(borrowed: Borrowed, file: Path) -> None:
    """Write down what is lent, for the sitecustomize module."""
    fields = [borrowed.abi]
    for module in borrowed.modules:
        fields += [module.kind, module.name, str(module.location)]
    for name, directory in borrowed.distributions:
        fields += ["torch-metadata" if name == "torch" else "metadata", name, str(directory)]
    file.write_bytes(b"".join(os.fsencode(field) + b"\0" for field in fields))


def install_site(directory: Path) -> None:
    """Put the sitecustomize module into a directory of its own, made if it is not there."""
    directory.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(Path(__file__).with_name("site") / "sitecustomize.py", directory / "sitecustomize.py")


def environment(site_dir: Path, config: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment in which Python, and its child Pythons, import what is lent.

    `site_dir` holds the sitecustomize module; its path may not contain `:`.
    """
    before = environ.get("PYTHONPATH")
    path = os.pathsep.join([str(site_dir), before] if before else [str(site_dir)])
    return {**environ, "PYTHONPATH": path, CONFIG_VARIABLE: str(config)}
