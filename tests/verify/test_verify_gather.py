"""The builder's side: real libraries, made by the C compiler, in wheels made by hand; torch is a file."""

from __future__ import annotations

import importlib.machinery
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from safe_ext_build.verify import gather
from safe_ext_build.verify.findings import Findings, Module, Symbol

SUFFIX = importlib.machinery.EXTENSION_SUFFIXES[0]
# An extension module as the loader sees it; what it would do when it is imported is of no interest here.
MODULE = "void *PyInit__C(void) { return 0; }\n"
# One that can also be imported.
REAL = """#include <Python.h>
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_C", 0, -1, 0};
PyMODINIT_FUNC PyInit__C(void) { return PyModule_Create(&definition); }
"""


def compiled(path: Path, source: str, *options: str) -> Path:
    import sysconfig

    path.parent.mkdir(parents=True, exist_ok=True)
    include = f"-I{sysconfig.get_path('include')}"
    command = ["cc", "-shared", "-fPIC", include, "-x", "c", "-", "-x", "none", *options, "-o", str(path)]
    subprocess.run(command, input=source.encode(), check=True)
    return path


class Bench:
    """A project, a wheel of it, and a workspace to check that in."""

    def __init__(self, directory: Path) -> None:
        self.place = directory
        self.content = directory / "content"
        for name in ("content/pkg", "project", "workspace/tmp", "dist", "site"):
            (directory / name).mkdir(parents=True)
        (self.content / "pkg" / "__init__.py").write_text("")

    def clear(self) -> None:
        shutil.rmtree(self.place / "workspace" / "tmp" / "check")

    @property
    def module(self) -> Path:
        return self.content / "pkg" / f"_C{SUFFIX}"

    def check(self, *, load: bool = True, torch: bool = False) -> Findings:
        with zipfile.ZipFile(self.place / "dist" / "pkg.whl", "w") as archive:
            for path in self.content.rglob("*"):
                archive.write(path, path.relative_to(self.content))
        request: Mapping[str, Any] = {
            "hook": "build_wheel",
            "arguments": {"wheel_directory": str(self.place / "dist")},
            "path": [str(self.place / "site"), *sys.path],
        }
        gather.record({"load": load, "torch": torch}, request, "pkg.whl", self.place / "workspace")
        found = Findings.load(self.place / "workspace" / gather.FILE)
        assert found is not None
        return found

    def only(self, **options: bool) -> Module:
        found = self.check(**options)
        assert found.trouble == ""
        (module,) = [one for one in found.modules if one.name == "pkg._C"]
        return module


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    bench = Bench(tmp_path)
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.delenv("TORCH_CUDA_ARCH_LIST", raising=False)
    return bench


def test_a_module_that_loads(bench: Bench) -> None:
    compiled(bench.module, MODULE)
    module = bench.only()
    assert (module.outcome, module.path, module.cxx11_abi) == ("loaded", f"pkg/_C{SUFFIX}", None)


def test_it_is_only_loaded_when_that_is_asked_for(bench: Bench) -> None:
    compiled(bench.module, MODULE + "void missing(void);\nvoid call(void) { missing(); }\n")
    assert bench.only(load=False).outcome == ""


def test_undefined_symbols(bench: Bench) -> None:
    (bench.place / "project" / "more.c").write_text("int add(int a, int b) { return a + b; }\n")
    source = "int add(int, int);\nint other(void);\nint call(void) { return add(1, 2) + other(); }\n"
    compiled(bench.module, MODULE + source)
    module = bench.only()
    assert module.outcome == "undefined"
    assert set(module.symbols) == {Symbol("add", "add", "more.c"), Symbol("other", "other")}


def test_a_symbol_that_may_be_missing(bench: Bench) -> None:
    source = "__attribute__((weak)) int add(int, int);\nint call(void) { return add ? add(1, 2) : 0; }\n"
    compiled(bench.module, MODULE + source)
    assert bench.only().outcome == "loaded"


USES_HELPER = REAL + "int help(void);\nint call(void) { return help(); }\n"
PRELOADS = """import ctypes, pathlib
ctypes.CDLL(str(pathlib.Path(__file__).with_name('libhelp.so')), ctypes.RTLD_GLOBAL)
"""


def test_a_package_that_loads_a_library_of_its_own_first(bench: Bench) -> None:
    compiled(bench.module, USES_HELPER)
    compiled(bench.content / "pkg" / "libhelp.so", "int help(void) { return 1; }\n")
    (bench.content / "pkg" / "__init__.py").write_text(PRELOADS)
    assert bench.only().outcome == "loaded"


def test_a_library_of_the_wheel_that_somebody_must_load(bench: Bench) -> None:
    compiled(bench.module, USES_HELPER)
    compiled(bench.content / "pkg" / "libhelp.so", "int help(void) { return 1; }\n")
    module = bench.only()
    assert (module.outcome, module.symbols) == ("unsure", ())


def test_a_package_that_needs_another_to_be_imported(bench: Bench) -> None:
    compiled(bench.module, USES_HELPER)
    (bench.content / "pkg" / "__init__.py").write_text("import not_installed_anywhere\n")
    module = bench.only()
    assert (module.outcome, module.symbols) == ("unsure", (Symbol("help", "help"),))
    assert module.detail == "ModuleNotFoundError: No module named 'not_installed_anywhere'"


def test_a_library_that_is_not_here(bench: Bench) -> None:
    elsewhere = compiled(
        bench.place / "elsewhere" / "libfar.so", "int far_away(void) { return 1; }\n", "-Wl,-soname,libfar.so.7"
    )
    compiled(bench.module, MODULE + "int far_away(void);\nint call(void) { return far_away(); }\n", str(elsewhere))
    module = bench.only()
    assert (module.outcome, module.detail, module.needed[0]) == ("library", "libfar.so.7", "libfar.so.7")


