"""The broker with a farm: what is called how, and what becomes of a compile that fails there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from safe_ext_build.events import Event
from safe_ext_build.launcher.call import FOR_COMPILERS, Launching
from safe_ext_build.schedule.broker import FARM_LOST, Broker, Naming, Sight
from safe_ext_build.schedule.policy import Limits, Memory

GIB = 1 << 30
CALM = Sight(Memory(available=60 * GIB, total=64 * GIB, reserve=GIB, floor=GIB), 0, False)
KILLED, FAILED = 9, 256
NINJA = 99


class Build:
    """A broker with a farm of `slots`, and what it has said. Js are on connections 1, 2, ..."""

    def __init__(self, place: Path, slots: int = 1, jobs: int = 2, tool: str = "") -> None:
        self.sent: list[tuple[int, list[bytes]]] = []
        self.events: list[Event] = []
        self.now = 0.0
        self.log = place / "log.farm"
        launching = Launching(
            tool=tool,
            programs={"sccache": "/bin/sccache", "ccache": "/bin/ccache"},
            server="/w/sccache",
            farm="/w/farm",
            log=str(place / "log"),
            slots=slots,
        )
        naming = Naming({}, "project", "/p", {}, free_threads=False, launching=launching)
        self.broker = Broker(Limits(jobs, 8, True), naming, str(place / "jobs"), {}, self._send, self._emit)
        self.away = self.broker.scheduler.away
        self.away.slots, self.away.open = slots, True
        self.say(NINJA, b"ninja", b"1")

    def _send(self, connection: int, fields: list[bytes]) -> None:
        self.sent.append((connection, fields))

    def _emit(self, event: Event) -> None:
        self.events.append(event)

    def say(self, connection: int, *fields: bytes, sight: Sight = CALM) -> None:
        self.now += 1
        self.broker.receive(connection, 1000 + connection, list(fields), self.now, sight)
        self.broker.step(self.now, sight)

    def ask(self, connection: int = 1, *words: str) -> None:
        command = words or ("g++", "-c", f"{connection}.cpp", "-o", f"{connection}.o")
        self.say(connection, b"job", b"/p", b"", b"", *map(os.fsencode, command))

    def done(self, connection: int, status: int = 0, said: str = "", cpu: float = 0.1) -> None:
        self.say(connection, b"done", b"%d" % status, b"1024", b"%.1f" % cpu, said.encode())

    def told(self, connection: int, kind: bytes) -> list[list[bytes]]:
        return [fields for number, fields in self.sent if number == connection and fields[0] == kind]

    def runs(self, connection: int) -> list[list[str]]:
        """The commands that a J was told to run."""
        return [[os.fsdecode(word) for word in fields[8:]] for fields in self.told(connection, b"run")]

    def ended(self, connection: int) -> list[bytes]:
        return [fields[1] for fields in self.told(connection, b"end")]

    @property
    def error(self) -> str:
        return self.broker.failure.error if self.broker.failure else ""

    @property
    def outcomes(self) -> list[tuple[str | None, bool]]:
        return [(event.outcome, event.remote) for event in self.events if event.kind == "job"]


@pytest.fixture
def build(tmp_path: Path) -> Build:
    return Build(tmp_path)


def variables(fields: list[bytes]) -> dict[str, str]:
    return dict(line.split("=", 1) for line in fields[2].decode().splitlines())


def test_what_leaves_goes_to_the_farms_own_client(build: Build, tmp_path: Path) -> None:
    for connection in (1, 2):
        build.ask(connection)
    (away,), (here,) = build.runs(1), build.runs(2)
    assert (away[:2], here[0]) == (["/bin/sccache", "g++"], "g++")
    (told,) = build.told(1, b"with")
    assert variables(told)["SCCACHE_SERVER_UDS"] == "/w/farm"
    assert variables(told)["TMPDIR"] == str(tmp_path / "farm")
    assert told[4].split() == [name.encode() for name in FOR_COMPILERS]
    assert build.told(2, b"with") == []
    starts = [event.remote for event in build.events if event.kind == "start"]
    assert starts == [True, False]


@pytest.mark.parametrize(
    "words",
    [
        ("g++", "a.o", "-shared", "-o", "a.so"),
        ("g++", "-E", "a.cpp", "-o", "a.ii"),
    ],
)
def test_what_compiles_nothing_stays(build: Build, words: tuple[str, ...]) -> None:
    build.ask(1, *words)
    assert build.away.count == 0


def test_another_cache_is_for_here_only(tmp_path: Path) -> None:
    build = Build(tmp_path, tool="ccache")
    for connection in (1, 2):
        build.ask(connection)
    assert build.runs(1)[0][0] == "/bin/sccache"
    assert build.runs(2)[0][0] == "/bin/ccache"


def test_what_the_farm_has_compiled_is_counted_and_not_in_the_caches_log(build: Build) -> None:
    build.ask()
    output = build.runs(1)[0][-1]
    build.log.write_text(f"[D DEBUG x] [{Path(output).name}]: Cache miss in 0.1 s\n")
    build.done(1)
    assert (build.outcomes, build.ended(1), build.broker.farmed) == ([("compiled", True)], [b"0"], 1)
    assert build.events[-1].cache == "miss"


def test_one_that_fails_there_is_told_by_what_it_says_here(build: Build) -> None:
    build.ask()
    build.done(1, FAILED, "sccache: encountered fatal error\nsccache: error: a step failed\n")
    assert build.ended(1) == [], "nobody has been told anything yet"
    assert build.error == ""
    there, here = build.runs(1)
    assert (there[0], here[0]) == ("/bin/sccache", "g++")
    assert [b"with", b"", b"", b"", b""] in build.told(1, b"with"), "names and variables of before are taken back"
    build.done(1, FAILED, "1.cpp:3:5: error: 'x' was not declared\n")
    build.say(NINJA, b"ninja-done", b"0")
    assert build.outcomes == [("returned", True), ("failed", False)]
    failure = build.broker.failed_job
    assert failure and failure.exit_code == 1
    assert build.error == "1.cpp:3:5: error: 'x' was not declared"


def test_one_that_fails_there_only_is_no_failure(build: Build) -> None:
    build.ask()
    build.done(1, FAILED, "cicc terminated (signal: 9)")
    build.done(1)
    assert (build.outcomes, build.ended(1)) == ([("returned", True), ("compiled", False)], [b"0"])
    assert (build.broker.failure, build.broker.stop_reason, build.broker.farmed) == (None, "", 0)
    (why,) = [event.why for event in build.events if event.outcome == "returned"]
    assert why == "cicc terminated (signal: 9)"


def test_it_is_said_once_for_all_that_come_back_alike(tmp_path: Path) -> None:
    build = Build(tmp_path, slots=3, jobs=3)
    for connection in (1, 2, 3):
        build.ask(connection)
    for connection in (1, 2, 3):
        build.done(connection, FAILED, "error: no space left on device")
    lines = [fields[1].decode() for connection in (1, 2, 3) for fields in build.told(connection, b"say")]
    what = "what the farm does not compile (error: no space left on device) is compiled here"
    assert lines == [f"safe-ext-build: {what}\n"]


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (
            '["a.ptx"] http error status: Error 401: Fixed token mismatch["b.ptx"] more',
            "Error 401: Fixed token mismatch",
        ),
        ("a.cu(7): error: identifier x is undefined\n1 error detected", "it failed there"),
        ("a.cpp:3:12: error: expected ;", "it failed there"),
        ("ptxas fatal   : Could not open output file", "ptxas fatal   : Could not open output file"),
        ("", "it does not say why"),
    ],
)
def test_why_it_came_back(build: Build, said: str, reason: str) -> None:
    build.ask()
    build.done(1, FAILED, said)
    line = f"safe-ext-build: what the farm does not compile ({reason}) is compiled here\n"
    assert build.told(1, b"say") == [[b"say", line.encode()]]


def test_secrets_in_what_the_farm_says_are_not_repeated(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCCACHE_REDIS_PASSWORD", "hunter2hunter2")
    build.ask()
    build.done(1, FAILED, "error: redis://user:hunter2hunter2@host refuses")
    said = b"".join(fields[1] for fields in build.told(1, b"say"))
    assert b"hunter2hunter2" not in said and b"refuses" in said
    assert "hunter2hunter2" not in repr(build.events)


def test_one_that_falls_back_is_ended_and_waits(tmp_path: Path) -> None:
    build = Build(tmp_path, jobs=1)
    for connection in (1, 2):
        build.ask(connection)
    build.say(1, b"started", b"4711")
    build.broker.came_back(1, "no server has room")
    (doomed,) = build.broker.doomed
    assert doomed.id == 1
    build.broker.doomed.clear()
    build.broker.came_back(1, "no server has room")
    assert build.broker.doomed == [], "once is enough"
    build.done(1, KILLED)
    assert build.outcomes == [("returned", True)]
    assert (len(build.runs(1)), build.broker.stop_reason) == (1, "")
    build.done(2)
    assert build.runs(1)[-1][0] == "g++"
    assert "no server has room" in build.told(1, b"say")[0][1].decode()


def test_one_that_is_doomed_before_it_has_a_compiler_is_ended_with_it(tmp_path: Path) -> None:
    build = Build(tmp_path, jobs=1)
    for connection in (1, 2):
        build.ask(connection)
    build.broker.came_back(1, "no server has room")
    build.broker.doomed.clear()  # there was nothing to be signalled
    build.say(1, b"started", b"4711")
    assert [job.id for job in build.broker.doomed] == [1]


def test_without_its_client_all_that_is_away_is_ended_and_may_leave_again(tmp_path: Path) -> None:
    build = Build(tmp_path, slots=2, jobs=1)
    for connection in (1, 2, 3):
        build.ask(connection)
    build.broker.recall(FARM_LOST)
    assert [job.id for job in build.broker.doomed] == [1, 2]
    for connection in (1, 2):
        build.done(connection, KILLED)
    assert build.outcomes == [("returned", True)] * 2
    assert [runs[-1][0] for runs in map(build.runs, (1, 2))] == ["/bin/sccache"] * 2
    assert [len(build.runs(number)) for number in (1, 2)] == [2, 2]
    assert build.told(1, b"say") == [], "that was said by whoever has seen it"


def test_one_that_we_kill_for_memory_is_no_failure_of_the_farms(build: Build) -> None:
    build.ask()
    job = build.broker.jobs[1]
    job.doomed = True
    build.done(1, KILLED)
    assert build.outcomes == [("memory", True)]
    assert build.events[-1].kind == "start" and build.runs(1)[-1][0] == "/bin/sccache", "it may leave again"
    assert build.told(1, b"say") == []


def test_one_whose_client_the_kernel_kills_comes_back(build: Build) -> None:
    build.ask()
    short = Sight(CALM.memory, 1, True)
    build.say(1, b"done", b"9", b"1024", b"0.1", b"", sight=short)
    assert build.outcomes == [("returned", True)]
    assert build.broker.stop_reason == ""


def test_an_interrupted_compile_is_not_run_again(build: Build) -> None:
    build.ask()
    build.say(1, b"signalled", b"2")
    assert build.broker.stop_reason
    build.done(1, 2)
    assert len(build.runs(1)) == 1


def test_what_it_costs_here_is_not_what_it_costs(build: Build) -> None:
    """Two entries in the history: one for the farm, one for here."""
    build.ask()
    build.broker.observe({1: (GIB, 0.2)}, build.now + 0.5)
    build.done(1)
    build.broker.scheduler.away.open = False
    build.ask(2, "g++", "-c", "1.cpp", "-o", "1.o")
    build.broker.observe({2: (2 * GIB, 0.9)}, build.now + 0.5)
    build.done(2)
    there, here = [event.entry for event in build.events if event.kind == "job"]
    assert there != here


CUT = "Could not submit toolchain: error sending request: unexpected EOF"


def test_who_is_cut_off_because_another_sends_the_same_compiler_leaves_again_once(tmp_path: Path) -> None:
    build = Build(tmp_path, slots=1, jobs=1)
    for connection in (1, 2):
        build.ask(connection)
    for _ in range(2):
        build.broker.came_back(1, CUT)
        build.done(1, KILLED)
    assert [words[0] for words in build.runs(1)] == ["/bin/sccache"] * 2, "and then waits for its turn here"
    assert [fields[1].decode() for fields in build.told(1, b"say")] == [
        f"safe-ext-build: what the farm does not compile ({CUT}) is compiled here\n"
    ]
