"""Names for undefined symbols, and likely causes."""

from __future__ import annotations

from pathlib import Path

import pytest

from safe_ext_build.verify import causes, symbols
from safe_ext_build.verify.findings import Module, Symbol

LINKED = Module("pkg._C", "pkg/_C.so", needed=("libc10.so", "libtorch_cpu.so"), cxx11_abi=True)


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("_Z5scalePfif", ["scale"]),
        ("_ZN3c105ErrorC1ENS_14SourceLocationE", ["c10", "Error"]),
        ("_ZNK2at6Tensor4sizeEl", ["at", "Tensor", "size"]),
        ("_ZTV3Foo", ["Foo"]),
        ("_ZN3foo3barIfEEvPT_", ["foo", "bar"]),
        ("_ZN3foo4nameB5cxx11Ev", ["foo", "name"]),
        ("cublasCreate_v2", []),
    ],
)
def test_parts_of_a_mangled_name(name: str, parts: list[str]) -> None:
    assert symbols.parts(name) == parts
    assert symbols.identifier(name) == (parts or [name])[-1]


def test_names_are_readable_without_a_demangler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert symbols.demangle(["_ZN3c105ErrorC1Ev", "plain"]) == ["c10::Error", "plain"]


def project(directory: Path) -> Path:
    for name, text in {
        "csrc/main.cpp": "void add(float *, int);\nvoid run() {\n  if (add(a, 2)) { }\n}\n",
        "csrc/add.cu": "template <typename T>\nstatic int\nadd(float *data, int count)\n{\n}\n",
        "csrc/used.cpp": "int twice(int x) { return 2 * x; }\n",
        "build/old.cu": "void gone() {}\n",
        ".git/old.cu": "void gone() {}\n",
    }.items():
        path = directory / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return directory


def described(directory: Path, name: str) -> Symbol:
    (symbol,) = symbols.describe([name], project(directory), ["csrc/main.cpp", "csrc/used.cpp"])
    return symbol


def test_a_source_that_is_not_compiled_is_found(tmp_path: Path) -> None:
    symbol = described(tmp_path, "_Z3addPfi")
    assert (symbol.source, symbol.listed) == ("csrc/add.cu", False)
    assert causes.why(symbol, LINKED).text.startswith(
        "csrc/add.cu seems to define it, and is not in the `sources`"
    )


def test_a_source_that_is_compiled_is_found(tmp_path: Path) -> None:
    symbol = described(tmp_path, "_Z5twicef")
    assert (symbol.source, symbol.listed) == ("csrc/used.cpp", True)
    assert "`static`" in causes.why(symbol, LINKED).text


def test_what_is_not_of_the_project(tmp_path: Path) -> None:
    symbol = described(tmp_path, "_Z4gonev")
    assert symbol.source == ""
    assert "may be missing from the setup script's `sources`" in causes.why(symbol, LINKED).text


def why(name: str, *needed: str, abi: bool | None = True) -> str:
    return causes.why(Symbol(name, name), Module("m", "m.so", needed=needed, cxx11_abi=abi)).text


CAUSES = [
    ("cublasLtMatmul", 'add "cublasLt"'),
    ("cublasCreate_v2", 'add "cublas"'),
    ("cusparseCreate", 'add "cusparse"'),
    ("cudnnCreate", 'add "cudnn"'),
    ("cudaLaunchKernel", 'add "cudart"'),
    ("__cudaRegisterFatBinary", 'add "cudart"'),
    ("ncclAllReduce", 'add "nccl"'),
    ("__cudaRegisterLinkedBinary_9d5b_add_cu", "dlink=True"),
    ("_ZN3c105ErrorC1ENS_14SourceLocationE", "use CppExtension or CUDAExtension"),
    ("THPVariable_Wrap", '"torch_python"'),
]


@pytest.mark.parametrize(("name", "cause"), CAUSES)
def test_causes(name: str, cause: str) -> None:
    assert cause in why(name)


def test_causes_that_depend_on_what_is_linked() -> None:
    error, stream = "_ZN3c105ErrorC1ENS_14SourceLocationE", "_ZN3c104cuda20getCurrentCUDAStreamEa"
    assert "compiled against is another one" in why(error, "libc10.so", "libtorch.so")
    assert "use CUDAExtension in place of CppExtension" in why(stream, "libc10.so")
    assert "compiled against is another one" in why(stream, "libc10.so", "libc10_cuda.so")


def test_the_abi_of_strings() -> None:
    old = "_ZN3c105ErrorC1ENS_14SourceLocationESs"
    new = "_ZN3c105ErrorC1ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
    assert "_GLIBCXX_USE_CXX11_ABI=0, and this torch with 1" in why(old, "libc10.so")
    assert "_GLIBCXX_USE_CXX11_ABI=1, and this torch with 0" in why(new, "libc10.so", abi=False)
    assert "another one" in why(old, "libc10.so", abi=False) and "another one" in why(new, "libc10.so")
    assert "another one" in why("_ZN3c1012PassSsThingsEv", "libc10.so")  # in an identifier, it is no string


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("_ZN2at6TensorD1Ev", True),
        ("_ZTIN3c105ErrorE", True),
        ("_ZNK5torch8autograd4NodeE", True),
        ("_Z3fooN2at6TensorE", False),
        ("_ZN9torch_ext3fooEv", False),
        ("_ZN4mine3fooERKN2at6TensorE", False),
    ],
)
def test_what_is_torchs(name: str, expected: bool) -> None:
    assert causes.is_of_torch(name) is expected
