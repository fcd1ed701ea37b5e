"""The builder's side of the check: finds the extension modules that a hook has made, reads them, has them loaded.

It decides nothing, and never fails a build: what went wrong here is part of what it has found.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import elf, load, symbols
from .causes import is_of_torch
from .declared import declared_modules
from .findings import Declared, Findings, Module

FILE = "check.json"
LOAD_TIMEOUT = 300.0  # seconds: the first import of torch from a slow disk takes minutes
# To unpack a wheel is no reason to fill a disk.
_KEEP_FREE = 256 << 20
_MOST_SYMBOLS = 3
# Where projects keep CUDA sources that are not for their extension modules.
_OTHERS = frozenset(
    (
        *("third_party", "thirdparty", "3rdparty", "external", "extern", "submodules"),
        *("tests", "test", "benchmarks", "benchmark", "examples", "samples", "docs"),
    )
)
# What comes with torch, or with its CUDA wheels: it is only there once torch is imported.
_OF_TORCH = re.compile(r"lib(torch|c10|shm|cu|nv|nccl)")


@dataclass(frozen=True)
class _File:
    """A shared library that the build has made. `inside`: its path from the directory that it is imported from."""

    path: Path
    inside: Path
    library: elf.Library

    @property
    def stem(self) -> str:
        return self.path.name.partition(".")[0]

    @property
    def name(self) -> str:
        return ".".join([*self.inside.parts[:-1], self.stem])

    @property
    def root(self) -> Path:
        return self.path.parents[len(self.inside.parts) - 1]

    @property
    def is_module(self) -> bool:
        return f"PyInit_{self.stem}" in self.library.defined


def record(order: Mapping[str, Any], request: Mapping[str, Any], result: str, workspace: Path) -> None:
    """Look at what the hook of `request` has made, and leave what is found in the workspace.

    `order`: `load`, whether modules are to be loaded, and `torch`, whether there is one.
    """
    try:
        found = _gather(order, request, result, workspace / "tmp" / "check")
    except Exception as error:
        found = Findings(trouble=f"{type(error).__name__}: {error}")
    found.save(workspace / FILE)


def _gather(order: Mapping[str, Any], request: Mapping[str, Any], result: str, place: Path) -> Findings:
    declared = declared_modules(request["hook"] == "build_editable", os.environ)
    place.mkdir()
    if request["hook"] == "build_editable":
        carried: list[str] = []
        files = list(_of_project(declared))
    else:
        carried = _unpack(Path(request["arguments"]["wheel_directory"], result), place / "wheel")
        files = list(_of_wheel(place / "wheel"))
    expected = {one.path for one in declared}
    wanted = [one for one in files if one.is_module or str(one.inside) in expected]
    answers = _load(wanted, order["torch"], request["path"], place) if order["load"] and wanted else {}
    listed = [source for one in declared for source in one.sources]
    modules = [_module(one, answers.get(str(one.path), {}), files, listed) for one in files]
    has_code = any(module.codes for module in modules)
    return Findings(
        declared=declared,
        modules=tuple(modules),
        archs=os.environ.get("TORCH_CUDA_ARCH_LIST", ""),
        unbuilt="" if has_code or any(name.endswith(".cu") for name in carried) else _unbuilt(Path.cwd()),
    )


def _unpack(wheel: Path, place: Path) -> list[str]:
    """Unpack a wheel; returns the names of what it holds."""
    with zipfile.ZipFile(wheel) as archive:
        entries = [entry for entry in archive.infolist() if not entry.is_dir()]
        names = [entry.filename for entry in entries]
        if not any(".so" in name for name in names):
            return names
        size = sum(entry.file_size for entry in entries)
        free = shutil.disk_usage(place.parent).free
        if free < size + _KEEP_FREE:
            raise OSError(f"unpacked, it has {size >> 20} MiB, and {place.parent} has room for {free >> 20} MiB")
        archive.extractall(place)
    return names


def _of_wheel(place: Path) -> Iterator[_File]:
    for path in sorted(place.rglob("*.so*")):
        inside = path.relative_to(place)
        if inside.parts[0].endswith(".data"):
            inside = Path(*inside.parts[2:])
        yield from _read(path, inside)


def _of_project(declared: Iterable[Declared]) -> Iterator[_File]:
    for one in declared:
        yield from _read(Path(one.built), Path(one.path))


def _read(path: Path, inside: Path) -> Iterator[_File]:
    try:
        yield _File(path, inside, elf.read(path))
    except (OSError, elf.NotElf):
        return  # a script that ends in .so, or a declared module that was not built


def _load(files: Sequence[_File], has_torch: bool, path: Sequence[str], place: Path) -> dict[str, dict[str, Any]]:
    """Have modules loaded in a process of their own; what it says of each, by its path."""
    answers = place / "answers"
    request = {
        "path": list(path),
        "torch": has_torch,
        "torch_first": has_torch and any(map(_wants_torch, files)),
        "modules": [
            {
                "path": str(one.path),
                "name": one.name,
                "root": str(one.root),
                "needed": one.library.needed,
                "undefined": one.library.undefined,
            }
            for one in files
        ],
        "answer": str(answers),
    }
    (place / "request").write_text(json.dumps(request))
    trouble = _run([sys.executable, str(Path(load.__file__)), str(place / "request")], place)
    found = {str(one.path): {"outcome": load.FAILED, "detail": trouble} for one in files}
    for line in answers.read_text().splitlines() if answers.exists() else ():
        answer = json.loads(line)
        found[answer.pop("path")] = answer
    return found


def _wants_torch(file: _File) -> bool:
    library = file.library
    return any(map(_OF_TORCH.match, library.needed)) or any(map(is_of_torch, library.undefined))


def _run(command: Sequence[str], place: Path) -> str:
    """Run to its end, or to the end of our patience; says in words what went wrong."""
    # Importing what is in the project's own directory is not to leave files there.
    environ = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    with (place / "output").open("wb+") as output:
        process = subprocess.Popen(
            command,
            cwd=place,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            status = process.wait(LOAD_TIMEOUT)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return f"it took more than {LOAD_TIMEOUT:.0f} s"
        output.seek(0)
        said = output.read().decode(errors="replace").split("\n")
    last = next((line.strip() for line in reversed(said) if line.strip()), "")
    return ": ".join(filter(None, [f"exit status {status}", last])) if status else ""


def _module(file: _File, answer: Mapping[str, Any], files: Iterable[_File], listed: Sequence[str]) -> Module:
    symbols_here = {symbol for one in files for symbol in one.library.defined}
    missing = [name for name in answer.get("symbols", ()) if name not in symbols_here]
    outcome = answer.get("outcome", "")
    if outcome == load.UNDEFINED and not missing:
        outcome = load.UNSURE  # another library of the wheel has it, and somebody must load that first
    return Module(
        name=file.name,
        path=str(file.inside),
        codes=tuple(map(str, file.library.codes)),
        needed=file.library.needed,
        outcome=outcome,
        detail=answer.get("detail", ""),
        symbols=symbols.describe(missing[:_MOST_SYMBOLS], Path.cwd(), listed) if missing else (),
        cxx11_abi=answer.get("cxx11_abi"),
    )


def _unbuilt(project: Path) -> str:
    """A CUDA source of the project, if its setup script would have compiled some."""
    try:
        script = (project / "setup.py").read_text(errors="replace")
    except OSError:
        return ""
    if "CUDAExtension" not in script:
        return ""
    for path in symbols.sources(project):
        inside = path.relative_to(project)
        if path.suffix == ".cu" and _OTHERS.isdisjoint(inside.parts):
            return str(inside)
    return ""
