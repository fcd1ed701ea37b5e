"""The broker with a compiler cache: exactly one stands before a compiler, and a hit teaches nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from safe_ext_build.events import Event
from safe_ext_build.launcher.call import Launching
from safe_ext_build.schedule.broker import Broker, Naming, Sight
from safe_ext_build.schedule.forecast import Curve
from safe_ext_build.schedule.policy import Limits, Memory

GIB = 1 << 30
CALM = Sight(Memory(available=60 * GIB, total=64 * GIB, reserve=GIB, floor=GIB), 0, False)
PROGRAMS = {"ccache": "/bin/ccache", "sccache": "/bin/sccache"}


class Build:
    """A broker whose workspace is `place`, with one J on connection 1."""

    def __init__(self, place: Path, launching: Launching, history: dict[str, Curve] | None = None) -> None:
        self.place = place
        self.sent: list[list[bytes]] = []
        self.events: list[Event] = []
        naming = Naming({}, "project", "/p", {}, free_threads=False, launching=launching)
        self.broker = Broker(
            Limits(1, 1, True), naming, str(place / "jobs"), history or {}, self._send, self._emit
        )

    def _send(self, connection: int, fields: list[bytes]) -> None:
        self.sent.append(fields)

    def _emit(self, event: Event) -> None:
        if event.kind == "job":
            self.events.append(event)

    def ask(self, *words: str) -> list[str]:
        """Ask for a compile; returns what it is run as."""
        cwd = str(self.place).encode()
        self.broker.receive(1, 1001, [b"job", cwd, b"", b"", *map(str.encode, words)], 1.0, CALM)
        self.broker.step(1.0, CALM)
        (run,) = [fields for fields in self.sent if fields[0] == b"run"]
        return [word.decode() for word in run[8:]]

    def done(self) -> Event:
        self.broker.receive(1, 1001, [b"done", b"0", b"1024", b"0.5", b""], 3.0, CALM)
        return self.events[-1]


def launching(tool: str, keeps: bool = True, **more: str) -> Launching:
    return Launching(tool=tool, keeps=keeps, programs=PROGRAMS, server="/w/sccache", log=more.get("log", ""))


@pytest.mark.parametrize(
    ("own", "tool", "keeps", "first"),
    [
        ([], "ccache", True, ["/bin/ccache", "g++"]),
        (["ccache"], "ccache", True, ["/bin/ccache", "g++"]),
        (["sccache"], "ccache", True, ["/bin/ccache", "g++"]),
        (["ccache", "sccache"], "sccache", True, ["/bin/sccache", "g++"]),
        (["/opt/ccache"], "", True, ["/bin/ccache", "g++"]),
        (["ccache"], "", False, ["g++", "-c"]),
        ([], "", True, ["g++", "-c"]),
    ],
)
def test_exactly_one_stands_before_a_compiler(
    tmp_path: Path, own: list[str], tool: str, keeps: bool, first: list[str]
) -> None:
    build = Build(tmp_path, launching(tool, keeps))
    assert build.ask(*own, "g++", "-c", "a.cpp", "-o", "a.o")[:2] == first


def test_a_link_goes_through_none_but_its_own(tmp_path: Path) -> None:
    assert Build(tmp_path, launching("ccache")).ask("g++", "a.o", "-o", "a.so")[0] == "g++"
    assert Build(tmp_path, launching("ccache")).ask("ccache", "g++", "a.o", "-o", "a.so")[0] == "ccache"


def test_without_its_server_sccache_is_left_out(tmp_path: Path) -> None:
    build = Build(tmp_path, launching("sccache"))
    build.broker.server_lost = True
    assert build.ask("sccache", "g++", "-c", "a.cpp", "-o", "a.o")[0] == "g++"


@pytest.mark.parametrize(("said", "result"), [("direct_cache_hit\n", "hit"), ("cache_miss\n", "miss")])
def test_a_hit_teaches_nothing(tmp_path: Path, said: str, result: str) -> None:
    build = Build(tmp_path, launching("ccache"))
    build.ask("g++", "-c", "a.cpp", "-o", "a.o")
    (tmp_path / "jobs" / "1").mkdir(parents=True)
    (tmp_path / "jobs" / "1" / "verdict").write_text(said)
    event = build.done()
    assert (event.outcome, event.cache, bool(event.curve)) == ("compiled", result, result == "miss")
    assert build.broker.cached[result] == 1


def test_what_a_hit_has_saved(tmp_path: Path) -> None:
    words = ("g++", "-c", "a.cpp", "-o", "a.o")
    first = Build(tmp_path, launching("ccache"))
    first.ask(*words)
    known = {first.done().entry: Curve(60.0, (GIB,) * 16)}
    second = Build(tmp_path, launching("ccache"), known)
    second.ask(*words)
    (tmp_path / "jobs" / "1").mkdir(parents=True)
    (tmp_path / "jobs" / "1" / "verdict").write_text("direct_cache_hit\n")
    event = second.done()
    assert (event.cache, event.again, event.saved) == ("hit", True, 58.0)


def test_what_ran_in_a_server_unseen_teaches_nothing(tmp_path: Path) -> None:
    """J has seen its client only, which takes next to nothing."""
    build = Build(tmp_path, launching("sccache", log=str(tmp_path / "log")))
    output = build.ask("g++", "-c", "a.cpp", "-o", "a.o")[-1]
    (tmp_path / "log").write_text(f"[D DEBUG x] [{output}]: Cache miss in 0.1 s\n")
    event = build.done()
    assert (event.cache, event.curve) == ("miss", ())


def test_what_the_users_own_server_runs_teaches_nothing(tmp_path: Path) -> None:
    build = Build(tmp_path, replace(launching("sccache"), ours=False))
    build.ask("g++", "-c", "a.cpp", "-o", "a.o")
    build.broker.observe({1: (10 << 20, 0.1)}, 2.5)
    assert build.done().curve == ()


def test_one_that_a_server_was_seen_to_work_for_does(tmp_path: Path) -> None:
    build = Build(tmp_path, launching("sccache"))
    build.ask("g++", "-c", "a.cpp", "-o", "a.o")
    build.broker.observe({1: (3 * GIB, 1.5)}, 2.5)
    event = build.done()
    assert (event.peak, event.cpu, max(event.curve)) == (3 * GIB, 1.5, 3 * GIB)
