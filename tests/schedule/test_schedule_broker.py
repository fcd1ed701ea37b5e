"""The broker, step by step, with connections that are numbers and a `send` that takes notes."""

from __future__ import annotations

import signal

import pytest

from safe_ext_build.events import Event
from safe_ext_build.schedule.broker import Broker, Evidence, Failure
from safe_ext_build.schedule.policy import Limits

KILLED = b"g++: fatal error: Killed signal terminated program cc1plus\ncompilation terminated.\n"
ERROR = b"a.cpp:1:5: error: expected unqualified-id\n"
CALM, SHORT = Evidence(0, False), Evidence(0, True)
NINJA = 100


class Build:
    """A broker and what it has said. Connections 1, 2, ... are Js (with pid 1001, ...); NINJA is a ninja."""

    def __init__(self, jobs: int = 2, cpus: int = 8, ninja: bool = True) -> None:
        self.sent: list[tuple[int, list[bytes]]] = []
        self.events: list[Event] = []
        self.now = 0.0
        self.broker = Broker(
            Limits(jobs, cpus), "/w/jobs", {"/shim/nvcc": "/cuda/nvcc"}, self.send, self.events.append
        )
        if ninja:
            self.say(NINJA, b"ninja", b"1")

    def send(self, connection: int, fields: list[bytes]) -> None:
        self.sent.append((connection, fields))

    def say(self, connection: int, *fields: bytes, evidence: Evidence = CALM) -> None:
        self.now += 1.0
        self.broker.receive(connection, 1000 + connection, list(fields), self.now, evidence)

    def ask(self, connection: int, *command: bytes) -> None:
        words = command or (b"g++", b"-c", b"%d.cpp" % connection, b"-o", b"%d.o" % connection)
        self.say(connection, b"job", b"/cwd", b"", b"", *words)

    def done(self, connection: int, status: int = 0, tail: bytes = b"", evidence: Evidence = CALM) -> None:
        self.say(connection, b"done", b"%d" % status, b"1024", b"0.5", tail, evidence=evidence)

    def gone(self, connection: int) -> bool:
        return self.broker.gone(connection, self.now, CALM) is not None

    def heard(self) -> list[tuple[int, bytes]]:
        """What was said since the last call: to whom, and the first word, or the exit status at the end."""
        sent, self.sent = self.sent, []
        return [(number, fields[1] if fields[0] == b"end" else fields[0]) for number, fields in sent]


def ready(build: Build) -> int:
    return build.broker.ready_to_interrupt


def test_first_come_first_served_and_never_more_than_jobs() -> None:
    build = Build(jobs=2)
    for number in (1, 2, 3, 4):
        build.ask(number)
    assert build.heard() == [(1, b"run"), (2, b"run")]
    build.done(2)
    assert build.heard() == [(2, b"0"), (3, b"run")]
    assert not build.gone(2)
    build.done(1)
    assert build.heard() == [(1, b"0"), (4, b"run")]


def test_weight_counts() -> None:
    build = Build(jobs=8, cpus=4)
    build.ask(1, b"nvcc", b"-c", b"a.cu", b"--threads", b"4", b"-arch=all")
    build.ask(2)
    assert build.heard() == [(1, b"run")]
    build.done(1)
    assert build.heard() == [(1, b"0"), (2, b"run")]


def test_a_run_says_where_and_what() -> None:
    build = Build()
    build.ask(1, b"nvcc", b"-MD", b"-MF", b"b/a.o.d", b"-c", b"a.cu", b"-o", b"b/a.o")
    fields = [b"run", b"/w/jobs/1", b"/cwd/b/a.seb-1.o", b"/cwd/b/a.o", b"/cwd/b/a.o.d", b"1"]
    command = [b"nvcc", b"-MD", b"-MF", b"b/a.o.d", b"-c", b"a.cu", b"-o", b"b/a.seb-1.o", b"-MT", b"b/a.o"]
    assert build.sent == [(1, fields + command)]


def test_bytes_that_are_no_text_come_back_as_they_were() -> None:
    build = Build()
    build.ask(1, b"g++", b"-c", b"\xff.cpp", b"-DX=\xfe")
    assert build.sent[0][1][6:] == [b"g++", b"-c", b"\xff.cpp", b"-DX=\xfe"]


@pytest.mark.parametrize("launcher", [[], [b"ccache"]])
def test_a_shim_is_replaced_by_what_it_stands_for(launcher: list[bytes]) -> None:
    build = Build()
    build.ask(1, *launcher, b"/shim/nvcc", b"-c", b"a.cu")
    assert build.sent[0][1][6:] == [*launcher, b"/cuda/nvcc", b"-c", b"a.cu"]


