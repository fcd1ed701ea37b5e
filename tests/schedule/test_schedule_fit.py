"""Making command lines fit: tables over what setup scripts pin, and what must come of it."""

from __future__ import annotations

import shlex

import pytest

from safe_ext_build.schedule.fit import Call, Fit, Fitted, fit, gencode, uses_torch

TORCH = "/env/site-packages/torch/include"
KNOWN = ("75", "80", "86", "90", "100", "120")
TO = Fit("torch 2.14.1", 20, (TORCH,), "nvcc 13.0.88", KNOWN, "8.0;9.0+PTX")
UNPLANNED = Fit("torch 2.14.1", 20, (TORCH,), "nvcc 13.0.88", KNOWN)
RAISED = "-std=c++17 is raised to c++20, the least that torch 2.14.1 compiles with"


def fitted(line: str, to: Fit = UNPLANNED, prepend: str = "", append: str = "", *, ours: bool = True) -> Fitted:
    return fit(Call(tuple(shlex.split(line)), prepend, append), to, ours=ours)


def same(line: str, to: Fit = UNPLANNED) -> bool:
    return fitted(line, to) == Fitted(Call(tuple(shlex.split(line))))


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (f"nvcc -I{TORCH} -c a.cu -std=c++17", f"nvcc -I{TORCH} -c a.cu -std=c++20"),
        (f"nvcc -I{TORCH} -c a.cu -std c++17", f"nvcc -I{TORCH} -c a.cu -std c++20"),
        (f"nvcc -I{TORCH} -c a.cu --std c++14", f"nvcc -I{TORCH} -c a.cu --std c++20"),
        (f"nvcc -I {TORCH} -c a.cu --std=c++1z", f"nvcc -I {TORCH} -c a.cu --std=c++20"),
        (f"g++ -I{TORCH} -c a.cpp -std=gnu++17", f"g++ -I{TORCH} -c a.cpp -std=gnu++20"),
        (f"g++ -I{TORCH} -c a.cpp -std=c++11", f"g++ -I{TORCH} -c a.cpp -std=c++20"),
        (f"ccache c++ -I{TORCH} -c a.cpp -std=c++0x", f"ccache c++ -I{TORCH} -c a.cpp -std=c++20"),
        (f"g++ -isystem {TORCH}/torch/csrc/api/include -std=c++98", None),
        (f"nvcc --system-include={TORCH}/ -std=c++17 -c a.cu", None),
        (
            f"nvcc -I{TORCH} -c a.cu -std=c++20 -Xcompiler -std=c++17",
            f"nvcc -I{TORCH} -c a.cu -std=c++20 -Xcompiler -std=c++20",
        ),
        (
            f"nvcc -I{TORCH} -c a.cu --compiler-options=-O2,-std=gnu++14,-g",
            f"nvcc -I{TORCH} -c a.cu --compiler-options=-O2,-std=gnu++20,-g",
        ),
        (
            f"nvcc -I{TORCH} -c a.cu -Xcompiler \"'-std=c++17'\"",
            f"nvcc -I{TORCH} -c a.cu -Xcompiler \"'-std=c++20'\"",
        ),
        # Two of nvcc's own: the last counts, and nvcc warns when they differ.
        (f"nvcc -I{TORCH} -std=c++14 -std=c++17", f"nvcc -I{TORCH} -std=c++20 -std=c++20"),
    ],
)
def test_a_standard_that_torch_refuses_is_raised(line: str, expected: str | None) -> None:
    found = fitted(line)
    assert shlex.join(found.call.command) == shlex.join(
        shlex.split(expected or line.replace("98", "20").replace("17", "20"))
    )
    (said,) = found.lines
    assert said.startswith("-std=") and said.endswith("++20, the least that torch 2.14.1 compiles with")


def test_the_line_names_what_was_pinned() -> None:
    assert fitted(f"nvcc -I{TORCH} -c a.cu -std=c++17").lines == (RAISED,)


@pytest.mark.parametrize(
    "line",
    [
        "nvcc -I/env/torch/includes -c a.cu -std=c++17",  # none of torch's headers
        f"g++ -I{TORCH}s -c a.cpp -std=c++17",
        f"g++ -I{TORCH} -c a.cpp",
        f"g++ -I{TORCH} -c a.cpp -std=c++20",
        f"g++ -I{TORCH} -c a.cpp -std=c++2b",
        f"gcc -I{TORCH} -c a.c -std=c17",
        f"g++ -I{TORCH} -c a.cpp -std=c++17 -std=c++20",  # as conda's CXXFLAGS have it
        f"g++ -I{TORCH} -c a.cpp -DSTD=-std=c++17 '-DX=c++17'",
        f"g++ -I{TORCH} -c c++17.cpp -o c++17.o",
        f"nvcc -I{TORCH} -c a.cu -std=c++20 -Xcompiler -Wno-c++17-extensions",
    ],
)
def test_other_standards_stay(line: str) -> None:
    assert same(line)


