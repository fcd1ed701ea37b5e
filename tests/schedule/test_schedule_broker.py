"""The broker, step by step, with connections that are numbers and a `send` that takes notes."""

from __future__ import annotations

import signal

import pytest

from safe_ext_build.events import Event
from safe_ext_build.schedule.broker import Broker, Failure, Naming, Sight
from safe_ext_build.schedule.fit import Fit
from safe_ext_build.schedule.forecast import GIB, Curve
from safe_ext_build.schedule.policy import Decision, Limits, Memory

KILLED = b"g++: fatal error: Killed signal terminated program cc1plus\ncompilation terminated.\n"
ERROR = b"a.cpp:1:5: error: expected unqualified-id\n"
NINJA = 100


def sight(free: float = 64.0, kills: int = 0, low: bool = False) -> Sight:
    """A machine of 64 GiB, of which `free` GiB are free; `kills` by the kernel so far."""
    memory = Memory(available=int(free * GIB), reserve=4 * GIB, floor=2 * GIB, total=64 * GIB)
    return Sight(memory, kills, low)


CALM, SHORT = sight(), sight(low=True)


class Build:
    """A broker and what it has said. Connections 1, 2, ... are Js (with pid 1001, ...); NINJA is a ninja."""

    def __init__(
        self,
        jobs: int = 2,
        cpus: int = 8,
        ninja: bool = True,
        *,
        guard: bool = True,
        free_threads: bool = False,
        history: dict[str, Curve] | None = None,
        fit: Fit | None = None,
    ) -> None:
        self.sent: list[tuple[int, list[bytes]]] = []
        self.events: list[Event] = []
        self.notes: list[Event] = []
        self.now = 0.0
        self.broker = Broker(
            Limits(jobs, cpus, guard),
            Naming(
                {"/shim/nvcc": "/cuda/nvcc"},
                "project",
                "/cwd",
                {"cuda": "V13", "host": "g++"},
                free_threads,
                fit or Fit(),
            ),
            "/w/jobs",
            history or {},
            self.send,
            lambda event: (self.events if event.kind == "job" else self.notes).append(event),
        )
        if ninja:
            self.say(NINJA, b"ninja", b"1")

    def send(self, connection: int, fields: list[bytes]) -> None:
        self.sent.append((connection, fields))

    def say(self, connection: int, *fields: bytes, seen: Sight = CALM) -> None:
        self.now += 1.0
        self.broker.receive(connection, 1000 + connection, list(fields), self.now, seen)
        self.broker.step(self.now, seen)

    def ask(self, connection: int, *command: bytes, append: bytes = b"", seen: Sight = CALM) -> None:
        words = command or (b"g++", b"-c", b"%d.cpp" % connection, b"-o", b"%d.o" % connection)
        self.say(connection, b"job", b"/cwd", b"", append, *words, seen=seen)

    def done(self, connection: int, status: int = 0, tail: bytes = b"", seen: Sight = CALM) -> None:
        self.say(connection, b"done", b"%d" % status, b"1024", b"0.5", tail, seen=seen)

    def gone(self, connection: int) -> bool:
        orphan = self.broker.gone(connection)
        self.broker.step(self.now, CALM)
        return orphan is not None

    def observe(self, held: dict[int, float], free: float, seconds: float = 1.0) -> None:
        """One pass of the sensors: GiB held by job (connection), and GiB free."""
        self.now += seconds
        jobs = [(self.broker.jobs[number], int(size * GIB)) for number, size in held.items()]
        self.broker.observe({job.id: (size, self.now - job.started) for job, size in jobs}, self.now)
        self.broker.step(self.now, sight(free))

    def doomed(self) -> list[int]:
        """The Js whose compilers are to be killed, since the last call."""
        found, self.broker.doomed[:] = [job.connection for job in self.broker.doomed], []
        return found

    def ran(self) -> list[bytes]:
        """The commands and NVCC_APPEND_FLAGS that were run since the last call, outputs left out."""
        sent, self.sent = self.sent, []
        return [b" ".join([b"[" + fields[7] + b"]", *fields[8:]]) for _, fields in sent if fields[0] == b"run"]

    def heard(self) -> list[tuple[int, bytes]]:
        """What was said since the last call: to whom, and the first word, or the exit status at the end."""
        sent, self.sent = self.sent, []
        return [(number, fields[1] if fields[0] == b"end" else fields[0]) for number, fields in sent]


