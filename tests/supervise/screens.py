"""Builds on a terminal of a size, and what stands on its screen at any moment."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import replace

import pyte
from kill_harness import Build, Project, started

# The figures of a build of four objects; a narrow bar has nothing after the first.
BAR = re.compile(r"(?:^|  )\d/4(?:  |$)")


class Screen:
    """A terminal emulator that reads what a build's terminal is sent."""

    def __init__(self, build: Build, columns: int, rows: int) -> None:
        self.build = build
        self.emulated = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self.emulated)
        self._read = 0
        self.resize(columns, rows)

    def resize(self, columns: int, rows: int) -> None:
        """As a user does it, with what has been sent so far on the old screen."""
        self.rows()
        self.emulated.resize(rows, columns)
        self.build.resize(columns, rows)

    def rows(self) -> list[str]:
        """What stands in each row."""
        self.build.text()
        data = self.build.output[self._read :]
        self._read += len(data)
        self._stream.feed(data)
        return [row.rstrip() for row in self.emulated.display]

    @property
    def is_clean(self) -> bool:
        """Whether all rows scroll again, and no bar is left in any."""
        return not any(map(BAR.search, self.rows())) and not self.emulated.margins


@contextlib.contextmanager
def on_a_terminal(
    project: Project, command: list[str], columns: int = 80, rows: int = 16, **variables: str
) -> Iterator[Screen]:
    usual = {"TERM": "xterm-256color", "LANG": "C.UTF-8", "CI": "", **variables}
    with started(replace(project, variables={**project.variables, **usual}), command, terminal=True) as build:
        yield Screen(build, columns, rows)
