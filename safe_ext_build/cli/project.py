"""What a package says about how it is built, and our backend in place of its own."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import SafeExtBuildError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

OURS = "safe_ext_build.build_meta"
# PEP 517: a project without a build system is setuptools', and its setup script may import what lies beside it.
_LEGACY = "setuptools.build_meta:__legacy__"


@dataclass(frozen=True)
class Project:
    """A package's source and its `[build-system]`, with the defaults of PEP 517 and PEP 518."""

    source: Path
    requires: tuple[str, ...]
    backend: str
    backend_path: tuple[str, ...] = ()

    @classmethod
    def read(cls, source: Path) -> Project:
        """Raises SafeExtBuildError when this is no project, or its pyproject.toml is not valid."""
        file = source / "pyproject.toml"
        if not file.is_file() and not (source / "setup.py").is_file():
            raise SafeExtBuildError(
                f"{source} has neither pyproject.toml nor setup.py",
                code="SEB-1012",
                hint="Is the project in a directory below it? Name that one.",
            )
        system = _build_system(file)
        requires = system.get("requires", ["setuptools"])
        path = system.get("backend-path", [])
        backend = system.get("build-backend", _LEGACY)
        if not (_is_list(requires) and _is_list(path) and isinstance(backend, str)):
            raise SafeExtBuildError(
                f"[build-system] in {file} is not as PEP 517 and PEP 518 say",
                code="SEB-1011",
                hint="`requires` and `backend-path` are lists of texts in quotes, `build-backend` is one text.",
            )
        return cls(source, tuple(requires), backend, tuple(path))

    def with_backend(self, options: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
        """The `-C` options under which our backend runs the package's own; one that the user names wins."""
        named = options.get("backend") or environ.get("SAFE_EXT_BUILD_BACKEND") or self.backend == OURS
        if named:
            return dict(options)
        path = {"backend-path": ";".join(self.backend_path)} if self.backend_path else {}
        return {**options, "backend": self.backend, **path}


def _is_list(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _build_system(file: Path) -> dict[str, Any]:
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        hint = f"{file} has to be a file that you may read, in UTF-8."
        raise SafeExtBuildError(f"{file.name} cannot be read: {error}", code="SEB-1001", hint=hint) from error
    except tomllib.TOMLDecodeError as error:
        hint = f"Correct {file} there."
        raise SafeExtBuildError(f"{file.name} is not valid TOML: {error}", code="SEB-1002", hint=hint) from error
    system = document.get("build-system", {})
    return system if isinstance(system, dict) else {}
