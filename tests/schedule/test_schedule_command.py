"""Reading compiler command lines: tables over what torch, flash-attn, CMake and configure scripts really run."""

from __future__ import annotations

import shlex

import pytest

from safe_ext_build.schedule.command import (
    CompileJob,
    device_archs,
    is_compiler,
    parse,
    split_compiler,
    split_program,
    with_temporary_output,
    with_threads,
)

TORCH_CXX = (
    "c++ -MMD -MF build/temp/csrc/op.o.d -fno-strict-overflow -Wsign-compare -DNDEBUG -g -O3 -Wall -fPIC "
    "-I/env/torch/include -I/env/torch/include/torch/csrc/api/include -I/usr/include/python3.11 "
    "-c /src/csrc/op.cpp -o build/temp/csrc/op.o -O2 -DTORCH_API_INCLUDE_EXTENSION_H "
    "-DTORCH_EXTENSION_NAME=_C -std=c++20"
)
TORCH_CUDA = (
    "/cuda/bin/nvcc -MD -MF build/temp/csrc/op.o.d -I/env/torch/include -I/cuda/include -c /src/csrc/op.cu "
    "-o build/temp/csrc/op.o -D__CUDA_NO_HALF_OPERATORS__ -D__CUDA_NO_HALF2_OPERATORS__ --expt-relaxed-constexpr "
    "--compiler-options ''\"'\"'-fPIC'\"'\"'' -O3 -DTORCH_EXTENSION_NAME=_C "
    "-gencode=arch=compute_80,code=sm_80 -gencode=arch=compute_90,code=compute_90 "
    "-gencode=arch=compute_90,code=sm_90 -std=c++20"
)
FLASH = (
    "/cuda/bin/nvcc --generate-dependencies-with-compile --dependency-output /b/flash_fwd.o.d "
    "-I/x -c /s/flash_fwd.cu -o /b/flash_fwd.o -O3 -std=c++17 -U__CUDA_NO_HALF_OPERATORS__ --use_fast_math "
    "-gencode arch=compute_80,code=sm_80 -gencode arch=compute_90,code=sm_90 "
    "-gencode arch=compute_100,code=sm_100 -gencode arch=compute_120,code=sm_120 "
    "-gencode arch=compute_120,code=compute_120 --threads 4"
)
CMAKE = (
    "/usr/bin/c++ -DX_EXPORTS -O3 -MD -MT CMakeFiles/x.dir/a.cpp.o -MF CMakeFiles/x.dir/a.cpp.o.d "
    "-o CMakeFiles/x.dir/a.cpp.o -c /s/a.cpp"
)


def job(line: str, prepend: str = "", append: str = "") -> CompileJob:
    parsed = parse(shlex.split(line), prepend, append)
    assert parsed is not None
    return parsed


@pytest.mark.parametrize(
    ("line", "cuda", "source", "output", "depfile", "archs", "threads"),
    [
        (TORCH_CXX, False, "/src/csrc/op.cpp", "build/temp/csrc/op.o", "build/temp/csrc/op.o.d", 0, 1),
        (TORCH_CUDA, True, "/src/csrc/op.cu", "build/temp/csrc/op.o", "build/temp/csrc/op.o.d", 2, 1),
        (FLASH, True, "/s/flash_fwd.cu", "/b/flash_fwd.o", "/b/flash_fwd.o.d", 4, 4),
        (CMAKE, False, "/s/a.cpp", "CMakeFiles/x.dir/a.cpp.o", "CMakeFiles/x.dir/a.cpp.o.d", 0, 1),
        ("ccache " + FLASH, True, "/s/flash_fwd.cu", "/b/flash_fwd.o", "/b/flash_fwd.o.d", 4, 4),
        ("/usr/bin/sccache g++ -c a.cc -o a.o", False, "a.cc", "a.o", "", 0, 1),
        ("nvcc -c a.cu --output-file=a.o -t=8 -arch=all", True, "a.cu", "a.o", "", 12, 8),
        ("nvcc -dc a.cu --output-file a.o -t3", True, "a.cu", "a.o", "", 0, 3),
        ("nvcc -c a.cu -o=a.o -t 3", True, "a.cu", "a.o", "", 0, 3),
        ("gcc -c a.c -o/tmp/a.o", False, "a.c", "/tmp/a.o", "", 0, 1),
        ("g++ -include pre.cpp -c a.cpp -o a.o", False, "a.cpp", "a.o", "", 0, 1),
        ("nvcc -Xcompiler -E -c a.cu -o a.o", True, "a.cu", "a.o", "", 0, 1),
        ("g++ -MMD -MF /dev/null -c a.cpp -o a.o", False, "a.cpp", "a.o", "", 0, 1),
        ("g++ -MF stale.d -c a.cpp -o a.o", False, "a.cpp", "a.o", "", 0, 1),
        ("g++ -c a.cpp -o /dev/null", False, "a.cpp", "", "", 0, 1),
        ("g++ -x c++ -c - -o out.o", False, "", "out.o", "", 0, 1),
    ],
)
def test_a_compile_is_read(
    line: str, cuda: bool, source: str, output: str, depfile: str, archs: int, threads: int
) -> None:
    found = job(line)
    assert (found.cuda, found.source, found.output, found.depfile) == (cuda, source, output, depfile)
    assert (len(found.archs), found.threads) == (archs, threads)