def states(build: Build) -> dict[int, str]:
    return {number: job.state for number, job in build.broker.jobs.items()}


def ready(build: Build) -> int:
    return build.broker.ready_to_interrupt


def test_never_more_than_jobs() -> None:
    build = Build(jobs=2)
    for number in (1, 2, 3, 4):
        build.ask(number)
    assert build.heard() == [(1, b"run"), (2, b"run")]
    build.done(2)
    assert len(build.heard()) == 2
    assert not build.gone(2)
    build.done(1)
    assert set(states(build).values()) == {"running", "ended"}


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
    fields = [b"run", b"/w/jobs/1", b"/cwd/b/a.seb-1.o", b"/cwd/b/a.o", b"/cwd/b/a.o.d", b"1", b"", b""]
    command = [b"nvcc", b"-MD", b"-MF", b"b/a.o.d", b"-c", b"a.cu", b"-o", b"b/a.seb-1.o", b"-MT", b"b/a.o"]
    assert build.sent == [(1, fields + command)]


def test_bytes_that_are_no_text_come_back_as_they_were() -> None:
    build = Build()
    build.ask(1, b"g++", b"-c", b"\xff.cpp", b"-DX=\xfe")
    assert build.sent[0][1][8:] == [b"g++", b"-c", b"\xff.cpp", b"-DX=\xfe"]


@pytest.mark.parametrize("launcher", [[], [b"ccache"]])
def test_a_shim_is_replaced_by_what_it_stands_for(launcher: list[bytes]) -> None:
    build = Build()
    build.ask(1, *launcher, b"/shim/nvcc", b"-c", b"a.cu")
    (run,) = (fields for _, fields in build.sent if fields[0] == b"run")
    words = [*launcher, b"/cuda/nvcc", b"-c", b"a.cu"]
    assert run[8 : 8 + len(words)] == words


def test_a_question_passes() -> None:
    build = Build(jobs=1)
    build.ask(1)
    build.ask(2, b"nvcc", b"--version")
    assert build.heard() == [(1, b"run"), (2, b"pass")]
    assert not build.gone(2) and not build.broker.stop_reason


def test_longest_first_when_they_are_known() -> None:
    probe = Build(jobs=1)
    for number in (1, 2, 3, 4):
        probe.ask(number)
    seconds = {1: 10.0, 2: 5.0, 3: 40.0, 4: 20.0}
    entries = {number: probe.broker.jobs[number].features.entry for number in seconds}
    history = {entries[number]: Curve(seconds[number], (GIB,) * 16) for number in seconds}
    build = Build(jobs=1, history=history)
    for number in (1, 2, 3, 4):
        build.ask(number)
    for number in (1, 3, 4):
        build.done(number)
        build.gone(number)
    assert [number for number, word in build.heard() if word == b"run"] == [1, 3, 4, 2]


def test_who_holds_what_is_not_there_is_killed_and_run_again_and_ninja_sees_nothing() -> None:
    build = Build(jobs=3)
    build.ask(1)
    build.ask(2)
    for number in (1, 2):
        build.say(number, b"started", b"%d" % (70 + number))
    build.heard()
    build.observe({1: 30.0, 2: 30.0}, free=1.0)
    assert build.doomed() == [2]  # never the eldest
    build.observe({1: 30.0, 2: 30.0}, free=1.0)
    assert build.doomed() == []  # it is dying
    build.done(2, 9, seen=sight(31.0))
    assert build.heard() == [] and states(build) == {1: "running", 2: "waiting"}
    assert build.events[-1].outcome == "memory" and build.events[-1].peak == 30 * GIB
    build.done(1, seen=sight(62.0))
    assert build.heard() == [(1, b"0"), (2, b"run")]
    build.done(2)
    assert build.heard() == [(2, b"0")]
    assert not build.broker.stop_reason and build.broker.failure is None


@pytest.mark.parametrize(
    ("status", "said"), [(9, b""), (1 << 8, KILLED), (255 << 8, b"nvcc: Killed\n"), (1 << 8, b"")]
)
def test_however_a_killed_compilers_parent_says_it(status: int, said: bytes) -> None:
    build = Build(jobs=2)
    build.ask(1)
    build.ask(2)
    build.observe({1: 30.0, 2: 30.0}, free=1.0)
    build.done(2, status, said)
    assert states(build)[2] == "waiting" and not build.broker.stop_reason and build.broker.failure is None


