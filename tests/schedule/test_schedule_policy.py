"""Who may compile now, as properties over random builds."""

from __future__ import annotations

import random

import pytest

from safe_ext_build.schedule.policy import Candidate, Limits, admit


def simulate(seed: int) -> None:
    """A whole build: jobs come, run for a while, end; some are killed for memory and come again, alone."""
    rng = random.Random(seed)
    limits = Limits(rng.randint(1, 8), rng.randint(1, 12))
    coming = [Candidate(number, rng.randint(1, 16)) for number in range(rng.randint(1, 60))]
    everything = {candidate.id for candidate in coming}
    running: list[Candidate] = []
    waiting: list[Candidate] = []
    ended: set[int] = set()
    started_order: list[int] = []
    for _ in range(5000):
        while coming and rng.random() < 0.6:
            waiting.append(coming.pop(0))
        ids = admit(limits, running, waiting)
        assert ids == [candidate.id for candidate in waiting[: len(ids)]]  # first come, first served
        started_order += ids
        running += waiting[: len(ids)]
        waiting = waiting[len(ids) :]
        assert running or not waiting  # something always runs while something waits
        assert len(running) <= limits.jobs
        assert len(running) == 1 or sum(candidate.weight for candidate in running) <= limits.cpus
        assert len(running) == 1 or not any(candidate.alone for candidate in running)
        if running and rng.random() < 0.7:
            candidate = running.pop(rng.randrange(len(running)))
            if not candidate.alone and rng.random() < 0.2:
                waiting = sorted([*waiting, Candidate(candidate.id, candidate.weight, True)], key=lambda c: c.id)
            else:
                ended.add(candidate.id)
        if not (coming or running or waiting):
            break
    assert ended == everything  # nobody starves


@pytest.mark.parametrize("block", range(10))
def test_random_builds_keep_to_the_limits_and_end(block: int) -> None:
    for seed in range(block * 30, block * 30 + 30):
        simulate(seed)


@pytest.mark.parametrize(
    ("limits", "running", "waiting", "expected"),
    [
        (Limits(4, 8), [], [], []),
        (Limits(4, 8), [], [(1, 1), (2, 1), (3, 1), (4, 1), (5, 1)], [1, 2, 3, 4]),
        (Limits(4, 2), [], [(1, 16)], [1]),
        (Limits(4, 8), [(1, 6)], [(2, 4), (3, 1)], []),
        (Limits(4, 8), [(1, 6)], [(2, 2), (3, 1)], [2]),
        (Limits(1, 8), [(1, 1)], [(2, 1)], []),
    ],
)
def test_admission(
    limits: Limits, running: list[tuple[int, int]], waiting: list[tuple[int, int]], expected: list[int]
) -> None:
    assert (
        admit(limits, [Candidate(*item) for item in running], [Candidate(*item) for item in waiting]) == expected
    )


def test_a_heavy_job_is_not_overtaken_for_ever() -> None:
    light = [Candidate(number, 1) for number in range(2, 9)]
    assert admit(Limits(8, 4), [Candidate(0, 1)], [Candidate(1, 4), *light]) == []
    assert admit(Limits(8, 4), [], [Candidate(1, 4), *light]) == [1]


def test_alone_is_alone() -> None:
    alone = Candidate(1, 1, alone=True)
    assert admit(Limits(8, 8), [], [alone, Candidate(2, 1)]) == [1]
    assert admit(Limits(8, 8), [Candidate(2, 1)], [alone]) == []
    assert admit(Limits(8, 8), [alone], [Candidate(2, 1)]) == []
