#!/usr/bin/env python3
"""The full kill matrix: signals x victims x {no terminal, terminal} x {pip, uv}; prints a Markdown table.

    kill_matrix.py [--tools pip,uv] [--terminals no,yes] [--signals ...] [--victims ...] [--nvcc DIRECTORY]

Each cell is one build of the stand-in project whose compilers ignore INT, TERM and HUP and leave respawning
daemons in sessions of their own (plain compilers for the victims nvcc and cicc, which must feel the signal).
With --nvcc a copy of a real project is built in their place: its directory is the value. A cell shows
the seconds until no process of the build was left, and what else was found. Exit status 1: a cell was not clean.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "supervise"))

from kill_harness import (
    PROMISE,
    STANDIN,
    Build,
    Bystanders,
    Project,
    compile_c,
    make_project,
    number_of,
    started,
)

SIGNALS = ["INT", "TERM", "HUP", "QUIT", "KILL"]
VICTIMS = [
    *("frontend", "group", "hook", "seb-super", "seb-builder", "seb-ninja", "ninja", "seb-job", "nvcc", "cicc"),
    *("frontend+hook+seb-super", "hook stopped, then frontend"),
]
STUBBORN, PLAIN = "seconds=60 stubborn=1 escape=1", "seconds=60"


@dataclass(frozen=True)
class Cell:
    """One build that was hit, and what was seen of it."""

    tool: str
    terminal: bool
    victim: str
    signal: str
    seconds: float
    trouble: tuple[str, ...]

    @property
    def text(self) -> str:
        return f"{self.seconds:.2f}" + (f" **{'; '.join(self.trouble)}**" if self.trouble else "")


def main() -> int:
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what we have started is ended
    scratch = Path(tempfile.mkdtemp(prefix="seb-kill-matrix-"))
    for name in ("compiler", "bystanders"):
        (scratch / name).mkdir()
    compiler = compile_c(STANDIN / "standin.c", scratch / "compiler" / "nvcc")
    bystanders = Bystanders(scratch / "bystanders")
    cells = []
    try:
        for cell in _cells(options, scratch, compiler, bystanders):
            print(f"{cell.tool} {cell.victim} {cell.signal}: {cell.text}", file=sys.stderr, flush=True)
            cells.append(cell)
    finally:
        bystanders.close()
        shutil.rmtree(scratch, ignore_errors=True)
    print(table(cells))
    return int(any(cell.trouble for cell in cells))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, values in (
        ("tools", ["pip", "uv"]),
        ("terminals", ["no", "yes"]),
        ("signals", SIGNALS),
        ("victims", VICTIMS),
    ):
        parser.add_argument(f"--{name}", type=lambda text: text.split(","), default=values)
    parser.add_argument("--nvcc", type=Path, help="a project that is compiled with the real nvcc")
    return parser.parse_args()


def _cells(options: argparse.Namespace, scratch: Path, compiler: Path, bystanders: Bystanders) -> Iterator[Cell]:
    for tool, terminal, victim, name in product(
        options.tools, options.terminals, options.victims, options.signals
    ):
        folder = Path(tempfile.mkdtemp(dir=scratch))
        project = _project(folder, compiler, options.nvcc, victim)
        yield _try(project, tool, terminal == "yes", victim, name, bystanders)
        shutil.rmtree(folder, ignore_errors=True)


def _project(folder: Path, compiler: Path, real: Path | None, victim: str) -> Project:
    project = make_project(folder, compiler)
    if real is None:
        slow = PLAIN if victim in ("nvcc", "cicc") else STUBBORN
        project.write_sources({"0_first": "seconds=0.05", "1_a": slow, "1_b": slow})
        return project
    shutil.rmtree(project.root)
    ignore = shutil.ignore_patterns("build", "dist", "*.egg-info", ".git")
    shutil.copytree(real, project.root, ignore=ignore)
    return project


def _try(project: Project, tool: str, terminal: bool, victim: str, name: str, bystanders: Bystanders) -> Cell:
    with started(project, project.frontend(tool), terminal) as build:
        build.wait_for("cicc", min(2, len(os.sched_getaffinity(0))))
        time.sleep(0.3)
        _hit(build, victim, name)
        seconds = build.seconds_to_clear(frontend=build.hit_frontend)
        with contextlib.suppress(AssertionError):  # a frontend that does not end leaves files, which show
            build.wait(10)
        trouble = build.leftovers() + [f"bystander {dead}" for dead in bystanders.dead()]
        if seconds > PROMISE:
            trouble += [f"{left} lives" for left in build.names()] or ["late"]
    return Cell(tool, terminal, victim, name, seconds, tuple(trouble))


def _hit(build: Build, victim: str, name: str) -> None:
    if victim.startswith("hook stopped"):
        os.kill(build.victims("hook")[0], signal.SIGSTOP)
        build.hit("frontend", number_of(name))
    else:
        build.hit(victim, number_of(name))


def table(cells: list[Cell]) -> str:
    """Markdown: a row for each tool, terminal and victim; a column for each signal; then the figures."""
    signals = list(dict.fromkeys(cell.signal for cell in cells))
    rows: dict[tuple[str, bool, str], dict[str, str]] = {}
    for cell in cells:
        rows.setdefault((cell.tool, cell.terminal, cell.victim), {})[cell.signal] = cell.text
    lines = [f"| frontend | terminal | victim | {' | '.join(signals)} |", "|---|---|---|" + "---|" * len(signals)]
    for (tool, terminal, victim), found in rows.items():
        values = " | ".join(found.get(name, "") for name in signals)
        lines.append(f"| {tool} | {'yes' if terminal else 'no'} | {victim} | {values} |")
    seconds = [cell.seconds for cell in cells]
    dirty = sum(bool(cell.trouble) for cell in cells)
    figures = f"median {statistics.median(seconds):.2f}, maximum {max(seconds):.2f}"
    lines += ["", f"{len(cells)} builds, {dirty} not clean; seconds until nothing was left: {figures}."]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
