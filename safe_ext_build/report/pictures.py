"""The pictures of the page, as SVG: a lane per slot, memory over time, and the bounds. Pure.

Places are in per cent of the width, so that a picture is as wide as the window, and its letters never stretch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from .markup import text
from .record import Record, Run, Sample
from .timeline import Held, first_of_farm, held_back, lane_names, lanes, pause_lanes
from .words import GIB, clock, duration, size

AXIS = 22
MEMORY_HEIGHT = 190
STRIP = 8
_APART = 14  # between the lanes of this machine and those of the farm
MOST_POINTS = 400
_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 86400)
# Per cent of the width: a narrower bar has no room for a name, in a wide window and in a narrow one.
_LABELLED, _ROOMY = 5.0, 14.0
_KINDS = {"memory": "kill", "returned": "back", "failed": "bad", "stopped": "open", "unfinished": "open"}
_REASONS = {
    "cpus": "All CPUs were busy",
    "jobs": "As many compiles ran as allowed",
    "memory": "Memory held compiles back",
}


def span_of(record: Record) -> float:
    """Seconds that the pictures show: all of the build."""
    ends = [*(run.end for run in record.runs), *(sample.time for sample in record.samples)]
    return max([record.seconds, 0.001, *ends])


def ticks(span: float, most: int = 8) -> list[float]:
    """Round moments, at most so many, from 0 on."""
    step = next((step for step in _STEPS if span / step <= most), _STEPS[-1] * (1 + int(span / _STEPS[-1] / most)))
    return [float(number * step) for number in range(int(span / step) + 1)]


def percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.2f}".rstrip("0").rstrip(".") + "%"


def _axis(span: float, height: int) -> Iterator[str]:
    for tick in ticks(span):
        place = percent(tick, span)
        yield f'<line class="grid" x1="{place}" x2="{place}" y1="{AXIS - 4}" y2="{height}"/>'
        if tick < 0.93 * span:
            yield f'<text class="axis" x="{place}" y="12">{clock(tick)}</text>'


# The timeline.


def timeline(record: Record) -> str:
    """One lane for each compile at a time, the farm's below; JavaScript shows what the row `r<number>` of the
    table says."""
    placed = lanes(record.runs)
    names, span = lane_names(record.runs, placed), span_of(record)
    count, first = len(names), first_of_farm(record.runs, placed)
    pitch = 20 if count <= 32 else 12 if count <= 96 else 8
    tops = [AXIS + lane * pitch + (_APART if 0 < first <= lane else 0) for lane in range(count)]
    height = max(tops, default=AXIS) + pitch + 4
    labels = _labels([run.source for run in record.runs])
    bars = "\n".join(
        _bar(number, run, labels[number], tops[lane], pitch - max(2, pitch // 6), span)
        for number, (run, lane) in enumerate(zip(record.runs, placed, strict=True))
    )
    stills = "".join(
        f'<rect class="still" x="{percent(pause.start, span)}" width="{percent(pause.end - pause.start, span)}" '
        f'y="{tops[lane]}" height="{pitch - max(2, pitch // 6)}"/>'
        for pause, lane in zip(record.pauses, pause_lanes(record, placed), strict=True)
    )
    every = 1 if pitch >= 20 else 4 if pitch >= 12 else 8
    numbers = "".join(
        f'<text x="100%" y="{tops[lane] + pitch // 2 + 3}">{name}</text>'
        for lane, name in enumerate(names)
        if (lane if lane < first else lane - first) % every == 0
    )
    rows = [tops[first] - 8] if 0 < first < count else []
    apart = "".join(f'<line class="apart" x1="0" x2="100%" y1="{row}" y2="{row}"/>' for row in rows)
    label = (
        f"{len(record.runs)} runs of compilers on {count} lanes, over {duration(span)}. The table below has all."
    )
    return (
        f'<div class="chart" id="lanes" tabindex="0" role="group" aria-labelledby="h-lanes" '
        f'aria-describedby="lanes-help">'
        f'<svg class="gutter" height="{height}" aria-hidden="true">{numbers}</svg>'
        f'<svg class="plot" height="{height}" role="img" aria-label="{label}">'
        f"{_HATCHES}{''.join(_axis(span, height))}{apart}{bars}{stills}</svg></div>"
    )


_HATCHES = (
    '<defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<rect class="hatch-a" width="6" height="6"/><rect class="hatch-b" width="2.5" height="6"/></pattern>'
    '<pattern id="dots" width="4" height="4" patternUnits="userSpaceOnUse">'
    '<rect class="dot" width="1.6" height="4"/></pattern></defs>'
)


def _labels(sources: Sequence[str]) -> list[str]:
    """What tells the sources apart: their names, without the words that all of them begin with."""
    names = [source.rpartition("/")[2].rpartition(".")[0] or source for source in sources]
    kernels = [name for name, source in zip(names, sources, strict=True) if source.endswith(".cu")]
    prefix = _common(min(kernels), max(kernels)) if len(set(kernels)) > 1 else ""
    prefix = prefix[: prefix.rfind("_") + 1]
    return [name.removeprefix(prefix) for name in names]


def _common(one: str, other: str) -> str:
    differ = [place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b]
    return one[: differ[0] if differ else min(len(one), len(other))]


def _bar(number: int, run: Run, name: str, top: int, height: int, span: float) -> str:
    kind = _KINDS.get(run.outcome) or ("cuda" if run.cuda else "host")
    wide = 100 * (run.end - run.start) / span
    small = "" if wide >= _ROOMY else ' class="s"'
    has_room = wide >= _LABELLED and height >= 14
    label = f'<text{small} x="4" y="{height - 5}">{text(name)}</text>' if has_room else ""
    return (
        f'<svg class="{kind}" data-i="{number}" x="{percent(run.start, span)}" y="{top}" '
        f'width="{max(wide, 0.15):.2f}%" height="{height}"><rect width="100%" height="100%" rx="2"/>{label}</svg>'
    )


# Memory.


def thin(samples: Sequence[Sample]) -> list[Sample]:
    """At most 400 looks, the highest of each group, in which peaks stay."""
    step = -(-len(samples) // MOST_POINTS) or 1
    groups = (samples[start : start + step] for start in range(0, len(samples), step))
    return [max(group, key=lambda sample: sample.held) for group in groups]


def memory(record: Record) -> str:
    """What compiles held and might hold, and how much there is; who was killed, and when others were held back."""
    samples, span = thin(record.samples), span_of(record)
    top = memory_top(record)
    bottom = AXIS + MEMORY_HEIGHT
    height = bottom + STRIP + 8
    label = (
        f"Memory: compiles held up to {size(max(sample.held for sample in samples))}, of a budget of up to "
        f"{size(max(sample.budget for sample in samples))}. The table below has the figures."
    )
    return (
        f'<div class="chart" id="memory" tabindex="0" role="group" aria-labelledby="h-memory" '
        f'aria-describedby="memory-help" '
        f'data-span="{span:.3f}">'
        f'<svg class="gutter" height="{height}" aria-hidden="true">{"".join(_scale(top))}'
        f'<text x="100%" y="{bottom + 12}">waiting</text></svg>'
        f'<svg class="plot" height="{height}" role="img" aria-label="{label}">{"".join(_axis(span, bottom))}'
        f"{''.join(_levels(top))}"
        f'<svg y="{AXIS}" height="{MEMORY_HEIGHT}" width="100%" viewBox="0 0 1000 1000" '
        f'preserveAspectRatio="none">'
        f'<path class="held" d="{_area(samples, span, top)}"/>'
        f'<path class="budget" d="{_line([(s.time, s.budget) for s in samples], span, top)}"/>'
        f'<path class="limit" d="{_line([(s.time, s.total) for s in samples], span, top)}"/></svg>'
        f"{''.join(_kills(record, span, bottom))}{''.join(_strip(held_back(record), span, bottom + 4))}"
        f'<line class="cursor" y1="{AXIS - 4}" y2="{bottom}" x1="0" x2="0"/></svg></div>'
    )


def memory_top(record: Record) -> float:
    """Where the scale ends, in bytes: a limit that is far beyond what is used would press everything flat."""
    used = max(max(sample.held, sample.budget) for sample in record.samples)
    limit = max(sample.total for sample in record.samples)
    return 1.08 * (limit if used < limit <= 2 * used else max(used, 1 << 20))


def _steps(top: float) -> list[float]:
    """At most five round levels, in bytes."""
    unit = GIB if top >= GIB else GIB / 1024
    step = next(
        step for power in range(9) for step in (10**power, 2 * 10**power, 5 * 10**power) if top / unit / step <= 5
    )
    return [number * step * unit for number in range(1, int(top / unit / step) + 1)]


def _height(level: float, top: float) -> float:
    return AXIS + MEMORY_HEIGHT * (1 - level / top)


def _levels(top: float) -> Iterable[str]:
    for level in _steps(top):
        place = f"{_height(level, top):.1f}"
        yield f'<line class="grid" x1="0" x2="100%" y1="{place}" y2="{place}"/>'


def _scale(top: float) -> Iterable[str]:
    for level in _steps(top):
        words = f"{level / GIB:.0f} GiB" if top >= GIB else f"{level / GIB * 1024:.0f} MiB"
        yield f'<text x="100%" y="{_height(level, top) + 3:.1f}">{words}</text>'


def _line(points: Sequence[tuple[float, float]], span: float, top: float) -> str:
    return "M" + "L".join(f"{1000 * time / span:.1f} {1000 * (1 - level / top):.0f}" for time, level in points)


def _area(samples: Sequence[Sample], span: float, top: float) -> str:
    points = [(sample.time, float(sample.held)) for sample in samples]
    return _line([(points[0][0], 0.0), *points, (points[-1][0], 0.0)], span, top) + "Z"


def _kills(record: Record, span: float, bottom: int) -> Iterable[str]:
    for run in record.runs:
        if run.outcome == "memory":
            place = percent(run.end, span)
            title = f"{run.source} at {clock(run.end)}: {run.why or 'stopped for memory'}, at {size(run.peak)}"
            yield (
                f'<g class="killed"><title>{text(title)}</title>'
                f'<line x1="{place}" x2="{place}" y1="{AXIS}" y2="{bottom}"/>'
                f'<svg x="{place}" y="{AXIS - 4}" overflow="visible"><path d="M-5 0H5L0 8Z"/></svg></g>'
            )


def _strip(stretches: Iterable[Held], span: float, top: int) -> Iterable[str]:
    for held in stretches:
        title = f"{clock(held.start)} to {clock(held.end)}: {_REASONS[held.reason]} ({held.why})"
        yield (
            f'<rect class="why-{held.reason}" x="{percent(held.start, span)}" y="{top}" '
            f'width="{percent(held.seconds, span)}" height="{STRIP}"><title>{text(title)}</title></rect>'
        )


# The bounds.


def bounds(record: Record) -> str:
    """How long compiling took, beside what no schedule can beat."""
    bound = record.bound
    farm = [("with the farm always full", bound.farm, "farm")] if bound.farm else []
    values = [
        ("compiling took", record.compiling, "took"),
        ("with all CPUs busy", bound.cores, "cores"),
        ("with all memory full", bound.memory, "memory"),
        *farm,
        ("longest source alone", bound.longest, "longest"),
    ]
    most = max(value for _, value, _ in values) or 1.0
    rows = "".join(
        f'<tr{_marked(name, bound.by)}><th scope="row">{text(words)}</th><td>{duration(value)}</td>'
        f'<td><svg class="meter" height="10" aria-hidden="true">'
        f'<rect width="{percent(value, most)}" height="10" rx="2"/></svg></td></tr>'
        for words, value, name in values
    )
    return f'<table class="bounds"><caption>Time against the bounds</caption><tbody>{rows}</tbody></table>'


def _marked(name: str, by: str) -> str:
    return ' class="took"' if name == "took" else ' class="binds"' if name == by else ""
