"""Rewriting a build.ninja: as text, and with the real ninja."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from safe_ext_build.schedule import ninjafile
from safe_ext_build.schedule.ninjafile import Edge, edges, is_generated, map_prefixes, move, rewrite
from safe_ext_build.supervise.shims import real_ninja

# ruff: noqa: E501, W291
# What torch 2.14.1+cu130 writes (torch.utils.cpp_extension._write_ninja_file), {env} and {cuda} put in.
TORCH = r"""ninja_required_version = 1.3
cxx = c++
nvcc = {cuda}/bin/nvcc

cflags = -fno-strict-overflow -DNDEBUG -g -O3 -fPIC -I{env}/torch/include -I{env}/torch/include/torch/csrc/api/include -I{cuda}/include -c
post_cflags = -O2 -DTORCH_API_INCLUDE_EXTENSION_H '-DNAME="{env}/x"' -DTORCH_EXTENSION_NAME=_C -std=c++20
cuda_cflags = -I{env}/torch/include -I{cuda}/include -c
cuda_post_cflags = -D__CUDA_NO_HALF_OPERATORS__ --expt-relaxed-constexpr --compiler-options ''"'"'-fPIC'"'"'' -gencode=arch=compute_90,code=sm_90 -std=c++20
cuda_dlink_post_cflags = 
sycl_dlink_post_cflags = 
ldflags = -L{env}/torch/lib -Wl,-rpath,{env}/torch/lib -lc10

rule compile
  command = $cxx -MMD -MF $out.d $cflags -c $in -o $out $post_cflags
  depfile = $out.d
  deps = gcc

rule cuda_compile
  depfile = $out.d
  deps = gcc
  command = $nvcc -MD -MF $out.d $cuda_cflags -c $in -o $out $cuda_post_cflags

rule link
  command = $cxx $in $ldflags -o $out

build /b/a.o: compile /s/a.cpp
build /b/my$ k.o: cuda_compile /s/my$ k.cu
build /b/c.o: compile /s/c.cpp

build lib.so: link /b/a.o /b/my$ k.o /b/c.o

default lib.so

