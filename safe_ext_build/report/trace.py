"""A record as a Chrome trace (trace event format), for chrome://tracing, Perfetto and speedscope. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from .record import Record, Run
from .timeline import held_back, lane_names, lanes, pause_lanes

_PROCESS = 1
# Colours that the format knows by name.
_COLORS = {"memory": "terrible", "returned": "yellow", "failed": "bad", "stopped": "grey", "unfinished": "grey"}


def to_trace(record: Record) -> str:
    """JSON: compiles as slices, one thread per lane; memory and the numbers of compiles as counters."""
    document = {
        "displayTimeUnit": "ms",
        "otherData": {"project": record.project, "version": record.version, "started": record.started},
        "traceEvents": list(_events(record)),
    }
    return json.dumps(document, separators=(",", ":")) + "\n"


def _events(record: Record) -> Iterator[dict[str, Any]]:
    yield _named("process_name", 0, f"{record.project}: compiles")
    placed = lanes(record.runs)
    for lane, name in enumerate(lane_names(record.runs, placed)):
        yield _named("thread_name", lane + 1, name if name.startswith("farm") else f"lane {name}")
    for run, lane in zip(record.runs, placed, strict=True):
        yield _slice(run, lane + 1)
    for pause, lane in zip(record.pauses, pause_lanes(record, placed), strict=True):
        span = _span("held still for memory", lane + 1, pause.start, pause.end)
        yield {**span, "cat": "pause", "args": {}}
    for sample in record.samples:
        memory = {"held": sample.held, "rest of the budget": max(0, sample.budget - sample.held)}
        yield _counter("memory (bytes)", sample.time, memory)
        yield _counter("compiles", sample.time, {"running": sample.running, "waiting": sample.waiting})
    for held in held_back(record):
        start = _microseconds(held.start)
        yield {"name": held.why, "cat": "held", "ph": "i", "s": "p", "ts": start, "pid": _PROCESS, "tid": 0}


def _named(what: str, thread: int, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": _PROCESS, "tid": thread, "args": {"name": name}}


def _slice(run: Run, thread: int) -> dict[str, Any]:
    args = {
        "outcome": run.outcome,
        "attempt": run.attempt,
        "archs": run.archs,
        "threads": run.threads,
        "cpu_s": run.cpu,
        "peak_bytes": run.peak,
        "waited_s": run.waited,
        "remote": run.remote,
    }
    span = _span(run.source, thread, run.start, run.end)
    color = {"cname": _COLORS[run.outcome]} if run.outcome in _COLORS else {}
    return {**span, "cat": "cuda" if run.cuda else "host", "args": args, **color}


def _span(name: str, thread: int, start: float, end: float) -> dict[str, Any]:
    begun = _microseconds(start)
    return {
        "name": name,
        "ph": "X",
        "ts": begun,
        "dur": max(0, _microseconds(end) - begun),
        "pid": _PROCESS,
        "tid": thread,
    }


def _counter(name: str, time: float, values: dict[str, int]) -> dict[str, Any]:
    return {"name": name, "ph": "C", "ts": _microseconds(time), "pid": _PROCESS, "args": values}


def _microseconds(seconds: float) -> int:
    return round(seconds * 1e6)