def test_a_question_passes() -> None:
    build = Build(jobs=1)
    build.ask(1)
    build.ask(2, b"nvcc", b"--version")
    assert build.heard() == [(1, b"run"), (2, b"pass")]
    assert not build.gone(2) and not build.broker.stop_reason


def test_killed_for_memory_means_again_alone_and_the_second_time_it_fails() -> None:
    build = Build(jobs=3)
    for number in (1, 2, 3, 4):
        build.ask(number)
    build.heard()
    build.done(1, 1 << 8, KILLED, SHORT)
    assert build.heard() == []  # neither itself nor 4: it waits until nothing runs
    build.done(2)
    assert not build.gone(2) and build.heard() == [(2, b"0")]
    build.done(3)
    assert build.heard() == [(3, b"0"), (1, b"run")]  # before the fourth
    assert not build.gone(3)
    build.done(1, 1 << 8, KILLED, SHORT)
    assert build.broker.failure == Failure(
        "1.cpp", 1, "g++: fatal error: Killed signal terminated program cc1plus", True
    )
    assert build.heard() == [(1, b"1")]
    assert [event.outcome for event in build.events] == ["memory", "compiled", "compiled", "memory"]
    assert not build.broker.stop_reason


def test_killed_for_memory_and_well_the_second_time() -> None:
    build = Build()
    build.ask(1)
    build.broker.receive(1, 1, [b"done", b"9", b"0", b"0", b""], 5.0, Evidence(1, False))  # the kernel has counted
    assert build.heard() == [(1, b"run"), (1, b"run")]
    build.done(1)
    assert build.heard() == [(1, b"0")] and build.broker.failure is None


def test_an_oom_kill_before_a_run_does_not_explain_its_end() -> None:
    build = Build()
    build.broker.receive(1, 1, [b"job", b"/", b"", b"", b"g++", b"-c", b"a.cpp"], 1.0, Evidence(7, False))
    build.done(1, 9, evidence=Evidence(7, False))
    assert build.broker.stop_reason == "the compiler of a.cpp was killed by signal 9"


def test_the_first_failure_winds_down_and_speaks_last() -> None:
    build = Build(jobs=3)
    for number in (1, 2, 3, 4, 5):
        build.ask(number)
    build.heard()
    build.done(2, 1 << 8, ERROR)
    assert build.heard() == [] and not ready(build)
    build.done(1)
    assert build.heard() == [(1, b"0")]  # running ones finish, waiting ones are refused in silence
    build.done(3, 2 << 8, b"3.cpp:1: error: other\n")
    assert build.heard() == [(3, b"2")]
    assert not build.gone(1) and build.heard() == []
    assert not build.gone(3) and build.heard() == [(2, b"1")]  # of two failures, the first one speaks last
    assert build.broker.failure == Failure("2.cpp", 1, "a.cpp:1:5: error: expected unqualified-id")
    assert ready(build) == 1002
    build.broker.interrupt_ninja()
    assert build.heard() == [(NINJA, b"interrupt")]
    assert not ready(build)
    for number in (2, 4, 5):
        assert not build.gone(number)
    build.say(NINJA, b"ninja-done", b"%d" % signal.SIGINT)
    assert not build.broker.stop_reason


def test_a_compile_admitted_before_the_failure_and_started_after_it_does_not_hide_it() -> None:
    build = Build(jobs=2)
    build.ask(1)
    build.ask(2)
    build.done(1, 1 << 8, ERROR)
    build.say(2, b"started", b"77")
    assert build.broker.failure and build.broker.failure.source == "1.cpp"


def test_none_that_waited_starts_while_ninja_is_being_interrupted() -> None:
    build = Build(jobs=1)
    for number in (1, 2, 3):
        build.ask(number)
    build.done(1, 1 << 8, ERROR)
    build.broker.interrupt_ninja()
    build.say(NINJA, b"ninja-done", b"2")
    build.heard()
    assert not build.gone(1) and not build.gone(2) and not build.broker.stop_reason
    assert build.heard() == []


def test_a_memory_kill_while_winding_down_is_not_run_again() -> None:
    build = Build(jobs=2)
    build.ask(1)
    build.ask(2)
    build.done(1, 1 << 8, ERROR)
    build.heard()
    build.done(2, 1 << 8, KILLED, SHORT)
    assert build.heard() == [(1, b"1")]


