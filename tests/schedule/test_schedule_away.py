"""Compiles on a farm: how many may leave, what they cost here, and that what comes back is one of ours."""

from __future__ import annotations

import pytest

from safe_ext_build.schedule.away import MOST_PAUSE, PAUSE, Away
from safe_ext_build.schedule.claims import Job
from safe_ext_build.schedule.forecast import GIB, Curve, Features, Forecaster
from safe_ext_build.schedule.policy import Limits, Memory, Scheduler, Waiting

HERE, THERE = 8.0, 0.25  # GIB that a compile takes here, and what its client's side takes of it


def job(id: int = 1, threads: int = 1) -> Job:
    features = Features(True, threads, threads, str(id))
    found = Job(id, features, features, threads, id, Forecaster({}).forecast(features), True)
    found.threads = threads
    return found


def opened(slots: int = 4) -> Away:
    away = Away()
    away.slots, away.open = slots, True
    return away


# The books of what is away.


def test_nothing_leaves_for_a_farm_that_is_closed() -> None:
    away = opened()
    assert away.free(0) == 4
    away.open = False
    assert away.free(0) == 0


def test_steps_are_counted_not_compiles() -> None:
    away = opened()
    away.begin(job(1, threads=3))
    assert (away.count, away.steps, away.free(0)) == (1, 3, 1)
    away.begin(job(2, threads=1))
    assert away.free(0) == 0
    away.slots = 2  # others have come
    assert away.free(0) == 0
    away.end(job(1))
    away.end(job(1))
    assert (away.count, away.steps, away.free(0)) == (1, 1, 1)


def test_what_they_cost_here_is_a_quarter_of_a_cpu_until_it_is_measured() -> None:
    away, first, second, third = opened(), job(1, threads=2), job(2), job(4)
    for one in (first, second, third):
        away.begin(one)
    assert away.cpus == 1
    away.saw(first, spent=4, now=4)
    assert away.cpus == 1, "it is too young"
    for one in (first, second, third):
        away.saw(one, spent=0.1, now=10)
    assert away.cpus == 0
    away.saw(first, spent=100, now=10)
    assert away.cpus == 2, "no more than its threads"
    away.saw(job(3), spent=100, now=10)
    assert away.cpus == 2, "nobody knows that one"


def test_after_a_refusal_the_farm_is_left_alone_longer_and_longer() -> None:
    away, now, pauses = opened(), 0.0, []
    for _ in range(6):
        away.refused(now)
        away.refused(now + 1)  # of the same trouble
        end = now
        while not away.free(end):
            end += 1
        pauses.append(end - now)
        now = end
    assert pauses == [PAUSE, 2 * PAUSE, 4 * PAUSE, 8 * PAUSE, MOST_PAUSE, MOST_PAUSE]


def test_one_that_it_has_compiled_forgives_all() -> None:
    away, one = opened(), job()
    away.refused(0)
    away.refused(PAUSE)
    away.begin(one)
    away.end(one, well=True)
    away.refused(100)
    assert away.free(100 + PAUSE - 1) == 0 < away.free(100 + PAUSE)


# The scheduler.