@pytest.mark.parametrize(
    "line",
    [
        "g++ -shared a.o b.o -L/env/torch/lib -lc10 -Wl,-rpath,'$ORIGIN' -o lib.so",
        "g++ a.o -Xlinker -E -o program",
        "nvcc a.o b.o -o dlink.o -dlink -arch=sm_80",
        "nvcc --options-file flags.txt",
        "nvcc -optf flags.txt",
        "g++ @flags.rsp",
        "g++ a.cpp b.cpp -o program",
        "g++ -c a.cpp b.cpp",
        "nvcc -cubin a.cu -o a.cubin",
    ],
)
def test_what_makes_no_single_object_is_a_job_that_keeps_its_output_name(line: str) -> None:
    found = job(line)
    assert not found.compiles
    assert with_temporary_output(found, "t") == (shlex.split(line), "")


@pytest.mark.parametrize(
    "line",
    [
        "nvcc --version",
        "nvcc -V",
        "g++ -dumpversion",
        "g++ -dumpfullversion -dumpversion",
        "c++ -v",
        "g++",
        "g++ -print-file-name=libasan.so",
        "g++ -E a.cpp",
        "g++ -MM a.cpp",
        "nvcc --dryrun -c a.cu -o a.o",
        "nvcc -dryrun a.cu",
        "nvcc --list-gpu-arch",
        "ccache --version",
        "ccache -s",
        "ccache g++ --version",
        "g++ -### -c a.cpp",
    ],
)
def test_a_question_is_no_job(line: str) -> None:
    assert parse(shlex.split(line)) is None


@pytest.mark.parametrize(
    ("prepend", "line", "append", "threads"),
    [
        ("", "nvcc -c a.cu --threads 4", "--threads 2", 2),
        ("", "nvcc -c a.cu -t4", "--threads 2", 2),
        ("--threads 2", "nvcc -c a.cu --threads 4", "", 4),
        ("--threads 2", "nvcc -c a.cu -t4", "", 4),
        ("--threads 2", "nvcc -c a.cu", "", 2),
        ("-t 2", "nvcc -c a.cu", "-t=3", 3),
        ("", "nvcc -c a.cu --threads", "", 1),
        ("", "nvcc -c a.cu --threads many", "", 1),
        ("--threads 8", "g++ -c a.cpp", "--threads 8", 1),
        ("", "nvcc -c a.cu", "unbalanced ' --threads 2", 2),
    ],
)
def test_the_last_value_of_threads_holds(prepend: str, line: str, append: str, threads: int) -> None:
    assert job(line, prepend=prepend, append=append).threads == threads


def test_threads_of_zero_are_the_machines_cpus() -> None:
    parsed = parse(["nvcc", "-c", "a.cu", "--threads=0", "-arch=all-major"], cpus=16)
    assert parsed is not None and (parsed.threads, len(parsed.archs), parsed.weight) == (16, 6, 6)


@pytest.mark.parametrize(("threads", "archs", "weight"), [(4, 1, 1), (1, 6, 1), (4, 2, 2), (2, 6, 2)])
def test_weight_is_what_runs_at_once(threads: int, archs: int, weight: int) -> None:
    names = tuple(map(str, range(archs)))
    assert CompileJob((), True, True, "", "", "", names, threads).weight == weight
    assert CompileJob((), False, True, "", "", "", names, threads).weight == 1


@pytest.mark.parametrize(
    ("flags", "archs"),
    [
        ("", set()),
        ("-arch=sm_80", {"80"}),
        ("-arch sm_90a", {"90a"}),
        ("--gpu-architecture=compute_80 --gpu-code=sm_80,sm_86", {"80"}),
        ("-gencode arch=compute_80,code=[sm_80,compute_80]", {"80"}),
        ("--generate-code=arch=compute_80,code=[sm_80,sm_86]", {"80"}),
        ("-gencode=arch=compute_100f,code=sm_100f -gencode=arch=compute_90a,code=sm_90a", {"100f", "90a"}),
        ("-gencode=arch=compute_80,code=sm_80 -arch=sm_90", {"80", "90"}),
        ("-arch=native", {"native"}),
        ("-arch=all-major", {"75", "80", "90", "100", "110", "120"}),
        ("-gencode", set()),
    ],
)
def test_device_archs(flags: str, archs: set[str]) -> None:
    assert device_archs(flags.split()) == archs


