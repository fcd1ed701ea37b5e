"""What doctor finds on machines that are not this one, and how it looks."""

from __future__ import annotations

import io
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from safe_ext_build.cli import checkup, doctor, printing
from safe_ext_build.cli.checkup import Checkup, Finding
from safe_ext_build.errors import ToolkitError
from safe_ext_build.machine import MemoryLimit
from safe_ext_build.toolchain import cuda, target
from safe_ext_build.toolchain.borrow import TorchSource
from safe_ext_build.toolchain.find import Survey, Torch
from safe_ext_build.toolchain.rank import Choice
from safe_ext_build.toolchain.torch import TorchFacts

GIB = 1 << 30
HERE = Path("/opt/cuda")
FACTS = TorchFacts("2.14.1+cu130", "13.0", None, Path("/site/torch"), 20)
OURS = cuda.Toolkit(HERE, "nvcc on PATH", (13, 0), "V13.0.88", HERE / "bin" / "nvcc", HERE / "include")
OLD = replace(OURS, home=Path("/usr/local/cuda-12.9"), version=(12, 9), build="V12.9.1")
EMPTY = cuda.Rejected(cuda.Candidate("/usr/local/cuda", "/usr/local/cuda"), "has no bin/nvcc: not a CUDA toolkit")


def torch(facts: TorchFacts | None = FACTS, kind: str = "own") -> Torch:
    own = replace(target.own(), python=Path("/env/bin/python"), prefix=Path("/env"), torch=None)
    return Torch(TorchSource(kind, None, "there is no torch here"), own, facts, own)  # type: ignore[arg-type]


def found(*toolkits: cuda.Toolkit, choice: Choice | None = None, error: ToolkitError | None = None) -> Survey:
    return Survey(cuda.Discovery(toolkits, (EMPTY,), ()), choice, error)


def test_every_toolkit_has_a_verdict() -> None:
    second = replace(OURS, home=Path("/opt/second"))
    surveyed = found(OLD, OURS, second, choice=Choice(OURS, "the CUDA of torch"))
    old, ours, other, empty = checkup.toolkits(surveyed, torch())
    assert other.text.endswith("not used: /opt/cuda, of the same version, is used")
    assert (old.status, ours.status, empty.status) == ("note", "ok", "note")
    assert old.text.endswith("not used: another major version than torch's CUDA 13.0")
    assert ours.text == "CUDA 13.0 in /opt/cuda (nvcc on PATH): used: the CUDA of torch"
    assert empty.text == "/usr/local/cuda (/usr/local/cuda): no toolkit: has no bin/nvcc: not a CUDA toolkit"
    assert ours.values["verdict"] == "used"


def test_what_wheels_complete_is_named_and_what_they_do_not_is_a_problem() -> None:
    whole = replace(OURS, missing=("cublas_v2.h",))
    (ours, _) = checkup.toolkits(found(whole, choice=Choice(whole, "")), torch())
    assert ours.text.endswith("; cublas_v2.h come from torch's wheels")
    part = replace(whole, lacks=("cublas_v2.h",))
    *_, last = checkup.toolkits(found(part, choice=Choice(part, "")), torch())
    assert (last.status, "lacks cublas_v2.h" in last.text) == ("problem", True)
    assert last.fix == torch().how_to_install()


def test_no_toolkit_at_all_and_none_that_fits() -> None:
    *_, none = checkup.toolkits(found(), torch())
    assert (none.status, none.fix) == ("problem", torch().how_to_install())
    error = ToolkitError("no CUDA toolkit fits; looked at:\n  that one", code="SEB-2003", hint="install another")
    *_, unfit = checkup.toolkits(found(OLD, error=error), torch())
    assert (unfit.status, unfit.text, unfit.fix) == ("problem", "no CUDA toolkit fits", "install another")


def test_without_cuda_in_torch_no_toolkit_is_missed() -> None:
    facts = replace(FACTS, version="2.14.1", cuda=None)
    assert all(one.status == "note" for one in checkup.toolkits(found(OURS), torch(facts)))
    first, *_ = checkup.torch_findings(torch(facts))
    assert (first.status, first.text.endswith("no code for CUDA can be built with it")) == ("note", True)


def test_without_torch() -> None:
    first, second = checkup.torch_findings(torch(None, "none"))
    assert (first.status, first.text) == ("problem", "there is no torch here")
    assert first.fix.startswith("Install torch into that environment first")
    assert second.text == "build environment: /env/bin/python, without torch"


def test_graphics() -> None:
    surveyed = found(OURS, choice=Choice(OURS, ""))
    (none,) = checkup.graphics(surveyed, [], None)
    assert none.text.startswith("no GPU here")
    gpu, driver = checkup.graphics(surveyed, ["9.0"], (12, 8))
    assert gpu.text == "compute capability 9.0; the driver knows CUDA 12.8"
    assert (driver.status, "newer than the driver" in driver.text) == ("note", True)


@pytest.mark.parametrize(("free", "status"), [(20 * GIB, "ok"), (4 * GIB, "note")])
def test_memory(free: int, status: str) -> None:
    finding = checkup.memory(MemoryLimit("cgroup /pod", 32 * GIB, free), binds=True)
    assert finding.status == status
    assert finding.text.startswith(
        f"memory: cgroup /pod: {free / GIB:.1f} GiB of 32.0 GiB free, the limit that binds"
    )
    assert ("one compile at a time (1.9 GiB are left alone" in finding.text) == (status == "note")


def test_a_look_that_fails_is_a_finding() -> None:
    def fail() -> list[Finding]:
        raise RuntimeError("surprise")

    (finding,) = checkup.guarded("machine", fail)
    assert (finding.status, finding.topic) == ("problem", "machine")
    assert "surprise" in finding.text


def test_the_size_of_a_cache(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b").write_bytes(b"x" * 100_000)
    size, whole = checkup.weigh(tmp_path, 10.0)
    assert size >= 100_000 and whole
    assert not checkup.weigh(tmp_path, -1.0)[1]


# How it looks.

BAD = Finding("disk", "it is " + "very " * 30, "problem", "Buy one.")
CHECKUP = Checkup("1.0", "3.11.7 in /env", "Linux 6.1 x86_64", (BAD,))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("NO_COLOR", "1")
    lines = "\n".join(doctor.render(CHECKUP)).splitlines()
    assert max(map(len, lines)) <= 40
    assert any(line.startswith("  PROBLEM  it is very") for line in lines)
    assert "           fix: Buy one." in lines


def test_colors_are_for_terminals_or_who_forces_them(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    assert "\x1b" not in "\n".join(doctor.render(CHECKUP))
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[31mPROBLEM\x1b[0m" in "\n".join(doctor.render(CHECKUP))
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in "\n".join(doctor.render(CHECKUP))


def test_what_is_shared_has_no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    shared = printing.shareable({"a": ["/home/me/x", "/home/meadow"], "b": 1, "c": ("in /home/me",)})
    assert shared == {"a": ["~/x", "/home/meadow"], "b": 1, "c": ["in ~"]}


def test_letters_that_a_terminal_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, "ascii"))
    printing.out("Ø \udcff")
    assert raw.getvalue() == b"\\xd8 \\udcff\n"
