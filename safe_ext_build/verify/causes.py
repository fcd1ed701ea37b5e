"""Why a symbol is undefined, as far as its name tells. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .findings import Module, Symbol

# What stands in one of torch's namespaces, not what merely takes a tensor; and Python's side of torch.
_TORCH = re.compile(r"_Z(T[VIS]|GV)?N[VKRO]*(3c10|2at|5torch|6caffe2)\d|THP[A-Z]")
_TORCH_CUDA = re.compile(r"_Z(T[VIS])?N[VKRO]*(3c10|2at)4cuda")
_DEVICE_LINK = re.compile(r"__cudaRegisterLinkedBinary|__fatbinwrap_")
_LIBRARIES = (
    ("cublasLt", "cublasLt"),
    ("cublas", "cublas"),
    ("cusparse", "cusparse"),
    ("cusolver", "cusolver"),
    ("cufft", "cufft"),
    ("curand", "curand"),
    ("cudnn", "cudnn"),
    ("nccl", "nccl"),
    ("nvrtc", "nvrtc"),
    ("nvJitLink", "nvJitLink"),
    ("nvtx", "nvToolsExt"),
    ("nvml", "nvidia-ml"),
)


def is_of_torch(name: str) -> bool:
    """Whether a mangled name is one of torch's own."""
    return _TORCH.match(name) is not None


def is_certain(symbol: Symbol) -> bool:
    """Whether it is known who would have to bring the symbol, and has not: torch, CUDA, or the project itself.
    What another package brings, it may bring only once something else of this one has been imported."""
    known = is_of_torch(symbol.name) or _DEVICE_LINK.match(symbol.name) or _library(symbol.name)
    return bool(known or symbol.source)


@dataclass(frozen=True)
class Reason:
    """Why a symbol is undefined: its id, and the words for it."""

    code: str
    text: str


def why(symbol: Symbol, module: Module) -> Reason:
    """The likely cause of an undefined symbol, and what to do; one sentence or two."""
    if is_of_torch(symbol.name) and (symbol.listed or not symbol.source):
        return _torch(symbol.name, module)
    if _DEVICE_LINK.match(symbol.name):
        text = "Relocatable device code was not linked: pass dlink=True to CUDAExtension, or leave -rdc=true out."
        return Reason("SEB-7101", text)
    if library := _library(symbol.name):
        text = f'It is in lib{library}, which the module is not linked to: add "{library}" to its `libraries`.'
        return Reason("SEB-7102", text)
    return _project(symbol)


def _torch(name: str, module: Module) -> Reason:
    if "cxx11" in name and module.cxx11_abi is False:
        return _abi(1, 0)
    if "cxx11" not in name and _has_old_string(name) and module.cxx11_abi:
        return _abi(0, 1)
    linked = " ".join(module.needed)
    if name.startswith("THP") and "libtorch_python" not in linked:
        text = 'It is in libtorch_python: add "torch_python" to `libraries`, or use CppExtension or CUDAExtension.'
        return Reason("SEB-7104", text)
    if _TORCH_CUDA.match(name) and "c10_cuda" not in linked and "torch_cuda" not in linked:
        return Reason("SEB-7104", "It is in torch's CUDA libraries: use CUDAExtension in place of CppExtension.")
    if "libc10" not in linked and "libtorch" not in linked:
        text = "The module is not linked to torch: use CppExtension or CUDAExtension, which do that."
        return Reason("SEB-7104", text)
    return Reason(
        "SEB-7105",
        "The torch that it was compiled against is another one than this: remove objects of earlier builds "
        "(the directory build/), and look for an include directory of another torch in the setup script.",
    )


def _has_old_string(name: str) -> bool:
    """Whether a std::string of the ABI of before 2015 is in its type: "Ss", outside of the identifiers."""
    place, types = 0, ""
    while digits := re.search(r"\d+", name[place:]):
        types += name[place : place + digits.start()] + " "
        place += digits.end() + int(digits[0])
    return "Ss" in types + name[place:]


def _abi(compiled: int, torch: int) -> Reason:
    return Reason(
        "SEB-7103",
        f"It was compiled with _GLIBCXX_USE_CXX11_ABI={compiled}, and this torch with {torch}: leave that flag "
        "out of the setup script; torch's helper sets the right one.",
    )


def _library(name: str) -> str:
    for prefix, library in _LIBRARIES:
        if name.startswith(prefix):
            return library
    return "cudart" if re.match(r"cuda[A-Z]|__cuda", name) else ""


def _project(symbol: Symbol) -> Reason:
    if symbol.source and not symbol.listed:
        text = (
            f"{symbol.source} seems to define it, and is not in the `sources` of the setup script: add it there."
        )
        return Reason("SEB-7106", text)
    if symbol.source:
        return Reason(
            "SEB-7107",
            f"{symbol.source} has something of that name, which is compiled as something else: compare parameter "
            'types, namespaces, `static` and `extern "C"` with the declaration.',
        )
    return Reason(
        "SEB-7108",
        "Neither torch nor CUDA nor, as it seems, a source of the project defines it: a source file may be "
        "missing from the setup script's `sources`, or a library or an object from its `libraries` "
        "or `extra_objects`.",
    )
