"""Keeps account of one build, from before its first compile until its record is written."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from .. import __version__, ui
from ..errors import SafeExtBuildError
from ..events import Event
from ..here import here
from ..launcher.redact import redact
from ..machine import Machine, read_machine
from ..plan import BuildPlan
from . import record, shelf

if TYPE_CHECKING:
    from ..settings import Settings


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


@dataclass(frozen=True)
class Account:
    """What is known when a build begins. `toolkit` and `torch` in words; `cache` is the user's cache."""

    project: str
    hook: str
    settings: Settings
    plan: BuildPlan
    toolkit: str
    torch: str
    cache: Path
    machine: Machine = field(default_factory=read_machine)
    began: float = field(default_factory=time.monotonic)
    started: str = field(default_factory=_now)
    root: str = field(default_factory=lambda: str(here()))

    def settle(
        self, id: str, events: Sequence[Event], outcome: record.Outcome, error: Exception | None = None
    ) -> None:
        """Write the record, and say where, if that matters. Without a compile there is one only if asked for.

        Whatever goes wrong here, the build stays what it was.
        """
        wanted = self.settings.report.path
        if not (wanted or any(event.kind in ("start", "job") for event in events)):
            return
        # Who was interrupted may have nobody left that reads what it says, and must not wait for that.
        say, warn = (_keep_silent, _keep_silent) if outcome == "interrupted" else (ui.say, ui.warn)
        try:
            line = shelf.conclude(self._record(id, events, outcome, error), self.cache, wanted, warn)
        except Exception as reason:
            warn(f"no report of this build: {reason!r}")
            return
        if line:
            say(line)

    def _record(
        self, id: str, events: Sequence[Event], outcome: record.Outcome, error: Exception | None
    ) -> record.Record:
        context = record.Context(
            version=__version__,
            id=id,
            project=self.project,
            root=self.root,
            hook=self.hook,
            began=self.began,
            started=self.started,
            plan=record.planned(self.plan, self.toolkit, self.torch, _given(self.settings)),
            machine=_computer(self.machine),
        )
        home = os.path.expanduser("~")  # noqa: PTH111 - where there is none, Path raises
        code = error.code if isinstance(error, SafeExtBuildError) else ""
        said = redact(str(error or ""), os.environ)
        return record.make(events, context, time.monotonic(), outcome, said, home, code)


def _keep_silent(line: str) -> None: ...


def _given(settings: Settings) -> dict[str, record.Setting]:
    return {name: record.Setting(_shown(settings, name), source) for name, source in settings.sources.items()}


def _shown(settings: Settings, name: str) -> str:
    value: object = settings
    for part in name.replace("-", "_").split("."):
        value = getattr(value, part)
    if isinstance(value, bool):
        return str(value).lower()
    return "auto" if value is None else str(value)


def _computer(machine: Machine) -> record.Computer:
    domain = machine.budget
    return record.Computer(machine.cpus.count, machine.cpus.why, domain.name, domain.total, domain.available)