def test_a_compiler_that_made_it_before_it_was_killed_has_compiled() -> None:
    build = Build(jobs=2)
    build.ask(1)
    build.ask(2)
    build.observe({1: 30.0, 2: 30.0}, free=1.0)
    build.done(2)
    assert build.events[-1].outcome == "compiled" and build.heard()[-1] == (2, b"0")


def test_a_compiler_that_starts_after_it_was_to_be_killed_is_killed_then() -> None:
    build = Build(jobs=2)
    build.ask(1)
    build.ask(2)
    build.observe({1: 30.0, 2: 0.0}, free=1.0)
    assert build.doomed() == [2]  # its J has not started a compiler yet, so this finds none
    build.say(2, b"started", b"77", seen=sight(1.0))
    assert build.doomed() == [2]


def test_memory_is_guarded_while_winding_down() -> None:
    build = Build(jobs=3)
    for number in (1, 2, 3):
        build.ask(number)
    build.done(1, 1 << 8, ERROR)
    build.observe({2: 30.0, 3: 30.0}, free=1.0)
    assert build.doomed() == [3]
    build.heard()
    build.done(3, 9)
    assert build.heard() == [] and states(build)[3] == "waiting"
    build.done(2)
    assert build.heard() == [(2, b"0")]


def test_killed_by_the_kernel_means_again_and_alone_and_twice_is_a_failure() -> None:
    build = Build(jobs=2)
    build.ask(1)
    build.ask(2)
    build.heard()
    build.done(1, 1 << 8, KILLED, sight(60, kills=1))  # beside another: that is no reason to give up
    assert states(build)[1] == "waiting"
    build.done(2, seen=sight(60, kills=1))
    build.gone(2)
    assert build.heard() == [(2, b"0"), (1, b"run")]
    build.observe({1: 5.5}, free=50)
    build.done(1, 9, seen=sight(60, kills=2))
    assert build.heard() == [(1, b"run")]  # the first time alone
    build.done(1, 9, seen=sight(60, kills=3))
    assert build.heard() == [(1, b"137")]
    failure = build.broker.failure
    assert failure and failure.memory and (failure.source, failure.code) == ("1.cpp", 137)
    assert "nothing else of this build ran (it held 5.5 GiB of 64.0)" in failure.error
    assert [event.outcome for event in build.events] == ["memory", "compiled", "memory", "memory"]
    assert not build.broker.stop_reason


def test_killed_for_memory_and_well_the_second_time() -> None:
    build = Build()
    build.ask(1)
    build.done(1, 9, seen=sight(kills=1))
    assert build.heard() == [(1, b"run"), (1, b"run")]
    build.done(1)
    assert build.heard() == [(1, b"0")] and build.broker.failure is None


def test_an_oom_kill_before_a_run_does_not_explain_its_end() -> None:
    build = Build()
    build.ask(1, b"g++", b"-c", b"a.cpp", seen=sight(kills=7))
    build.done(1, 9, seen=sight(kills=7))
    assert build.broker.stop_reason == "the compiler of a.cpp was killed by signal 9"


def test_a_compile_error_is_one_also_while_memory_is_low() -> None:
    build = Build()
    build.ask(1)
    build.done(1, 1 << 8, ERROR, SHORT)
    assert build.events[-1].outcome == "failed"
    assert build.broker.failure == Failure("1.cpp", 1, "a.cpp:1:5: error: expected unqualified-id")


@pytest.mark.parametrize("said", [b"", b"Killed by an angry test\n"])
def test_a_compiler_that_exits_with_137_by_itself_has_failed(said: bytes) -> None:
    build = Build()
    build.ask(1)
    build.done(1, 137 << 8, said)
    assert build.events[-1].outcome == "failed" and not build.broker.stop_reason
    assert build.broker.failure == Failure("1.cpp", 137, "")


def test_an_explicit_number_is_kept_to_and_memory_minded_all_the_same() -> None:
    def many(build: Build) -> Build:
        for number in range(1, 60):
            build.ask(number, b"nvcc", b"-c", b"a.cu")
        return build

    guarded = many(Build(jobs=128, cpus=128))
    assert len(guarded.broker.running()) == 20  # 3 GiB each, of 60
    assert guarded.broker.held == "it needs up to 3.0 GiB"
    assert len(many(Build(jobs=7, cpus=128)).broker.running()) == 7
    build = many(Build(jobs=128, cpus=128, guard=False))
    assert len(build.broker.running()) == 59
    build.observe({1: 1.0, 2: 1.0}, free=0.1)
    assert build.doomed() == []


