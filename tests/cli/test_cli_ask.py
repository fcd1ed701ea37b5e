"""The commands that only ask, as a user runs them: each in a process of its own."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from safe_ext_build.events import Event
from safe_ext_build.report import shelf
from safe_ext_build.report.record import Computer, Context, Planned, Record, make
from safe_ext_build.schedule.forecast import Curve
from safe_ext_build.schedule.history import History
from safe_ext_build.schedule.history_key import key

SETUP = "from torch.utils.cpp_extension import CUDAExtension\nraise SystemExit('the project ran')\n"
OURS = '[build-system]\nrequires = []\nbuild-backend = "safe_ext_build.build_meta"\n'
# A package that tells whether anybody, we or a child of ours, has imported it.
TELLTALE = "from pathlib import Path\nPath(__file__).with_name('imported').touch()\n"
VERSION = "__version__ = '2.14.1'\ncuda = None\nhip = None\n"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with a project, a home, and a torch of which only the files matter."""
    for name in ("home", "project", "site/torch"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "project" / "pyproject.toml").write_text(OURS)
    (tmp_path / "project" / "setup.py").write_text(SETUP)
    (tmp_path / "site" / "torch" / "__init__.py").write_text(TELLTALE)
    (tmp_path / "site" / "torch" / "version.py").write_text(VERSION)
    return tmp_path


