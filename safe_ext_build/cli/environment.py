"""The isolated environment of a build: the target's Python, us, and what the package asks for, without torch."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, requires
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from .. import probe, ui
from ..errors import SafeExtBuildError
from ..toolchain import borrow
from . import session
from .target import Target

_US = "safe-ext-build"
# What many setup scripts import and do not declare. (The rest of the usual suspects are our own requirements.)
_UNDECLARED = ("wheel",)
_PATIENCE = 120.0  # seconds
# What would let the caller's own packages into the build.
_LEAKS = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")


@dataclass(frozen=True)
class Lent:
    """What the build borrows of the target's torch: versions by name; `demands` is what that torch requires."""

    versions: Mapping[str, str]
    demands: tuple[str, ...] = ()


@dataclass(frozen=True)
class BuildEnvironment:
    """A virtual environment that holds us."""

    prefix: Path
    target: Target
    lent: Lent

    @classmethod
    def make(cls, prefix: Path, target: Target, match: str) -> BuildEnvironment:
        """Make it with the target's Python. Raises SafeExtBuildError."""
        command = [str(target.python), "-I", "-m", "venv", "--without-pip", str(prefix)]
        try:
            status, said = probe.run(command, os.environ, _PATIENCE)
        except subprocess.TimeoutExpired:
            status, said = 1, f"it takes more than {_PATIENCE:.0f} s"
        if status:
            raise SafeExtBuildError(
                f"{target.python} cannot make a virtual environment: {said.strip()}",
                code="SEB-8013",
                hint="Distributions keep that in a package of its own: apt install python3-venv.",
            )
        (packages,) = prefix.glob("lib/python*/site-packages")
        # Of exactly this version: what an index has under our name may be another one.
        ours = Path(__file__).parents[1]
        shutil.copytree(ours, packages / ours.name, ignore=shutil.ignore_patterns("__pycache__"))
        return cls(prefix, target, read_lent(target) if match == "runtime" else Lent({}))

    @property
    def python(self) -> Path:
        return self.prefix / "bin" / "python"

    def install(self, requirements: Sequence[str]) -> None:
        """Install with pip, under supervision, what is not borrowed. Raises SafeExtBuildError."""
        wanted, lines = without_lent(requirements, self.lent)
        for line in lines:
            ui.warn(line)
        if not wanted:
            return
        ui.say(f"installing for the build: {', '.join(wanted)}")
        demands = self.prefix / "constraints.txt"
        demands.write_text("".join(f"{demand}\n" for demand in self.lent.demands))
        pip = [sys.executable, "-I", "-m", "pip", "--python", str(self.python), "install", "--quiet", "--no-input"]
        command = [*pip, "--no-compile", "--no-warn-script-location", "--constraint", str(demands), *wanted]
        if status := session.supervised(command):
            raise SafeExtBuildError(
                f"pip could not install what the build needs (exit status {status}; its message is above)",
                code="SEB-8014",
                hint="The requirements are those of build-system.requires, --with, and safe-ext-build itself.",
            )

    def variables(self, environ: Mapping[str, str]) -> dict[str, str]:
        """The environment variables for the hooks, which run in it."""
        kept = {name: value for name, value in environ.items() if name not in _LEAKS}
        path = os.pathsep.join([str(self.prefix / "bin"), environ.get("PATH", os.defpath)])
        return {**kept, "PATH": path, "PYTHONNOUSERSITE": "1", **self.target.variables}


def own_requirements() -> list[str]:
    """What we require ourselves, and what setup scripts take for granted."""
    try:
        ours = requires(_US) or []
    except PackageNotFoundError:
        raise SafeExtBuildError(
            f"{_US} is not installed in {sys.prefix}, so what it requires is not known",
            code="SEB-8015",
            hint="Install it: python -m pip install 'safe-ext-build[cli]'",
        ) from None
    return [*(text for text in ours if "extra ==" not in text), *_UNDECLARED]


def read_lent(target: Target) -> Lent:
    """What can be borrowed of the target; nothing where it has no torch."""
    torch = target.environment.torch
    if torch is None:
        return Lent({})
    distributions = dict(borrow.borrow(target.environment, torch).distributions)
    versions = {name: Distribution.at(info).version for name, info in distributions.items()}
    demands = Distribution.at(distributions["torch"]).requires if "torch" in distributions else None
    bounds = [Requirement(text) for text in demands or () if "extra ==" not in text]
    return Lent(
        {**versions, "torch": borrow.torch_version(torch)},
        tuple(f"{one.name}{one.specifier}" for one in bounds if one.specifier and _applies(one)),
    )


def _applies(requirement: Requirement) -> bool:
    return requirement.marker is None or requirement.marker.evaluate()


def _meets(version: str, requirement: Requirement) -> bool:
    try:
        return requirement.specifier.contains(Version(version), prereleases=True)
    except InvalidVersion:  # of a torch in development
        return not requirement.specifier


def without_lent(requirements: Iterable[str], lent: Lent) -> tuple[list[str], list[str]]:
    """The requirements that have to be installed, and warnings about those that are not met.

    torch is always the target's: another one would be gigabytes for a wheel that does not fit there.
    """
    wanted, lines = [], []
    for text in requirements:
        try:
            requirement = Requirement(text)
        except InvalidRequirement as error:
            raise SafeExtBuildError(
                f"{text!r} in build-system.requires or --with is no requirement: {str(error).splitlines()[0]}",
                code="SEB-1013",
                hint="Write NAME, or NAME and a version, such as numpy>=2.",
            ) from None
        name = canonicalize_name(requirement.name)
        version = lent.versions.get(name)
        met = version is not None and _meets(version, requirement)
        if name == "torch" and version is not None and not met:
            lines.append(f"the package asks for {text}; it is built against torch {version}, which will import it")
        elif not met and name != _US:
            wanted.append(text)
    return list(dict.fromkeys(wanted)), lines
