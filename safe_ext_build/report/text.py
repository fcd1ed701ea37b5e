"""A record as lines for a terminal: the headline, what to do next, the dearest sources, the plan. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from . import caches, farmed, words
from .advice import advise
from .record import Record
from .timeline import Cost, costs, most_at_once, most_held

SHOWN = 10
_ENDS = {"built": "built in", "failed": "failed after", "interrupted": "interrupted after"}
_BOUNDS = {"cores": "the CPUs", "memory": "memory", "longest": "one long source", "farm": "the farm"}


def to_text(record: Record) -> Iterator[str]:
    """The lines, none of them folded."""
    started = record.started.replace("T", " ").replace("+00:00", " UTC")
    yield f"{record.project}: {_ENDS[record.outcome]} {words.duration(record.seconds)}"
    yield f"{record.hook}, {started}, build {record.id}, safe-ext-build {record.version}"
    if record.error:
        yield f"{words.error_label(record.error_code)} {record.error}"
    yield from _figures(record)
    yield ""
    yield "What to do next"
    yield from (f"- {line}" for line in advise(record))
    yield from _sources(record)
    yield ""
    yield "Plan"
    yield from (f"- {line}" for line in record.plan.lines)


def _figures(record: Record) -> Iterator[str]:
    if not record.runs:
        return
    done = sum(run.outcome == "compiled" for run in record.runs)
    cpu = words.duration(sum(run.cpu for run in record.runs))
    here = " here" if any(run.remote for run in record.runs) else ""
    held = most_held(record)
    memory = f", {words.size(held)} held at most" if held else ""
    yield (
        f"{done} of {words.count(len(costs(record)), 'compile')} done, {cpu} CPU time{here}, "
        f"{most_at_once(record.runs)} at once at most{memory}"
    )
    if line := farmed.sentence(record.runs):
        reason = farmed.main_reason(record.runs) if farmed.returned(record.runs) else ""
        yield f"{line}{f' ({reason})' if reason else ''}"
    said = [caches.Said(run.cache, run.cache_why, run.saved) for run in record.runs if run.outcome == "compiled"]
    if line := caches.sentence(said):
        yield line
    if record.outcome == "built" and (bound := record.bound.seconds):
        yield (
            f"compiling took {words.duration(record.compiling)}, {record.compiling / bound:.2f} times the bound: "
            f"{_BOUNDS[record.bound.by]} alone would have taken {words.duration(bound)}"
        )


def _sources(record: Record) -> Iterator[str]:
    found = costs(record)
    if not found:
        return
    yield ""
    yield f"{'CPU time':>12} {'memory':>10}  source"
    yield from map(_row, found[:SHOWN])
    if len(found) > SHOWN:
        yield f"{'':23}  and {len(found) - SHOWN} more: --html shows all"


def _row(cost: Cost) -> str:
    outcome = "" if cost.outcome in ("compiled", "returned") else f" ({cost.outcome})"
    farm = " on the farm" if cost.is_farmed else ", came back from the farm" if cost.returns else ""
    kills = f", stopped for memory {words.count(cost.kills, 'time')}" if cost.kills else ""
    archs = f" [{cost.archs}]" if cost.archs else ""
    outcome = outcome or (f" ({cost.cache})" if cost.cache else "")
    figures = f"{words.duration(cost.cpu):>12} {words.size(cost.peak):>10}"
    return f"{figures}  {words.name(cost.source)}{archs}{farm}{outcome}{kills}"
