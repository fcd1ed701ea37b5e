"""How far a build is: what is said of it in how much room, and what terminals of all kinds show in the end."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shlex
import signal
import struct
import subprocess
import sys
import termios
import tty
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pyte
import pytest
from kill_harness import Project, build_again
from screens import Screen, on_a_terminal

from safe_ext_build.events import Event
from safe_ext_build.supervise import progress, terminal
from safe_ext_build.supervise.status import Running, Status

GIB = 1 << 30
SETUP = [sys.executable, "-m", "safe_ext_build", "run", "--", sys.executable, "setup.py", "-q", "build"]
FIRST = {"0_first": "seconds=0.05 say=hello"}
SOURCES = FIRST | dict.fromkeys(("1_a", "1_b", "1_c"), "seconds=60")
QUICK = FIRST | dict.fromkeys(("1_a", "1_b", "1_c"), "seconds=2")
BAR = re.compile(r"1/4  .*\b2 run, 1 held\b")


def status(**changes: Any) -> Status:
    jobs = (
        Running("/p/csrc/attention_forward.cu", 185.0, 1, 9 * GIB, False),
        Running("/p/y.cu", 3.0, 1, GIB, False),
        Running("/p/z.cu", 3.0, 1, GIB, True),
    )
    full = Status("b", 1, "p", "/p", "/w", 12, 73, jobs, 2, "", 14 * GIB, 22 * GIB, None)
    return replace(full, **changes)


# What is said.


def plain(text: str) -> str:
    return re.sub(r"\x1b\[\d*m", "", text)


def bar(now: Status, seconds: float | None, width: int, unicode: bool = False, color: bool = False) -> str:
    return progress.bar(now, seconds, width, unicode=unicode, color=color)


@pytest.mark.parametrize(
    ("width", "text"),
    [
        (20, "12/73  ~31 min left"),
        (30, "[------]  12/73  ~31 min left"),
        (48, "[#--------]  12/73  ~31 min left  2 run, 3 held"),
        (70, "[##-----------]  12/73  ~31 min left  2 run, 3 held  14.0 of 22.0 GiB"),
        (
            100,
            "[##-------------]  12/73  ~31 min left  2 run, 3 held  14.0 of 22.0 GiB  attention_forward.cu 3 min",
        ),
    ],
)
def test_what_matters_most_comes_first(width: int, text: str) -> None:
    assert bar(status(), 31 * 60.0, width) == text


def test_the_farm_is_in_the_bar_where_there_is_room() -> None:
    farm = status(remote=2, slots=6, farmed=3)
    assert "  2 run, 2 of them on the farm, 3 held  14.0 of" in bar(farm, 31 * 60.0, 100)
    assert bar(farm, 31 * 60.0, 48) == bar(status(), 31 * 60.0, 48)


@pytest.mark.parametrize("unicode", [False, True])
@pytest.mark.parametrize("color", [False, True])
def test_a_bar_fits_into_any_width(unicode: bool, color: bool) -> None:
    states = [
        status(),
        status(remote=2),
        status(total=0),
        status(compiled=73, running=(), waiting=0),
        status(failed="/p/x.cu"),
        status(total=12345, compiled=12000),
        status(running=(Running("/p/" + "long" * 50 + ".cu", 1.0, 1, 0, False),)),
    ]
    for state in states:
        for seconds in (None, 3.0, 7500.0):
            for width in range(progress.NARROWEST, 240):
                text = plain(bar(state, seconds, width, unicode, color))
                assert len(text) < width, text
                assert str(state.compiled) in text
                assert unicode or text.isascii()


def test_the_gauge() -> None:
    assert "━━━━┈" in bar(status(), None, 200, unicode=True)
    assert "[####------------------------]  12/73  " in bar(status(), None, 200)
    assert "[" not in bar(status(total=0), None, 200), "nobody knows how much there is"
    assert bar(status(), None, 200, color=True).startswith("\x1b[32m[")
    failed = bar(status(failed="/p/x.cu"), None, 200, color=True)
    assert failed.startswith("\x1b[31m[")
    assert failed.endswith("x.cu has failed")


def test_a_name_cannot_move_the_cursor() -> None:
    evil = status(running=(Running("/p/\x1b[2Ja\u0301\u4e2d\n.cu", 1.0, 1, 0, False),))
    for unicode in (True, False):
        assert plain(bar(evil, None, 200, unicode)).endswith("?[2Ja???.cu 1 s")


def test_the_line_of_a_finished_object() -> None:
    event = Event("job", 0.0, "/p/csrc/norm.cu", "compiled", seconds=42.0, peak=2 * GIB, threads=2)
    line = progress.finished(event, 12, status(), 60.0)
    assert line == "[12/73] norm.cu 42 s with 2 threads, 2.0 GiB (~1 min left, 2 run, 3 held, 14.0 of 22.0 GiB)"
    remote = progress.finished(replace(event, remote=True, peak=GIB // 4), 12, status(remote=2), None)
    rest = "(2 run, 2 of them on the farm, 3 held, 14.0 of 22.0 GiB)"
    assert remote == f"[12/73] norm.cu 42 s on the farm, 0.2 GiB here {rest}"
    alone = status(total=0, compiled=1, running=(), waiting=0)
    assert progress.finished(event, 1, alone, None) == "[1] norm.cu 42 s with 2 threads, 2.0 GiB"


def test_what_a_configure_step_tries_out_is_no_object() -> None:
    for source, worth in (
        ("/p/csrc/norm.cu", True),
        ("/p/build/CMakeFiles/CMakeScratch/TryCompile-x/CheckCompilerFlag.cxx", False),
        ("/p/build/CMakeFiles/4.0/CompilerIdCUDA/CMakeCUDACompilerId.cu", False),
        ("/p/build/meson-private/tmpab12cd34/testfile.cu", False),
    ):
        assert progress.is_worth_a_line(Event("job", 0.0, source, "compiled")) is worth
    assert not progress.is_worth_a_line(Event("job", 0.0, "/p/a.cu", "failed"))


def test_the_time_left() -> None:
    assert progress.left(status(expected=600.0), 60.0) == 600.0
    assert progress.left(status(), 120.0) == 610.0, "by the pace so far"
    assert progress.left(status(expected=0.0), 120.0) == 610.0, "compiles that use no CPU have no history"
    assert progress.left(status(compiled=2), 120.0) is None
    assert progress.left(status(total=0), 120.0) is None


@pytest.mark.parametrize(
    ("known", "environ"),
    [
        (False, {}),
        (False, {"TERM_PROGRAM": "Apple_Terminal"}),
        (True, {"WT_SESSION": "1"}),
        (False, {"WT_SESSION": "1", "TMUX": "/tmp/tmux"}),
        (True, {"ConEmuANSI": "ON"}),
        (True, {"TERM_PROGRAM": "WezTerm"}),
        (True, {"TERM_PROGRAM": "ghostty", "TERM_PROGRAM_VERSION": "1.2.0"}),
        (False, {"TERM_PROGRAM": "ghostty", "TERM_PROGRAM_VERSION": "1.1.3"}),
        (True, {"TERM_PROGRAM": "iTerm.app", "TERM_FEATURES": "T3LrMSc7UUw9Ts3BFGsSyHNoSxFP"}),
        (False, {"TERM_PROGRAM": "iTerm.app", "TERM_FEATURES": "T3LrMSc7UUw9Ts3BFGsSyHNoSxF"}),
        (True, {"PTYXIS_VERSION": "48.0"}),
        (True, {"KONSOLE_VERSION": "260401"}),
        (False, {"KONSOLE_VERSION": "251203"}),
    ],
)
def test_terminals_with_a_taskbar(known: bool, environ: dict[str, str]) -> None:
    assert progress.has_taskbar(environ) is known


@pytest.mark.parametrize(
    ("known", "environ"),
    [
        (True, {"LANG": "de_DE.UTF-8"}),
        (True, {"LC_ALL": "C.utf8", "LANG": "C"}),
        (False, {"LC_ALL": "C", "LANG": "C.UTF-8"}),
        (False, {}),
    ],
)
def test_locales(known: bool, environ: dict[str, str]) -> None:
    assert progress.has_unicode(environ) is known


def test_without_a_terminal_there_are_lines(tmp_path: Path) -> None:
    """pytest's own standard error is none."""
    modes: tuple[progress.Mode, ...] = ("auto", "lines", "off")
    shown = [terminal.choose(mode, {"TERM": "xterm"}, tmp_path) for mode in modes]
    assert [(show.lines, show.beat, show.terminal) for show in shown] == [
        (True, True, -1),
        (True, True, -1),
        (False, False, -1),
    ]


