"""The page and the trace as texts: whole, small, and safe against what stands in the names of sources."""

from __future__ import annotations

import dataclasses
import json
import random
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from report_records import flash_attention, make, run, sample

from safe_ext_build.report import shelf
from safe_ext_build.report.html import to_html
from safe_ext_build.report.pictures import ticks
from safe_ext_build.report.record import MOST_SAMPLES, Pause, Record, Setting, dump
from safe_ext_build.report.trace import to_trace
from safe_ext_build.report.words import clock, duration, name, share, size
from safe_ext_build.schedule.forecast import GIB

EVIL = (
    "</script><script>alert(1)</script>.cu",
    "\"onmouseover='alert(2)' x=\".cu",
    "a\nb\r\tc\x00\x1b[31m\x85.cu",
    "<img src=x onerror=alert(3)>&amp;.cpp",
    "${script}$title.cu",
    "\udcff\ud800.cu",
    "‮cu.exe",
)


class Tags(HTMLParser):
    """What a browser would make of the page."""

    VOID = ("meta", "img")
    CLOSED_BY_THE_NEXT = ("tr", "td", "th", "thead", "tbody")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str, str | None]] = []
        self.counts: dict[str, int] = {}
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.counts[tag] = self.counts.get(tag, 0) + 1
        self.attributes += [(tag, key, value) for key, value in attrs]
        if tag not in (*self.VOID, *self.CLOSED_BY_THE_NEXT):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.counts[tag] = self.counts.get(tag, 0) + 1
        self.attributes += [(tag, key, value) for key, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.CLOSED_BY_THE_NEXT:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] not in ("script", "style"):
            self.words.append(data)


def evil_record() -> Record:
    runs = [
        run(source, n, n + 40.0, job=n, outcome="memory" if n == 1 else "compiled", why=source)
        for n, source in enumerate(EVIL)
    ]
    made = make(
        *runs,
        samples=tuple(sample(float(n), waiting=1, why=EVIL[n % 4]) for n in range(0, 40, 2)),
        project=EVIL[0],
        error=EVIL[3],
        outcome="failed",
        id=EVIL[1],
    )
    settings = {EVIL[0]: Setting(EVIL[1], EVIL[2])}
    return dataclasses.replace(
        made, plan=dataclasses.replace(made.plan, lines=EVIL, settings=settings, toolkit=EVIL[0])
    )


def test_names_of_strangers_are_only_text() -> None:
    page = to_html(evil_record())
    tags = Tags(page)
    assert tags.counts["script"] == 1 and "img" not in tags.counts
    assert not [item for item in tags.attributes if item[1].startswith("on") or item[1] == "style"]
    words = "".join(tags.words)
    for source in (EVIL[0], EVIL[1], EVIL[3], EVIL[4]):
        assert source in words
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e\ud800-\udfff]", page)
    page.encode()


def test_nothing_comes_from_elsewhere() -> None:
    page = to_html(flash_attention(6, 2, 16))
    assert not re.search(r"(?:src|href|@import|url)\s*[=(]\s*[\"']?(?:https?:)?//", page)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy and policy[1].startswith("default-src 'none'; style-src 'sha256-") and "unsafe" not in policy[1]


def test_every_reference_has_its_target() -> None:
    tags = Tags(to_html(evil_record()))
    ids = [value for _, key, value in tags.attributes if key == "id"]
    assert len(ids) == len(set(ids))
    for _, key, value in tags.attributes:
        if key in ("aria-labelledby", "aria-describedby"):
            assert value in ids
        if key == "data-i":
            assert f"r{value}" in ids


