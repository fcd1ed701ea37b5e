"""What a farm of other machines has done, and has not, in records, text, page, trace and advice."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from report_records import assert_packed, context, make, run

from safe_ext_build.events import Event
from safe_ext_build.report import record
from safe_ext_build.report.advice import advise
from safe_ext_build.report.html import to_html
from safe_ext_build.report.record import find_bound
from safe_ext_build.report.text import to_text
from safe_ext_build.report.timeline import busy_at, lane_names, lanes, most_at_once
from safe_ext_build.report.trace import to_trace

WHY = "Job failed on server 10.0.0.2:10501"
AWAY = run("a.cu", 0, 40, job=1, remote=True, cpu=2.0, alone=2.0, threads=2, archs="80;90")
BACK = run("b.cu", 0, 30, job=2, remote=True, cpu=1.0, outcome="returned", why=WHY)
AGAIN = run("b.cu", 30, 50, job=2, attempt=2)
NEAR = run("c.cu", 0, 20, job=3)
HERE = run("d.cpp", 0, 20, job=4)
ALL = (AWAY, BACK, NEAR, HERE, AGAIN)


def test_a_record_has_it_and_is_read_again() -> None:
    events = [
        Event("start", 100.0, "a.cu", job=1, remote=True),
        Event("start", 100.0, "b.cu", job=2, remote=True),
        Event("start", 100.0, "c.cu", job=3, remote=True),
        Event("job", 103.0, "a.cu", "returned", seconds=3.0, job=1, remote=True, why=WHY),
        Event("job", 104.0, "b.cu", "compiled", seconds=4.0, job=2, remote=True, threads=2),
    ]
    made = record.make(events, replace(context(), plan=replace(context().plan, slots=4)), 104.0, "interrupted")
    found = {one.source: one for one in record.parse(record.dump(made)).runs}
    assert {(one.outcome, one.remote, one.why) for one in found.values()} == {
        ("returned", True, WHY),
        ("compiled", True, ""),
        ("unfinished", True, ""),
    }
    assert made.plan.slots == 4 and made.schema == 2


def test_a_record_from_before_there_was_a_farm_is_read() -> None:
    text = record.dump(make(run(), schema=1))
    for field in (',"remote":false', ',"slots":0', ',"farm":0.0'):
        assert field in text
        text = text.replace(field, "")
    assert record.parse(text) == make(run(), schema=1)


def test_the_cores_of_others_are_none_of_ours() -> None:
    """Of what runs elsewhere, only what it costs here counts here; how long it takes there is a bound, too."""
    bound = find_bound(ALL, (), 2, 8 << 30, slots=4)
    assert bound.cores == (2 + 20 + 20 + 20) / 2
    assert (bound.longest, bound.longest_source) == (40.0, "a.cu")
    assert bound.farm == 40 * 2 / 4
    assert find_bound(ALL, (), 2, 8 << 30, slots=1).farm == pytest.approx(80 / 3, abs=0.001), (
        "there were more than planned"
    )
    many = [replace(AWAY, job=n, start=40.0 * n, end=40.0 * n + 40) for n in range(5)]
    full = find_bound(many, (), 2, 8 << 30, slots=2)
    assert (full.by, full.seconds) == ("farm", 200.0)
    assert find_bound((HERE,), (), 2, 8 << 30).farm == 0.0
    assert busy_at(ALL, [10.0]) == [2], "what is on the farm keeps no CPU of ours busy"


def test_its_lanes_are_apart() -> None:
    placed = lanes(ALL)
    assert placed == [2, 3, 0, 1, 0]
    assert lane_names(ALL, placed) == ["1", "2", "farm 1", "farm 2"]
    assert lane_names((AWAY,), lanes((AWAY,))) == ["farm 1"]
    assert most_at_once(ALL) == 4
    assert_packed(ALL)


def test_text() -> None:
    lines = list(to_text(make(*ALL)))
    assert f"1 on the farm, 1 came back ({WHY})" in lines
    assert any("1 min 03 s CPU time here, 4 at once at most" in line for line in lines)
    assert any(line.endswith("a.cu [80;90] on the farm") for line in lines)
    assert any(line.endswith("b.cu [80], came back from the farm") for line in lines)
    assert not any("farm" in line for line in to_text(make(HERE)))


def test_page() -> None:
    page = to_html(make(*ALL, bound=find_bound(ALL, (), 2, 8 << 30, slots=1)))
    for text in (
        f"<td>came back from the farm: {WHY}",
        "<td>compiled on the farm",
        "<td>compiled after it came back from the farm",
        "<dt>compiled on the farm</dt><dd>1</dd>",
        "<dt>came back from it</dt><dd>1</dd>",
        "with the farm always full",
        'class="apart"',
        '<span class="k-back">',
        '<th scope="col">Where',
    ):
        assert text in page, text
    plain = to_html(make(HERE))
    assert "the farm" not in plain and "Where" not in plain and 'class="apart"' not in plain


def test_trace() -> None:
    events = json.loads(to_trace(make(*ALL)))["traceEvents"]
    named = [event["args"]["name"] for event in events if event["name"] == "thread_name"]
    assert named == ["lane 1", "lane 2", "farm 1", "farm 2"]
    slices = [event for event in events if event["ph"] == "X"]
    assert [event["args"]["remote"] for event in slices] == [True, True, False, False, False]
    assert slices[1]["cname"] == "yellow"


def test_many_that_came_back_are_advice() -> None:
    other = (replace(BACK, source="e.cu", job=5), replace(AGAIN, source="e.cu", job=5))
    (line,) = [line for line in advise(make(*ALL, *other)) if "farm" in line]
    assert line == (
        f"2 of the 3 compiles that the farm was given came back, most of them with: {WHY}. `safe-ext-build farm "
        "check` says what is wrong there; jobs.remote = 0 does without it."
    )
    well = [replace(AWAY, job=10 + n, start=n, end=n + 20.0) for n in range(20)]
    assert not any("came back" in line for line in advise(make(*well, replace(BACK, end=2.0), AGAIN)))


@pytest.mark.parametrize("cpus", [1, 2])
def test_nobody_is_told_to_get_a_farm(cpus: int) -> None:
    runs = [run(f"{n}.cu", 60.0 * n, 60.0 * n + 60, job=n, waited=60.0 * n) for n in range(4)]
    assert not any("farm" in line for line in advise(make(*runs, cpus=cpus)))


def test_a_farm_that_was_full_is_said() -> None:
    runs = [replace(AWAY, job=n, start=40.0 * n, end=40.0 * n + 40, waited=40.0 * n) for n in range(5)]
    made = make(*runs, bound=find_bound(runs, (), 2, 8 << 30, slots=2))
    (line,) = advise(made)
    assert line == (
        "Nothing: this is close to the best that this machine and its farm can do; the farm was full all the "
        "time, so only a larger one, or less to compile, would be faster."
    )


def test_what_ended_with_the_build_before_it_ran_here() -> None:
    made = make(BACK, replace(AWAY, job=9, cache="hit"), outcome="interrupted")
    assert any(line.endswith("b.cu [80], came back from the farm") for line in to_text(made))
    assert any(line.endswith("a.cu [80;90] (hit)") for line in to_text(made)), "it never got to the farm"
    page = to_html(made)
    assert "<td>came back from the farm\n" in page and "<td>compiled (cache: hit)" in page
    assert "<dt>compiled on the farm</dt>" not in page


def test_what_another_server_has_compiled_has_not_come_back() -> None:
    lines = list(to_text(make(BACK, replace(AWAY, job=BACK.job, source="b.cu", start=30.0, end=70.0))))
    assert "1 on the farm" in lines