def test_without_torch_nothing_is_raised() -> None:
    assert same(f"nvcc -I{TORCH} -c a.cu -std=c++11", Fit())


def test_flags_in_variables_are_mended_there() -> None:
    found = fitted(
        f"nvcc -I{TORCH} -c a.cu", prepend="-std=c++17  -g", append="-gencode arch=compute_90,code=sm_90 -O1"
    )
    assert (found.call.prepend, found.lines) == ("-std=c++20 -g", (RAISED,))
    assert found.call.append == "-gencode arch=compute_90,code=sm_90 -O1"
    found = fitted("nvcc -c a.cu -arch=sm_80", append="-gencode arch=compute_70,code=sm_70  -O1")
    assert found.call.append == "-O1"
    assert fitted("g++ -c a.cpp", append="-std=c++17").call.append == "-std=c++17"  # g++ never reads it


@pytest.mark.parametrize("path", [TORCH, f"{TORCH}/", f"{TORCH}/torch/csrc/api/include", f"{TORCH}/../include"])
def test_headers_of_torch_are_known(path: str) -> None:
    for option in (f"-I{path}", f"-isystem{path}", f"-isystem={path}", f"--include-path={path}"):
        assert uses_torch(["-c", "a.cu", option], TO)
    assert uses_torch(["-I", path], TO)
    assert not uses_torch([f"-L{path}", path], TO)


@pytest.mark.parametrize(
    ("unknown", "known", "expected"),
    [
        ("-gencode arch=compute_70,code=sm_70", "-gencode arch=compute_80,code=sm_80", ""),
        ("-gencode=arch=compute_70,code=sm_70", "-gencode=arch=compute_80,code=sm_80", ""),
        ("--generate-code arch=compute_130,code=sm_130", "--generate-code=arch=compute_80,code=sm_80", ""),
        ("--gpu-architecture sm_35", "-gencode=arch=compute_90,code=lto_90", ""),
        ("-gencode arch=compute_75,code=sm_70", "-arch=sm_80", ""),
        ("-arch=sm_70", "-gencode arch=compute_90a,code=sm_90a", ""),
        ("-arch compute_70 -code sm_70,sm_80", "-gencode arch=compute_80,code=sm_80", ""),
        ("-arch compute_75 -code sm_70,sm_75,compute_75", "", "-arch compute_75 -code=sm_75,compute_75"),
        ("-arch=compute_75 -code=sm_70", "", "-arch=compute_75"),
        (
            "-gencode arch=compute_75,code=[sm_70,sm_75,compute_75]",
            "",
            "-gencode=arch=compute_75,code=[sm_75,compute_75]",
        ),
        ('-gencode arch=compute_75,code=\\"sm_70,sm_75\\"', "", "-gencode=arch=compute_75,code=sm_75"),
    ],
)
def test_architectures_that_nvcc_does_not_know_are_left_out(unknown: str, known: str, expected: str) -> None:
    found = fitted(f"nvcc -O2 {unknown} -c a.cu {known}")
    assert list(found.call.command) == f"nvcc -O2 {expected} -c a.cu {known}".split()
    (line,) = found.lines
    assert line.startswith("nvcc 13.0.88 does not know sm_") and "left out of the package's flags" in line
    assert not found.error


def test_what_is_left_out_is_named() -> None:
    flags = " ".join(f"-gencode arch=compute_{arch},code=sm_{arch}" for arch in (53, 62, 70, 80, 100))
    (line,) = fitted(f"nvcc -c a.cu {flags}").lines
    assert line == (
        "nvcc 13.0.88 does not know sm_53, sm_62, sm_70: left out of the package's flags, which compile for "
        "sm_80, sm_100 now"
    )


@pytest.mark.parametrize(
    "flags", ["-arch=sm_70", "-gencode arch=compute_70,code=sm_70", "-arch compute_70 -code sm_80"]
)
def test_no_architecture_left_is_an_error(flags: str) -> None:
    found = fitted(f"nvcc -c a.cu {flags}")
    assert (
        found.error
        == "compiled for sm_70 only, which nvcc 13.0.88 does not know; it knows 75, 80, 86, 90, 100, 120"
    )


@pytest.mark.parametrize(
    "line",
    [
        "nvcc -c a.cu -arch=native",
        "nvcc -c a.cu -arch=all-major",
        "nvcc -c a.cu -gencode arch=compute_100f,code=sm_100f",
        "nvcc -c a.cu -Xcompiler -march=native",
        "nvcc -c a.cu -DARCH=sm_70 -Ism_70",
        "nvcc -c sm_70.cu",
        "nvcc -c a.cu",
        "g++ -c a.cpp -arch=sm_70",
    ],
)
def test_other_architectures_stay(line: str) -> None:
    assert same(line)