def test_what_is_no_terminal_any_more_is_not_written_to(tmp_path: Path) -> None:
    """The process that lent it has ended, and another one has its number."""
    file = tmp_path / "file"
    file.touch()
    environ = {"TERM": "xterm", terminal.VARIABLE: f"{file}:{os.getpid()}:{tmp_path}/drawn"}
    assert terminal.choose("auto", environ, tmp_path).terminal == -1


def test_a_terminal_without_a_size_is_a_log(tmp_path: Path) -> None:
    reader, writer = os.openpty()
    environ = {"TERM": "xterm", terminal.VARIABLE: f"/proc/self/fd/{writer}:{os.getpid()}:{tmp_path}/drawn"}
    try:
        assert terminal.choose("auto", environ, tmp_path).terminal == -1
        fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("4H", 10, 80, 0, 0))
        show = terminal.choose("auto", environ, tmp_path)
        assert os.isatty(show.terminal)
        os.close(show.terminal)
    finally:
        os.close(reader)
        os.close(writer)


def test_half_a_sequence_is_completed_before_anything_else() -> None:
    """The terminal was stopped (^S) in the middle of one; what it takes then makes sense."""
    reader, writer = os.openpty()
    tty.setraw(writer)
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("4H", 10, 80, 0, 0))
    drawn = terminal.Terminal(progress.Show(terminal=writer, owner=os.getpid(), marker=os.devnull + "/none"))
    try:
        for number in range(2000):
            drawn.draw(f"bar {number}", "", 0.0)
        seen = _all(reader)
        drawn.draw("bar 3000", "", 0.0)
        drawn.clear()
        seen += _all(reader)
    finally:
        os.close(reader)
        os.close(writer)
    screen = pyte.Screen(80, 10)
    pyte.ByteStream(screen).feed(seen)
    assert b"bar 1999" not in seen, "there was room for all of them"
    assert "".join(screen.display).strip() == ""
    assert screen.margins is None or screen.margins == (0, 9)


