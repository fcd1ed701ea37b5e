"""J against a real socket: what it runs, what it publishes, what it leaves when it is interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from schedule_server import Connection, Server

from safe_ext_build.launcher.call import FOR_COMPILERS
from safe_ext_build.schedule import job as job_module


class Bench:
    """A place where one J runs. `workspace/1` is its private directory."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.server = Server(place / "s")
        self.directory = place / "workspace" / "1"
        self.connections: list[Connection] = []
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(
        self, *command: str, real: str = "", merged: bool = False, environ: dict[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        words = [sys.executable, "-I", "-S", "-E", str(job_module.__file__), str(self.server.path), real, *command]
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("SAFE_EXT_BUILD")}
        process = subprocess.Popen(
            words,
            cwd=self.place,
            env={**inherited, **(environ or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if merged else subprocess.PIPE,
        )
        self.processes.append(process)
        return process

    def asked(self) -> tuple[Connection, list[bytes]]:
        connection = self.server.accept()
        self.connections.append(connection)
        fields = connection.receive()
        assert fields is not None and fields[0] == b"job"
        return connection, fields

    def run(
        self,
        connection: Connection,
        *command: str,
        out: str = "",
        final: str = "",
        dep: str = "",
        prepend: str = "",
        append: str = "",
    ) -> None:
        paths = [str(self.place / name) if name else "" for name in (out, final, dep)]
        words = [str(self.directory), *paths, "1", prepend, append, *command]
        connection.send(b"run", *map(os.fsencode, words))

    def close(self) -> None:
        for connection in self.connections:
            connection.close()
        self.server.close()
        for process in self.processes:
            process.communicate(timeout=10)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    found = Bench(tmp_path)
    yield found
    found.close()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def sh(script: str) -> tuple[str, str, str]:
    return ("/bin/sh", "-c", script)


def finish(
    bench: Bench, *command: str, merged: bool = True, **paths: str
) -> tuple[int, bytes, bytes, list[bytes]]:
    """One whole job: exit status, stdout, stderr, and what it said when it was done."""
    process = bench.start("compiler", merged=merged)
    connection, _ = bench.asked()
    bench.run(connection, *command, **paths)
    fields = connection.receive()
    if fields and fields[0] == b"started":
        fields = connection.receive()
    assert fields is not None and fields[0] == b"done"
    status = int(fields[1])
    connection.send(b"end", b"%d" % (128 + (status & 127) if status & 127 else status >> 8))
    out, err = process.communicate(timeout=10)
    return process.returncode, out, err or b"", fields


def test_it_says_what_it_was_called_with(bench: Bench) -> None:
    flags = {"NVCC_PREPEND_FLAGS": "-t 2", "NVCC_APPEND_FLAGS": "-O1"}
    bench.start("nvcc", "-c", "a b.cu", "", os.fsdecode(b"\xff"), real="/real/nvcc", environ=flags)
    connection, fields = bench.asked()
    cwd = os.fsencode(bench.place)
    assert fields == [b"job", cwd, b"-t 2", b"-O1", b"/real/nvcc", b"-c", b"a b.cu", b"", b"\xff"]
    connection.send(b"end", b"0")


def test_a_question_is_run_as_it_is(bench: Bench) -> None:
    process = bench.start(*sh('echo out; echo err >&2; test -z "$SAFE_EXT_BUILD_JOB" && exit 3'))
    connection, _ = bench.asked()
    connection.send(b"pass")
    assert process.communicate(timeout=10) == (b"out\n", b"err\n")
    assert process.returncode == 3


def test_a_compile_is_published_in_one_step_and_leaves_nothing_else(bench: Bench) -> None:
    (bench.place / "a.o").write_text("old\n")
    script = "echo new > a.seb-1.o; cat a.o; ls workspace/1; readlink workspace/1/output workspace/1/depfile"
    code, out, _, fields = finish(bench, *sh(script), out="a.seb-1.o", final="a.o", dep="a.d")
    listing = f"old\ndepfile\nout\noutput\ntmp\n{bench.place}/a.seb-1.o\n{bench.place}/a.d\n"
    assert (code, out.decode()) == (0, listing)
    assert (bench.place / "a.o").read_text() == "new\n"
    assert names(bench.place) == ["a.o", "s", "workspace"]
    assert names(bench.place / "workspace") == []
    assert fields[1] == b"0" and int(fields[2]) > 0 and float(fields[3]) >= 0 and fields[4] == b""


def test_a_failure_leaves_neither_output_nor_depfile_but_what_was_there(bench: Bench) -> None:
    (bench.place / "a.o").write_text("old")
    script = "echo half > a.seb-1.o; echo half > a.d; echo a.c:1: error: no >&2; exit 7"
    code, out, _, fields = finish(bench, *sh(script), out="a.seb-1.o", final="a.o", dep="a.d")
    assert (code, out) == (7, b"a.c:1: error: no\n")
    assert fields[1] == b"1792" and fields[4] == out
    assert names(bench.place) == ["a.o", "s", "workspace"]
    assert (bench.place / "a.o").read_text() == "old"


def test_a_compiler_that_writes_no_output_has_still_succeeded(bench: Bench) -> None:
    assert finish(bench, "/bin/true", out="a.seb-1.o", final="a.o")[0] == 0


def test_a_device_is_never_removed(bench: Bench) -> None:
    fifo = bench.place / "pipe"
    os.mkfifo(fifo)
    assert finish(bench, "/bin/false", dep="pipe")[0] == 1
    assert fifo.exists()


def test_again(bench: Bench) -> None:
    process = bench.start("compiler", merged=True)
    connection, _ = bench.asked()
    script = "echo first; echo half > a.seb-1.o; kill -9 $$"
    bench.run(connection, *sh(script), out="a.seb-1.o", final="a.o")
    assert (connection.receive() or [b""])[0] == b"started"
    done = connection.receive()
    assert done is not None and done[1] == b"9"
    assert not (bench.place / "a.seb-1.o").exists()
    bench.run(connection, *sh("echo second; echo whole > a.seb-1.o"), out="a.seb-1.o", final="a.o")
    assert (connection.receive() or [b""])[0] == b"started"
    assert (connection.receive() or [b""])[1] == b"0"
    connection.send(b"end", b"0")
    assert process.communicate(timeout=10)[0] == b"second\n"  # a run that is not the last is never seen
    assert (bench.place / "a.o").read_text() == "whole\n"


def test_when_the_supervisor_is_gone_so_is_the_compiler(bench: Bench) -> None:
    process = bench.start("compiler")
    connection, _ = bench.asked()
    script = "trap '' TERM; echo half > a.seb-1.o; sleep 60 & echo $! > pid; wait; sleep 60"
    bench.run(connection, *sh(script), out="a.seb-1.o", final="a.o", dep="a.d")
    started = connection.receive()
    assert started is not None
    wait_for(lambda: (bench.place / "pid").exists() and (bench.place / "pid").read_text().strip())
    child = int((bench.place / "pid").read_text())
    connection.close()
    assert process.communicate(timeout=5) == (b"", b"")
    assert process.returncode == 1
    wait_for(lambda: not alive(child) and not alive(int(started[1])))
    assert names(bench.place) == ["pid", "s", "workspace"]
    assert names(bench.place / "workspace") == []


@pytest.mark.parametrize("when", ["before admission", "before the end"])
def test_when_the_supervisor_is_gone_a_job_that_waits_ends(bench: Bench, when: str) -> None:
    process = bench.start("compiler")
    connection, _ = bench.asked()
    if when == "before the end":
        bench.run(connection, "/bin/true")
        assert connection.receive() and connection.receive()
    connection.close()
    process.communicate(timeout=5)
    assert process.returncode == 1


def test_when_there_is_no_supervisor_nothing_is_run(bench: Bench) -> None:
    bench.server.close()
    bench.server.path.unlink()
    process = bench.start(*sh("touch ran"))
    _, err = process.communicate(timeout=5)
    assert process.returncode == 1 and err.startswith(b"safe-ext-build: ")
    assert not (bench.place / "ran").exists()


def test_a_dead_compilers_tools_do_not_live_on(bench: Bench) -> None:
    finish(bench, *sh("sleep 60 >/dev/null 2>&1 & echo $! > pid; kill -9 $$"))
    child = int((bench.place / "pid").read_text())
    wait_for(lambda: not alive(child))


def wait_for(condition: object) -> None:
    assert callable(condition)
    for _ in range(500):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("waited for nothing")


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(
    "data",
    [b"", b"no newline", b"\xff\xfe\x00\x01\r\n\n", bytes(range(256)) * 4096],
    ids=["nothing", "no newline", "no text", "1 MiB"],
)
def test_output_passes_undamaged(bench: Bench, data: bytes) -> None:
    (bench.place / "data").write_bytes(data)
    code, out, err, _ = finish(bench, *sh("cat data; cat data >&2; exit 1"), merged=False)
    assert (code, out == data, err == data) == (1, True, True)


def test_the_order_of_both_streams_is_kept_when_they_are_one(bench: Bench) -> None:
    script = "for n in 1 2 3 4 5; do echo o$n; echo e$n >&2; done; printf end"
    _, out, _, fields = finish(bench, *sh(script + "; exit 1"))
    assert out == b"".join(b"o%d\ne%d\n" % (n, n) for n in range(1, 6)) + b"end"
    assert fields[4] == out


@pytest.mark.parametrize("between", [0, 1, 100, 2 * job_module.EXCERPT - 10, 100_000])
def test_the_report_is_the_beginning_and_the_end_of_what_was_said(bench: Bench, between: int) -> None:
    said = b"a\0b: error\n" + b"m" * between + b"end"
    (bench.place / "data").write_bytes(said)
    _, _, _, fields = finish(bench, *sh("cat data; exit 1"))
    size = job_module.EXCERPT
    expected = said if len(said) <= 2 * size else said[:size] + said[-size:]
    assert len(fields) == 5 and fields[4] == expected.replace(b"\0", b"?")


@pytest.mark.parametrize(
    ("flags", "seen"),
    [
        ({}, "[][]"),
        ({"append": "-O1 --threads 2"}, "[][-O1 --threads 2]"),
        ({"prepend": "-g", "append": "-O1"}, "[-g][-O1]"),
    ],
)
def test_the_compiler_gets_the_flags_that_the_supervisor_says(
    bench: Bench, flags: dict[str, str], seen: str
) -> None:
    environ = {"NVCC_PREPEND_FLAGS": "-std=c++17", "NVCC_APPEND_FLAGS": "-O1"}
    process = bench.start("compiler", merged=True, environ=environ)
    connection, _ = bench.asked()
    bench.run(connection, *sh('echo "[$NVCC_PREPEND_FLAGS][$NVCC_APPEND_FLAGS]"'), **flags)
    assert connection.receive() and connection.receive()
    connection.send(b"end", b"0")
    assert process.communicate(timeout=10)[0] == seen.encode() + b"\n"


def test_it_says_what_the_supervisor_has_to_say(bench: Bench) -> None:
    process = bench.start("compiler", merged=True)
    connection, _ = bench.asked()
    connection.send(b"say", b"raised\n")
    connection.send(b"say", b"left out\n")
    bench.run(connection, *sh("echo compiled"))
    assert connection.receive() and connection.receive()
    connection.send(b"end", b"0")
    assert process.communicate(timeout=10)[0] == b"raised\nleft out\ncompiled\n"


def test_what_is_refused_is_not_run(bench: Bench) -> None:
    process = bench.start("compiler")
    connection, _ = bench.asked()
    connection.send(b"say", b"error: no\n")
    connection.send(b"end", b"1")
    assert process.communicate(timeout=10)[1] == b"error: no\n"
    assert process.returncode == 1


def test_a_terminal_that_somebody_made_non_blocking_gets_everything(bench: Bench) -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    words = [
        sys.executable,
        "-c",
        "import os, sys; sys.path[:0] = [sys.argv[1]]; import job; job.write(1, b'x' * 300000)",
    ]
    process = subprocess.Popen([*words, str(Path(job_module.__file__).parent)], stdout=writer)
    os.close(writer)
    time.sleep(0.2)
    with os.fdopen(reader, "rb") as file:
        assert len(file.read()) == 300000
    assert process.wait(timeout=5) == 0


@pytest.mark.parametrize(
    ("script", "status", "code"),
    [
        ("exit 0", 0, 0),
        ("exit 1", 256, 1),
        ("exit 255", 255 << 8, 255),
        ("kill -9 $$", 9, 137),
        ("kill -15 $$", 15, 143),
    ],
)
def test_exit_statuses_and_signals_are_told(bench: Bench, script: str, status: int, code: int) -> None:
    found, _, _, fields = finish(bench, *sh(script))
    assert (found, int(fields[1])) == (code, status)


def test_a_compiler_that_is_not_there(bench: Bench) -> None:
    code, out, _, _ = finish(bench, "no-such-compiler", "-c", "a.c", out="a.seb-1.o", final="a.o")
    assert code == 127
    assert out == b"safe-ext-build: cannot run no-such-compiler: No such file or directory\n"


def test_a_nested_job_is_its_jobs_own_business(bench: Bench) -> None:
    environ = {"SAFE_EXT_BUILD_JOB": "1"}
    process = bench.start("nvcc", "-c", "exit 5", real="/bin/sh", environ=environ)
    assert process.wait(timeout=5) == 5
    missing = bench.start("no-such-compiler", environ=environ)
    _, err = missing.communicate(timeout=5)
    assert missing.returncode == 127 and err.startswith(b"safe-ext-build: cannot run no-such-compiler")


def test_each_job_has_a_directory_for_temporary_files_of_its_own(bench: Bench) -> None:
    script = (
        "echo $TMPDIR $SAFE_EXT_BUILD_JOB; mkdir -p $TMPDIR/a/b; echo x > $TMPDIR/a/b/c; ln -s /etc $TMPDIR/a/d"
    )
    _, out, _, _ = finish(bench, *sh(script))
    assert out.decode() == f"{bench.directory}/tmp 1\n"
    assert names(bench.place / "workspace") == [] and Path("/etc/passwd").exists()


def test_a_compiler_finds_signals_as_everywhere_else(bench: Bench) -> None:
    _, out, _, _ = finish(bench, "/bin/grep", "^SigIgn", "/proc/self/status")
    assert ignored(out.split()[1]) == 0
    process = bench.start("/bin/grep", "^SigIgn", "/proc/self/status")
    connection, _ = bench.asked()
    connection.send(b"pass")
    assert ignored(process.communicate(timeout=5)[0].split()[1]) == 0


def ignored(mask: bytes) -> int:
    """Of the standard signals; those above are libc's own."""
    return int(mask, 16) & 0x7FFFFFFF


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_signals_are_forwarded_and_told(bench: Bench, number: signal.Signals) -> None:
    process = bench.start("compiler")
    connection, _ = bench.asked()
    bench.run(connection, "/bin/sleep", "60")
    assert connection.receive()
    process.send_signal(number)
    assert connection.receive() == [b"signalled", b"%d" % number]
    done = connection.receive()
    assert done is not None and int(done[1]) & 0x7F == number
    process.send_signal(number)  # and now it only waits: a signal ends it as it would end a compiler
    process.communicate(timeout=5)
    assert process.returncode == -number
    assert names(bench.place / "workspace") == []


@pytest.mark.parametrize(
    ("depfile", "said"),
    [
        ("a.o: a.cu \\\n /env/torch/include/torch/extension.h\n", b"1"),
        ("a.o: a.cu /env/torch/include/torch/types.h\n", b"0"),
        ("", b""),
    ],
)
def test_a_depfile_tells_whether_torch_extension_h_is_included(bench: Bench, depfile: str, said: bytes) -> None:
    script = f"printf %s '{depfile}' > a.d; echo o > a.seb-1.o" if depfile else "echo o > a.seb-1.o"
    _, _, _, fields = finish(bench, *sh(script), out="a.seb-1.o", final="a.o", dep="a.d")
    assert fields[5] == said


def test_a_depfile_that_is_a_pipe_is_not_read(bench: Bench) -> None:
    _, _, _, fields = finish(bench, *sh("mkfifo a.d; echo o > a.seb-1.o"), out="a.seb-1.o", final="a.o", dep="a.d")
    assert fields[5] == b""


def test_names_are_for_the_compiler_and_directories_for_everybody_else(bench: Bench) -> None:
    """See launcher/names.py; and a variable that only this compile has."""
    process = bench.start("compiler", merged=True)
    connection, _ = bench.asked()
    connection.send(b"with", b".seb/src=/home/u/a=b\n.seb/here=/tmp", b"CCACHE_DEPEND=1\nX=a=b", b"", b"")
    script = """echo ".seb/here/a.o: .seb/src/a.c other/.seb.h" > a.d; echo "$CCACHE_DEPEND $X"
    echo ".seb/src/a.c:1: warning" >&2"""
    bench.run(connection, *sh(script), dep="a.d")
    assert (connection.receive() or [b""])[0] == b"started"
    assert (connection.receive() or [b""])[:2] == [b"done", b"0"]
    connection.send(b"end", b"0")
    assert process.communicate(timeout=10)[0] == b"1 a=b\n/home/u/a=b/a.c:1: warning\n"
    assert (bench.place / "a.d").read_text() == "/tmp/a.o: /home/u/a=b/a.c other/.seb.h\n"


def test_what_opens_a_storage_is_shown_neither_to_the_user_nor_to_the_supervisor(bench: Bench) -> None:
    process = bench.start("compiler", merged=True)
    connection, _ = bench.asked()
    connection.send(b"with", b"", b"", b"longer-secret\nsecret", b"")
    bench.run(connection, *sh("echo no redis://longer-secret@c, nor secret >&2; exit 1"))
    connection.receive()
    done = connection.receive()
    assert done and done[4] == b"no redis://***@c, nor ***\n"
    connection.send(b"end", b"1")
    assert process.communicate(timeout=10)[0] == b"no redis://***@c, nor ***\n"


def test_an_error_is_told_with_directories(bench: Bench) -> None:
    process = bench.start("compiler", merged=True)
    connection, _ = bench.asked()
    connection.send(b"with", b".seb/src=/p", b"", b"", b"")
    bench.run(connection, *sh("echo .seb/src/a.c:1: error: no >&2; exit 1"))
    connection.receive()
    done = connection.receive()
    assert done and done[4] == b"/p/a.c:1: error: no\n"
    connection.send(b"end", b"1")
    assert process.communicate(timeout=10)[0] == b"/p/a.c:1: error: no\n"


def test_what_leaves_takes_nothing_along_but_what_compilers_look_at(bench: Bench) -> None:
    """Of what a farm is sent, every variable is a part."""
    secret = {"FARM_TEST_TOKEN": "s3cr3t", "AWS_SECRET_ACCESS_KEY": "s3cr3t", "CPATH": "/include"}
    process = bench.start("compiler", merged=True, environ={**secret, "NVCC_APPEND_FLAGS": "-O1"})
    connection, _ = bench.asked()
    for keeps in (FOR_COMPILERS, ()):
        connection.send(b"with", b"", b"SCCACHE_SERVER_UDS=/w/farm", b"", "\n".join(keeps).encode())
        bench.run(connection, *sh("env; exit 1"), append="-O1")
        assert [(connection.receive() or [b""])[0] for _ in range(2)] == [b"started", b"done"]
        found = dict(line.split("=", 1) for line in (bench.directory / "out").read_text().splitlines())
        ours = {"SCCACHE_SERVER_UDS", "TMPDIR", "SAFE_EXT_BUILD_JOB", "NVCC_APPEND_FLAGS"}
        assert (found["CPATH"], found["SCCACHE_SERVER_UDS"]) == ("/include", "/w/farm")
        if keeps:
            assert set(found) <= {*FOR_COMPILERS, *ours, "PWD", "SHLVL", "_"}  # the last are the shell's own
        else:
            assert found["FARM_TEST_TOKEN"] == "s3cr3t", "what comes back has all that a build has"
    connection.send(b"end", b"0")
    process.communicate(timeout=10)
