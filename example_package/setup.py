"""The compiled half of fused-bias-gelu; everything else stands in pyproject.toml."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import torch
from setuptools import Extension, setup
from torch.utils import cpp_extension

CPU_SOURCES = ["csrc/ops.cpp", "csrc/cpu.cpp"]
CUDA_SOURCES = ["csrc/cuda/ops.cpp", "csrc/cuda/forward.cu", "csrc/cuda/backward.cu"]

# at::parallel_for is a template: it runs in parallel only where its caller is compiled for OpenMP.
# torch for Linux brings the libgomp that this links to.
OPENMP = ["-fopenmp"] if sys.platform == "linux" else []


def why_no_cuda() -> str | None:
    """Why the CUDA half cannot be built, or None if it can."""
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA"
    home = cpp_extension.CUDA_HOME
    if home is None:
        return "no CUDA toolkit found"
    # CUDA_HOME may be torch's guess, or hold the runtime only.
    if shutil.which("nvcc", path=str(Path(home) / "bin")) is None:
        return f"no nvcc in {home}"
    return None


class BuildExtension(cpp_extension.BuildExtension):
    def run(self) -> None:
        # Said here, and not at the top, so that it is heard when something is built, and once.
        if reason := why_no_cuda():
            print(f"fused-bias-gelu: {reason}: building the CPU half only", file=sys.stderr)
        super().run()


def extension() -> Extension:
    reason = why_no_cuda()
    kind = cpp_extension.CppExtension if reason else cpp_extension.CUDAExtension
    # No -std here: torch adds the one that its headers need.
    return kind(
        "fused_bias_gelu._C",
        CPU_SOURCES if reason else CPU_SOURCES + CUDA_SOURCES,
        extra_compile_args={"cxx": OPENMP, "nvcc": []},
        extra_link_args=OPENMP,
    )


setup(ext_modules=[extension()], cmdclass={"build_ext": BuildExtension})