def memory(available: float = 64) -> Memory:
    return Memory(int(available * GIB), GIB, GIB // 2, 64 * GIB, 0)


def flat(peak: float, seconds: float = 100) -> Curve:
    return Curve(seconds, (int(peak * GIB),) * 16)


def build(
    count: int = 8, *, cpus: int = 2, slots: int = 4, stay: tuple[int, ...] = (), jobs: int = 100
) -> Scheduler:
    """A scheduler at which known compiles wait, all alike; those that `stay` may not leave."""
    features = [Features(True, 1, 1, str(number)) for number in range(count)]
    history = {}
    for one in features:
        history[one.entry] = flat(HERE)
        history[Features(True, 1, 1, one.key, remote=True).entry] = flat(THERE)
    scheduler = Scheduler(Limits(jobs, cpus), Forecaster(history))
    scheduler.away.slots, scheduler.away.open = slots, True
    for number, one in enumerate(features):
        scheduler.enqueue(Waiting(number, one, may_leave=number not in stay))
    return scheduler


def ids(pairs: list[tuple[int, int]]) -> list[int]:
    return [id for id, _ in pairs]


def test_the_farm_gets_as_much_as_it_has_slots_and_the_rest_is_for_here() -> None:
    decision = build().decide(0, memory())
    assert (len(decision.send), len(decision.admit)) == (4, 1), "young, four of them cost one CPU here"
    scheduler = build(cpus=4)
    decision = scheduler.decide(0, memory())
    assert (ids(decision.send), ids(decision.admit)) == ([0, 1, 2, 3], [4, 5, 6])
    assert (scheduler.away.count, scheduler.load(0)[:2]) == (4, (4, 1))


def test_what_is_away_takes_no_cpu_here_but_what_it_is_seen_to_use() -> None:
    scheduler = build(cpus=4)
    sent = ids(scheduler.decide(0, memory()).send)
    for id in sent:
        scheduler.started(id, 0)
    held = {id: int(THERE * GIB) for id in sent}
    scheduler.observed(held, 10, cpu=dict.fromkeys(sent, 0.2))
    assert len(scheduler.decide(10, memory()).admit) == 1, "2 + 1 of 4 CPUs: all that is away keeps 1 busy"


def test_the_number_of_compiles_here_is_that_of_those_here() -> None:
    decision = build(cpus=8, jobs=2).decide(0, memory())
    assert (len(decision.send), len(decision.admit)) == (4, 2)


def test_most_urgent_first_and_only_who_may() -> None:
    scheduler = build(4, cpus=4, stay=(0, 2), slots=8)
    assert ids(scheduler.decide(0, memory()).send) == [1, 3]
    long = Features(True, 1, 1, "long")
    history = {long.entry: flat(HERE, 1000), Features(True, 1, 1, "short").entry: flat(HERE, 10)}
    scheduler = Scheduler(Limits(1, 1), Forecaster(history))
    scheduler.away.slots, scheduler.away.open = 1, True
    for id, features in enumerate((Features(True, 1, 1, "short"), long)):
        scheduler.enqueue(Waiting(id, features, may_leave=True))
    assert ids(scheduler.decide(0, memory()).send) == [1]


def test_what_leaves_claims_what_it_takes_here_and_no_more() -> None:
    assert len(build(cpus=1).decide(0, memory(3)).send) == 4, "a quarter of a GiB each"
    assert len(build(cpus=1, slots=8).decide(0, memory(2)).send) == 4, "no more than fit: 1 GiB beside the reserve"


@pytest.mark.parametrize(("available", "pressure"), [(0.4, 0.0), (64, 90.0)])
def test_a_machine_in_distress_sends_nothing_either(available: float, pressure: float) -> None:
    scheduler = build(cpus=1)
    scheduler.decide(0, memory())
    scheduler.away.slots = 8
    short = Memory(int(available * GIB), GIB, GIB // 2, 64 * GIB, pressure)
    assert scheduler.decide(1, short).send == []


def test_threads_are_for_slots_that_would_idle() -> None:
    wide = Features(True, 4, 1, "wide")
    for waiting, slots, threads in ((1, 8, 4), (1, 3, 3), (2, 4, 2), (4, 4, 1)):
        scheduler = Scheduler(Limits(1, 1), Forecaster({}))
        scheduler.away.slots, scheduler.away.open = slots, True
        for id in range(waiting):
            scheduler.enqueue(Waiting(id, wide, 4, may_leave=True))
        sent = scheduler.decide(0, memory()).send
        assert sent[0][1] == threads and sum(count for _, count in sent) <= slots


def test_what_the_farm_has_not_compiled_is_compiled_here_and_never_leaves_again() -> None:
    scheduler = build(1)
    assert scheduler.decide(0, memory()).send == [(0, 1)]
    scheduler.returned(0, 5)
    assert (scheduler.away.count, scheduler.load(5)[:2]) == (0, (0, 1))
    for now in (5, 500):
        decision = scheduler.decide(now, memory())
        assert decision.send == []
    scheduler = build(1)
    scheduler.decide(0, memory())
    scheduler.returned(0, 5)
    assert scheduler.decide(5, memory()).admit == [(0, 1)]
    assert scheduler.load(5)[0] == 1


def test_what_was_lost_on_the_way_may_leave_again_at_once() -> None:
    scheduler = build(1)
    scheduler.decide(0, memory())
    scheduler.returned(0, 5, may_leave=True)
    assert scheduler.decide(5, memory()).send == [(0, 1)]


def test_one_that_waits_and_one_that_is_gone_do_not_return() -> None:
    scheduler = build(1, slots=0)
    scheduler.returned(0, 1)
    scheduler.returned(7, 1)
    assert scheduler.load(1)[:2] == (0, 1)


def test_one_that_is_killed_on_the_farm_is_not_expected_to_take_more() -> None:
    """What was short is memory there, or here by no fault of its own."""
    scheduler = build(1)
    scheduler.decide(0, memory())
    scheduler.killed(0, 1)
    assert scheduler.decide(1, memory()).send == [(0, 1)]


@pytest.mark.parametrize("case", ["cpus", "jobs", "memory"])
def test_what_comes_back_waits_for_its_turn_here(case: str) -> None:
    limits = {"cpus": (100, 1), "jobs": (1, 8), "memory": (100, 8)}[case]
    scheduler = build(2, stay=(1,), jobs=limits[0], cpus=limits[1] + 1)
    available = 12 if case == "memory" else 64
    first = scheduler.decide(0, memory(available))
    assert (ids(first.send), ids(first.admit)) == ([0], [1])
    scheduler.limits = Limits(*limits)  # a neighbour has come
    scheduler.returned(0, 2)
    assert scheduler.away.count == 0
    assert scheduler.decide(2, memory(available)).admit == []
    scheduler.finished(1, 3)
    assert ids(scheduler.decide(3, memory(available)).admit) == [0]


def test_without_the_guard_only_counts_matter_here_too() -> None:
    scheduler = Scheduler(Limits(2, 2, False), Forecaster({}))
    scheduler.away.slots, scheduler.away.open = 1, True
    for id in range(4):
        scheduler.enqueue(Waiting(id, Features(True, 1, 1, str(id)), may_leave=True))
    decision = scheduler.decide(0, memory(0.01))
    assert (len(decision.send), len(decision.admit)) == (1, 2)
    for id, _ in (*decision.send, *decision.admit):
        scheduler.finished(id, 2)
    assert (scheduler.load(2)[0], scheduler.away.steps) == (0, 0)


def test_the_farms_cpus_shorten_what_is_expected() -> None:
    assert build(12, slots=0).expected(0) == 600
    assert build(12, slots=4).expected(0) == 200


def test_whatever_happens_the_books_close_at_nothing() -> None:
    scheduler = build(8, cpus=3)
    decision = scheduler.decide(0, memory())
    for id in (*ids(decision.send), *ids(decision.admit)):
        scheduler.started(id, 0)
    scheduler.returned(1, 1)
    scheduler.returned(2, 1, may_leave=True)
    scheduler.remove(3)
    for now in range(2, 400):
        running = [*ids(decision.send), *ids(decision.admit)]
        for id in running:
            scheduler.finished(id, now, flat(1))
        decision = scheduler.decide(now, memory())
    assert scheduler.load(400) == (0, 0, (0,) * len(scheduler.load(400)[2]))
    assert (scheduler.away.count, scheduler.away.cpus, scheduler.expected(0)) == (0, 0, None)
