"""A compiler that the kernel kills for memory is run again, alone; one that never fits fails, and says so."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kill_harness import Project, started
from real_cgroups import MIB, Group, made

LIMIT = 1536


@pytest.fixture
def cgroup() -> Iterator[Group]:
    with made("memory", LIMIT * MIB) as group:
        group.forbid_swap(LIMIT * MIB)
        yield group


def test_two_that_do_not_fit_together(project: Project, cgroup: Group) -> None:
    """Whether the scheduler saw it coming or the kernel had to kill one: nobody is told of an error."""
    project.write_sources(dict.fromkeys("ab", f"seconds=1 mib={LIMIT * 2 // 3}"))
    with started(project, cgroup.inside(project.hook())) as build:
        assert build.wait() == 0, build.text()
        text = build.text()
    assert "compiled 2 objects in " in text
    assert "error" not in text
    assert sorted(path.name for path in project.objects.glob("*.o")) == ["a.o", "b.o"]
    assert project.half_written() == []


def test_one_that_never_fits(project: Project, cgroup: Group) -> None:
    project.write_sources({"big": f"seconds=1 mib={LIMIT * 2}"})
    with started(project, cgroup.inside(project.hook())) as build:
        assert build.wait() == 1, build.text()
        text = build.text()
        assert build.leftovers() == []
    assert "Traceback" not in text
    source = project.root / "csrc" / "big.cu"
    error, hint = text.splitlines()[-2:]
    assert error.startswith(f"safe-ext-build: error[SEB-6004]: {source}")
    assert "the compiler was killed because memory ran out, although nothing else of this build ran" in error
    assert hint == (
        "safe-ext-build: hint: Compile for fewer GPU architectures (TORCH_CUDA_ARCH_LIST), set NVCC_THREADS=1,"
        " or add memory."
    )
