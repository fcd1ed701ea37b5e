"""What the setup script has declared, asked of setuptools in the process that has just run it."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from .findings import Declared

_ARCH_OPTION = re.compile(r"--?(gencode|generate-code|arch|gpu-architecture|code|gpu-code)(=|$)")
_TORCH_HELPERS = "torch.utils.cpp_extension"


def declared_modules(editable: bool, environ: Mapping[str, str]) -> tuple[Declared, ...]:
    """The extension modules of the setup script that ran last; none of those that setuptools does not compile."""
    distribution = getattr(sys.modules.get("distutils.core"), "_setup_distribution", None)
    if not getattr(distribution, "ext_modules", None):
        return ()
    command: Any = distribution.get_command_obj("build_ext")  # type: ignore[union-attr]
    command.ensure_finalized()
    helped = any(base.__module__ == _TORCH_HELPERS for base in type(command).__mro__)
    by_variable = any(_own_archs(environ.get(f"NVCC_{name}_FLAGS", "").split()) for name in ("APPEND", "PREPEND"))
    places = {extension.name: _places(command, extension.name, editable) for extension in command.extensions}
    return tuple(
        _declared(extension, *places[extension.name], takes_archs=helped and not by_variable)
        for extension in command.extensions
        if extension.sources
    )


def _places(command: Any, name: str, editable: bool) -> tuple[str, str]:
    """Where a module is to be in a wheel, and in the project if it is built for an editable install."""
    full_name = command.get_ext_fullname(name)
    path = command.get_ext_filename(full_name)
    if not editable:
        return path, ""
    package = command.get_finalized_command("build_py").get_package_dir(full_name.rpartition(".")[0])
    return path, str(Path(package, Path(path).name).absolute())


def _declared(extension: Any, path: str, built: str, *, takes_archs: bool) -> Declared:
    sources = tuple(map(os.fspath, extension.sources))
    flags = extension.extra_compile_args
    flags = [str(flag) for flag in (flags.get("nvcc", []) if isinstance(flags, dict) else flags)]
    has_cuda = any(source.endswith((".cu", ".cuh")) for source in sources)
    return Declared(
        name=extension.name,
        path=path,
        built=built,
        sources=sources,
        optional=bool(extension.optional),
        takes_archs=takes_archs and has_cuda and not _own_archs(flags),
        misread=next(_misread(flags), ""),
    )


def _own_archs(flags: Iterable[str]) -> bool:
    return any(_ARCH_OPTION.match(flag) for flag in flags)


def _misread(flags: Iterable[str]) -> Iterator[str]:
    """Flags that torch's helper takes for arch options: it looks for the word anywhere in them."""
    for flag in flags:
        if "arch" in flag and "TORCH_EXTENSION_NAME" not in flag and not _ARCH_OPTION.match(flag):
            yield flag