def _all(reader: int) -> bytes:
    found = b""
    with contextlib.suppress(BlockingIOError):
        while data := os.read(reader, 1 << 16):
            found += data
    return found


def test_who_is_in_the_foreground() -> None:
    """Who has no terminal may write where he was told to."""
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as alone:
        try:
            assert terminal.is_in_foreground(alone.pid)
        finally:
            alone.kill()
    assert not terminal.is_in_foreground(alone.pid), "it is gone"


# What is seen.


def wait_for_bar(screen: Screen, pattern: re.Pattern[str] = BAR) -> None:
    screen.build.wait_until(lambda: bool(pattern.search(screen.rows()[-1])), "the bar")


def test_a_bar_stands_below_what_compilers_print(project: Project) -> None:
    project.write_sources(QUICK)
    with on_a_terminal(project, SETUP, WT_SESSION="1") as screen:
        wait_for_bar(screen)
        row = screen.rows()[-1]
        assert re.match(r"━+┈+  1/4  2 run, 1 held  0\.\d of \d+\.\d GiB", row), row
        assert screen.emulated.margins is not None
        assert screen.build.wait() == 0
        rows = screen.rows()
        assert screen.is_clean, rows
    output = screen.build.output
    assert b"0_first.cu(1): error: hello\r\n" in output
    commands = re.findall(r"\[\d/4\] seb-job .+? -o \S+\.o(?=\[|safe-ext-build)", "".join(rows))
    assert len(commands) >= 2, "the last ones, whole"
    states = re.findall(rb"\x1b\]9;4;(\d;\d+)\x1b\\", output)
    assert states[0] in (b"1;0", b"1;25")
    assert states[-1] == b"0;0"
    assert b"[1/4] 0_first.cu" not in output


def test_resized_to_almost_nothing_and_back(project: Project) -> None:
    project.write_sources(SOURCES)
    with on_a_terminal(project, SETUP, NO_COLOR="1", LC_ALL="C") as screen:
        wait_for_bar(screen)
        assert screen.rows()[-1].isascii()
        screen.resize(20, 8)
        wait_for_bar(screen, re.compile(r"^1/4  2 run, 1 held$"))
        screen.resize(12, 8)
        screen.build.wait_until(lambda: screen.is_clean, "a clean screen")
        screen.resize(100, 24)
        wait_for_bar(screen)
        assert b"\x1b[32m" not in screen.build.output
        assert b"\x1b]" not in screen.build.output