def test_all_is_every_arch_of_the_compiler() -> None:
    assert len(device_archs(["-arch=all"])) == 12
    assert len(device_archs(["-arch", "all"])) == 12


@pytest.mark.parametrize(
    ("line", "expected", "temporary"),
    [
        ("g++ -c a.cpp -o b/a.o", "g++ -c a.cpp -o b/a.t.o", "b/a.t.o"),
        ("nvcc -c a.cu --output-file=a.o", "nvcc -c a.cu --output-file=a.t.o", "a.t.o"),
        ("nvcc -c a.cu -o=a.o", "nvcc -c a.cu -o=a.t.o", "a.t.o"),
        ("g++ -c a.cpp -o/b/a.o", "g++ -c a.cpp -o/b/a.t.o", "/b/a.t.o"),
        ("g++ -o x.o -c a.cpp -o a.o", "g++ -o x.o -c a.cpp -o a.t.o", "a.t.o"),
        ("nvcc -MD -MF a.d -c a.cu -o a.o", "nvcc -MD -MF a.d -c a.cu -o a.t.o -MT a.o", "a.t.o"),
        ("g++ -MMD -MF a.d -c a.cpp -o a.o", "g++ -MMD -MF a.d -c a.cpp -o a.t.o -MQ a.o", "a.t.o"),
        ("g++ -MD -MT a.o -MF a.d -o a.o -c a.c", "g++ -MD -MT a.o -MF a.d -o a.t.o -c a.c", "a.t.o"),
        ("g++ -MD -MTa.o -MF a.d -o a.o -c a.c", "g++ -MD -MTa.o -MF a.d -o a.t.o -c a.c", "a.t.o"),
        ("g++ -c 'my src/a.cpp' -o 'my b/a.o'", "g++ -c 'my src/a.cpp' -o 'my b/a.t.o'", "my b/a.t.o"),
        ("g++ -c a.cpp -o noext", "g++ -c a.cpp -o noext.t", "noext.t"),
    ],
)
def test_the_output_gets_a_temporary_name(line: str, expected: str, temporary: str) -> None:
    assert with_temporary_output(job(line), "t") == (shlex.split(expected), temporary)


@pytest.mark.parametrize(
    "flags",
    [
        "-gsplit-dwarf -o a.o",
        "-Xcompiler=-fPIC,-gsplit-dwarf -o a.o",
        "--coverage -o a.o",
        "-fprofile-use=x -o a.o",
        "-fprofile-generate -o a.o",
        "-save-temps=obj -o a.o",
        "--keep -o a.o",
        "-ftime-trace -o a.o",
        "-fstack-usage -o a.o",
        "-MMD -o a.o",  # the compiler names the depfile after the output
        "-MD -MFa.d -o a.o",
        "-o -",
        "-o /dev/null",
        "-o /dev/stdout",
        "",
    ],
)
def test_where_names_matter_the_output_keeps_its_own(flags: str) -> None:
    line = ["g++", "-c", "a.cpp", *flags.split()]
    parsed = parse(line)
    assert parsed is not None and with_temporary_output(parsed, "t") == (line, "")


def test_a_name_as_long_as_may_be_stays_within_the_limit() -> None:
    parsed = job(f"g++ -c a.cpp -o {'ä' * 126}.o")
    assert len(with_temporary_output(parsed, "seb-123456")[1].encode()) <= 255


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        *((name, True) for name in ("nvcc", "/a b/nvcc", "g++", "c++", "cc", "gcc-12", "x86_64-linux-gnu-g++-12")),
        *((name, True) for name in ("clang++-17", "x86_64-conda-linux-gnu-cc", "hipcc", "icpx", "nvc++")),
        *((name, False) for name in ("ld", "ar", "cc1plus", "python", "ccache", "nvcc.sh", "gccgo-wrapper", "")),
    ],
)
def test_is_compiler(program: str, expected: bool) -> None:
    assert is_compiler(program) is expected


