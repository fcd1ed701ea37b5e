"""Curves, and what is made of them when nothing, something or everything is known."""

from __future__ import annotations

import pytest

from safe_ext_build.schedule.forecast import (
    COLD_CPP,
    COLD_CUDA,
    GIB,
    POINTS,
    Curve,
    Features,
    Forecaster,
    refold,
    resample,
)

HUMP = (1, 2, 4, 8, 8, 8, 4, 4, 3, 3, 2, 2, 2, 1, 1, 1)


def cuda(key: str = "a.cu", archs: int = 1, threads: int = 1) -> Features:
    return Features(True, archs, threads, key)


@pytest.mark.parametrize(
    ("archs", "threads", "at_once", "rounds", "parallelism"),
    [
        (1, 1, 1, 1, 1.0),
        (4, 4, 4, 1, 4.0),
        (4, 3, 3, 2, 2.0),
        (4, 1, 1, 4, 1.0),
        (2, 8, 2, 1, 2.0),
        (0, 4, 1, 1, 1.0),
    ],
)
def test_features(archs: int, threads: int, at_once: int, rounds: int, parallelism: float) -> None:
    features = cuda(archs=archs, threads=threads)
    assert (features.at_once, features.rounds, features.parallelism) == (at_once, rounds, parallelism)


def test_a_host_compile_is_one_compiler_whatever_is_asked() -> None:
    features = Features(False, 4, 4, "a.cpp")
    assert (features.at_once, features.rounds, features.parallelism) == (1, 1, 1.0)


def test_resample_keeps_the_highest_of_each_sixteenth() -> None:
    samples = [(second / 2, second if second % 2 else 0) for second in range(65)]
    curve = resample(samples)
    assert curve.seconds == 32.0
    assert curve.points == tuple(range(3, 64, 4))
    assert len(curve.points) == POINTS


@pytest.mark.parametrize(
    ("samples", "points"),
    [
        ([], (0,) * 16),
        ([(0.0, 5)], (5,) * 16),
        ([(0.0, 1), (1.0, 9)], (1, *(9,) * 15)),
    ],
)
def test_resample_of_very_short_jobs(samples: list[tuple[float, int]], points: tuple[int, ...]) -> None:
    assert resample(samples).points == points


def test_resample_gives_seconds_alone_on_its_cpus() -> None:
    assert resample([(0.0, 1), (400.0, 1)], parallelism=4.0).seconds == 100.0


def test_at_clamps() -> None:
    curve = Curve(10.0, HUMP)
    assert [curve.at(fraction) for fraction in (-1, 0, 0.25, 0.999, 1.0, 5)] == [1, 1, 8, 1, 1, 1]
    assert curve.peak == 8


def test_refold_to_fewer_threads_repeats_the_hump_lower() -> None:
    narrow = refold(Curve(100.0, tuple(4 * point for point in HUMP)), rounds=1, wanted=4, memory=0.25)
    assert narrow.seconds == 400.0
    assert narrow.points == (8, 8, 3, 2) * 4


def test_refold_to_more_threads_is_never_below_what_was_seen() -> None:
    wide = refold(Curve(400.0, (8, 8, 4, 2) * 4), rounds=4, wanted=1, memory=4.0)
    assert wide.seconds == 100.0
    assert wide.peak == 32


def test_cold() -> None:
    forecaster = Forecaster({})
    assert forecaster.forecast(cuda()).curve.peak == COLD_CUDA
    assert forecaster.forecast(cuda(archs=4, threads=3)).curve.peak == 3 * COLD_CUDA
    assert forecaster.forecast(Features(False, 1, 1, "a.cpp")).curve.peak == COLD_CPP
    assert not forecaster.forecast(cuda()).known


def test_history_of_another_number_of_threads_is_used() -> None:
    seen = Curve(100.0, tuple(point * GIB for point in HUMP))
    forecast = Forecaster({cuda(archs=4, threads=4).entry: seen}).forecast(cuda(archs=4, threads=2))
    assert forecast.known
    assert (forecast.curve.seconds, forecast.curve.peak) == (200.0, 4 * GIB)


@pytest.mark.parametrize("factor", [0.5, 1.0, 2.0])
def test_a_history_that_is_wrong_is_corrected_by_the_third_job(factor: float) -> None:
    true = Curve(100.0, tuple(point * GIB for point in HUMP))
    history = {cuda(str(number)).entry: true.scaled(factor) for number in range(9)}
    forecaster = Forecaster(history)
    for number in range(3):
        assert forecaster.forecast(cuda("8")).curve.peak == int(8 * GIB * factor)
        forecaster.learn(cuda(str(number)), true)
    assert forecaster.forecast(cuda("8")).curve.peak == pytest.approx(8 * GIB)


def lives(forecaster: Forecaster, count: int, curve: Curve) -> None:
    for id in range(count):
        for second in range(int(curve.seconds)):
            forecaster.saw(id, cuda(), second, curve.at(second / curve.seconds))
        forecaster.ended(id, cuda(), finished=True)


def test_jobs_without_history_are_expected_to_be_like_those_before_them() -> None:
    forecaster = Forecaster({})
    true = Curve(160.0, tuple(point * GIB for point in HUMP))
    lives(forecaster, 20, true)
    forecaster.refresh(together=20)
    learned = forecaster.forecast(cuda("new")).curve
    assert learned.seconds == pytest.approx(160, abs=4)
    assert 7.5 * GIB < learned.peak < 9 * GIB
    assert learned.at(0.95) < 2.5 * GIB  # and not the peak, to the end


def test_what_varies_gets_a_margin_that_shrinks_with_the_number_of_jobs() -> None:
    forecaster = Forecaster({})
    for id in range(20):
        for second in range(100):
            forecaster.saw(id, cuda(), second, (1 + id % 5) * GIB)
        forecaster.ended(id, cuda(), finished=True)
    peaks = []
    for together in (1, 4, 64):
        forecaster.refresh(together)
        peaks.append(forecaster.forecast(cuda("new")).curve.peak)
    assert peaks[0] > peaks[1] > peaks[2] > 3 * GIB


def test_a_job_that_did_not_finish_is_forgotten() -> None:
    forecaster = Forecaster({})
    forecaster.saw(1, cuda(), 5.0, 50 * GIB)
    forecaster.ended(1, cuda(), finished=False)
    forecaster.refresh(1)
    assert forecaster.forecast(cuda()).curve.peak == COLD_CUDA


def test_long_jobs_widen_the_slices() -> None:
    forecaster = Forecaster({})
    lives(forecaster, 3, Curve(3000.0, tuple(point * GIB for point in HUMP)))
    forecaster.refresh(3)
    curve = forecaster.forecast(cuda()).curve
    assert len(curve.points) <= 128 + 64
    assert curve.seconds == pytest.approx(3000, rel=0.05)
