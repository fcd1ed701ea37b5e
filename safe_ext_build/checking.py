"""The check of what a build has made, from the hook's side: what the builder is asked, and what follows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from . import ui
from .settings import Settings
from .toolchain.find import Cuda, Torch
from .verify.findings import Findings
from .verify.gather import FILE
from .verify.judge import Expected, judge


def order(settings: Settings, torch: Torch | None) -> dict[str, Any] | None:
    """What the builder is to do once the hook has run; None for nothing."""
    if not settings.check and not settings.require_cuda:
        return None
    return {"load": settings.check, "torch": bool(torch and torch.facts)}


def settle(settings: Settings, torch: Torch | None, cuda: Cuda | None, workspace: Path) -> None:
    """Say what was found of a build's modules. Raises BuildFailed for one that cannot work."""
    found = Findings.load(workspace / FILE) or Findings(trouble="the builder has left no findings")
    verdict = judge(found, _expected(settings, torch, cuda))
    if verdict.error:
        raise verdict.error
    if settings.check:
        for line in verdict.lines:
            ui.say(line)
        for line in verdict.warnings:
            ui.warn(line)


def _expected(settings: Settings, torch: Torch | None, cuda: Cuda | None) -> Expected:
    return Expected(
        torch=torch.facts.describe() if torch and torch.facts else "",
        has_toolkit=cuda is not None,
        require_cuda=settings.source("require-cuda") if settings.require_cuda else "",
    )