FOUR = b"-gencode=arch=compute_%d,code=sm_%d"
ARCHS = tuple(FOUR % (arch, arch) for arch in (80, 90, 100, 120))


@pytest.mark.parametrize(
    ("words", "append", "expected"),
    [
        ((b"--threads", b"4"), b"", b"[] nvcc -c a.cu --threads 2"),
        ((), b"--threads 4", b"[--threads 2] nvcc -c a.cu"),
        ((b"-t8",), b"-O1 -t=4", b"[-O1 -t=2] nvcc -c a.cu -t8"),
    ],
)
def test_threads_are_cut_to_what_fits(words: tuple[bytes, ...], append: bytes, expected: bytes) -> None:
    build = Build(jobs=8, cpus=8)
    build.observe({}, free=11, seconds=60)  # less a reserve of 4; long ago there was more
    build.ask(1, b"nvcc", b"-c", b"a.cu", *words, *ARCHS, append=append, seen=sight(11))
    assert build.ran() == [b" ".join([expected, *ARCHS])]


@pytest.mark.parametrize(
    ("words", "append", "expected"),
    [
        ((), b"", b"[] nvcc -c a.cu %s --threads 4"),
        ((), b"-O1", b"[-O1] nvcc -c a.cu %s --threads 4"),
        ((b"--threads=2",), b"", b"[] nvcc -c a.cu --threads=4 %s"),
        ((), b"-t 2", b"[-t 4] nvcc -c a.cu %s"),
    ],
)
def test_threads_are_raised_when_cpus_are_idle(words: tuple[bytes, ...], append: bytes, expected: bytes) -> None:
    build = Build(jobs=8, cpus=8, free_threads=True)
    build.ask(1, b"nvcc", b"-c", b"a.cu", *words, *ARCHS, append=append)
    assert build.ran() == [expected % b" ".join(ARCHS)]
    assert build.broker.jobs[1].threads == 4


def test_threads_that_somebody_has_said_are_not_raised() -> None:
    build = Build(jobs=8, cpus=8, free_threads=False)
    build.ask(1, b"nvcc", b"-c", b"a.cu", b"--threads", b"2", *ARCHS)
    assert build.ran() == [b" ".join([b"[] nvcc -c a.cu --threads 2", *ARCHS])]


def test_a_run_that_was_watched_leaves_a_curve() -> None:
    build = Build()
    build.ask(1)
    for held in (0.5, 2.0, 1.0):
        build.observe({1: held}, free=60)
    build.say(1, b"done", b"0", b"1024", b"4.0", b"")
    event = build.events[0]
    assert (event.alone, event.peak) == (4.0, 2 * GIB)
    assert len(event.curve) == 16 and max(event.curve) == 2 * GIB and event.curve[-1] == GIB
    assert event.entry.startswith("project\tg++\t1.cpp\t") and event.entry.endswith(":1")


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
    assert build.heard() == [(1, b"1")] and states(build)[2] == "waiting"


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
    assert build.broker.stop_reason == "the compile of 2.cpp was killed"
    build.heard()
    build.done(1)
    build.ask(4)
    assert (4, b"run") not in build.heard()


def test_a_job_that_is_signalled_stops_the_build() -> None:
    build = Build()
    build.ask(1)
    build.say(1, b"signalled", b"15")
    assert build.broker.stop_reason == "the compile of 1.cpp received SIGTERM"


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


FIT = Fit("torch 2.14", 20, ("/torch/include",), "nvcc 13.0", ("80", "90"), "8.0")


def test_what_does_not_fit_is_changed_and_said_once() -> None:
    build = Build(fit=FIT)
    for number in (1, 2):
        build.ask(number, b"/shim/nvcc", b"-c", b"a.cu", b"-I/torch/include", b"-std=c++17")
    said = b"safe-ext-build: -std=c++17 is raised to c++20, the least that torch 2.14 compiles with\n"
    assert [fields for _, fields in build.sent if fields[0] == b"say"] == [[b"say", said]]
    assert build.sent[0] == (1, [b"say", said])  # before the compiler says anything
    assert build.ran() == [b"[] /cuda/nvcc -c a.cu -I/torch/include -std=c++20"] * 2


