"""What a torch says about itself in its files. Importing it would cost seconds and hundreds of megabytes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from safe_ext_build.errors import TorchError

_STANDARD = re.compile(r"#\s*error C\+\+(\d\d) or later")
REINSTALL = "Install torch anew in that environment: python -m pip install --force-reinstall torch"
_UNIFIED = re.compile(r"cu\d+")
# Up to CUDA 12 each library's wheel has a directory of its own; what CUDA 13 puts into nvidia/cu13 may
# still lie there from an older torch.
_SPLIT_LAYOUT = re.compile(
    "cublas|cuda_cccl|cuda_cupti|cuda_nvcc|cuda_nvrtc|cuda_runtime|cufft|cufile|curand|cusolver|cusparse|"
    "nvjitlink|nvtx"
)


@dataclass(frozen=True)
class TorchFacts:
    """A torch, as its files describe it."""

    version: str
    """Its full version, such as `2.14.1+cu130`."""
    cuda: str | None
    """The CUDA it was built with, such as `13.0`; None for a CPU or ROCm build."""
    hip: str | None
    """The ROCm it was built with."""
    package: Path
    """The directory of the package."""
    cxx_standard: int
    """The lowest C++ standard its headers accept: 14, 17 or 20."""
    include_dirs: tuple[Path, ...] = ()
    """The headers in the CUDA wheels it depends on."""
    library_dirs: tuple[Path, ...] = ()
    """The libraries in the CUDA wheels it depends on."""

    def describe(self) -> str:
        if self.cuda is not None:
            return f"torch {self.version} (CUDA {self.cuda})"
        if self.hip is not None:
            return f"torch {self.version} (ROCm {self.hip})"
        return f"torch {self.version} (CPU only)"


def read_torch(package: Path, search: Sequence[Path] = ()) -> TorchFacts:
    """Read the torch in the directory `package`.

    Its CUDA wheels are looked for beside it, then in the site directories `search`.
    """
    said = _assignments(package / "version.py")
    version, cuda, hip = (_text(said.get(name)) for name in ("__version__", "cuda", "hip"))
    if version is None:
        raise TorchError(f"{package / 'version.py'} names no version", code="SEB-3001", hint=REINSTALL)
    homes = list(_wheel_homes((package.parent, *search), cuda)) if cuda else []
    return TorchFacts(
        version=version,
        cuda=cuda,
        hip=hip,
        package=package,
        cxx_standard=_cxx_standard(package, version),
        include_dirs=_existing(homes, "include"),
        library_dirs=_existing(homes, "lib"),
    )


def _assignments(path: Path) -> dict[str, object]:
    """The literals that a Python file assigns to names, annotated or not."""
    try:
        tree = ast.parse(path.read_text("utf-8"))
    except (OSError, SyntaxError, ValueError) as error:
        raise TorchError(f"{path} cannot be read: {error}", code="SEB-3001", hint=REINSTALL) from error
    found: dict[str, object] = {}
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value and isinstance(targets[0], ast.Name):
            try:
                found[targets[0].id] = ast.literal_eval(node.value)
            except ValueError:
                continue
    return found


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _cxx_standard(package: Path, version: str) -> int:
    try:
        with (package / "include" / "ATen" / "ATen.h").open(encoding="utf-8", errors="replace") as header:
            declared = _STANDARD.search(header.read(4096))
    except OSError:
        declared = None
    return int(declared[1]) if declared else _standard_of_version(version)


def _standard_of_version(version: str) -> int:
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers is None:
        return 17
    release = int(numbers[1]), int(numbers[2])
    return 20 if release >= (2, 13) else 17 if release >= (2, 1) else 14


def _wheel_homes(sites: Sequence[Path], cuda: str) -> Iterator[Path]:
    """The directories of the wheels of CUDA's own major version, its unified one first."""
    major = int(cuda.partition(".")[0])
    for base in (site / "nvidia" for site in dict.fromkeys(sites)):
        if not base.is_dir():
            continue
        yield base / f"cu{major}"
        for home in sorted(base.iterdir()):
            if not _UNIFIED.fullmatch(home.name) and (major < 13 or not _SPLIT_LAYOUT.fullmatch(home.name)):
                yield home


def _existing(homes: Sequence[Path], name: str) -> tuple[Path, ...]:
    return tuple(home / name for home in homes if (home / name).is_dir())
