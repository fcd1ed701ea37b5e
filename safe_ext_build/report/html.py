"""A record as one HTML page that needs nothing else: no network, no other file; JavaScript only for comfort."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from pathlib import Path
from string import Template

from . import farmed, pictures, words
from .advice import advise
from .markup import Cell, Table, details, listing, text
from .record import Record, Run
from .timeline import Cost, costs, held_back, most_at_once, most_held

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_PAGE = Path(__file__).with_name("page")
_BOUNDS = {"cores": "the CPUs", "memory": "memory", "longest": "one long source", "farm": "the farm"}
_ENDS = {"built": "Built", "failed": "Failed after", "interrupted": "Interrupted after"}
_OUTCOMES = {
    "compiled": "compiled",
    "failed": "failed",
    "memory": "stopped for memory",
    "returned": "came back from the farm",
    "stopped": "stopped with the build",
    "unfinished": "unfinished",
}
_CACHES = {"hit": "hit", "miss": "miss", "uncacheable": "not cacheable"}


def to_html(record: Record) -> str:
    """The page."""
    style, script = _asset("page.css"), _asset("page.js")
    return Template(_asset("page.html")).substitute(
        title=text(f"{record.project}: {_ENDS[record.outcome].lower()} {words.duration(record.seconds)}"),
        policy=f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}",
        style=style,
        script=script,
        project=text(record.project),
        about=text(f"{record.hook} · {_when(record.started)}"),
        headline=text(f"{_ENDS[record.outcome]} in {words.duration(record.seconds)}".replace("after in", "after")),
        outcome=record.outcome,
        against=_against(record),
        error=_error(record),
        figures="".join(_figures(record)),
        bounds=pictures.bounds(record) if record.runs else "",
        advice="".join(f"<li>{text(line)}</li>" for line in advise(record)),
        timeline=_timeline(record) if record.runs else "",
        memory=_memory(record) if record.samples else "",
        sources=_sources(record) if record.runs else "",
        plan="".join(f"<li>{text(line)}</li>" for line in record.plan.lines),
        environment=_environment(record),
        foot=text(f"safe-ext-build {record.version} · build {record.id} · record schema {record.schema}"),
    )


def _error(record: Record) -> str:
    if not record.error:
        return ""
    label = f"<strong>{text(record.error_code)}</strong> " if record.error_code else ""
    return f'<p class="error" role="note">{label}{text(record.error)}</p>'


def _asset(name: str) -> str:
    return (_PAGE / name).read_text(encoding="utf-8")


def _hash(code: str) -> str:
    """The page runs these very letters and nothing else, whatever may have come into it."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()}'"


def _when(started: str) -> str:
    return started.replace("T", " ").replace("+00:00", " UTC")


def _against(record: Record) -> str:
    bound = record.bound.seconds
    if record.outcome != "built" or not bound:
        return ""
    cause = _BOUNDS[record.bound.by]
    if record.bound.by == "longest":
        cause += f" ({words.name(record.bound.longest_source)})"
    ratio = record.compiling / bound
    return (
        f'<p class="against"><strong>{ratio:.2f} times</strong> the bound: compiling took '
        f"{words.duration(record.compiling)}, and {text(cause)} alone would have taken {words.duration(bound)}"
        f".</p>"
    )


def _figures(record: Record) -> Iterator[str]:
    done = sum(run.outcome == "compiled" for run in record.runs)
    killed = sum(run.outcome == "memory" for run in record.runs)
    held = most_held(record)
    yield _figure(str(done), f"of {words.count(len(costs(record)), 'compile')} done")
    cpu = words.duration(sum(run.cpu for run in record.runs))
    yield _figure(cpu, "CPU time here" if _has_farm(record) else "CPU time")
    yield _figure(str(most_at_once(record.runs)), "at once, at most")
    if held:
        yield _figure(words.size(held), "held at most")
    if killed:
        yield _figure(str(killed), "stopped for memory")
    if there := farmed.compiled(record.runs):
        yield _figure(str(there), "compiled on the farm")
    if back := farmed.returned(record.runs):
        yield _figure(str(back), "came back from it")
    if cached := sum(run.cache != "" for run in record.runs):
        yield _figure(str(sum(run.cache == "hit" for run in record.runs)), f"of {cached} from the compiler cache")


