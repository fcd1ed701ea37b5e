"""The scheduler's rules, one by one. Memory in GiB, time in seconds; curves are made for the case."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from safe_ext_build.schedule.forecast import GIB, Curve, Features, Forecaster
from safe_ext_build.schedule.policy import Decision, Limits, Memory, Scheduler, Waiting

FLAT = (1.0,) * 16
EARLY = (0.5, 1.0, 1.0, 1.0, *(0.25,) * 12)  # peaks in its first quarter, then lets go


def memory(available: float = 64, reserve: float = 1, floor: float = 0.5, pressure: float = 0) -> Memory:
    return Memory(int(available * GIB), int(reserve * GIB), int(floor * GIB), 64 * GIB, pressure)


def curve(peak: float, seconds: float = 100, shape: tuple[float, ...] = FLAT) -> Curve:
    return Curve(seconds, tuple(int(peak * point * GIB) for point in shape))


def build(curves: dict[int, Curve], cpus: int = 8, jobs: int = 100, guard: bool = True) -> Scheduler:
    """A scheduler at which a known job waits for each curve."""
    features = {id: Features(True, 1, 1, str(id)) for id in curves}
    history = {features[id].entry: known for id, known in curves.items()}
    scheduler = Scheduler(Limits(jobs, cpus, guard), Forecaster(history))
    for id in curves:
        scheduler.enqueue(Waiting(id, features[id]))
    return scheduler


def ids(admitted: list[tuple[int, int]]) -> list[int]:
    return [id for id, _ in admitted]


def see(scheduler: Scheduler, now: float, held: dict[int, float], spent: dict[int, float] | None = None) -> None:
    scheduler.observed({id: int(size * GIB) for id, size in held.items()}, now, spent)


def test_nothing_to_do() -> None:
    decision = build({}).decide(0, memory())
    assert (decision.admit, decision.kill, decision.held) == ([], [], "")


def test_how_long_it_will_take() -> None:
    scheduler = build({id: curve(1, 100) for id in range(8)}, cpus=4)
    assert scheduler.expected(0) == 200
    assert scheduler.expected(8) == 400
    assert build({1: curve(1, 100), 2: curve(1, 10)}).expected(0) == 100, "one compile is not split over CPUs"
    scheduler.decide(0, memory())
    see(scheduler, 60, dict.fromkeys(range(4), 1.0), dict.fromkeys(range(4), 60.0))
    assert scheduler.expected(0) == pytest.approx(140)
    assert build({}).expected(0) is None
    scheduler.enqueue(Waiting(99, Features(True, 1, 1, "new")))
    assert scheduler.expected(0) is None, "nobody knows how long the new one takes"


def test_the_first_to_start_is_found_among_some_that_are_gone() -> None:
    scheduler = build({1: curve(1, 10), 2: curve(8, 1000), 3: curve(1, 10)})
    scheduler.remove(2)
    assert ids(scheduler.decide(0, memory()).admit) == [1, 3]


@pytest.mark.parametrize("available", [64, 0.9, 0.1])
def test_something_always_runs(available: float) -> None:
    assert len(build({1: curve(100), 2: curve(100)}).decide(0, memory(available)).admit) == 1


@pytest.mark.parametrize(("cpus", "jobs", "expected"), [(8, 100, 8), (2, 100, 2), (8, 3, 3), (1, 1, 1)])
def test_counts(cpus: int, jobs: int, expected: int) -> None:
    decision = build({id: curve(0.1) for id in range(20)}, cpus, jobs).decide(0, memory())
    assert len(decision.admit) == expected
    assert decision.held == ("all CPUs are busy" if cpus <= jobs else f"{jobs} compiles run, as many as allowed")


@pytest.mark.parametrize(("available", "expected"), [(13, 4), (12.9, 3), (4, 1), (61, 8)])
def test_as_many_as_fit_beside_the_reserve(available: float, expected: int) -> None:
    assert len(build({id: curve(3) for id in range(20)}).decide(0, memory(available)).admit) == expected


def test_without_the_guard_only_counts_matter() -> None:
    decision = build({id: curve(30) for id in range(20)}, guard=False).decide(0, memory(0.1))
    assert len(decision.admit) == 8
    assert not decision.kill


def test_the_same_bytes_are_not_given_away_twice_before_the_sensors_see_them() -> None:
    scheduler = build({id: curve(3) for id in range(20)})
    first = ids(scheduler.decide(0, memory(13)).admit)
    for now in (0.1, 0.2, 0.5):  # free memory still looks untouched
        assert scheduler.decide(now, memory(13)).admit == []
    see(scheduler, 1.0, dict.fromkeys(first, 0.2))
    assert scheduler.decide(1.0, memory(12.2)).admit == []


def test_a_job_past_its_peak_makes_room() -> None:
    scheduler = build({1: curve(8, shape=EARLY), 2: curve(8, shape=EARLY), 3: curve(8, shape=EARLY)})
    assert len(scheduler.decide(0, memory(11)).admit) == 1
    see(scheduler, 10, {1: 8}, {1: 10})
    assert not scheduler.decide(10, memory(3)).admit
    see(scheduler, 40, {1: 2}, {1: 40})
    assert len(scheduler.decide(40, memory(8.5)).admit) == 0  # of 9.5 that are ours in all, 2 + 8 are too many
    see(scheduler, 45, {1: 2}, {1: 45})
    assert len(scheduler.decide(45, memory(12)).admit) == 1


def test_a_job_admitted_now_may_peak_when_another_has_let_go() -> None:
    late = (*(0.1,) * 10, *(1.0,) * 6)
    scheduler = build({1: curve(8, shape=EARLY), 2: curve(8, shape=late)})
    assert sorted(ids(scheduler.decide(0, memory(12)).admit)) == [1, 2]  # two peaks in 11 GiB, one after the other


def test_progress_counts_in_cpu_seconds() -> None:
    late = (*(0.1,) * 10, *(1.0,) * 6)
    scheduler = build({1: curve(8, shape=late)})
    scheduler.decide(0, memory(12))
    see(scheduler, 90, {1: 0.8}, {1: 20})  # on a busy machine: its peak is still to come
    scheduler.enqueue(Waiting(2, Features(True, 1, 1, "1")))
    assert not scheduler.decide(90, memory(10)).admit


def test_a_job_that_outgrows_its_forecast_claims_more() -> None:
    rising = tuple((i + 1) / 16 for i in range(16))
    scheduler = build({1: curve(4, 200, rising)})
    scheduler.decide(0, memory(15))
    see(scheduler, 100, {1: 6}, {1: 100})  # twice and more of what was forecast, half way
    scheduler.enqueue(Waiting(2, Features(True, 1, 1, "2")))
    assert not scheduler.decide(100, memory(8)).admit  # 10.7 are to come, not 4


@pytest.mark.parametrize(
    ("looks", "held"),
    [
        (memory(available=0.9), "the machine's memory is nearly used up"),
        (memory(pressure=50), "the machine is short of memory (PSI)"),
    ],
)
def test_nothing_starts_on_a_machine_in_distress(looks: Memory, held: str) -> None:
    scheduler = build({id: curve(0.1) for id in range(9)})
    scheduler.limits = Limits(1, 8)
    scheduler.decide(0, memory())
    scheduler.limits = Limits(8, 8)
    decision = scheduler.decide(5, looks)
    assert (decision.admit, decision.held) == ([], held)


def test_what_neighbours_were_promised_is_not_ours() -> None:
    scheduler = build({id: curve(3) for id in range(9)})
    assert len(scheduler.decide(0, replace(memory(13), promised=(6 * GIB,) * 8)).admit) == 2


def test_what_neighbours_were_promised_for_later_may_be_used_until_then() -> None:
    promised = (0,) * 4 + (6 * GIB,) * 4  # from 40 seconds on
    for seconds, expected in ((20, 4), (100, 2)):
        scheduler = build({id: curve(3, seconds) for id in range(9)})
        assert len(scheduler.decide(0, replace(memory(13), promised=promised)).admit) == expected


def test_a_promise_is_no_memory_that_others_have_taken() -> None:
    """A neighbour that plans to grow is a reason to start nothing, and none to stop what runs."""
    scheduler = build({id: curve(3) for id in range(3)})
    scheduler.decide(0, memory(13))
    see(scheduler, 1, dict.fromkeys(range(3), 3))
    scheduler.decide(1, memory(4))
    see(scheduler, 1.5, dict.fromkeys(range(3), 3))
    assert not scheduler.decide(1.5, replace(memory(4), promised=(50 * GIB,) * 8)).kill


def test_the_eldest_compile_gives_way_to_an_older_build() -> None:
    """Two builds, each with its last compile, and no memory left: one of them has to stop it."""
    for first in (True, False):
        scheduler = build({0: curve(3), 1: curve(3)}, jobs=1)
        scheduler.decide(0, memory(13))
        see(scheduler, 5, {0: 3})
        decision = scheduler.decide(5, replace(memory(0.3), first=first))
        assert decision.kill == ([] if first else [0])
        if not first:
            scheduler.killed(0, 6)
            see(scheduler, 6, {})
            assert scheduler.decide(6, replace(memory(0.3), first=False)).admit == []
            assert len(scheduler.decide(6.5, memory(0.3)).admit) == 1  # the older build is gone


def running(held: dict[int, float], spent: dict[int, float]) -> Scheduler:
    """Jobs that were started in the order of their ids, one a second."""
    scheduler = build({id: curve(size) for id, size in held.items()})
    assert len(scheduler.decide(0, memory()).admit) == len(held)
    for id in held:
        scheduler.started(id, float(id))
    see(scheduler, 100, held, spent)
    return scheduler


def test_below_the_floor_who_loses_least_per_byte_is_killed() -> None:
    scheduler = running({1: 4, 2: 4, 3: 4, 4: 1}, {1: 99, 2: 98, 3: 20, 4: 10})
    assert scheduler.decide(100, memory(0.4)).kill == [3]


def test_never_the_eldest() -> None:
    scheduler = running({1: 4, 2: 4}, {1: 1, 2: 99})
    assert scheduler.decide(100, memory(0.4)).kill == [2]
    assert running({1: 4}, {1: 1}).decide(100, memory(0.0)).kill == []


def test_no_more_are_killed_than_needed_and_none_twice() -> None:
    scheduler = running({1: 4, 2: 4, 3: 4, 4: 4}, {1: 90, 2: 80, 3: 30, 4: 30})
    first = scheduler.decide(100, memory(0.4)).kill
    assert len(first) == 1
    assert scheduler.decide(100.1, memory(0.4)).kill == []  # its memory is on the way
    scheduler.killed(first[0], 100.2)
    assert scheduler.decide(100.3, memory(0.4)).kill == []


def test_a_killed_job_waits_again_with_more_room_and_a_pause() -> None:
    scheduler = build({1: curve(3, 400), 2: curve(3, 300), 3: curve(3, 200)})
    scheduler.decide(0, memory(10))
    scheduler.killed(3, 10)
    see(scheduler, 11, {1: 3, 2: 3})
    assert scheduler.decide(11, memory(60)).held == "memory was short a moment ago"
    see(scheduler, 30, {1: 3, 2: 3})
    assert scheduler.decide(30, memory(4.4)).admit == []  # 3 would fit, 4.5 do not
    see(scheduler, 40, {1: 3, 2: 3})
    assert ids(scheduler.decide(40, memory(5.6)).admit) == [3]


def test_after_three_kills_a_job_runs_alone_and_last() -> None:
    scheduler = build({1: curve(1, 400), 2: curve(1, 300)}, cpus=1)
    now = 0.0
    for _ in range(3):
        scheduler.limits = Limits(100, 8)
        now += 1000
        see(scheduler, now, {})
        scheduler.decide(now, memory())
        scheduler.killed(1, now + 1)
    see(scheduler, now + 500, {2: 1})
    decision = scheduler.decide(now + 500, memory())
    assert decision.admit == []
    assert "alone" in decision.held
    scheduler.finished(2, now + 600)
    scheduler.enqueue(Waiting(9, Features(True, 1, 1, "2")))
    assert ids(scheduler.decide(now + 600, memory()).admit) == [9]  # while there is other work
    scheduler.finished(9, now + 700)
    assert ids(scheduler.decide(now + 700, memory()).admit) == [1]
    scheduler.enqueue(Waiting(10, Features(True, 1, 1, "2")))
    assert scheduler.decide(now + 701, memory()).admit == []


def test_growth_that_others_will_make_room_for_is_frozen_rather_than_killed() -> None:
    steep = (*(0.1,) * 3, 0.5, *(1.0,) * 12)
    scheduler = build({1: curve(8, 160, EARLY), 2: curve(8, 160, steep), 3: curve(8, 160, steep)})
    scheduler.decide(0, memory(40))
    for id in (1, 2, 3):
        scheduler.started(id, id / 10)
    frozen: list[int] = []
    for now, grown, free in ((35.0, 2.0, 3.0), (36.0, 2.5, 2.0), (37.0, 2.8, 1.4)):
        see(scheduler, now, {1: 8, 2: grown, 3: grown}, {1: now, 2: now, 3: now})
        decision = scheduler.decide(now, memory(free))
        assert decision.kill == []
        frozen += decision.freeze
    assert sorted(frozen) == [2, 3]  # the eldest is about to let go of 6 GiB
    see(scheduler, 39, {1: 8, 2: 2.8, 3: 2.8}, {1: 39, 2: 36, 3: 36})
    decision = scheduler.decide(39, memory(0.9))
    assert (decision.kill, decision.thaw) == ([], [])
    see(scheduler, 42, {1: 2, 2: 2.8, 3: 2.8}, {1: 42, 2: 36, 3: 36})
    assert scheduler.decide(42, memory(6.9)).thaw == [2]
    assert scheduler.decide(43, memory(6.9)).thaw == []  # one at a time
    assert scheduler.decide(46, memory(6.9)).thaw == [3]


def test_longest_after_its_peak_first() -> None:
    curves = {1: curve(1, 50), 2: curve(1, 500), 3: curve(1, 200), 4: curve(1, 400, (*(0.1,) * 15, 1.0))}
    assert ids(build(curves, cpus=3).decide(0, memory()).admit) == [2, 3, 1]


def test_of_unknown_ones_a_single_cpp_file_goes_before_the_kernels() -> None:
    scheduler = Scheduler(Limits(100, 2), Forecaster({}))
    for id in range(10):
        scheduler.enqueue(Waiting(id, Features(id < 5, 1, 1, str(id))))
    first = ids(scheduler.decide(0, memory()).admit)
    assert first[0] == 5, "the first C++ file"


def test_a_big_job_is_not_overtaken_for_ever() -> None:
    curves = {0: curve(20, 1000), **{id: curve(6, 100) for id in range(1, 300)}}
    scheduler = build(curves, cpus=4)
    now = 0.0
    started: list[int] = []
    scheduler.enqueue(Waiting(1000, Features(True, 1, 1, "1")))
    live = ids(scheduler.decide(now, memory(20)).admit)
    if 0 in live:  # the longest goes first: put a small one in its place
        scheduler.killed(0, 0.0)
        live = ids(scheduler.decide(10, memory(20)).admit)
        now = 10.0
    while 0 not in live and len(started) < 299:
        now += 30
        done = live.pop(0)
        scheduler.finished(done, now)
        see(scheduler, now, dict.fromkeys(live, 6.0))
        fresh = ids(scheduler.decide(now, memory(20 - 6 * len(live))).admit)
        started += fresh
        live += fresh
    assert 0 in live
    assert len(started) < 120


@pytest.mark.parametrize(
    ("available", "cpus", "others", "expected"),
    [
        (64, 64, 0, 4),  # idle cores, nothing else to do: all four
        (64, 2, 0, 2),  # no more than there are cores
        (7, 64, 0, 3),  # no more than fit
        (3, 64, 0, 1),
        (64, 8, 200, 1),  # much to do: narrow jobs pack better
    ],
)
def test_threads_are_cut_to_what_fits_and_raised_when_cores_idle(
    available: float, cpus: int, others: int, expected: int
) -> None:
    wide = Features(True, 4, 1, "wide")
    history = {wide.entry: curve(2, 4000)}
    history |= {f"{id}:1": curve(0.1, 2000) for id in range(others)}
    scheduler = Scheduler(Limits(100, cpus), Forecaster(history))
    scheduler.enqueue(Waiting(-1, wide, most_threads=4))
    for id in range(others):
        scheduler.enqueue(Waiting(id, Features(True, 1, 1, str(id))))
    assert dict(scheduler.decide(0, memory(available)).admit)[-1] == expected


def test_threads_are_not_raised_beyond_what_was_asked_without_leave() -> None:
    scheduler = Scheduler(Limits(100, 64), Forecaster({}))
    scheduler.enqueue(Waiting(1, Features(True, 4, 2, "a")))
    assert scheduler.decide(0, memory()).admit == [(1, 2)]


def test_jobs_without_history_claim_what_the_design_says() -> None:
    scheduler = Scheduler(Limits(100, 64), Forecaster({}))
    for id in range(40):
        scheduler.enqueue(Waiting(id, Features(id % 2 == 0, 1, 1, str(id))))
    admitted = ids(scheduler.decide(0, memory(22)).admit)
    assert sum(3 if id % 2 == 0 else 1.2 for id in admitted) == pytest.approx(21, abs=1.2)


def test_a_removed_job_is_gone_wherever_it_is() -> None:
    scheduler = build({1: curve(6, 300), 2: curve(6, 200), 3: curve(6, 100)}, cpus=2)
    assert ids(scheduler.decide(0, memory()).admit) == [1, 2]
    for id in (1, 3, 77):
        scheduler.remove(id)
    assert scheduler.decide(1, memory()).admit == []
    scheduler.finished(2, 2)
    assert scheduler.decide(3, memory()).admit == []


def test_light_imports() -> None:
    """The supervisor imports this under `python -I -S -E`."""
    root = str(Path(__file__).resolve().parents[2])
    code = (
        f"import sys; sys.path.insert(0, {root!r}); import safe_ext_build.schedule.policy;"
        "print(sorted({'asyncio', 'json', 'socket', 'subprocess', 'logging', 'typing'} & set(sys.modules)))"
    )
    command = [sys.executable, "-I", "-S", "-E", "-c", code]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_what_is_frozen_comes_to_its_end_when_nothing_is_admitted_any_more() -> None:
    """After a failed compile the build waits for what runs: a frozen compile would be waited for for ever."""
    scheduler = Scheduler(Limits(jobs=2, cpus=2), Forecaster({}))
    plenty = Memory(available=100 << 30, reserve=4 << 30, floor=2 << 30, total=128 << 30)
    for number in (1, 2):
        scheduler.enqueue(Waiting(number, Features(cuda=True, archs=1, threads=1, key=str(number))))
    assert len(scheduler.decide(0.0, plenty).admit) == 2
    scheduler._relief._frozen.add(2)
    assert scheduler.relieve(60.0, plenty) == Decision(thaw=[2])
    assert scheduler.relieve(61.0, plenty) == Decision()


def test_a_job_that_is_larger_than_the_budget_starts_where_nothing_else_is_at_its_worst() -> None:
    late = (*(0.1,) * 10, *(1.0,) * 6)
    small = {2: curve(2, seconds=30), 3: curve(2, seconds=300)}
    for id, fits in ((2, True), (3, False)):  # gone before the large one peaks, or still there
        scheduler = build({1: curve(9, shape=late), id: small[id]})
        scheduler.remove(1)
        scheduler.decide(0, memory(9))
        scheduler.enqueue(Waiting(1, Features(True, 1, 1, "1")))
        assert bool(scheduler.decide(0.1, memory(9)).admit) is fits


def test_what_has_ended_does_not_hide_how_others_grow() -> None:
    ramp = (*((i + 1) / 8 for i in range(8)), *(1.0,) * 8)
    scheduler = build({id: curve(1, shape=ramp) for id in range(4)})
    scheduler.decide(0, memory(16))
    see(scheduler, 4, {0: 2, 1: 2, 2: 2, 3: 4})  # much more than was expected
    assert not scheduler.decide(4, memory(6)).kill
    scheduler.finished(3, 4.5)
    see(scheduler, 5, {0: 3, 1: 3, 2: 3})
    # 7 GiB are free, more than before; but 3 went in the last second, and who is killed now is gone in 2.5 s.
    assert scheduler.decide(5, memory(7)).kill


def test_a_history_that_is_too_low_is_noticed_however_steadily_it_is_outgrown() -> None:
    ramp = tuple((i + 1) / 16 for i in range(16))
    scheduler = build({id: curve(4, 160, ramp) for id in range(3)}, guard=False)
    scheduler.decide(0, memory())
    scheduler.limits = Limits(100, 8)
    killed = []
    for second in range(1, 61):  # twice what was forecast, and never much more than the moment before
        see(scheduler, second, dict.fromkeys(range(3), 0.05 * second), dict.fromkeys(range(3), float(second)))
        if scheduler.decide(second, memory(9.6 - 0.15 * second)).kill:
            killed.append(second)
    # Each second takes 0.15 GiB. By the history it takes none: that ends before the floor is reached.
    assert killed and killed[0] > 55


@pytest.mark.parametrize(("grown", "gives_way"), [(0.0, False), (0.2, True)])
def test_what_still_grows_below_the_reserve_gives_way_before_the_floor(grown: float, gives_way: bool) -> None:
    """Between the two there is no time left to see somebody else come."""
    scheduler = build({id: curve(3) for id in range(3)})
    scheduler.decide(0, memory(13))
    see(scheduler, 50, dict.fromkeys(range(3), 2.0))
    assert not scheduler.decide(50, memory(0.75)).kill
    see(scheduler, 51, dict.fromkeys(range(3), 2.0 + grown))
    assert bool(scheduler.decide(51, memory(0.7)).kill) is gives_way
