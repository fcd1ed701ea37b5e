"""What is found out about the extension modules of a build, as it travels from the builder to the hook process."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Declared:
    """An extension module that the setup script has declared.

    `path` is where it is to be in a wheel; `built` where it is in the project, for an editable install.
    `takes_archs`: torch adds the flags of TORCH_CUDA_ARCH_LIST to its CUDA sources, since it has no arch flags of
    its own. `misread`: a flag that torch takes for one.
    """

    name: str
    path: str
    built: str = ""
    sources: tuple[str, ...] = ()
    optional: bool = False
    takes_archs: bool = False
    misread: str = ""


@dataclass(frozen=True)
class Symbol:
    """An undefined symbol. `source` is a file of the project that seems to define it; `listed`: it is compiled."""

    name: str
    text: str
    source: str = ""
    listed: bool = False


@dataclass(frozen=True)
class Module:
    """An extension module that is there. `codes`: what its device code is for ("sm_80", "compute_90").

    `outcome` is one of load.py's, or '' when it was not loaded.
    """

    name: str
    path: str
    codes: tuple[str, ...] = ()
    needed: tuple[str, ...] = ()
    outcome: str = ""
    detail: str = ""
    symbols: tuple[Symbol, ...] = ()
    cxx11_abi: bool | None = None


@dataclass(frozen=True)
class Findings:
    """All of it. `archs` is TORCH_CUDA_ARCH_LIST as the setup script has left it.

    `unbuilt`: a CUDA source of the project, where no module has device code and the wheel does not carry the
    source itself (to compile it at run time). `trouble`: why nothing else was found out.
    """

    declared: tuple[Declared, ...] = ()
    modules: tuple[Module, ...] = ()
    archs: str = ""
    unbuilt: str = ""
    trouble: str = ""

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def load(cls, path: Path) -> Findings | None:
        """None when there are none: nothing was looked at."""
        try:
            return _from_json(json.loads(path.read_text()))
        except (OSError, ValueError, TypeError, KeyError):
            return None


def _from_json(values: dict[str, Any]) -> Findings:
    declared = [Declared(**{**one, "sources": tuple(one["sources"])}) for one in values.pop("declared")]
    modules = [_module(one) for one in values.pop("modules")]
    return Findings(tuple(declared), tuple(modules), **values)


def _module(values: dict[str, Any]) -> Module:
    symbols = tuple(Symbol(**one) for one in values.pop("symbols"))
    return Module(
        **{**values, "codes": tuple(values["codes"]), "needed": tuple(values["needed"]), "symbols": symbols}
    )
