"""What the broker tells of compiles on a farm: in the status that people ask for, and in its events."""

from __future__ import annotations

from pathlib import Path

from safe_ext_build.events import Event
from safe_ext_build.launcher.call import Launching
from safe_ext_build.schedule.broker import Broker, Naming, Sight
from safe_ext_build.schedule.forecast import GIB
from safe_ext_build.schedule.policy import Limits, Memory
from safe_ext_build.supervise import status

MEMORY = Memory(available=64 * GIB, reserve=4 * GIB, floor=2 * GIB, total=64 * GIB)
CALM = Sight(MEMORY, 0, low=False)
WHY = "Connection refused"


class Build:
    """A broker with some CPUs, and a farm that takes two steps at a time. Connections 1, 2, ... are Js."""

    def __init__(self, cpus: int) -> None:
        self.events: list[Event] = []
        launching = Launching(farm="/w/farm.sock", log="/w/sccache.log")
        naming = Naming({}, "project", "/cwd", {}, False, launching=launching)
        self.broker = Broker(Limits(cpus, cpus), naming, "/w/jobs", {}, lambda *_: None, self.events.append)
        self.broker.scheduler.away.slots = 2
        self.broker.scheduler.away.open = True
        self.now = 0.0

    def say(self, connection: int, *fields: bytes) -> None:
        self.now += 1.0
        self.broker.receive(connection, 1000 + connection, list(fields), self.now, CALM)
        self.broker.step(self.now, CALM)

    def ask(self, *connections: int) -> None:
        for one in connections:
            self.say(one, b"job", b"/cwd", b"", b"", b"g++", b"-c", b"%d.cpp" % one, b"-o", b"%d.o" % one)

    def done(self, connection: int, code: int = 0) -> None:
        self.say(connection, b"done", b"%d" % (code << 8), b"1024", b"0.5", b"")

    def look(self) -> status.Status:
        return status.look(Path("/w/b"), self.broker, MEMORY, self.now)

    def ended(self) -> list[tuple[str, str, bool, str]]:
        jobs = [event for event in self.events if event.kind == "job"]
        return [(event.source, event.outcome, event.remote, event.why) for event in jobs]


def test_a_status_tells_what_is_on_the_farm() -> None:
    build = Build(cpus=2)
    build.ask(1, 2, 3, 4, 5)
    found = build.look()
    assert (found.remote, found.slots, found.farmed, found.waiting) == (2, 2, 0, 1)
    assert [one.remote for one in found.running] == [True, True, False, False]
    build.done(1)
    found = build.look()
    assert (found.remote, found.farmed, found.compiled) == (2, 1, 1)
    build.broker.scheduler.away.open = False
    assert build.look().slots == 0, "it does not answer"
    assert build.ended() == [("1.cpp", "compiled", True, "")]


def test_what_comes_back_has_its_reason() -> None:
    build = Build(cpus=1)
    build.ask(1, 2, 3)
    build.broker.came_back(build.broker.jobs[1].id, WHY)
    build.done(1, code=1)
    assert build.ended() == [("1.cpp", "returned", True, WHY)]
    assert build.look().farmed == 0
