"""A compiler that the kernel kills for memory is run again, alone; one that never fits fails, and says so."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from kill_harness import Project, started

from safe_ext_build.machine import Cgroup, ancestors

MIB = 1 << 20
LIMIT = 1536


@pytest.fixture
def cgroup() -> Iterator[Cgroup]:
    """A memory cgroup of our own, with a limit; skips where the kernel does not let us make one."""
    parent = next(
        (
            group
            for group in ancestors("memory")
            if group.version == 1 or "memory" in (group.directory / "cgroup.subtree_control").read_text().split()
        ),
        None,
    )
    if parent is None:
        pytest.skip("no memory controller is to be seen from here")
    directory = parent.directory / f"seb-supervise-{os.getpid()}"
    try:
        directory.mkdir()
    except OSError as error:
        pytest.skip(f"the memory controller is not writable here: {error}")
    try:
        _limit(directory, parent.version)
        yield Cgroup(directory.name, directory, parent.version)
    finally:
        _remove(directory)


def _limit(directory: Path, version: int) -> None:
    limit, swap = ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes"), ("memory.max", "memory.swap.max")
    names = limit if version == 1 else swap
    (directory / names[0]).write_text(str(LIMIT * MIB))
    with suppress(OSError):  # the kernel may be built without
        (directory / names[1]).write_text(str(LIMIT * MIB if version == 1 else 0))


def _remove(directory: Path) -> None:
    """A cgroup stays busy for some moments after the last process in it has ended."""
    end = time.monotonic() + 5
    while time.monotonic() < end:
        with suppress(OSError):
            directory.rmdir()
            return
        time.sleep(0.02)
    directory.rmdir()


def inside(cgroup: Cgroup, command: list[str]) -> list[str]:
    enter = 'echo 0 > "$0/cgroup.procs" && exec "$@"'
    return ["sh", "-c", enter, str(cgroup.directory), *command]


def test_two_that_do_not_fit_together(project: Project, cgroup: Cgroup) -> None:
    """Whether the scheduler saw it coming or the kernel had to kill one: nobody is told of an error."""
    project.write_sources(dict.fromkeys("ab", f"seconds=1 mib={LIMIT * 2 // 3}"))
    with started(project, inside(cgroup, project.hook())) as build:
        assert build.wait() == 0, build.text()
        text = build.text()
    assert "compiled 2 objects in " in text
    assert "error" not in text
    assert sorted(path.name for path in project.objects.glob("*.o")) == ["a.o", "b.o"]
    assert project.half_written() == []


def test_one_that_never_fits(project: Project, cgroup: Cgroup) -> None:
    project.write_sources({"big": f"seconds=1 mib={LIMIT * 2}"})
    with started(project, inside(cgroup, project.hook())) as build:
        assert build.wait() == 1, build.text()
        text = build.text()
        assert build.leftovers() == []
    assert "Traceback" not in text
    source = project.root / "csrc" / "big.cu"
    error, hint = text.splitlines()[-2:]
    assert error.startswith(f"safe-ext-build: error: {source}")
    assert "the compiler was killed because memory ran out, although nothing else of this build ran" in error
    assert hint == (
        "safe-ext-build: hint: Compile for fewer GPU architectures (TORCH_CUDA_ARCH_LIST), set NVCC_THREADS=1,"
        " or add memory."
    )
