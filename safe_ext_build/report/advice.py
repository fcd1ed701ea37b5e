"""What to do next, in words, as far as the numbers of a record show it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from . import caches, farmed
from .record import Record, Run, length
from .timeline import busy_at, costs, held_back, most_at_once, reason_of, weight, weights
from .words import GIB, MIB, count, duration, name, share, size

WORTH_SECONDS = 10.0
WORTH_SHARE = 0.05
# What a source that includes torch/extension.h costs nvcc at the very least, where the header is the reason.
HEADER_CPU = 60.0
HEADER_PEAK = 2 * GIB
# The scheduler's words for a compile that is expected to need more than there is.
EXPECTED = re.compile(r"it needs up to ([\d.]+) GiB")
UNKNOWN = 1.5
AT_ONCE = 0.5  # seconds: a compile that waited no longer has not waited


def advise(record: Record) -> list[str]:
    """Sentences, the most useful first; never empty for a build that compiled."""
    if not record.runs:
        return ["Nothing was compiled."]
    if record.outcome != "built":
        return [*_failed(record), *_killed(record)]
    rules = (_serial, _split, _capped, _memory, _killed, _returned, _archs, _header, _uncached)
    found = [line for rule in rules for line in rule(record)]
    return found or list(_fine(record))


def _is_worth(seconds: float, record: Record) -> bool:
    return seconds >= max(WORTH_SECONDS, WORTH_SHARE * record.compiling)


def _slots(record: Record) -> int:
    return min(record.machine.cpus, record.plan.most_jobs)


def _done(record: Record) -> list[Run]:
    return [run for run in record.runs if run.outcome == "compiled"]


def _here(record: Record) -> list[Run]:
    """Those that have shown on this machine what they cost."""
    return [run for run in _done(record) if not run.remote]


def _failed(record: Record) -> Iterator[str]:
    bad = [run for run in record.runs if run.outcome == "failed"]
    open_still = sum(run.outcome in ("unfinished", "stopped") for run in record.runs)
    if record.outcome == "interrupted":
        yield (
            f"The build was stopped while {count(open_still, 'compile')} ran. Start it again: what was finished "
            f"is kept."
        )
    elif bad:
        first = min(bad, key=lambda run: run.end)
        yield f"Mend {name(first.source)} first: it ended the build. What was finished is kept for the next one."
    elif "memory ran out" in record.error:
        large = max(record.runs, key=lambda run: run.peak)
        yield (
            f"{name(large.source)} held {size(large.peak)}, and does not fit even alone. Compile for fewer "
            f"architectures (TORCH_CUDA_ARCH_LIST), set NVCC_THREADS=1, split the file, or add memory."
        )
    else:
        yield "The build failed for another reason than a source that does not compile: see the error above."


def _serial(record: Record) -> Iterator[str]:
    """Compiles that came one at a time, while CPUs idled and nothing waited."""
    alone = most_at_once(record.runs) == 1 and all(run.waited < AT_ONCE for run in record.runs)
    total = sum(run.end - run.start for run in record.runs)
    slots = min(_slots(record), len(record.runs))
    if alone and len(record.runs) >= 3 and slots > 1 and total > 0.5 * record.compiling:
        yield (
            f"The project's own scripts started {len(record.runs)} compiles one after another, and none ever "
            f"waited, so {count(slots - 1, 'more CPU')} had nothing to do. Let ninja compile them (torch's "
            f"BuildExtension does unless use_ninja=False), or let make run with -j."
        )


def _split(record: Record) -> Iterator[str]:
    """One long file that outlasts everything else."""
    done = sorted(_done(record), key=length)
    if len(done) < 2 or record.bound.by != "longest":
        return
    last, rest = done[-1], [length(run) for run in done[:-1]]
    others = max(record.bound.cores, record.bound.memory, record.bound.farm, max(rest))
    saved = min(length(last) - max(others, length(last) / 2), record.compiling - others)
    if _is_worth(saved, record):
        yield (
            f"{name(last.source)} alone takes {duration(length(last))}; all the rest could be done in "
            f"{duration(others)}. Splitting it into two files of equal cost would save up to {duration(saved)}."
        )


def _held(record: Record, reason: str) -> float:
    return sum(item.seconds for item in held_back(record) if item.reason == reason)


def _capped(record: Record) -> Iterator[str]:
    """An explicit number of jobs that left CPUs idle."""
    seconds = _held(record, "jobs")
    setting = record.plan.settings.get("jobs.max")
    idle = record.machine.cpus - record.plan.most_jobs
    if setting and idle > 0 and _is_worth(seconds, record):
        yield (
            f"{setting.source} ({setting.value}) held compiles back for {duration(seconds)}, while "
            f"{count(idle, 'CPU')} of {record.machine.cpus} had nothing to do. Without it, as many run as "
            f"CPUs and memory allow."
        )


def _memory(record: Record) -> Iterator[str]:
    """Memory held compiles back while CPUs were idle: because they were not known yet, or because it was short."""
    seconds = _held(record, "memory")
    done = _here(record)
    if not done or not _is_worth(seconds, record):
        return
    peak, cpus = median(run.peak for run in done), median(weight(run) for run in done)
    expected = _expected(record)
    more = round(_idle(record) / cpus)
    held = f"Memory held compiles back for {duration(seconds)} ({share(seconds, record.compiling)} of the time)"
    if expected > UNKNOWN * max(run.peak for run in done):
        yield (
            f"{held}: not known yet, they were expected to need {size(expected)} each. A typical one needs "
            f"{size(round(peak))}, which the next build of this project knows, so more of them run at once."
        )
    elif more >= 1 and more * peak >= 256 * MIB:
        yield (
            f"{held}. {more * peak / GIB:.1f} GiB more would have let {count(more, 'more compile')} run meanwhile "
            f"(a typical one needs up to {peak / GIB:.1f} GiB)."
        )


def _expected(record: Record) -> int:
    """What the compiles that memory held back were expected to need, in bytes; 0 where that was not the reason."""
    held = [sample for sample in record.samples if sample.waiting and reason_of(sample.why) == "memory"]
    said = [EXPECTED.fullmatch(sample.why) for sample in held]
    figures = [float(match[1]) for match in said if match]
    return round(median(figures) * GIB) if len(figures) > len(said) / 2 else 0


def _idle(record: Record) -> float:
    """CPUs that were idle on average while memory held compiles back, and for which compiles waited."""
    slots = _slots(record)
    busy = busy_at(record.runs, [sample.time for sample in record.samples])
    idle = [
        (min(slots - used, sample.waiting), span)
        for used, (sample, span) in zip(busy, weights(record), strict=True)
        if sample.waiting and reason_of(sample.why) == "memory"
    ]
    total = sum(span for _, span in idle)
    return sum(max(0, cpus) * span for cpus, span in idle) / total if total else 0.0


def _killed(record: Record) -> Iterator[str]:
    killed = [run for run in record.runs if run.outcome == "memory"]
    if not killed:
        return
    lost = sum(run.end - run.start for run in killed)
    kernel = sum("kernel" in run.why for run in killed)
    if not kernel and not _is_worth(lost, record):
        return
    text = f"{count(len(killed), 'run')} stopped for memory had taken {duration(lost)}"
    text += f", {kernel} of them killed by the kernel" if kernel else ""
    if not record.plan.guard:
        yield f"{text}. Memory was not guarded: set jobs.memory-guard to true, and compiles wait for it."
    else:
        yield f"{text}. What they need is known now, and the next build of this project leaves room for it."


def _returned(record: Record) -> Iterator[str]:
    """What a farm was given in vain, if that is more than an accident."""
    back = farmed.returned(record.runs)
    lost = sum(run.end - run.start for run in record.runs if run.outcome == "returned")
    sent = back + farmed.compiled(record.runs)
    if back < 2 or (4 * back < sent and not _is_worth(lost, record)):
        return
    reason = farmed.main_reason(record.runs)
    yield (
        f"{back} of the {count(sent, 'compile')} that the farm was given came back"
        f"{f', most of them with: {reason}' if reason else ''}. `safe-ext-build farm check` says what is wrong "
        f"there; jobs.remote = 0 does without it."
    )


def _archs(record: Record) -> Iterator[str]:
    """What compiling for several architectures costs: nvcc compiles once for each."""
    groups: dict[str, float] = {}
    for run in _here(record):
        groups[run.archs] = groups.get(run.archs, 0.0) + run.cpu
    total = sum(groups.values())
    several = {archs: cpu for archs, cpu in groups.items() if ";" in archs}
    if not several or not total:
        return
    archs = max(several, key=lambda item: several[item])
    cpu, number = several[archs], archs.count(";") + 1
    saved = cpu * (1 - 1 / number)
    if saved >= 0.1 * total and saved >= WORTH_SECONDS:
        yield (
            f"Compiling for {number} architectures ({archs}) cost {share(cpu, total)} of the CPU time, about "
            f"{share(cpu / number, total)} for each. Name only those that you need in TORCH_CUDA_ARCH_LIST (or "
            f"cuda.archs)."
        )


def _header(record: Record) -> Iterator[str]:
    """CUDA sources with torch/extension.h, if even the cheapest of them costs what the header alone costs."""
    local = [cost for cost in costs(record) if cost.outcome == "compiled" and not cost.remote]
    found = [cost for cost in local if cost.cuda and cost.torch_header]
    if not found or min(cost.cpu for cost in found) < HEADER_CPU or min(cost.peak for cost in found) < HEADER_PEAK:
        return
    least = min(found, key=lambda cost: cost.cpu)
    files = "CUDA source includes" if len(found) == 1 else "CUDA sources include"
    yield (
        f"{len(found)} {files} torch/extension.h, which alone costs nvcc some two CPU minutes and 3 GiB; the "
        f"cheapest, {Path(least.source).name}, took {duration(least.cpu)} of CPU time and {size(least.peak)}. "
        f"Include torch/types.h or ATen's own headers there, and leave the bindings to a .cpp file."
    )


def _uncached(record: Record) -> Iterator[str]:
    """What was compiled again although an earlier build had done it; and what the cache cannot take."""
    again = [run for run in _done(record) if run.again and not run.cache]
    seconds = sum(length(run) for run in again)
    if not record.plan.launcher and again and _is_worth(seconds / max(1, record.plan.most_jobs), record):
        yield (
            f"{len(again)} of {count(len(_done(record)), 'compile')} had been done before with the same compiler "
            f"and flags: ccache would have hit for those whose files are unchanged, up to {duration(seconds)} of "
            f'compiling (pip install "safe-ext-build[cache]", and launcher = "ccache").'
        )
    refused = [run for run in _done(record) if run.cache == "uncacheable"]
    seconds = sum(length(run) for run in refused)
    if refused and _is_worth(seconds, record):
        why = caches.reasons([caches.Said(run.cache, run.cache_why, run.saved) for run in refused])
        yield f"{count(len(refused), 'compile')} ({duration(seconds)}) could not be cached: {why}."


def _fine(record: Record) -> Iterator[str]:
    ratio = record.compiling / record.bound.seconds if record.bound.seconds else 1.0
    reasons = {
        "cores": "its CPUs had work all the time, so only more of them, or less to compile, would be faster",
        "memory": "memory was full all the time, so only more of it, or less to compile, would be faster",
        "longest": "one source takes as long as all of the rest together",
        "farm": "the farm was full all the time, so only a larger one, or less to compile, would be faster",
    }
    machines = "this machine and its farm" if any(run.remote for run in record.runs) else "this machine"
    if ratio <= 1.25:
        yield f"Nothing: this is close to the best that {machines} can do; {reasons[record.bound.by]}."
    else:
        yield "Nothing stands out in the numbers of this build."