@pytest.mark.parametrize(
    ("line", "append", "threads", "expected", "expected_append"),
    [
        # As asked: nothing changes.
        ("nvcc -c a.cu --threads 4", "", 4, "nvcc -c a.cu --threads 4", ""),
        ("nvcc -c a.cu", "", 1, "nvcc -c a.cu", ""),
        ("nvcc -c a.cu --threads 4", "--threads 2", 2, "nvcc -c a.cu --threads 4", "--threads 2"),
        # In the command, in every spelling.
        ("nvcc -c a.cu --threads 4 -O3", "", 2, "nvcc -c a.cu --threads 2 -O3", ""),
        ("nvcc -c a.cu --threads=4", "", 2, "nvcc -c a.cu --threads=2", ""),
        ("nvcc -t 4 -c a.cu", "", 1, "nvcc -t 1 -c a.cu", ""),
        ("nvcc -t=4 -c a.cu", "", 1, "nvcc -t=1 -c a.cu", ""),
        ("nvcc -t16 -c a.cu", "-O1", 3, "nvcc -t3 -c a.cu", "-O1"),
        ("ccache nvcc -c a.cu --threads 4", "", 2, "ccache nvcc -c a.cu --threads 2", ""),
        # Of two the last one counts.
        ("nvcc -t 8 -c a.cu --threads 4", "", 2, "nvcc -t 8 -c a.cu --threads 2", ""),
        # What stands in NVCC_APPEND_FLAGS is the last of all; what else is there stays as it is written.
        ("nvcc -c a.cu", "--threads 4", 2, "nvcc -c a.cu", "--threads 2"),
        ("nvcc -c a.cu --threads 8", " -O1  -t=4 -g", 2, "nvcc -c a.cu --threads 8", " -O1  -t=2 -g"),
        ("nvcc -c a.cu", "-DX=[1] -t4 -DY='b'", 3, "nvcc -c a.cu", "-DX=[1] -t3 -DY='b'"),
        ("nvcc -c a.cu", "--threads 1 --threads 4", 2, "nvcc -c a.cu", "--threads 1 --threads 2"),
        # Nowhere.
        ("nvcc -c a.cu", "", 4, "nvcc -c a.cu --threads 4", ""),
        ("nvcc -c a.cu", "-O1", 4, "nvcc -c a.cu --threads 4", "-O1"),
        # None of our business.
        ("g++ -c a.cpp", "--threads 4", 2, "g++ -c a.cpp", "--threads 4"),
    ],
)
def test_threads_are_set_where_they_count(
    line: str, append: str, threads: int, expected: str, expected_append: str
) -> None:
    parsed = job(line, append=append)
    found = with_threads(parsed, list(parsed.command), "", append, threads)
    assert found == (shlex.split(expected), "", expected_append)
    if parsed.cuda:
        assert job(shlex.join(found[0]), append=found[2]).threads == threads


def test_threads_that_stand_before_all_are_set_there() -> None:
    parsed = job("nvcc -c a.cu", "-O1 --threads 4", "-g")
    assert with_threads(parsed, ["nvcc"], "-O1 --threads 4", "-g", 2) == (["nvcc"], "-O1 --threads 2", "-g")
    parsed = job("nvcc -t 3 -c a.cu", "-t8")
    assert with_threads(parsed, ["nvcc", "-t", "3"], "-t8", "", 2) == (["nvcc", "-t", "2"], "-t8", "")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("g++", ([], "g++", [])),
        ("ccache g++", (["ccache"], "g++", [])),
        (
            "/usr/bin/sccache /usr/bin/x86_64-conda-linux-gnu-g++",
            (["/usr/bin/sccache"], "/usr/bin/x86_64-conda-linux-gnu-g++", []),
        ),
        ("gcc -m64 -B/opt/x", ([], "gcc", ["-m64", "-B/opt/x"])),
        ("/my tools/g++", ([], "/my tools/g++", [])),
        ("/opt/gcc 12/bin/g++", ([], "/opt/gcc 12/bin/g++", [])),
        ("python build.py", ([], "python build.py", [])),
        ("ccache", ([], "ccache", [])),
        ("", ([], "", [])),
    ],
)
def test_a_compiler_of_several_words(text: str, expected: tuple[list[str], str, list[str]]) -> None:
    assert split_compiler(text) == expected


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["ccache g++", "-c", "a.cpp"], ["ccache", "g++", "-c", "a.cpp"]),
        (["g++ -m64", "-c", "a.cpp"], ["g++", "-m64", "-c", "a.cpp"]),
        (["ccache", "ccache g++", "-c"], ["ccache", "g++", "-c"]),
        (["g++", "-c", "a b.cpp"], ["g++", "-c", "a b.cpp"]),
    ],
)
def test_a_quoted_compiler_is_split(command: list[str], expected: list[str]) -> None:
    assert is_compiler(command[0]) or command[0] == "ccache"
    assert split_program(command) == expected