def ask(
    place: Path, *arguments: str, cwd: str = "project", without: str = "", **environ: str
) -> subprocess.CompletedProcess[str]:
    """Run a command in the place's project, with caches of its own."""
    return subprocess.run(
        [sys.executable, "-m", "safe_ext_build", *arguments],
        cwd=place / cwd,
        env=environment(place, without, environ),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def environment(place: Path, without: str, more: Mapping[str, str]) -> dict[str, str]:
    ours = ("SAFE_EXT_BUILD_", "XDG_", "CUDA", "TORCH_", "MAX_JOBS", "VIRTUAL_ENV", "CONDA_PREFIX")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    kept |= {"HOME": str(place / "home"), "PYTHONPATH": str(place / "site")}
    kept |= {"SAFE_EXT_BUILD_WORKSPACE_DIR": str(place / "work"), **more}
    kept.pop(without, None)
    return kept


def files(place: Path) -> set[Path]:
    return {path for path in place.rglob("*") if "__pycache__" not in path.parts}


# doctor


def test_doctor_finds_a_machine_that_builds(place: Path) -> None:
    run = ask(place, "doctor")
    assert run.returncode == 0, run.stdout + run.stderr
    lines = run.stdout.splitlines()
    assert lines[0].startswith("safe-ext-build ") and lines[-1] == "No problem was found."
    assert "torch 2.14.1 (CPU only)" in run.stdout
    for said in (
        "build environment: ",
        "ninja 1.",
        "CPUs: ",
        "memory: host: ",
        "pidfd works",
        "a trial run worked",
    ):
        assert said in run.stdout
    assert run.stderr == ""
    assert not (place / "site" / "torch" / "imported").exists()


def test_doctor_shows_no_home_and_no_secret(place: Path) -> None:
    secret = {"PIP_INDEX_URL": "https://me:hunter2@example.org", "GITHUB_TOKEN": "hunter2"}
    for form in ([], ["--json"]):
        run = ask(place, "doctor", *form, SAFE_EXT_BUILD_WORKSPACE_DIR=str(place / "home" / "scratch"), **secret)
        assert "workspaces in ~/scratch" in run.stdout
        assert str(place / "home") not in run.stdout and "hunter2" not in run.stdout


def test_doctor_as_json_is_the_same(place: Path) -> None:
    document = json.loads(ask(place, "doctor", "--json").stdout)
    assert document["problems"] == 0
    topics = [finding["topic"] for finding in document["findings"]]
    assert {"torch", "ninja", "machine", "supervision", "space", "builds", "cache"} <= set(topics)
    (memory,) = [one["values"] for one in document["findings"] if one["values"].get("domain") == "host"]
    assert 0 < memory["available"] <= memory["total"]


@pytest.mark.parametrize(
    ("break_it", "environ", "said"),
    [
        ("settings", {}, ("PROBLEM  pyproject.toml is not valid TOML",)),
        ("torch", {}, ("PROBLEM", "fix: Install torch anew in that environment")),
        ("workspace", {}, ("PROBLEM  cannot", "fix: Set workspace.dir")),
        ("", {"CXX": "no-such-compiler"}, ("PROBLEM  CXX is 'no-such-compiler'", "fix: unset CXX")),
    ],
)
def test_doctor_says_what_to_mend(
    place: Path, break_it: str, environ: dict[str, str], said: tuple[str, ...]
) -> None:
    if break_it == "settings":
        (place / "project" / "pyproject.toml").write_text("[")
    elif break_it == "torch":
        (place / "site" / "torch" / "version.py").unlink()
    elif break_it == "workspace":
        (place / "work").touch()
    run = ask(place, "doctor", **environ)
    assert run.returncode == 1
    for text in said:
        assert text in run.stdout, run.stdout
    assert "to mend." in run.stdout.splitlines()[-1]
    assert "Traceback" not in run.stderr


def test_doctor_without_a_home(place: Path) -> None:
    run = ask(place, "doctor", cwd="home", without="HOME")
    assert run.returncode == 0, run.stdout


def test_a_pipe_that_closes_is_no_error(place: Path) -> None:
    command = f"{sys.executable} -m safe_ext_build doctor | head -n 1"
    run = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"],
        cwd=place / "project",
        env=environment(place, "", {}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.returncode, run.stderr, len(run.stdout.splitlines())) == (0, "", 1)


@pytest.mark.parametrize("command", ["history", "builds", "builds --json"])
def test_a_full_disk_is_an_error(place: Path, command: str) -> None:
    with open("/dev/full", "w") as full:
        run = subprocess.run(
            [sys.executable, "-m", "safe_ext_build", *command.split()],
            env=environment(place, "", {}),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert run.returncode == 1
    assert run.stderr == (
        "safe-ext-build: error[SEB-8011]: standard output cannot be written: No space left on device\n"
        "safe-ext-build: hint: Send it to a place with room, or to a program that reads it.\n"
    )


@pytest.mark.parametrize("command", ["doctor", "plan", "history"])
def test_a_cache_that_cannot_be_made(place: Path, command: str) -> None:
    (place / "home" / ".cache").touch()
    run = ask(place, command)
    assert (run.returncode, run.stderr) == (0, ""), run.stdout


# plan


def test_plan_decides_and_does_nothing(place: Path) -> None:
    before = files(place)
    run = ask(place, "plan")
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith(f"project in {place / 'project'}, built by setuptools.build_meta\n")
    assert "- at most " in run.stdout and "- expected time: not known" in run.stdout
    assert f"temporary files go to {place / 'work'}" in run.stdout
    assert files(place) == before
    assert "the project ran" not in run.stdout + run.stderr


def test_plan_as_json_with_a_setting(place: Path) -> None:
    document = json.loads(ask(place, "plan", "project", "--json", "-C", "jobs.max=1", cwd=".").stdout)
    assert document["jobs"]["most"] == 1
    assert any("as -C jobs.max says" in line for line in document["lines"])
    assert document["torch"]["version"] == "2.14.1" and document["toolkit"] is None


def test_plan_shows_all_it_knows_before_the_error(place: Path) -> None:
    run = ask(place, "plan", SAFE_EXT_BUILD_REQUIRE_CUDA="true")
    assert run.returncode == 1
    assert "- at most " in run.stdout
    assert "error[SEB-3007]: SAFE_EXT_BUILD_REQUIRE_CUDA in the environment asks for CUDA" in run.stderr
    assert "hint: " in run.stderr


def test_plan_fails_where_nobody_brings_the_backend(place: Path) -> None:
    run = ask(place, "plan", "-C", "backend=nosuch.backend")
    assert run.returncode == 1
    assert "error[SEB-1015]: the backend nosuch.backend is not installed" in run.stderr
    assert "built by nosuch.backend" in run.stdout, "it shows what it knows"
    (place / "project" / "nosuch").mkdir()
    assert ask(place, "plan", "-C", "backend=nosuch.backend", "-C", "backend-path=.").returncode == 0


def test_plan_knows_the_time_from_earlier_builds(place: Path) -> None:
    from safe_ext_build.toolchain.fingerprint import host_compiler

    (place / "project" / "a.cpp").touch()
    compiler = host_compiler(environment(place, "", {}))
    known = [f"{key('project', source, ['c++'], (), None, compiler)}:1" for source in ("a.cpp", "gone.cpp")]
    curve = Curve(40.0, (1 << 28,) * 16)
    history = History(place / "home" / ".cache" / "safe-ext-build" / "history.sqlite")
    assert history.record((entry, curve) for entry in known)
    run = ask(place, "plan")
    assert (
        "expected time: about 40 s for 1 compile, if all are compiled anew (a.cpp alone takes 40 s)" in run.stdout
    )


@pytest.mark.parametrize(
    ("code", "arguments", "cwd", "said"),
    [
        ("SEB-1012", ["plan"], "home", "has neither pyproject.toml nor setup.py"),
        ("SEB-8003", ["plan", "nowhere"], "project", "nowhere is no directory"),
        (
            "SEB-3004",
            ["plan", "--python", "nowhere"],
            "project",
            "--python is nowhere, which does not run as a Python",
        ),
        ("SEB-8007", ["report"], "project", "no build has left a record in ~/.cache/safe-ext-build/reports"),
        ("SEB-8007", ["report", "abc"], "project", "no build whose id begins with abc"),
        ("SEB-8006", ["report", "./x.json"], "project", "./x.json does not exist"),
        ("SEB-8009", ["report", "setup.py"], "project", "setup.py cannot be shown: it is not a record of a build"),
    ],
)
def test_mistakes_end_with_a_hint(place: Path, code: str, arguments: list[str], cwd: str, said: str) -> None:
    run = ask(place, *arguments, cwd=cwd)
    assert (run.returncode, run.stdout) == (1, "")
    first, second = run.stderr.splitlines()[:2]
    assert first.startswith(f"safe-ext-build: error[{code}]: ") and said in first
    assert second.startswith("safe-ext-build: hint: ")
    assert "Traceback" not in run.stderr


# report


def a_record() -> Record:
    plan = Planned(("at most 2 compiles at a time",), 2, 2, 2, True, "80", "", "")
    computer = Computer(2, "2 CPUs", "host", 8 << 30, 7 << 30)
    about = {"version": "0.1", "id": "0123456789ab", "project": "thing", "root": "/p", "hook": "build_wheel"}
    context = Context(**about, began=0.0, started="2026-01-02T03:04:05+00:00", plan=plan, machine=computer)
    job = Event(
        kind="job", time=20.0, job=1, source="/p/a.cu", outcome="compiled", seconds=18.0, cpu=17.0, cuda=True
    )
    return make([job], context, 21.0, "built")


def test_report_in_every_form(place: Path) -> None:
    record = a_record()
    path = shelf.keep(record, place / "home" / ".cache" / "safe-ext-build")
    text = ask(place, "report").stdout
    assert text.startswith(f"{record.project}: built in ")
    assert "What to do next\n- " in text and "Plan\n- " in text and "a.cu" in text
    assert ask(place, "report", record.id[:4]).stdout == text == ask(place, "report", str(path)).stdout
    assert json.loads(ask(place, "report", "--json").stdout)["id"] == record.id
    assert json.loads(ask(place, "report", "--trace").stdout)["traceEvents"]
    run = ask(place, "report", "--html", "out/page.html")
    assert (run.returncode, run.stderr) == (0, "safe-ext-build: report: out/page.html\n")
    assert (place / "project" / "out" / "page.html").read_text().startswith("<!doctype html>")


# history


def test_history_is_shown_and_forgotten(place: Path) -> None:
    assert ask(place, "history").stdout == "nothing is known yet: no build has compiled anything\n"
    history = History(place / "home" / ".cache" / "safe-ext-build" / "history.sqlite")
    runs = [(project, source) for project in ("one", "two") for source in ("a.cpp", "b.cpp")]
    curve = Curve(60.0, (1 << 30,) * 16)
    assert history.record((f"{key(name, source, ['c++'], (), None, 'gcc')}:1", curve) for name, source in runs)
    assert ask(place, "history").stdout.splitlines()[1].split() == ["2", "2", "min", "1.0", "GiB", "one"]
    assert [line["name"] for line in json.loads(ask(place, "history", "show", "two", "--json").stdout)] == [
        "a.cpp",
        "b.cpp",
    ]
    assert ask(place, "history", "clear", "one").stderr == "safe-ext-build: forgotten: what 2 compiles took\n"
    assert {line["name"] for line in json.loads(ask(place, "history", "--json").stdout)} == {"two"}
    assert ask(place, "history", "clear").stderr == "safe-ext-build: forgotten: what 2 compiles took\n"


def test_a_broken_history_is_left_where_it_is(place: Path) -> None:
    path = place / "home" / ".cache" / "safe-ext-build" / "history.sqlite"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"not a database" * 100)
    before = files(place)
    run = ask(place, "history")
    assert run.returncode == 1
    assert "hint: Delete ~/.cache/safe-ext-build/history.sqlite to begin anew." in run.stderr
    assert files(place) == before


# completion


COMPLETIONS = [
    (("doc",), {"doctor"}),
    (("--vers",), {"--version"}),
    (("plan", "--py"), {"--python"}),
    (("history", "cl"), {"clear"}),
    (("report", "--j"), {"--json"}),
    (("explain", "SEB-401"), {f"SEB-401{number}" for number in range(7)}),
    (("run", "--", "pip", "wheel", "--o"), set()),
    (("wheel", "-o", "no-such"), set()),
]
_BY_FUNCTION = """{script}
COMP_WORDS=({line}); COMP_CWORD={count}; {call}; echo "${{COMPREPLY[@]}}"
"""


def completed(home: Path, shell: str, script: str, words: tuple[str, ...]) -> set[str]:
    """What a shell offers for the last of the words, our script having been read; files are not asked for."""
    line = " ".join(f"'{word}'" for word in ("safe-ext-build", *words))
    call = "_safe_ext_build" if shell == "bash" else "setopt ksh_arrays sh_word_split; _safe_ext_build"
    options = {"bash": ["--norc", "-c"], "zsh": ["-f", "-c"], "fish": ["--no-config", "-c"]}[shell]
    code = _BY_FUNCTION.format(script=script, line=line, count=len(words), call=call)
    if shell == "fish":
        code = f'{script}\ncomplete -C "safe-ext-build {" ".join(words)}" | string split -f 1 \\t'
    environ = {"PATH": os.environ["PATH"], "HOME": str(home)}  # zsh and fish leave files there
    done = subprocess.run([shell, *options, code], env=environ, capture_output=True, text=True, check=False)
    assert not done.stderr
    return {word for word in done.stdout.split() if word.startswith(words[-1])}  # zsh leaves that to its caller


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_commands_options_and_words(place: Path, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    script = ask(place, "completion", shell).stdout
    offered = [completed(place / "home", shell, script, words) for words, _ in COMPLETIONS]
    assert offered == [wanted for _, wanted in COMPLETIONS]


# Wherever they are given


@pytest.mark.parametrize("command", ["wheel .", "report --html r.html", "plan", "doctor"])
def test_a_directory_that_is_gone_has_a_name(place: Path, command: str) -> None:
    (place / "gone").mkdir()
    started = f'rmdir "$PWD" && exec {shlex.quote(sys.executable)} -m safe_ext_build {command}'
    run = subprocess.run(
        ["sh", "-c", started],
        cwd=place / "gone",
        env=environment(place, "", {}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 1
    assert run.stderr.startswith("safe-ext-build: error[SEB-4014]: the current directory does not exist"), (
        run.stderr
    )


@pytest.mark.parametrize(
    ("command", "status"),
    [("doctor", 0), ("plan", 0), ("report", 1), ("--help", 0), ("nonsense", 2)],
)
@pytest.mark.parametrize("closed", [">&-", "<&- >&- 2>&-"])
def test_streams_that_are_closed_are_no_matter(place: Path, command: str, closed: str, status: int) -> None:
    script = f"{shlex.quote(sys.executable)} -m safe_ext_build {command} {closed}"
    where, variables = place / "project", environment(place, "", {})
    run = subprocess.run(["sh", "-c", script], cwd=where, env=variables, capture_output=True, check=False)
    assert b"Traceback" not in run.stderr and not run.stdout
    assert run.returncode == status


@pytest.mark.parametrize(("program", "status"), [("nosuchcmd", 127), ("/tmp", 126), ("./setup.py", 126)])
def test_what_cannot_be_run_has_the_status_of_shells(place: Path, program: str, status: int) -> None:
    run = ask(place, "run", "--", program)
    assert run.returncode == status
    assert run.stderr.startswith("safe-ext-build: error[SEB-8002]: ")
