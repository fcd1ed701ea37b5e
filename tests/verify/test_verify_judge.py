"""What is said of a build's modules, and what fails it. The texts are what a user reads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from safe_ext_build.verify.findings import Declared, Findings, Module, Symbol
from safe_ext_build.verify.judge import Expected, Verdict, codes_of, judge, show_code

TORCH = "torch 2.14.1+cu130 (CUDA 13.0)"
EXPECTED = Expected(TORCH, has_toolkit=True)
DECLARED = Declared("pkg._C", "pkg/_C.so", sources=("csrc/a.cu",), takes_archs=True)
MODULE = Module("pkg._C", "pkg/_C.so", ("sm_80", "sm_90"), ("libc10.so",), "loaded", cxx11_abi=True)
FOUND = Findings((DECLARED,), (MODULE,), archs="8.0;9.0")
REQUIRED = replace(EXPECTED, require_cuda="-C require-cuda")


def judged(expected: Expected = EXPECTED, **module: object) -> Verdict:
    return judge(replace(FOUND, modules=(replace(MODULE, **module),)), expected)  # type: ignore[arg-type]


def test_what_is_well_is_one_line() -> None:
    assert judge(FOUND, EXPECTED) == Verdict((f"pkg._C: device code: sm_80, sm_90; loads with {TORCH}",))


def test_a_wheel_without_extension_modules_is_nothing_to_talk_about() -> None:
    assert judge(Findings(), EXPECTED) == Verdict()


def test_a_module_without_device_code() -> None:
    module = replace(MODULE, codes=(), cxx11_abi=None)
    assert judge(Findings(modules=(module,)), Expected()) == Verdict(("pkg._C: loads",))


def test_many_modules() -> None:
    modules = tuple(replace(MODULE, name=f"m{number}", path=f"m{number}.so") for number in range(6))
    (line,) = judge(
        Findings(modules=(replace(modules[0], outcome="", codes=("compute_120a",)), *modules[1:])), EXPECTED
    ).lines
    assert line == f"m0, m1, m2, m3 and 2 more: device code: sm_80, sm_90, PTX 12.0a; 5 load with {TORCH}"


def test_no_check_without_findings() -> None:
    found = Findings(trouble="OSError: no room")
    assert judge(found, EXPECTED).warnings == ("the extension modules were not checked: OSError: no room",)
    assert "not known whether the result has device code: OSError" in str(judge(found, REQUIRED).error)


# --- architectures


@pytest.mark.parametrize(
    ("listed", "codes"),
    [
        ("8.0", ("sm_80",)),
        ("8.0;9.0a+PTX", ("sm_80", "sm_90a", "compute_90a")),
        ("8.6 12.0f", ("sm_86", "sm_120f")),
        ("", ()),
        ("Ampere", None),
    ],
)
def test_what_torch_makes_of_a_list(listed: str, codes: tuple[str, ...] | None) -> None:
    assert codes_of(listed) == codes


@pytest.mark.parametrize(
    ("code", "text"), [("sm_90a", "sm_90a"), ("compute_80", "PTX 8.0"), ("compute_121f", "PTX 12.1f")]
)
def test_how_a_code_is_shown(code: str, text: str) -> None:
    assert show_code(code) == text


def test_an_architecture_that_was_not_compiled() -> None:
    found = replace(FOUND, archs="8.0;9.0+PTX;10.0")
    assert judge(found, EXPECTED).warnings == (
        "pkg._C has code for sm_80, sm_90, not for PTX 9.0, sm_100 as '8.0;9.0+PTX;10.0' asks",
    )


def test_a_suffix_that_is_not_noted_is_not_missed() -> None:
    assert judge(replace(FOUND, archs="8.0;9.0a"), EXPECTED).warnings == ()


def test_a_flag_that_torch_takes_for_an_arch_flag_is_named() -> None:
    found = replace(FOUND, declared=(replace(DECLARED, misread="-Xcompiler=-march=native"),))
    module = replace(MODULE, codes=("compute_75", "sm_75"))
    (line,) = judge(replace(found, modules=(module,)), EXPECTED).warnings
    assert line == (
        "pkg._C has code for sm_75, PTX 7.5, not for sm_80, sm_90 as '8.0;9.0' asks; "
        "torch leaves its arch flags out because of -Xcompiler=-march=native"
    )


@pytest.mark.parametrize("archs", ["9.0;10.0", "Hopper"])
def test_a_project_with_arch_flags_of_its_own_is_compared_with_nothing(archs: str) -> None:
    found = replace(FOUND, declared=(replace(DECLARED, takes_archs=False),), archs=archs)
    assert judge(found, EXPECTED).warnings == ()


def test_a_list_that_is_not_understood_is_compared_with_nothing() -> None:
    assert judge(replace(FOUND, archs="Hopper"), EXPECTED).warnings == ()


# --- modules that are not there


def test_a_declared_module_that_is_missing() -> None:
    declared = (DECLARED, replace(DECLARED, name="pkg._fast", path="pkg/_fast.so"))
    found = replace(FOUND, declared=declared)
    assert judge(found, EXPECTED).warnings == (
        "pkg._fast was not built: the setup script declares it, and went on without",
    )
    assert str(judge(found, REQUIRED).error) == (
        "pkg._fast was not built, and -C require-cuda says that this may not be"
    )


def test_an_optional_module_that_is_missing() -> None:
    declared = (DECLARED, Declared("pkg._fast", "pkg/_fast.so", optional=True))
    verdict = judge(replace(FOUND, declared=declared), REQUIRED)
    assert verdict.lines[0] == "pkg._fast was not built, which the setup script says is optional"
    assert verdict.warnings == () and verdict.error is None


@pytest.mark.parametrize(
    ("modules", "what"), [((), "no extension modules"), ((replace(MODULE, codes=()),), "no device code")]
)
def test_no_device_code(modules: tuple[Module, ...], what: str) -> None:
    found = Findings(modules=modules, unbuilt="csrc/a.cu")
    (warning,) = judge(found, EXPECTED).warnings
    assert warning.startswith(f"the result has {what}, although the project has CUDA sources (csrc/a.cu). ")
    assert "FORCE_CUDA=1" in warning and "`require-cuda = true`" in warning
    error = judge(found, REQUIRED).error
    assert str(error) == f"the result has {what}, and -C require-cuda says that it must"
    assert error is not None and "torch.cuda.is_available()" in error.hint and "--build-option" in error.hint


def test_no_device_code_is_no_matter_where_none_was_to_be_made() -> None:
    found = Findings(modules=(replace(MODULE, codes=()),))
    assert judge(found, EXPECTED).warnings == ()
    assert judge(replace(found, unbuilt="csrc/a.cu"), replace(EXPECTED, has_toolkit=False)).warnings == ()


# --- modules that do not load


UNSURE: dict[str, Any] = {"outcome": "unsure", "detail": "ModuleNotFoundError: No module named 'other'"}


def lacking(name: str, text: str = "", **more: object) -> tuple[Symbol, ...]:
    return (replace(Symbol(name, text or name), **more),)  # type: ignore[arg-type]


def test_undefined_symbols_fail_the_build() -> None:
    symbols = lacking("_Z3addff", "add(float, float)", source="csrc/add.cu") + lacking("cublasCreate_v2")
    error = judged(outcome="undefined", symbols=symbols).error
    assert str(error) == (
        f"pkg._C cannot be loaded with {TORCH}: undefined symbols add(float, float), cublasCreate_v2"
    )
    assert error is not None and error.hint.splitlines() == [
        "csrc/add.cu seems to define it, and is not in the `sources` of the setup script: add it there.",
        'It is in libcublas, which the module is not linked to: add "cublas" to its `libraries`.',
        "The wheel was removed; -C check=false builds it without this check.",
    ]


def test_a_long_name_is_cut() -> None:
    error = judged(outcome="undefined", symbols=lacking("_Zx", "f" * 500, source="a.cu"), cxx11_abi=None).error
    assert str(error).startswith("pkg._C cannot be loaded: undefined symbol fff") and len(str(error)) < 180


@pytest.mark.parametrize("outcome", ["undefined", "unsure"])
def test_a_function_of_the_driver_may_be_elsewhere(outcome: str) -> None:
    verdict = judged(outcome=outcome, symbols=lacking("cuCtxGetCurrent"), detail="")
    assert verdict.error is None
    assert verdict.warnings[0] == "pkg._C does not load by itself: undefined symbol cuCtxGetCurrent" + (
        " (importing its package: )" if outcome == "unsure" else ""
    )


def test_a_symbol_of_nobody_known_does_not_fail_the_build() -> None:
    """The package may import, in another of its modules, what brings it."""
    verdict = judged(outcome="undefined", symbols=lacking("bar_answer"), cxx11_abi=None)
    assert verdict.error is None
    assert verdict.warnings[0] == (
        "pkg._C does not load by itself: undefined symbol bar_answer. Its import fails unless what is loaded "
        "before it brings that. Neither torch nor CUDA nor, as it seems, a source of the project defines it: a "
        "source file may be missing from the setup script's `sources`, or a library or an object from its "
        "`libraries` or `extra_objects`. [SEB-7108]"
    )


def test_what_another_package_may_bring_does_not_fail_the_build() -> None:
    verdict = judged(**UNSURE, symbols=lacking("_ZN5other3fooEv", "other::foo()"))
    assert verdict.error is None
    assert len(verdict.warnings) == 1
    assert verdict.warnings[0].startswith(
        "pkg._C does not load by itself: undefined symbol other::foo() "
        "(importing its package: ModuleNotFoundError: No module named 'other'). Its import fails unless "
    )


def test_what_torch_lacks_nobody_brings() -> None:
    assert judged(**UNSURE, symbols=lacking("_ZN3c105ErrorC1ENS_14SourceLocationE")).error is not None
    assert judged(**UNSURE, symbols=lacking("_Z3fooN2at6TensorE")).error is None


def test_a_library_that_is_not_here() -> None:
    verdict = judged(outcome="library", detail="libfoo.so.1")
    assert verdict.error is None
    assert verdict.warnings == ("pkg._C needs libfoo.so.1, which was not found here: it loads only where that is",)


def test_the_driver_is_no_matter_for_warnings() -> None:
    verdict = judged(outcome="library", detail="libcuda.so.1")
    assert verdict.warnings == () and verdict.error is None
    assert verdict.lines[1] == "pkg._C was not loaded: it needs libcuda.so.1 of the driver, and there is none here"


def test_what_went_wrong_otherwise_is_said() -> None:
    lines = judged(outcome="failed", detail="torch cannot be imported: ImportError: no").lines
    assert lines[1] == "pkg._C was not loaded: torch cannot be imported: ImportError: no"
    crashed = judged(outcome="crashed", detail="killed by signal 11")
    assert crashed.warnings == ("loading pkg._C here ended the process that did it (killed by signal 11)",)
    assert crashed.error is None