def _figure(value: str, what: str) -> str:
    return f"<div><dt>{text(what)}</dt><dd>{text(value)}</dd></div>"


def _timeline(record: Record) -> str:
    kinds = {run.outcome for run in record.runs}
    keys = [("cuda", "CUDA", any(run.cuda for run in record.runs))]
    keys += [("host", "C++", any(not run.cuda for run in record.runs))]
    keys += [("back", "came back from the farm", "returned" in kinds)]
    keys += [("kill", "stopped for memory", "memory" in kinds), ("bad", "failed", "failed" in kinds)]
    keys += [
        ("open", "unfinished", bool(kinds & {"stopped", "unfinished"})),
        ("still", "held still", bool(record.pauses)),
    ]
    columns = [("Source", False), ("Outcome", False), ("Started", True), ("Took", True), ("Waited", True)]
    columns += [("CPU time", True), ("Memory", True), ("Archs", False), ("Threads", True), ("Attempt", True)]
    columns += [("Where", False)] if _has_farm(record) else []
    table = Table(
        id="runs",
        caption="Every run of a compiler, in the order of their starts",
        columns=columns,
        rows=([*_run_row(run), *_where(run, record)] for run in record.runs),
        attributes=(f' id="r{number}"{_curve(run)}' for number, run in enumerate(record.runs)),
    )
    left_out = f" {words.count(record.runs_left_out, 'cheaper run')} left out." if record.runs_left_out else ""
    return (
        f'<section aria-labelledby="h-lanes"><h2 id="h-lanes">Timeline</h2>'
        f'<p class="key" id="lanes-help">{_key(keys)}'
        f'<span class="help">Point at a bar, or focus the picture and use the arrow keys.{left_out}</span></p>'
        f"{pictures.timeline(record)}{details('The timeline as a table', table.render())}</section>"
    )


def _key(keys: list[tuple[str, str, bool]]) -> str:
    return "".join(f'<span class="k-{kind}">{text(what)}</span>' for kind, what, there in keys if there)


def _run_row(run: Run) -> list[Cell]:
    return [
        Cell(words.name(run.source)),
        Cell(_outcome(run)),
        Cell(words.clock(run.start)),
        Cell(words.duration(run.end - run.start)),
        Cell(words.duration(run.waited)),
        Cell(words.duration(run.cpu) if run.cpu else ""),
        Cell(words.size(run.peak) if run.peak else ""),
        Cell(run.archs.replace(";", " ")),
        Cell(str(run.threads) if run.threads > 1 else ""),
        Cell(str(run.attempt) if run.attempt > 1 else ""),
    ]


def _outcome(run: Run) -> str:
    return _OUTCOMES[run.outcome] + (f": {run.why}" if run.why else "")


def _has_farm(record: Record) -> bool:
    return any(run.remote for run in record.runs)


def _where(run: Run, record: Record) -> list[Cell]:
    return [Cell("on the farm" if run.remote else "here")] if _has_farm(record) else []


def _curve(run: Run) -> str:
    """The shape of its memory over its life: a digit to the base 36 for each moment."""
    top = max(run.curve, default=0)
    return f' data-c="{"".join(_DIGITS[35 * point // top] for point in run.curve)}"' if top else ""