def test_without_ninja_a_failure_is_told_at_once_and_the_rest_goes_on() -> None:
    build = Build(jobs=1, ninja=False)
    build.ask(1)
    build.ask(2)
    build.heard()
    build.done(1, 1 << 8, ERROR)
    assert build.heard() == [(1, b"1"), (2, b"run")]
    build.say(2, b"started", b"77")
    assert build.broker.failure is None  # a configure step may have expected it
    assert not ready(build)
    build.done(2, 1 << 8, ERROR)
    assert build.broker.failure is not None


def test_a_second_ninja_after_a_failed_one_starts_anew() -> None:
    build = Build(jobs=1)
    build.ask(1)
    build.done(1, 1 << 8, ERROR)
    build.broker.interrupt_ninja()
    build.gone(1)
    build.say(NINJA, b"ninja-done", b"256")
    build.heard()
    build.say(NINJA, b"ninja", b"2")
    build.ask(2)
    assert build.heard() == [(2, b"run")]
    build.say(2, b"started", b"77")
    assert build.broker.failure is None and not build.broker.winding_down


@pytest.mark.parametrize("state", ["waiting", "running", "held"])
def test_a_job_that_is_killed_stops_the_build(state: str) -> None:
    build = Build(jobs=1 if state == "waiting" else 3)
    for number in (1, 2, 3):
        build.ask(number)
    if state == "held":
        build.done(2, 1 << 8, ERROR)
    assert build.gone(2) is (state == "running")
    assert build.broker.stop_reason == "the job of 2.cpp was killed"
    build.heard()
    build.done(1)
    build.ask(4)
    assert (4, b"run") not in build.heard()


def test_a_job_that_is_signalled_stops_the_build() -> None:
    build = Build()
    build.ask(1)
    build.say(1, b"signalled", b"15")
    assert build.broker.stop_reason == "the job of 1.cpp received SIGTERM"


def test_a_killed_compiler_stops_the_build() -> None:
    build = Build()
    build.ask(1)
    build.done(1, 137 << 8, b"Killed\n")
    assert build.broker.stop_reason == "the compiler of 1.cpp was killed by signal 9"


@pytest.mark.parametrize("fields", [[b"ninja-done", b"9"], []])
def test_a_killed_ninja_stops_the_build(fields: list[bytes]) -> None:
    build = Build()
    if fields:
        build.say(NINJA, *fields)
    else:
        build.gone(NINJA)
    assert build.broker.stop_reason == "ninja was killed by signal 9"


@pytest.mark.parametrize(
    "fields",
    [
        [b""],
        [b"nonsense", b"1"],
        [b"started", b"1"],
        [b"done", b"0", b"0", b"0", b""],
        [b"done", b"256", b"0", b"0", b""],
        [b"signalled", b"15"],
        [b"ninja-done", b"0"],
        [b"ninja-done", b"9"],
    ],
)
def test_what_comes_from_nobody_changes_nothing(fields: list[bytes]) -> None:
    build = Build()
    build.say(7, *fields)
    assert not build.heard() and not build.broker.stop_reason and not build.events
    assert list(build.broker.ninjas) == [NINJA]


@pytest.mark.parametrize(
    "fields",
    [
        [b"job"],
        [b"job", b"/", b"", b""],
        [b"ninja-done"],
        [b"ninja-done", b"x"],
        [b"started", b"x"],
        [b"signalled", b"999"],
        [b"done", b"0"],
        [b"done", b"0", b"0", b"much", b""],
    ],
)
def test_damage_is_a_value_or_index_error_for_the_supervisor(fields: list[bytes]) -> None:
    build = Build()
    build.ask(1)
    build.heard()
    with pytest.raises((ValueError, IndexError)):
        build.say(2 if fields[0] == b"job" else NINJA if fields[0] == b"ninja-done" else 1, *fields)
    assert not build.heard() and build.broker.jobs[1].state == "running"


def test_out_of_turn_words_of_a_job_change_nothing() -> None:
    build = Build(jobs=1)
    build.ask(1)
    build.ask(2)
    build.heard()
    build.done(2, 1 << 8, ERROR)  # it was never admitted
    build.ask(1)  # asks again while it runs
    assert build.broker.failure is None and build.heard() == []
    assert [job.state for job in build.broker.jobs.values()] == ["running", "waiting"]


def test_the_books() -> None:
    build = Build(jobs=1)
    build.ask(1)
    build.ask(2, b"nvcc", b"-c", b"a.cu", b"--threads", b"2", b"-arch=all-major")
    build.done(1)
    build.broker.jobs[2].peak = 4096
    build.done(2)
    event = build.events[1]
    assert (event.source, event.outcome, event.peak, event.cpu) == ("a.cu", "compiled", 4096, 0.5)
    assert (event.waited, event.seconds, event.threads, event.archs) == (1.0, 1.0, 2, 6)