@pytest.mark.parametrize("how", ["^C", "supervisor", "hook process and supervisor"])
def test_nothing_of_it_is_left_when_the_build_is_killed(project: Project, how: str) -> None:
    project.write_sources(SOURCES)
    with on_a_terminal(project, SETUP, ConEmuANSI="ON") as screen:
        wait_for_bar(screen)
        victims = screen.build.victims("seb-super")
        if how == "^C":
            screen.build.press(b"\x03")
            victims = []
        elif how != "supervisor":
            victims.append(screen.build.process.pid)
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        screen.build.mark("group")
        assert screen.build.seconds_to_clear() < 10
        assert screen.is_clean, screen.rows()
        assert re.findall(rb"\x1b\]9;4;(\d;\d+)\x1b\\", screen.build.output)[-1] == b"0;0"


def test_a_suspended_build_shows_nothing(project: Project) -> None:
    project.write_sources(SOURCES)
    with on_a_terminal(project, SETUP) as screen:
        wait_for_bar(screen)
        screen.build.press(b"\x1a")
        hook = psutil.Process(screen.build.process.pid)
        screen.build.wait_until(lambda: hook.status() == psutil.STATUS_STOPPED and screen.is_clean, "the stop")
        hook.send_signal(signal.SIGCONT)
        wait_for_bar(screen)


def test_where_no_cursor_moves_there_are_lines(project: Project) -> None:
    project.write_sources({"0_first": "seconds=0.05", "1": "seconds=0.3"})
    with on_a_terminal(project, SETUP, TERM="dumb") as screen:
        assert screen.build.wait() == 0
        text = screen.build.text()
    assert "\x1b" not in text
    assert re.search(r"^safe-ext-build: \[1/2\] 0_first\.cu \d+ s, 0\.\d GiB", text, re.MULTILINE), text


def test_in_a_log_each_object_has_a_line(project: Project) -> None:
    project.write_sources({f"{number}_x": "seconds=0.1 mib=200" for number in range(4)})
    lines = re.findall(r"^safe-ext-build: (\[\d/4\] .*)$", build_again(project), re.MULTILINE)
    assert [line[:12] for line in lines] == [f"[{n + 1}/4] {n}_x.cu" for n in range(4)]
    assert all(re.match(r"\[\d/4\] \d_x\.cu \d+ s, 0\.\d GiB", line) for line in lines)


@pytest.mark.frontend
def test_pip_keeps_silent_and_the_terminal_tells(project: Project) -> None:
    project.write_sources(QUICK)
    with on_a_terminal(project, project.pip(), SAFE_EXT_BUILD_PROGRESS="tty") as screen:
        wait_for_bar(screen)
        assert any("Building wheel for standin (pyproject.toml) ..." in row for row in screen.rows())
        assert screen.build.wait() == 0
        assert screen.is_clean, screen.rows()
        assert screen.rows()[-1] == "" or "Successfully built standin" in screen.rows()[-1]


def test_a_build_inside_of_another_one_uses_its_terminal(project: Project) -> None:
    """It has none itself. When it is killed, with all that watches over it, the outer one gives the row back."""
    project.write_sources(SOURCES)
    frontend = ["sh", "-c", f"{shlex.join(project.hook())} > log 2>&1 || exit 1"]
    with on_a_terminal(project, [*SETUP[:5], *frontend]) as screen:
        wait_for_bar(screen)
        inner = next(one for one in screen.build.named("seb-builder")).parent()
        assert inner is not None and inner.name() == "seb-super"
        guard = next(one for one in inner.children() if one.name() == "seb-guard")
        for process in (inner.parent(), guard, inner):
            assert process is not None
            process.kill()
        assert screen.build.wait() == 1
        assert screen.is_clean, screen.rows()


def test_in_the_background_the_terminal_is_left_alone(project: Project) -> None:
    project.write_sources(QUICK)
    code = (
        "import os, sys, termios; group = os.getpgid(0); pid = os.fork();\n"
        "if not pid: os.setpgid(0, 0); os.execvp(sys.argv[1], sys.argv[1:])\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))"
    )
    with on_a_terminal(project, [sys.executable, "-c", code, *project.hook()]) as screen:
        assert screen.build.wait() == 0, screen.rows()
    assert b"\x1b7" not in screen.build.output
