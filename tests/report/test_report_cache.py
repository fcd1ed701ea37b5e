"""What a compiler cache has done, and would have done, in records, text and page."""

from __future__ import annotations

from dataclasses import replace

from report_records import context, make, run

from safe_ext_build.events import Event
from safe_ext_build.report import record
from safe_ext_build.report.advice import advise
from safe_ext_build.report.html import to_html
from safe_ext_build.report.record import Record
from safe_ext_build.report.summary import summarize
from safe_ext_build.report.text import to_text

HIT = run("a.cu", 0, 1, cache="hit", saved=300.0, curve=())
MISS = run("b.cu", 1, 200, cache="miss")
REFUSED = run("c.cu", 200, 400, cache="uncacheable", cache_why="-fplugin")
LINE = "cache: 1 hit (saved 5 min), 1 miss, 1 not cacheable (-fplugin)"


def with_launcher(found: Record) -> Record:
    return replace(found, plan=replace(found.plan, launcher="ccache 4.14.2"))


def test_it_is_in_text_and_page() -> None:
    found = with_launcher(make(HIT, MISS, REFUSED))
    lines = list(to_text(found))
    assert LINE in lines
    assert any(line.endswith("a.cu [80] (hit)") for line in lines)
    html = to_html(found)
    assert "of 3 from the compiler cache" in html and "(cache: not cacheable)" in html


def test_a_record_has_it_and_is_read_again() -> None:
    events = [
        Event("start", 101.0, "a.cu", job=1),
        Event("job", 103.0, "a.cu", "compiled", seconds=2.0, job=1, cache="hit", saved=8.5, again=True),
    ]
    made = record.make(events, context(), 104.0, "built")
    (found,) = record.parse(record.dump(made)).runs
    assert (found.cache, found.cache_why, found.saved, found.again) == ("hit", "", 8.5, True)
    assert summarize(events).endswith("; cache: 1 hit (saved 8.5 s)")


def test_a_record_from_before_there_was_a_cache_is_read() -> None:
    text = record.dump(make(run()))
    for field in (',"cache":""', ',"cache_why":""', ',"saved":0.0', ',"again":false', ',"launcher":""'):
        assert field in text
        text = text.replace(field, "")
    assert record.parse(text) == make(run())


def test_what_was_compiled_before_would_have_hit() -> None:
    runs = [run(f"{name}.cu", 0, 100, again=name != "new") for name in ("a", "b", "new")]
    (line,) = [line for line in advise(make(*runs)) if "ccache" in line]
    assert line.startswith(
        "2 of 3 compiles had been done before with the same compiler and flags: ccache would have hit for those "
        "whose files are unchanged, up to 3 min 20 s of compiling"
    )
    assert not any("would have hit" in line for line in advise(with_launcher(make(*runs))))
    assert not any("would have hit" in line for line in advise(make(run("a.cu", 0, 2, again=True))))


def test_what_cannot_be_cached_is_advice_where_it_costs() -> None:
    assert "1 compile (3 min 20 s) could not be cached: -fplugin." in advise(
        with_launcher(make(HIT, MISS, REFUSED))
    )
    assert not any("could not" in line for line in advise(make(run("c.cu", 0, 2, cache="uncacheable"), MISS)))
