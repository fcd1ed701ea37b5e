"""From events to a record, and to JSON and back."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import replace
from pathlib import Path

import pytest
from report_records import assert_packed, context, flash_attention, make, run, sample

from safe_ext_build.events import Event
from safe_ext_build.report import _docs, record
from safe_ext_build.report.record import Pause, dump, parse, without_home
from safe_ext_build.report.timeline import (
    busy_at,
    costs,
    held_back,
    lanes,
    most_at_once,
    most_held,
    pause_lanes,
    reason_of,
)
from safe_ext_build.schedule.forecast import GIB

ROOT = Path(__file__).resolve().parents[2]


def ended(job: int, time: float, outcome: str = "compiled", source: str = "/home/me/thing/a.cu") -> Event:
    why = "stopped to make room" if outcome == "memory" else ""
    curve = (GIB // 2, GIB)
    return Event(
        "job", time, source, outcome, 1.0, 4.0, 3.5, GIB, curve=curve, job=job, cuda=True, targets="80", why=why
    )


def test_what_happened_becomes_runs() -> None:
    events = [
        Event("start", 101.0, "/home/me/thing/a.cu", job=1),
        Event("freeze", 102.0, job=1),
        Event("thaw", 103.0, job=1),
        ended(1, 105.0, "memory"),
        Event("start", 106.0, "/home/me/thing/a.cu", job=1),
        ended(1, 110.0),
        Event("start", 108.0, "/elsewhere/b.cu", job=2, cuda=True),
        Event("freeze", 109.0, job=2),
        Event(
            "memory",
            107.0,
            held=GIB,
            available=2 * GIB,
            budget=3 * GIB,
            total=4 * GIB,
            running=1,
            waiting=1,
            why="x",
        ),
    ]
    made = record.make(events, context(), 112.0, "interrupted")
    rows = [(one.source, one.attempt, one.outcome, one.start, one.end) for one in made.runs]
    assert rows == [
        ("a.cu", 1, "memory", 1.0, 5.0),
        ("a.cu", 2, "compiled", 6.0, 10.0),
        ("/elsewhere/b.cu", 1, "unfinished", 8.0, 12.0),
    ]
    assert made.pauses == (Pause(1, 2.0, 3.0), Pause(2, 9.0, 12.0))
    assert (made.seconds, made.compiling, made.outcome) == (12.0, 11.0, "interrupted")
    look = made.samples[0]
    assert (look.time, look.held, look.total, look.why) == (7.0, GIB, 4 * GIB, "x")


def test_nothing_compiled_is_a_record_too() -> None:
    made = record.make([], context(), 101.0, "failed", "no setup.py")
    assert (made.runs, made.compiling, made.bound.seconds, made.error) == ((), 0.0, 0.0, "no setup.py")
    assert parse(dump(made)) == made


def test_no_environment_and_no_home_in_it() -> None:
    events = [ended(1, 105.0, source="/home/me/other/a.cu")]
    text = dump(record.make(events, context(), 110.0, "failed", "cannot read /home/me: gone", "/home/me"))
    assert "hunter2" not in text and "/home/me" not in text
    assert "~/other/a.cu" in text and "cannot read ~: gone" in text and "V13.0.88 in ~/cuda" in text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/home/mean/x", "/home/mean/x"),
        ("-I/home/me/x", "-I~/x"),
        ("/home/me-too", "/home/me-too"),
        ("/home/me", "~"),
    ],
)
def test_only_the_home_directory_is_shortened(text: str, shown: str) -> None:
    assert without_home(make(error=text), "/home/me/").error == shown
    assert without_home(make(error=text), "/").error == text


def test_the_bound_is_the_largest_of_three() -> None:
    long, short = run("long.cu", 0, 30), run("short.cu", 0, 6, curve=(3 * GIB,) * 16)
    killed = run("short.cu", 0, 90, outcome="memory")
    bound = record.find_bound([long, short, killed], [sample(0.0)], 4, 0)
    assert (bound.cores, bound.longest, bound.longest_source, bound.by) == (9.0, 30.0, "long.cu", "longest")
    assert bound.memory == pytest.approx((30 * 1 + 6 * 3) / 7, abs=0.001)
    assert record.find_bound([short] * 9, [sample(0.0)], 1, 0).by == "cores"
    assert record.find_bound([short] * 9, [sample(0.0)], 64, 0).by == "memory"


def test_a_record_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "MOST_RUNS", 3)
    monkeypatch.setattr(record, "MOST_SAMPLES", 10)
    looks = [Event("memory", 100.0 + n, held=n % 7, total=GIB) for n in range(95)]
    ends = [dataclasses.replace(ended(n, 110.0 + n), cpu=float(n)) for n in range(5)]
    made = record.make([*ends, *looks], context(), 200.0, "built")
    assert ([one.cpu for one in made.runs], made.runs_left_out) == ([2.0, 3.0, 4.0], 2)
    assert len(made.samples) == 10 and {look.held for look in made.samples} == {6}


def test_json_and_back() -> None:
    made = make(
        run("a\udcff.cu", torch_header=True),
        run("b.cpp", outcome="memory", why="killed by the kernel"),
        samples=(sample(1.0, why="all CPUs are busy"),),
        pauses=(Pause(1, 0.5, 1.0),),
    )
    settings = {"jobs.max": record.Setting("4", "MAX_JOBS in the environment")}
    made = dataclasses.replace(made, plan=dataclasses.replace(made.plan, settings=settings))
    assert parse(dump(made)) == made
    more = {**json.loads(dump(made)), "news": 1}
    assert parse(json.dumps(more)) == made


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schema": 3}, "it has schema 3, and this safe-ext-build knows 2"),
        ({"schema": None}, "it is not a record of a build"),
        ({"seconds": "9"}, "it is damaged: .*'9' is no float"),
        ({"outcome": "fine"}, "it is damaged: .*'fine' is not one of"),
        ({"runs": 3}, "it is damaged"),
    ],
)
def test_what_is_no_record_says_why(change: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse(json.dumps({**json.loads(dump(make())), **change}))
    for text in ("[]", "nonsense", "{}"):
        with pytest.raises(ValueError):
            parse(text)


def test_what_was_held_is_no_less_than_what_one_compile_has_held() -> None:
    record = replace(make(run("a", 0, 4, peak=3 * GIB)), samples=())
    assert most_held(record) == 3 * GIB
    assert most_held(replace(record, samples=(sample(1.0, gib=4),))) == 4 * GIB


# Side by side.


def test_lanes_are_packed() -> None:
    runs = [run("a", 0, 4), run("b", 0, 2), run("c", 2, 3), run("d", 3, 9), run("e", 3.5, 5)]
    assert lanes(runs) == [0, 1, 1, 1, 2]
    assert lanes([]) == [] and most_at_once(runs) == 3
    assert busy_at([run("a.cu", 0, 4, threads=4, archs="80;90"), *runs[1:]], [1, 2.5, 4.5]) == [3, 3, 2]


def test_a_pause_lies_on_the_run_that_was_held() -> None:
    runs = (run("a", 0, 9), run("b", 1, 3, job=7, outcome="memory"), run("c", 4, 6), run("b", 5, 8, job=7))
    made = make(*runs, pauses=(Pause(7, 6.0, 7.0), Pause(7, 2.0, 2.5)))
    assert pause_lanes(made, lanes(runs)) == [2, 1]


def test_lanes_of_a_simulated_build() -> None:
    made = flash_attention(12, 4, 16)
    assert_packed(made.runs)
    assert most_at_once(made.runs) <= 4
    assert {one.outcome for one in made.runs} <= {"compiled", "memory"} and len(costs(made)) == 12


@pytest.mark.parametrize(
    ("why", "reason"),
    [
        ("", ""),
        ("all CPUs are busy", "cpus"),
        ("4 compiles run, as many as allowed", "jobs"),
        ("1 compile runs, as many as allowed", "jobs"),
        ("it needs up to 3.0 GiB", "memory"),
        ("memory was short a moment ago", "memory"),
        ("a compile that was killed for memory three times runs alone", "memory"),
    ],
)
def test_reasons(why: str, reason: str) -> None:
    assert reason_of(why) == reason


def test_equal_stretches_are_one() -> None:
    busy, short = "all CPUs are busy", "it needs up to 3.0 GiB"
    looks = [
        sample(n, waiting=w, why=y)
        for n, w, y in [(0, 2, busy), (2, 5, busy), (4, 3, short), (6, 0, ""), (8, 1, busy)]
    ]
    found = held_back(make(run("a.cu", 0, 11), samples=tuple(looks)))
    assert [(held.start, held.end, held.reason, held.waiting) for held in found] == [
        (0, 4, "cpus", 5),
        (4, 6, "memory", 3),
        (8, 11, "cpus", 1),
    ]


def test_costs_count_all_runs_of_a_source() -> None:
    killed = run("a.cu", 0, 5, job=1, outcome="memory", peak=3 * GIB, waited=2.0)
    found = costs(make(killed, run("a.cu", 5, 15, job=1, attempt=2, waited=7.0), run("b.cu", 0, 12, job=2)))
    assert [(cost.source, cost.cpu, cost.runs, cost.kills, cost.peak, cost.waited) for cost in found] == [
        ("a.cu", 15.0, 2, 1, 3 * GIB, 2.0),
        ("b.cu", 12.0, 1, 0, GIB, 0.0),
    ]


# The page of the schema.


def test_the_reference_page_has_not_drifted() -> None:
    page = ROOT / _docs.PAGE
    assert page.read_text(encoding="utf-8") == _docs.render(), "run python -m safe_ext_build.report._docs"


def test_the_check_of_the_page_is_an_exit_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "record.md"
    assert _docs.main(["--check", str(page)]) == 1
    assert _docs.main([str(page)]) == 0
    assert _docs.main(["--check", str(page)]) == 0
    assert "is not what the schema says" in capsys.readouterr().err