def thousand() -> Record:
    """1,000 sources with long names, a tenth of them killed once, and as many looks at memory as are kept."""
    rng, runs, lanes = random.Random(1), [], [0.0] * 64
    for number in range(1000):
        lane = min(range(64), key=lanes.__getitem__)
        source = (
            f"csrc/a/rather/long/path/to/kernels/of_many_kinds/kernel_with_a_long_name_{number}_hdim128_bf16.cu"
        )
        for attempt in range(1, 3 if number % 10 == 0 else 2):
            end = lanes[lane] + rng.uniform(20, 900)
            outcome = "memory" if number % 10 == 0 and attempt == 1 else "compiled"
            curve = tuple(rng.randrange(8 * GIB) for _ in range(16))
            extra = {
                "outcome": outcome,
                "attempt": attempt,
                "archs": "80;90;100;120",
                "threads": 4,
                "why": "stopped to make room",
            }
            runs.append(
                run(source, lanes[lane], end, job=number, curve=curve, waited=rng.uniform(0, 9000), **extra)
            )
            lanes[lane] = end
    looks = tuple(sample(5.0 * n, 64, 9, "it needs up to 3.0 GiB", rng.uniform(1, 7)) for n in range(MOST_SAMPLES))
    return make(*runs, samples=looks, cpus=64)


def test_a_thousand_jobs_are_less_than_a_megabyte() -> None:
    made = thousand()
    assert len(to_html(made).encode()) < 1_000_000
    assert len(dump(made).encode()) < 2_000_000


def test_pictures_have_tables_behind_them() -> None:
    made = make(run("a.cu", 0, 9), run("b.cpp", 1, 5, outcome="failed"), samples=(sample(2.0), sample(4.0)))
    tags = Tags(to_html(made))
    words = "".join(tags.words)
    assert tags.counts["table"] == 4  # the bounds, the runs, the looks at memory, the sources
    for text in (
        "The timeline as a table",
        "Memory as a table",
        "Every run of a compiler",
    ):
        assert text in words
    assert tags.attributes.count(("svg", "role", "img")) == 2


def test_a_record_of_nothing_is_a_page() -> None:
    text = to_html(make(outcome="failed", error="no setup.py"))
    assert "Failed after 1.0 s" in text and "Nothing was compiled." in text and "Timeline" not in text
    unknown = dataclasses.replace(sample(0.0), total=0, budget=0, held=0)
    assert "Memory" in to_html(make(run(), samples=(unknown,)))


def test_the_headline_says_what_bound() -> None:
    page = to_html(make(run("a.cu", 0, 30), run("b.cu", 30, 40)))
    text = "".join(Tags(page).words)
    assert "Built in 40 s" in text
    assert (
        "1.33 times the bound: compiling took 40 s, and one long source (a.cu) alone would have taken 30 s" in text
    )


@pytest.mark.parametrize("span", [0.001, 1, 9, 59, 61, 3600, 86400, 1e7])
def test_ticks_are_few(span: float) -> None:
    found = ticks(span)
    assert 1 <= len(found) <= 9 and found[0] == 0 and found[-1] <= span