def test_a_library_of_the_wheel_that_the_package_loads(bench: Bench) -> None:
    library = compiled(
        bench.content / "pkg" / "libhelp.so", "int help(void) { return 1; }\n", "-Wl,-soname,libhelp.so"
    )
    compiled(bench.module, USES_HELPER, str(library))
    (bench.content / "pkg" / "__init__.py").write_text(PRELOADS)
    assert bench.only().outcome == "loaded"


def test_a_module_that_crashes_takes_no_other_with_it(bench: Bench) -> None:
    compiled(
        bench.module, MODULE + "#include <stdlib.h>\n__attribute__((constructor)) void go(void) { abort(); }\n"
    )
    compiled(bench.content / "pkg" / f"_D{SUFFIX}", MODULE.replace("_C", "_D"))
    outcomes = {module.name: (module.outcome, module.detail) for module in bench.check().modules}
    assert outcomes == {"pkg._C": ("crashed", "killed by signal 6"), "pkg._D": ("loaded", "")}


def test_a_loader_that_hangs_is_ended(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gather, "LOAD_TIMEOUT", 1.0)
    hang = "#include <unistd.h>\n__attribute__((constructor)) void go(void) { sleep(60); }\n"
    compiled(bench.module, MODULE + hang)
    module = bench.only()
    assert (module.outcome, module.detail) == ("failed", "it took more than 1 s")


def fake_torch(bench: Bench, text: str) -> None:
    (bench.place / "site" / "torch.py").write_text(text)


def linked_to_torch(bench: Bench) -> None:
    library = compiled(
        bench.place / "torch" / "libtorch_cpu.so", "int at(void) { return 1; }\n", "-Wl,-soname,libtorch_cpu.so"
    )
    compiled(bench.module, MODULE + "int at(void);\nint call(void) { return at(); }\n", str(library))
    fake_torch(
        bench,
        f"import ctypes\nctypes.CDLL({str(library)!r})\ndef compiled_with_cxx11_abi():\n    return True\n",
    )


def test_torch_is_imported_first(bench: Bench) -> None:
    linked_to_torch(bench)
    module = bench.only(torch=True)
    assert (module.outcome, module.cxx11_abi) == ("loaded", True)


def test_what_torch_brings_for_everybody(bench: Bench) -> None:
    library = compiled(bench.place / "torch" / "libruntime.so", "int cudaCount(void) { return 1; }\n")
    compiled(bench.module, MODULE + "int cudaCount(void);\nint call(void) { return cudaCount(); }\n")
    load = f"import ctypes\nctypes.CDLL({str(library)!r}, ctypes.RTLD_GLOBAL)\n"
    fake_torch(bench, f"{load}def compiled_with_cxx11_abi():\n    return True\n")
    assert bench.only().outcome == "undefined"
    bench.clear()
    assert bench.only(torch=True).outcome == "loaded"


def test_torch_is_not_imported_for_what_does_not_need_it(bench: Bench) -> None:
    fake_torch(bench, "raise AssertionError('torch was imported')\n")
    compiled(bench.module, MODULE)
    assert bench.only(torch=True).outcome == "loaded"


@pytest.mark.parametrize(
    ("text", "detail"),
    [
        (
            "raise ImportError('libcudnn is missing')\n",
            "torch cannot be imported: ImportError: libcudnn is missing",
        ),
        ("import os; os._exit(3)\n", "exit status 3"),
    ],
)
def test_a_torch_that_cannot_be_imported(text: str, detail: str, bench: Bench) -> None:
    linked_to_torch(bench)
    fake_torch(bench, text)
    module = bench.only(torch=True)
    assert (module.outcome, module.detail) == ("failed", detail)


def test_where_wheels_keep_what_is_not_pure(bench: Bench) -> None:
    compiled(bench.content / "pkg-1.0.data" / "platlib" / "deep" / "er" / "_C.abi3.so", MODULE)
    (module,) = bench.check().modules
    assert (module.name, module.path, module.outcome) == ("deep.er._C", "deep/er/_C.abi3.so", "loaded")


def test_files_that_only_look_like_libraries(bench: Bench) -> None:
    (bench.content / "pkg" / "linker.so").write_text("/* GNU ld script */\n")
    assert bench.check().modules == ()


def test_trouble_is_a_finding(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled(bench.module, MODULE)
    monkeypatch.setattr(gather, "_KEEP_FREE", 1 << 60)
    trouble = bench.check().trouble
    assert trouble.startswith("OSError: unpacked, it has 0 MiB, and ") and "has room for" in trouble


SETUP = "from torch.utils.cpp_extension import CUDAExtension\n"


@pytest.mark.parametrize(
    ("setup", "sources", "carried", "unbuilt"),
    [
        (SETUP, ["csrc/a.cu"], [], "csrc/a.cu"),
        (SETUP, ["csrc/a.cu"], ["pkg/a.cu"], ""),  # compiled at run time
        (SETUP, ["third_party/lib/a.cu", "tests/a.cu", "csrc/a.cpp"], [], ""),
        ("from setuptools import setup\n", ["csrc/a.cu"], [], ""),
        ("", ["csrc/a.cu"], [], ""),
    ],
)
def test_cuda_sources_that_were_not_compiled(
    setup: str, sources: Sequence[str], carried: Sequence[str], unbuilt: str, bench: Bench
) -> None:
    if setup:
        (bench.place / "project" / "setup.py").write_text(setup)
    for path in [*(bench.place / "project" / one for one in sources), *(bench.content / one for one in carried)]:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("__global__ void a() {}\n")
    assert bench.check().unbuilt == unbuilt