def _memory(record: Record) -> str:
    kinds = {run.outcome for run in record.runs}
    keys = [("held", "held by compiles", True), ("budget", "budget", True)]
    limit = max(sample.total for sample in record.samples)
    beyond = "" if limit <= pictures.memory_top(record) else ", beyond the picture"
    keys += [
        ("limit", f"limit: {words.size(limit)} of {words.name(record.machine.memory, 40)}{beyond}", bool(limit))
    ]
    reasons = {held.reason for held in held_back(record)}
    keys += [("killed", "stopped for memory", "memory" in kinds)]
    keys += [("why-memory", "compiles waited for memory", "memory" in reasons)]
    keys += [
        ("why-cpus", "for a CPU", "cpus" in reasons),
        ("why-jobs", "for their turn (jobs.max)", "jobs" in reasons),
    ]
    columns = [
        ("Time", True),
        ("Held", True),
        ("Budget", True),
        ("Free", True),
        ("Running", True),
        ("Waiting", True),
    ]
    table = Table(
        id="samples",
        caption="Memory over time",
        columns=[*columns, ("Why the next one waited", False)],
        rows=(
            [
                Cell(words.clock(sample.time), sample.time),
                *(Cell(words.size(value)) for value in (sample.held, sample.budget, sample.available)),
                Cell(str(sample.running)),
                Cell(str(sample.waiting)),
                Cell(sample.why),
            ]
            for sample in pictures.thin(record.samples)
        ),
    )
    return (
        f'<section aria-labelledby="h-memory"><h2 id="h-memory">Memory</h2>'
        f'<p class="key" id="memory-help">{_key(keys)}</p>'
        f"{pictures.memory(record)}{details('Memory as a table', table.render())}</section>"
    )


def _sources(record: Record) -> str:
    found = costs(record)
    total = sum(cost.cpu for cost in found)
    columns = [("Source", False), ("CPU time", True), ("Share", True), ("Took", True), ("Memory", True)]
    columns += [("Waited", True), ("Archs", False), ("Runs", True), ("Outcome", False)]
    table = Table(
        id="sources",
        caption="Sources by cost",
        columns=columns,
        rows=(_source_row(cost, total, found[0].cpu) for cost in found),
        sorts=True,
    )
    return f'<section aria-labelledby="h-sources"><h2 id="h-sources">Sources</h2>{table.render()}</section>'


def _source_row(cost: Cost, total: float, most: float) -> list[Cell]:
    width = pictures.percent(cost.cpu, most or 1)
    meter = f'<svg class="meter" height="8"><rect width="{width}" height="8" rx="2"/></svg>'
    return [
        Cell(words.name(cost.source, 90)),
        Cell(words.duration(cost.cpu), cost.cpu),
        Cell("", cost.cpu, f"{words.share(cost.cpu, total)}{meter}"),
        Cell(words.duration(cost.seconds), cost.seconds),
        Cell(words.size(cost.peak), cost.peak),
        Cell(words.duration(cost.waited), cost.waited),
        Cell(cost.archs.replace(";", " ")),
        Cell(str(cost.runs), cost.runs),
        Cell(_source_outcome(cost)),
    ]


def _source_outcome(cost: Cost) -> str:
    again = cost.returns and cost.outcome != "returned"
    where = " on the farm" if cost.is_farmed else " after it came back from the farm" if again else ""
    return f"{_OUTCOMES[cost.outcome]}{where}{f' (cache: {_CACHES[cost.cache]})' if cost.cache else ''}"


def _environment(record: Record) -> str:
    machine, plan = record.machine, record.plan
    facts = listing(
        [
            ("torch", plan.torch),
            ("CUDA toolkit", plan.toolkit),
            ("Architectures", plan.archs),
            ("CPUs", machine.cpus_why or str(machine.cpus)),
            ("Memory", f"{words.size(machine.available)} of {words.size(machine.total)} free in {machine.memory}"),
            ("Compiles at a time", f"{plan.jobs} planned, {plan.most_jobs} at most"),
            ("Memory guard", "on" if plan.guard else "OFF"),
            ("Farm", f"{words.count(plan.slots, 'step')} at a time" if plan.slots else ""),
        ]
    )
    if not plan.settings:
        return facts
    table = Table(
        id="settings",
        caption="Settings that were given",
        columns=[("Setting", False), ("Value", False), ("From", False)],
        rows=([Cell(name), Cell(one.value), Cell(one.source)] for name, one in sorted(plan.settings.items())),
    )
    return facts + table.render()