def test_words() -> None:
    assert [duration(seconds) for seconds in (-1, 0.04, 9.96, 59.6, 60, 252, 3600, 7500)] == [
        *("0.0 s", "0.0 s", "10 s", "1 min", "1 min", "4 min 12 s", "1 h 00 min", "2 h 05 min"),
    ]
    assert [clock(seconds) for seconds in (0, 59.6, 252, 3852)] == ["0:00", "1:00", "4:12", "1:04:12"]
    assert (size(GIB // 2), size(GIB * 4), share(1, 3), share(3, 1000), share(1, 0)) == (
        "512 MiB",
        "4.0 GiB",
        "33%",
        "0.3%",
        "0%",
    )
    assert name("a" * 99, 10) == "…" + "a" * 9 and name("a.cu") == "a.cu"


# The trace.


def test_the_trace_holds_every_run() -> None:
    runs = (run("a.cu", 0, 9, job=1), run("b.cu", 1, 5, job=2, outcome="memory"), run("b.cu", 6, 8, job=2))
    made = make(*runs, samples=(sample(2.0, waiting=1, why="all CPUs are busy"),), pauses=(Pause(1, 2.0, 3.0),))
    events = json.loads(to_trace(made))["traceEvents"]
    slices = [(event["name"], event["tid"], event["ts"], event["dur"]) for event in events if event["ph"] == "X"]
    assert slices == [
        ("a.cu", 1, 0, 9_000_000),
        ("b.cu", 2, 1_000_000, 4_000_000),
        ("b.cu", 2, 6_000_000, 2_000_000),
        ("held still for memory", 1, 2_000_000, 1_000_000),
    ]
    counters = {event["name"]: event["args"] for event in events if event["ph"] == "C"}
    assert counters["compiles"] == {"running": 2, "waiting": 1}
    assert [event["name"] for event in events if event["ph"] == "i"] == ["all CPUs are busy"]
    assert {event["pid"] for event in events} == {1} and all(
        "ts" in event or event["ph"] == "M" for event in events
    )


# The shelf.


def test_the_newest_fifty_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shelf, "KEPT", 3)
    for number in range(5):
        kept = shelf.keep(make(id=f"id{number}", started=f"2026-01-02T03:04:0{number}+00:00"), tmp_path)
    assert kept.name == "20260102030404-id4.json"
    assert shelf.ids(tmp_path) == ["id4", "id3", "id2"]
    assert shelf.load(shelf.find(tmp_path)).id == "id4" and shelf.load(shelf.find(tmp_path, "id2")).id == "id2"
    with pytest.raises(FileNotFoundError, match="no build whose id begins with id0 has left a record in"):
        shelf.find(tmp_path, "id0")
    assert [path.suffix for path in shelf.directory(tmp_path).iterdir()] == [".json"] * 3
    monkeypatch.setattr(shelf, "MOST_BYTES", 100)
    shelf.keep(make(id="id9", started="2026-01-02T03:04:09+00:00"), tmp_path)
    assert shelf.ids(tmp_path) == ["id9"]


def test_an_empty_shelf(tmp_path: Path) -> None:
    assert shelf.ids(tmp_path) == []
    with pytest.raises(FileNotFoundError, match="no build has left a record in"):
        shelf.find(tmp_path)
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(ValueError, match=r"x\.json cannot be shown: it is not a record of a build"):
        shelf.load(tmp_path / "x.json")


@pytest.mark.parametrize(
    ("name", "begins"), [("r.json", '{"schema":1,'), ("r.trace.json", '{"display'), ("r.html", "<!doc")]
)
def test_the_suffix_decides(tmp_path: Path, name: str, begins: str) -> None:
    shelf.export(make(run("a\udcff.cu")), tmp_path / "new" / name)
    assert (tmp_path / "new" / name).read_text(encoding="utf-8").startswith(begins)
    assert [path.name for path in (tmp_path / "new").iterdir()] == [name]


def test_a_slip_of_the_pen_makes_no_tree(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=f"there is no directory {tmp_path / 'tpyo'}"):
        shelf.export(make(run()), tmp_path / "tpyo" / "new" / "r.html")
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_written_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    said: list[str] = []
    line = shelf.conclude(make(run()), tmp_path / "file", tmp_path / "file" / "r.html", said.append)
    assert line == "" and said == [
        "the record of this build is not kept: Not a directory",
        f"no report in {tmp_path / 'file' / 'r.html'}: File exists",
    ]


def test_only_a_failure_says_where_its_record_is(tmp_path: Path) -> None:
    said: list[str] = []
    assert shelf.conclude(make(run()), tmp_path, None, said.append) == ""
    line = shelf.conclude(make(run(), outcome="failed"), tmp_path, None, said.append)
    assert line == f"report of this build: {shelf.find(tmp_path)}"
    assert (
        shelf.conclude(make(run()), tmp_path, tmp_path / "r.html", said.append) == f"report: {tmp_path / 'r.html'}"
    )
    assert said == []