def test_another_nvcc_knows_others() -> None:
    line = "/usr/local/cuda-12/bin/nvcc -c a.cu -arch=sm_70"
    assert fitted(line, ours=False) == Fitted(Call(tuple(line.split())))
    assert same(line, Fit())


HELPER = f"nvcc -I{TORCH} -I/research -c /research/a.cu -o /research/a.o -DTORCH_EXTENSION_NAME=_C"
PLANNED = " ".join(
    f"-gencode=arch=compute_{pair}" for pair in ("80,code=sm_80", "90,code=sm_90", "90,code=compute_90")
)


@pytest.mark.parametrize("flag", ["-march=native", "-I/home/me/research/include", "-Dresearch=1"])
def test_architectures_that_torch_dropped_are_added(flag: str) -> None:
    found = fitted(f"{HELPER} -Xcompiler {flag}", TO)
    assert shlex.join(found.call.command) == f"{HELPER} -Xcompiler {flag} {PLANNED}"
    assert found.lines == (
        f"torch leaves its architectures out because of the flag {flag}: added those of 8.0;9.0+PTX",
    )


@pytest.mark.parametrize(
    "line",
    [
        HELPER,  # nothing that torch would trip over
        f"{HELPER} -DTORCH_EXTENSION_NAME=arch",
        f"{HELPER} -Xcompiler -march=native -arch=sm_80",
        f"{HELPER} -march=native -gencode arch=compute_80,code=sm_80",
        f"nvcc -I{TORCH} -c a.cu -Xcompiler -march=native",  # not compiled by torch's helper
        f"g++ -I{TORCH} -c a.cpp -DTORCH_EXTENSION_NAME=_C -march=native",
    ],
)
def test_nothing_is_added_where_nothing_was_dropped(line: str) -> None:
    assert same(line, TO)


@pytest.mark.parametrize(
    ("planned", "expected"),
    [
        ("8.6", ["-gencode=arch=compute_86,code=sm_86"]),
        ("12.0a", ["-gencode=arch=compute_120a,code=sm_120a"]),
        ("9.0+PTX", ["-gencode=arch=compute_90,code=sm_90", "-gencode=arch=compute_90,code=compute_90"]),
    ],
)
def test_flags_as_torch_makes_them(planned: str, expected: list[str]) -> None:
    assert gencode(planned) == expected


def test_a_list_that_the_package_overrides_is_said() -> None:
    asked = Fit(nvcc="nvcc", planned="8.0;9.0+PTX", asked="TORCH_CUDA_ARCH_LIST in the environment")
    (line,) = fitted("nvcc -c a.cu -arch=sm_100 -gencode arch=compute_90,code=sm_90", asked).lines
    assert line == (
        "TORCH_CUDA_ARCH_LIST in the environment asks for 8.0;9.0+PTX, but the package's own flags win: compiled "
        "for sm_90, sm_100"
    )
    assert same(f"nvcc -c a.cu {PLANNED}", asked)
    assert same("nvcc -c a.cu -gencode arch=compute_75,code=sm_80 -arch compute_80 -code sm_90", asked)
    assert same("nvcc -c a.cu -arch=native", asked)
    assert same("nvcc -c a.cu", asked)
    assert same("nvcc -c a.cu -arch=sm_100", TO)  # nobody has asked


@pytest.mark.parametrize(
    ("ccbin", "expected"),
    [
        ("-ccbin 'ccache gcc'", "-ccbin gcc"),
        ("--compiler-bindir='gcc -m64 -g'", "--compiler-bindir gcc -Xcompiler -m64 -Xcompiler -g"),
        ("-ccbin g++-12", "-ccbin g++-12"),
        ("-g -ccbin ''", "-g"),
        ("-ccbin '/my tools/g++'", "-ccbin '/my tools/g++'"),
    ],
)
def test_a_ccbin_of_several_words(ccbin: str, expected: str) -> None:
    assert shlex.join(fitted(f"nvcc {ccbin} -c a.cu").call.command) == f"nvcc {expected} -c a.cu"


@pytest.mark.parametrize("program", ["g++", "nvcc"])
def test_without_a_lock_there_is_no_limited_api(program: str) -> None:
    line = f"{program} -DPy_LIMITED_API=0x030A0000 -DX -c a.cu"
    found = fitted(line, Fit(free_threaded=True))
    assert found.call.command == (program, "-DX", "-c", "a.cu")
    assert found.lines == ("Py_LIMITED_API is left out: this Python is free-threaded, and has no limited API",)
    assert same(line)