"""


def torch_file(env: str = "/tmp/env-1", cuda: str = "/cuda") -> str:
    return TORCH.replace("{env}", env).replace("{cuda}", cuda)


def free(path: str) -> float:
    return 0.0


def no_prefixes(text: str) -> str:
    return rewrite(text, {}, free).text


def test_a_file_of_torch_keeps_all_but_what_must_change() -> None:
    text = torch_file()
    expected = text.replace("command = $", "command = seb-job $")
    assert no_prefixes(text) == expected


def test_prefixes_become_variables_outside_of_quotes() -> None:
    text = rewrite(torch_file(), {"SEB_ENV": "/tmp/env-1"}, free).text
    assert "-I$${SEB_ENV}/torch/include -I$${SEB_ENV}/torch/include/torch/csrc/api/include" in text
    assert "-L$${SEB_ENV}/torch/lib -Wl,-rpath,$${SEB_ENV}/torch/lib" in text
    assert "'-DNAME=\"/tmp/env-1/x\"'" in text


def test_two_builds_whose_prefixes_differ_give_the_same_text() -> None:
    def text(env: str, cuda: str) -> str:
        body = torch_file(env, cuda).replace(f"""'-DNAME="{env}/x"'""", "")
        return rewrite(body, {"SEB_ENV": env, "SEB_CUDA": cuda}, free).text

    assert text("/tmp/env-1", "/opt/cuda") == text("/var/tmp/pip-build-env-xk2/overlay", "/tmp/env-2/cuda")


def test_the_most_expensive_stand_first_and_equals_in_their_order() -> None:
    text = "rule cc\n  command = cc $in\n" + "".join(f"build {n}.o: cc {n}.c\n" for n in "abcdef")
    cost = {"b.c": 2.0, "e.c": 3.0}
    result = rewrite(text, {}, lambda path: cost.get(path, 1.0))
    assert [edge.outputs[0][0] for edge in result.edges] == list("ebacdf")
    assert [edge.outputs[0][0] for edge in edges(result.text)] == list("ebacdf")


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("/opt/mycc -MMD -MF $out.d -c $in -o $out", True),
        ("ccache wrapped.sh $cflags -c $in -o $out", True),
        ("sh -c 'touch $out'", False),
        ("python gen.py -o $out $in", False),
        ("cp $in $out", False),
    ],
)
def test_a_program_of_any_name_that_is_called_as_a_compiler_is_one(command: str, expected: bool) -> None:
    text = rewrite(f"rule cc\n  command = {command}\nbuild a.o: cc a.cpp\n", {}, free).text
    assert (f"command = seb-job {command}" in text) == expected


def test_one_of_each_language_stands_before_the_rest() -> None:
    text = "rule cc\n  command = cc $in\n" + "".join(
        f"build {n[0]}.o: cc {n}\n" for n in ("a.cu", "b.cu", "c.cpp", "d.cpp")
    )
    cost = {"a.cu": 3.0, "b.cu": 4.0, "c.cpp": 1.0, "d.cpp": 2.0}
    assert [edge.outputs[0][0] for edge in rewrite(text, {}, cost.__getitem__).edges] == list("bdac")


def test_an_edge_takes_its_own_lines_along_and_never_crosses_another_statement() -> None:
    text = (
        "rule cc\n  command = cc $flags $in\n"
        "build a.o: cc a.c\n# of a\n  flags = -DA\n  # still of a\nbuild b.o: cc b.c\n\n"
        "rule late\n  command = cc -DLATE $in\n"
        "build c.o: late c.c\nbuild d.o: late d.c\ndefault c.o d.o\n"
        "build e.o: cc e.c\n"
    )
    result = rewrite(text, {}, ord_of_name).text
    assert result == (
        "rule cc\n  command = seb-job cc $flags $in\n"
        "build b.o: cc b.c\nbuild a.o: cc a.c\n# of a\n  flags = -DA\n  # still of a\n\n"
        "rule late\n  command = seb-job cc -DLATE $in\n"
        "build d.o: late d.c\nbuild c.o: late c.c\ndefault c.o d.o\n"
        "build e.o: cc e.c\n"
    )


def ord_of_name(path: str) -> float:
    return float(ord(path[0]))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("-I/p/x", "-I$${P}/x"),
        ("-isystem /p", "-isystem $${P}"),
        ("-isystem/p /p/", "-isystem$${P} $${P}/"),
        ("--sysroot=/p -Wl,-rpath,/p:/p/lib", "--sysroot=$${P} -Wl,-rpath,$${P}:$${P}/lib"),
        ("-I/p2/x -I/pp -I/p.x -I/p-x", "-I/p2/x -I/pp -I/p.x -I/p-x"),
        ("-I/a/p/x", "-I/a/p/x"),
        ("-I/p/q/x -I/p/qq", "-I$${Q}/x -I$${P}/qq"),
        ("'-I/p/x' \"/p/x\" /p/x", "'-I/p/x' \"/p/x\" $${P}/x"),
        (r"-DA=\"a\" -I/p/x -DB=\" '/p/x' -I/p", r"-DA=\"a\" -I$${P}/x -DB=\" '/p/x' -I$${P}"),
        (r'-DA="a\" /p/x" /p', r'-DA="a\" /p/x" $${P}'),
        ("-DA='it'\"'\"'s' /p", "-DA='it'\"'\"'s' $${P}"),
        ("/p$ x/y /p", "/p$ x/y $${P}"),
        ("-I/p $\n    -I/p$\n", "-I$${P} $\n    -I$${P}$\n"),
        ("-Wl,-rpath,'$$ORIGIN' /p", "-Wl,-rpath,'$$ORIGIN' $${P}"),
        ("$${P}/x", "$${P}/x"),
        ("", ""),
    ],
)
def test_map_prefixes(text: str, expected: str) -> None:
    assert map_prefixes(text, {"P": "/p", "Q": "/p/q"}) == expected


def test_a_prefix_that_needs_quotes_stays() -> None:
    assert map_prefixes("-I/my$ env/x '/my env/x'", {"P": "/my env", "Q": "/a$b"}) == "-I/my$ env/x '/my env/x'"


@pytest.mark.parametrize(
    ("command", "runs"),
    [
        ("$cxx -c $in", True),
        ("${cxx} -c $in", True),
        ("$nested -c $in", True),
        ("$cached -c $in", True),
        ("ccache g++ -c $in", True),
        ("/opt/sccache nvcc -c $in", True),
        ("'/my cuda/bin/nvcc' -c $in", True),
        ('"/my cuda/bin/nvcc" -c $in', True),
        ("$$SEB_CUDA/bin/nvcc -c $in", True),
        ("ar crs $out $in", False),
        ("python gen.py g++", False),
        ("echo g++ -c $in", False),
        ("$unknown -c $in", False),
        ("$loop -c", False),
        ("'unbalanced g++", False),
        ("", False),
    ],
)
def test_a_rule_that_compiles_goes_through_the_job(command: str, runs: bool) -> None:
    head = "cxx = g++\nnested = ${cxx}\ncached = ccache $cxx\nloop = $loop\nrule r\n"
    expected = f"{head}  command = seb-job {command}\n" if runs else f"{head}  command = {command}\n"
    assert no_prefixes(f"{head}  command = {command}\n") == expected


@pytest.mark.parametrize(
    ("head", "outputs", "inputs"),
    [
        ("build a.o: cc a.c", ("a.o",), ("a.c",)),
        ("build a.o : cc a.c", ("a.o",), ("a.c",)),
        ("build a.o:cc a.c", ("a.o",), ("a.c",)),
        ("build a.o b.o | c.o: cc a.c b.c | x.h || gen |@ v", ("a.o", "b.o"), ("a.c", "b.c")),
        ("build C$:/my$ a.o: cc /s/my$ a$$.c", ("C:/my a.o",), ("/s/my a$.c",)),
        ("build a$$: cc b.c", ("a$",), ("b.c",)),
        ("build a.o: $\n    cc $\n    a.c $\n    b.c", ("a.o",), ("a.c", "b.c")),
        ("build ${d}/a.o: cc $d/a.c", ("${d}/a.o",), ("$d/a.c",)),
        ("build all: phony", ("all",), ()),
    ],
)
def test_edges_are_read(head: str, outputs: tuple[str, ...], inputs: tuple[str, ...]) -> None:
    assert edges(head + "\n") == (Edge(outputs, inputs),)


def test_a_path_that_ninja_itself_reads_is_never_a_variable() -> None:
    text = (
        "builddir = /p/build\nroot = /p\nsub = $root/sub\nflags = -I/p/include\nlibs = -L/p/lib\n"
        "rule cc\n  command = g++ -I/p/x $flags -o $out\n  depfile = /p/$out.d\n  description = CC /p\n"
        "rule link\n  command = g++ @$out.rsp\n  rspfile = $out.rsp\n  rspfile_content = $libs $in\n"
        "build $sub/a.o: cc /p/a.cpp\n  flags = -I/p/y\nbuild /p/lib.so: link $sub/a.o\ndefault /p/lib.so\n"
    )
    expected = (
        text.replace("-I/p/include", "-I$${P}/include")
        .replace("g++ -I/p/x", "seb-job g++ -I$${P}/x")
        .replace("-I/p/y", "-I$${P}/y")
        .replace("command = g++ @", "command = seb-job g++ @")
    )
    assert rewrite(text, {"P": "/p"}, free).text == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n\n",
        "# nothing but a comment $\nrule r\n  command = true\n",
        "x = 1 $\n  2 $\n  3\n",
        "rule r\n  command = echo a\x0cb\u2028c\x85d $in\n",
        "pool link\n  depth = 1\n",
        "rule r\n  # command = g++\n  command = true\n",
    ],
)
def test_what_is_not_ours_is_left_alone(text: str) -> None:
    assert no_prefixes(text).rstrip("\n") == text.rstrip("\n")


def test_generated_files_are_known() -> None:
    assert is_generated("rule RERUN_CMAKE\n  command = cmake\n  generator = 1\n")
    assert not is_generated(torch_file())
    assert not is_generated("generator = 1\n")
    # CMake's own has its rules, and this word, in a file that it includes.
    assert is_generated("ninja_required_version = 1.5\ninclude CMakeFiles/rules.ninja\n")
    assert is_generated("subninja part.ninja\n")


def test_phony_makes_nothing() -> None:
    made, named = edges("build a.o: compile a.cu\nbuild CMakeCache.txt ../CMakeLists.txt: phony\n")
    assert (made.rule, made.makes) == ("compile", ("a.o",))
    assert (named.rule, named.makes) == ("phony", ())
    assert named.outputs == ("CMakeCache.txt", "../CMakeLists.txt")


def test_directories_are_moved_as_wholes() -> None:
    text = "-I/src/x /src '/src/y' /src2 /a/src -L/src: /src/build/a.o"
    expected = "-I/new/x /new '/new/y' /src2 /a/src -L/new: /b/a.o"
    assert move(text, {"/src": "/new", "/src/build": "/b"}) == expected


COMPILER = """#!/bin/sh
while [ $# -gt 0 ]; do
  case "$1" in -o) out=$2; shift;; -MF) dep=$2; shift;; -I*) inc=${1#-I};; *.cu|*.cpp) src=$1;; esac
  shift
done
test -d "$inc" || exit 3
[ -z "$dep" ] || echo "$(echo "$out" | sed 's/ /\\\\ /g'): $(echo "$src" | sed 's/ /\\\\ /g')" > "$dep"
echo "$src" >> log
echo object > "$out"
"""


def build(place: Path, env: Path) -> str:
    text = torch_file(str(env)).replace("/b/", f"{place}/").replace("/s/", f"{place}/")
    text = text.replace("-I/cuda/include", "").replace(f"/include/torch/csrc/api/include -I{env}", "")
    text = text.replace(f"-I{env}/torch/include/torch/csrc/api/include", "").replace(f"""'-DNAME="{env}/x"'""", "")
    (place / "copy.ninja").write_text(rewrite(text, {"SEB_ENV": str(env)}, free).text)
    environ = {**os.environ, "SEB_ENV": str(env), "PATH": f"{place}/bin:{os.environ['PATH']}"}
    command = [str(real_ninja()), "-f", "copy.ninja"]
    result = subprocess.run(command, cwd=place, env=environ, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_the_real_ninja_runs_it_and_has_nothing_to_do_when_only_a_prefix_has_moved(tmp_path: Path) -> None:
    place = tmp_path / "place"
    (place / "bin").mkdir(parents=True)
    for name, text in (("c++", COMPILER), ("seb-job", '#!/bin/sh\necho job >> jobs\nshift\nexec c++ "$@"\n')):
        (place / "bin" / name).write_text(text)
        (place / "bin" / name).chmod(0o755)
    for name in ("a.cpp", "c.cpp", "my k.cu"):
        (place / name).write_text("")
    for env in ("one", "two"):
        (tmp_path / env / "torch" / "include").mkdir(parents=True)
    # The toy link line names no include directory.
    (place / "bin" / "c++").write_text(COMPILER.replace("test -d", '[ -z "$inc" ] || test -d'))
    assert "no work to do" not in build(place, tmp_path / "one")
    assert len((place / "jobs").read_text().split()) == 4
    assert "no work to do" in build(place, tmp_path / "two")
    assert len((place / "jobs").read_text().split()) == 4


def test_the_module_has_no_state() -> None:
    text = torch_file()
    assert rewrite(text, {"A": "/cuda"}, free) == rewrite(text, {"A": "/cuda"}, free)
    assert ninjafile.parse(text) == ninjafile.parse(text)


def test_inputs_that_neither_exist_nor_are_made(tmp_path: Path) -> None:
    (tmp_path / "here.cu").touch()
    text = (
        "rule c\n  command = x\nbuild a.o: c here.cu\nbuild b.o: c gone.cu | gone.h\n"
        "build c.o: c sub/gone.cu gone.cu\nbuild all: phony a.o b.o c.o\n"
    )
    assert ninjafile.missing(edges(text), str(tmp_path)) == ["gone.cu", "sub/gone.cu"]