def test_flags_before_the_command_are_changed_too() -> None:
    build = Build(fit=FIT)
    words = (b"/shim/nvcc", b"-c", b"a.cu", b"-I/torch/include")
    build.say(1, b"job", b"/cwd", b"-std=c++17", b"-O1", *words)
    fields = build.sent[-1][1]
    assert fields[6:8] == [b"-std=c++20", b"-O1"] and fields[8:] == [b"/cuda/nvcc", *words[1:]]


def test_what_cannot_fit_ends_without_being_run() -> None:
    build = Build(fit=FIT)
    build.ask(1)
    build.ask(2, b"/shim/nvcc", b"-c", b"a.cu", b"-arch=sm_70")
    error = "compiled for sm_70 only, which nvcc 13.0 does not know; it knows 80, 90"
    assert build.sent[-1] == (2, [b"say", b"safe-ext-build: error[SEB-6005]: a.cu: " + error.encode() + b"\n"])
    build.done(1)
    assert not build.gone(1) and build.heard()[-1] == (2, b"1")
    assert build.broker.failure == Failure("a.cu", 1, error, situation="SEB-6005")
    assert ready(build) == 1002


def test_without_ninja_what_cannot_fit_fails_at_once() -> None:
    build = Build(ninja=False, fit=FIT)
    build.ask(1, b"/shim/nvcc", b"-c", b"a.cu", b"-arch=sm_70")
    assert build.heard() == [(1, b"say"), (1, b"1")]
    assert not build.gone(1) and not build.broker.stop_reason


def test_another_nvcc_is_left_to_itself() -> None:
    build = Build(fit=FIT)
    build.ask(1, b"/other/nvcc", b"-c", b"a.cu", b"-arch=sm_70")
    assert build.ran() == [b"[] /other/nvcc -c a.cu -arch=sm_70"]


def test_a_quoted_compiler_of_two_words_is_run() -> None:
    build = Build()
    build.ask(1, b"ccache g++", b"-c", b"a.cpp")
    assert build.ran() == [b"[] ccache g++ -c a.cpp"]


def test_what_is_no_compile_any_more_is_run_as_it_is() -> None:
    build = Build(fit=FIT)
    build.ask(1, b"/shim/nvcc", b"-gencode=arch=compute_80,code=sm_80", b"-arch", b"sm_70")
    build.ask(2, b"/shim/nvcc", b"--dryrun", b"-c", b"a.cu", b"-arch=sm_70")
    assert build.heard() == [(1, b"pass"), (2, b"pass")]


def test_the_report_hears_of_starts_and_of_memory() -> None:
    build = Build(jobs=1)
    build.ask(1, b"nvcc", b"-gencode=arch=compute_80,code=sm_80", b"-c", b"a.cu", b"-o", b"a.o")
    build.ask(2)
    build.broker.note({1: (2 * GIB, 1.0)}, build.now, sight(30).memory)
    start, memory = build.notes
    assert (start.kind, start.source, start.job, start.waited, start.cuda) == ("start", "a.cu", 1, 0.0, True)
    assert (memory.kind, memory.held, memory.available) == ("memory", 2 * GIB, 30 * GIB)
    assert (memory.budget, memory.total, memory.running, memory.waiting) == (28 * GIB, 64 * GIB, 1, 1)
    assert memory.why == "1 compile runs, as many as allowed"
    build.say(1, b"done", b"0", b"1024", b"0.5", b"", b"1")
    assert (build.events[0].job, build.events[0].targets, build.events[0].torch_header) == (1, "80", True)


def test_the_report_hears_who_killed_for_memory() -> None:
    build = Build()
    build.ask(1)
    build.done(1, 9, seen=sight(kills=1))
    assert build.events[-1].why == "killed by the kernel"
    build.broker.jobs[1].doomed = True
    build.done(1, 9)
    assert build.events[-1].why == "stopped to make room"


def test_the_report_hears_of_freezes(monkeypatch: pytest.MonkeyPatch) -> None:
    build = Build()
    build.ask(1)
    for decision in (Decision(freeze=[1]), Decision(thaw=[1])):
        monkeypatch.setattr(build.broker.scheduler, "decide", lambda *_, told=decision: told)
        build.broker.step(build.now, CALM)
    assert [stop for _, stop in build.broker.paused] == [True, False]
    assert [(event.kind, event.job) for event in build.notes] == [("start", 1), ("freeze", 1), ("thaw", 1)]
