from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import venv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from safe_ext_build.errors import TorchError
from safe_ext_build.toolchain import target
from safe_ext_build.toolchain.target import Environment, Process

SOURCE = Path(target.__file__).parents[2]
CLEAN = {"PATH": os.environ.get("PATH", os.defpath)}
BASE = Path(os.path.realpath(sys.executable))


def make_venv(directory: Path, *, torch: bool = False) -> Path:
    venv.EnvBuilder(symlinks=True, with_pip=False).create(directory)
    if torch:
        make_torch(site_packages(directory))
    return directory


def make_torch(site: Path) -> Path:
    (site / "torch").mkdir(parents=True)
    (site / "torch" / "__init__.py").write_text("raise AssertionError('torch must not be imported')")
    return site / "torch"


def site_packages(prefix: Path) -> Path:
    return prefix / "lib" / "python{}.{}".format(*sys.version_info) / "site-packages"


@pytest.fixture(scope="module")
def with_torch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_venv(tmp_path_factory.mktemp("with") / "torch env", torch=True)


@pytest.fixture(scope="module")
def without_torch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_venv(tmp_path_factory.mktemp("without") / "env")


def show_process(
    proc: Path, exe: Path, argv: Sequence[str], environ: Mapping[str, str], cwd: Path, pid: int = 7
) -> None:
    """A /proc with one process in it."""
    directory = proc / str(pid)
    directory.mkdir(parents=True)
    (directory / "exe").symlink_to(exe)
    (directory / "cwd").symlink_to(cwd)
    (directory / "cmdline").write_bytes(b"".join(os.fsencode(a) + b"\0" for a in argv))
    (directory / "environ").write_bytes(b"".join(os.fsencode(f"{k}={v}") + b"\0" for k, v in environ.items()))


def process(command: str, exe: str = "/usr/bin/python3.11", cwd: str = "/", **environ: str) -> Process:
    return Process(exe=Path(exe), argv=tuple(shlex.split(command)), environ=environ, cwd=Path(cwd))


OWN = Environment(
    python=Path("/hook/bin/python"),
    prefix=Path("/hook"),
    version=(3, 11),
    abi=".cpython-311-x86_64-linux-gnu.so",
    path=(),
    torch=None,
)


# --- what an interpreter says about itself


def test_an_environment_describes_itself(with_torch: Path) -> None:
    python = with_torch / "bin" / "python"
    said = target.ask(python, CLEAN)
    assert said is not None
    assert (said.python, said.prefix, said.version) == (python, with_torch, sys.version_info[:2])
    assert said.abi == EXTENSION_SUFFIXES[0]
    assert str(site_packages(with_torch)) in said.path
    assert said.torch == site_packages(with_torch) / "torch"


def test_path_files_and_a_path_of_the_users_count(without_torch: Path, tmp_path: Path) -> None:
    python = without_torch / "bin" / "python"
    package = make_torch(tmp_path / "by pth")
    link = site_packages(without_torch) / "torch.pth"
    link.write_text(f"{package.parent}\nimport sys; print('noise')\n")
    try:
        said = target.ask(python, CLEAN)
    finally:
        link.unlink()
    assert said is not None and said.torch == package
    make_torch(tmp_path / "relative")
    said = target.ask(python, {**CLEAN, "PYTHONPATH": "relative"}, cwd=tmp_path)
    assert said is not None and said.torch == tmp_path / "relative" / "torch"


def test_system_site_packages_count(with_torch: Path, tmp_path: Path) -> None:
    inner = make_venv(tmp_path / "inner")
    (site_packages(inner) / "outer.pth").write_text(
        f"import site; site.addsitedir({str(site_packages(with_torch))!r})"
    )
    said = target.ask(inner / "bin" / "python", CLEAN)
    assert said is not None and said.prefix == inner
    assert said.torch == site_packages(with_torch) / "torch"


def test_a_checkout_in_the_current_directory_is_no_torch(without_torch: Path, tmp_path: Path) -> None:
    make_torch(tmp_path)
    said = target.ask(without_torch / "bin" / "python", CLEAN, cwd=tmp_path)
    assert said is not None and said.torch is None


def test_a_folder_without_a_package_is_no_torch(tmp_path: Path) -> None:
    environment = make_venv(tmp_path / "env")
    (site_packages(environment) / "torch" / "lib").mkdir(parents=True)
    said = target.ask(environment / "bin" / "python", CLEAN)
    assert said is not None and said.torch is None


@pytest.mark.parametrize("script", ["exit 3", "exit 0", "echo hello", "kill -9 $$", "sleep 30"])
def test_what_does_not_answer_is_none(script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("safe_ext_build.probe.TIMEOUT", 0.3)
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    assert target.ask(python, CLEAN) is None


@pytest.mark.parametrize("name", ["missing", ".", "nul\0"])
def test_what_is_no_program_is_none(name: str, tmp_path: Path) -> None:
    assert target.ask(tmp_path / name, CLEAN) is None


def test_our_own_environment_needs_no_other_process() -> None:
    own = target.own()
    said = target.ask(Path(sys.executable), os.environ)
    assert said is not None
    assert replace(own, path=said.path) == said
    assert set(said.path) - {""} <= {*own.path, *os.environ.get("PYTHONPATH", "").split(os.pathsep)}


# --- processes


def test_a_real_process_is_read() -> None:
    seen = target.read_process(os.getpid())
    assert seen is not None
    assert seen.exe == BASE and seen.cwd == Path.cwd()
    assert seen.argv[1:] == tuple(sys.orig_argv[1:])


def test_an_executable_that_was_replaced_keeps_its_name(tmp_path: Path) -> None:
    show_process(tmp_path, Path("/opt/uv (deleted)"), ["uv"], {}, tmp_path)
    seen = target.read_process(7, tmp_path)
    assert seen is not None and seen.exe == Path("/opt/uv")


def test_a_process_that_is_gone_is_none(tmp_path: Path) -> None:
    assert target.read_process(7, tmp_path) is None


@pytest.mark.parametrize(
    ("command", "exe", "name"),
    [
        ("/v/bin/python3.11 /v/bin/pip wheel .", "python3.11", "pip"),
        ("/v/bin/python3.11 /v/bin/pip3.11 wheel .", "python3.11", "pip"),
        ("python -m pip install .", "python3.11", "pip"),
        ("python -I -X dev -m pip install .", "python3.11", "pip"),
        ("python /s/pip/__pip-runner__.py install .", "python3.11", "pip"),
        ("python /s/pip/__main__.py install .", "python3.11", "pip"),
        ("python /s/pip-26.1.pyz install .", "python3.11", "pip"),
        ("python -m build -n -m", "python3.11", "build"),
        ("python /v/bin/pyproject-build -m pip", "python3.11", "pyproject-build"),
        ("python -m tox.run", "python3.11", "tox"),
        ("python /v/bin/pipx run build", "python3.11", "pipx"),
        ("pypy3 -c pass", "pypy3.10", "pass"),
        ("", "python3.11", "python3.11"),
        ("uv build", "uv", "uv"),
        ("uvx thing", "uvx", "uv"),
        ("-bash", "bash", "bash"),
    ],
)
def test_the_frontend_has_a_name(command: str, exe: str, name: str) -> None:
    assert target.frontend(process(command, exe=f"/usr/bin/{exe}")) == name


def test_the_interpreter_is_told_by_how_it_was_called(without_torch: Path, tmp_path: Path) -> None:
    binaries = without_torch / "bin"
    (tmp_path / "here").symlink_to(binaries)
    cases = {
        str(binaries / "python3"): binaries / "python3",
        "here/python": tmp_path / "here" / "python",
        "python": binaries / "python",  # by its PATH
        "/bin/sh": BASE,  # called by a name that is not its own
        "a title": BASE,
    }
    for name, expected in cases.items():
        caller = Process(BASE, (name, "-m", "build"), {"PATH": f"/nowhere:{binaries}"}, tmp_path)
        assert target.interpreter(caller) == expected, name
    assert target.interpreter(Process(BASE, (), {}, tmp_path)) == BASE


# --- whose environment it is


def names(root: Path, caller: Process) -> list[str]:
    """The choices, relative to the tree of `uv_tree`, without the trailing bin/python."""
    return [os.path.relpath(c.python.parent.parent, root) for c in target.choices(caller, OWN)]


@pytest.fixture(scope="module")
def uv_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("uv")
    for name in (
        "active",
        "conda",
        "asked",
        "path-venv",
        "system",
        "work/.venv",
        "work/a/named",
        "other/.venv",
    ):
        (root / name / "bin").mkdir(parents=True)
        for python in ("python", "python3"):
            (root / name / "bin" / python).symlink_to(BASE)
        if name not in {"conda", "system"}:
            (root / name / "pyvenv.cfg").touch()
    (root / "work" / "a" / "b").mkdir()
    return root


@pytest.mark.parametrize(
    ("command", "environ", "found"),
    [
        # What is asked for
        ("uv pip install --python {}/asked/bin/python .", {"VIRTUAL_ENV": "active"}, ["asked"]),
        ("uv pip install --python={}/asked .", {"VIRTUAL_ENV": "active"}, ["asked"]),
        ("uv pip install -p ../../../asked .", {"VIRTUAL_ENV": "active"}, ["asked"]),
        ("uv build -p{}/asked", {"VIRTUAL_ENV": "active"}, ["asked"]),
        ("uv pip install .", {"UV_PYTHON": "asked", "VIRTUAL_ENV": "active"}, ["asked"]),
        ("uv build -p 3.12", {"VIRTUAL_ENV": "active"}, ["active"]),
        ("uv build -p v312", {"VIRTUAL_ENV": "active"}, ["active"]),
        ("uv build -p cpython@3.12 -- -p {}/asked", {"VIRTUAL_ENV": "active"}, ["active"]),
        ("uv build -p missing", {"VIRTUAL_ENV": "active"}, ["active"]),
        # The system's
        ("uv pip install --system .", {"VIRTUAL_ENV": "active"}, ["system"]),
        ("uv pip install .", {"UV_SYSTEM_PYTHON": "true", "VIRTUAL_ENV": "active"}, ["system"]),
        # The caller's, the active, the nearest
        (
            "uv pip install .",
            {"VIRTUAL_ENV": "active", "UV_INTERNAL__PARENT_INTERPRETER": "asked/bin/python"},
            ["asked"],
        ),
        ("uv pip install .", {"VIRTUAL_ENV": "active", "CONDA_PREFIX": "conda"}, ["active"]),
        ("uv pip install .", {"VIRTUAL_ENV": "", "CONDA_PREFIX": "conda"}, ["conda"]),
        ("uv pip install .", {"VIRTUAL_ENV": "gone"}, ["work/.venv"]),
        ("uv build", {}, ["work/.venv"]),
        ("uv build", {"CONDA_PREFIX": "conda", "CONDA_DEFAULT_ENV": "base"}, ["work/.venv"]),
        # Projects
        ("uv sync", {"VIRTUAL_ENV": "active"}, ["work/.venv"]),
        ("uv --color never run -p {}/asked x", {}, ["work/.venv"]),
        ("uv sync --active", {"VIRTUAL_ENV": "active"}, ["active"]),
        ("uv add --project {}/other x", {}, ["other/.venv"]),
        ("uv sync", {"UV_PROJECT": "other"}, ["other/.venv"]),
        ("uv sync", {"UV_PROJECT_ENVIRONMENT": "named"}, None),
        ("uv sync", {"UV_PROJECT_ENVIRONMENT": "{}/asked"}, ["asked"]),
        # Environments that do not exist yet
        ("uv tool install x", {"VIRTUAL_ENV": "active"}, []),
    ],
)
def test_the_environment_that_uv_builds_for(
    uv_tree: Path, command: str, environ: dict[str, str], found: list[str] | None
) -> None:
    inside = {"VIRTUAL_ENV", "CONDA_PREFIX", "UV_PYTHON", "UV_PROJECT", "UV_INTERNAL__PARENT_INTERPRETER"}
    environ = {k: str(uv_tree / v) if k in inside and v else v.format(uv_tree) for k, v in environ.items()}
    path = os.pathsep.join(str(uv_tree / name / "bin") for name in ("path-venv", "system"))
    caller = process(command.format(uv_tree), "/bin/uv", str(uv_tree / "work/a/b"), PATH=path, **environ)
    assert names(uv_tree, caller) == (["work/a/named"] if found is None else found)


def test_uv_without_an_environment_takes_the_python_on_its_path(uv_tree: Path) -> None:
    caller = process("uv build", "/bin/uv", "/", PATH=str(uv_tree / "path-venv" / "bin"))
    assert names(uv_tree, caller) == ["path-venv"]


def test_pip_installs_into_the_environment_that_runs_the_hooks(uv_tree: Path) -> None:
    caller = process("python /v/bin/pip wheel .", VIRTUAL_ENV=str(uv_tree / "active"))
    assert [c.python for c in target.choices(caller, OWN)] == [OWN.python]


def test_another_python_may_work_for_the_active_environment(uv_tree: Path) -> None:
    active = {"VIRTUAL_ENV": str(uv_tree / "active"), "CONDA_PREFIX": str(uv_tree / "conda")}
    caller = process("python -m build", str(uv_tree / "asked/bin/python"), str(uv_tree), **active)
    assert names(uv_tree, caller) == ["asked", "active", "conda"]
    unknown = replace(caller, exe=Path("/bin/rye"))
    assert names(uv_tree, unknown) == ["active", "conda", os.path.relpath(OWN.prefix, uv_tree)]


def found_target(
    tmp_path: Path, own: Environment, exe: Path, argv: Sequence[str], **environ: str
) -> tuple[Environment | None, str]:
    show_process(tmp_path / "proc", exe, argv, {**CLEAN, **environ}, tmp_path)
    return target.find_target(7, {**CLEAN, "PYTHONPATH": "/isolated"}, own, tmp_path / "proc")


def test_under_pip_isolation_the_target_is_asked_outside_of_it(with_torch: Path, tmp_path: Path) -> None:
    python = with_torch / "bin" / "python"
    own = replace(OWN, python=python, prefix=with_torch)
    found, why = found_target(tmp_path, own, BASE, ["python", "-m", "pip", "wheel", "."])
    assert found is not None and found.torch == site_packages(with_torch) / "torch"
    assert why == "the environment of pip"


def test_without_isolation_nobody_is_asked(tmp_path: Path) -> None:
    own = replace(OWN, torch=Path("/hook/torch"))
    show_process(tmp_path, BASE, ["/hook/bin/python", "-m", "pip"], CLEAN, tmp_path)
    assert target.find_target(7, CLEAN, own, tmp_path) == (own, "the environment of pip")


def test_the_active_environment_is_used_where_the_frontend_has_no_torch(
    with_torch: Path, without_torch: Path, tmp_path: Path
) -> None:
    python = str(without_torch / "bin" / "python")
    found, why = found_target(tmp_path, OWN, BASE, [python, "-m", "build"], VIRTUAL_ENV=str(with_torch))
    assert found is not None and found.prefix == with_torch
    assert why == "VIRTUAL_ENV of build"


def test_the_frontends_own_torch_comes_first(with_torch: Path, without_torch: Path, tmp_path: Path) -> None:
    python = str(with_torch / "bin" / "python")
    found, why = found_target(tmp_path, OWN, BASE, [python, "-m", "build"], VIRTUAL_ENV=str(without_torch))
    assert found is not None and found.prefix == with_torch
    assert why == "the environment of build"


def test_an_environment_without_torch_is_a_target_still(without_torch: Path, tmp_path: Path) -> None:
    python = str(without_torch / "bin" / "python")
    found, why = found_target(tmp_path, OWN, BASE, [python, "-m", "build"])
    assert found is not None and found.prefix == without_torch and found.torch is None
    assert why == "the environment of build"


def test_no_target_says_why(tmp_path: Path) -> None:
    said = found_target(tmp_path, OWN, Path("/bin/uv"), ["uv", "tool", "install", "x"])
    assert said == (None, "uv names no environment that could import the result")


def test_without_proc_the_isolation_of_pip_is_undone(with_torch: Path, tmp_path: Path) -> None:
    own = replace(OWN, python=with_torch / "bin" / "python", prefix=with_torch)
    environ = {**CLEAN, "PYTHONPATH": "/isolated", "PYTHONNOUSERSITE": "1"}
    found, _ = target.find_target(7, environ, own, tmp_path)
    assert found is not None and found.torch == site_packages(with_torch) / "torch"


# --- real parents

HOOK = """
import json, os, sys
sys.path.append({source!r})
from safe_ext_build.toolchain import target
own = target.own()
found, why = target.find_target(os.getppid(), os.environ, own)
answer = [str(own.prefix), str(found.prefix) if found else None, str(found.torch) if found else None, why]
with open(os.environ["HOOK_ANSWER"], "w") as file:
    json.dump(answer, file)
"""


@pytest.fixture
def hook(tmp_path: Path) -> Callable[..., tuple[str, str, str, str]]:
    """Run a command whose child asks who its parent is; its own prefix, the target's, torch, and why."""

    def run(*command: str | Path, cwd: Path = tmp_path, **environ: str) -> tuple[str, str, str, str]:
        answer = tmp_path / "answer.json"
        done = subprocess.run(
            list(map(str, command)),
            env={**CLEAN, "HOME": str(tmp_path), "HOOK_ANSWER": str(answer), **environ},
            cwd=cwd,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert answer.exists(), done.stdout
        own, found, torch, why = json.loads(answer.read_text())
        return own, found, torch, why

    return run


@pytest.fixture
def spawn(tmp_path: Path) -> Path:
    """A frontend in one file: it runs a hook in a fresh environment, as `build` does."""
    isolated = make_venv(tmp_path / "isolated")
    script = tmp_path / "frontend.py"
    call = [str(isolated / "bin" / "python"), "-c", HOOK.format(source=str(SOURCE))]
    script.write_text(f"import subprocess; subprocess.run({call!r}, check=True)")
    return script


def test_a_real_python_is_found_by_its_path(
    hook: Callable[..., tuple[str, str, str, str]], spawn: Path, with_torch: Path
) -> None:
    own, found, torch, why = hook(with_torch / "bin" / "python", spawn)
    assert own == str(spawn.parent / "isolated")
    assert (found, torch) == (str(with_torch), str(site_packages(with_torch) / "torch"))
    assert why == "the environment of frontend.py"


def test_a_real_python_is_found_by_its_bare_name(
    hook: Callable[..., tuple[str, str, str, str]], spawn: Path, with_torch: Path
) -> None:
    path = f"{with_torch / 'bin'}{os.pathsep}{CLEAN['PATH']}"
    _, found, _, _ = hook("/bin/sh", "-c", f"python {shlex.quote(str(spawn))}; true", PATH=path)
    assert found == str(with_torch)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project that is its own backend, and looks for its target when a wheel is built."""
    directory = tmp_path / "project"
    directory.mkdir()
    (directory / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        '[project]\nname = "probe"\nversion = "1"\n'
    )
    (directory / "backend.py").write_text(
        f"def build_wheel(directory, config=None, metadata=None):\n"
        f"    exec({HOOK.format(source=str(SOURCE))!r}, {{}})\n"
        f"    raise SystemExit('asked enough')\n"
    )
    return directory


@pytest.mark.frontend
@pytest.mark.parametrize("isolated", [True, False], ids=["isolated", "not isolated"])
@pytest.mark.parametrize("frontend", ["pip", "build"])
def test_a_real_python_frontend_is_its_own_target(
    hook: Callable[..., tuple[str, str, str, str]], project: Path, frontend: str, isolated: bool
) -> None:
    options = {"pip": ["wheel", "--no-deps"], "build": ["--wheel"]}[frontend]
    if not isolated:
        options.append({"pip": "--no-build-isolation", "build": "--no-isolation"}[frontend])
    own, found, torch, why = hook(sys.executable, "-m", frontend, *options, project)
    here = target.ask(Path(sys.executable), CLEAN)
    assert here is not None
    assert (found, torch) == (sys.prefix, str(here.torch) if here.torch else None)
    assert why == f"the environment of {frontend}"
    assert (own == sys.prefix) is (frontend == "pip" or not isolated)


@pytest.mark.frontend
@pytest.mark.parametrize(
    ("command", "active", "why"),
    [
        (["build", "--wheel"], True, "VIRTUAL_ENV of uv"),
        (["build", "--wheel"], False, "{}/.venv, found by uv"),
        (["build", "--wheel", "--python", "{}/.venv"], True, "--python of uv"),
        (["pip", "install", "."], True, "VIRTUAL_ENV of uv"),
        (["pip", "install", "--no-build-isolation", "."], False, "{}/.venv, found by uv"),
    ],
    ids=["build active", "build", "build --python", "pip active", "pip not isolated"],
)
def test_real_uv_builds_for_the_environment_it_says(
    hook: Callable[..., tuple[str, str, str, str]],
    project: Path,
    with_torch: Path,
    command: list[str],
    active: bool,
    why: str,
) -> None:
    nearest = make_venv(project / ".venv", torch=True)
    environ = {"VIRTUAL_ENV": str(with_torch)} if active else {}
    arguments = [argument.format(project) for argument in command]
    uv = [sys.executable, "-c", "import os, sys, uv; os.execv(uv.find_uv_bin(), sys.argv[1:])", "uv"]
    own, found, torch, said = hook(*uv, "--no-cache", *arguments, cwd=project, **environ)
    expected = with_torch if said.startswith("VIRTUAL_ENV") else nearest
    assert said == why.format(project)
    assert (found, torch) == (str(expected), str(site_packages(expected) / "torch"))
    assert (own == found) is ("--no-build-isolation" in command)


# --- a target that is named


def named(path: Path, tmp_path: Path) -> Environment:
    show_process(tmp_path / "proc", BASE, [str(BASE), "-m", "pip"], CLEAN, tmp_path)
    found, why = target.named_target(path, "-C torch.runtime", 7, CLEAN, OWN, tmp_path / "proc")
    assert why == "-C torch.runtime"
    return found


@pytest.mark.parametrize("inside", [".", "bin/python"])
def test_a_named_target(inside: str, with_torch: Path, tmp_path: Path) -> None:
    found = named(with_torch / inside, tmp_path)
    assert found.prefix == with_torch
    assert found.torch == site_packages(with_torch) / "torch"


def test_a_named_target_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    text = tmp_path / "text"
    text.write_text("no program")
    for path, reason in [
        (tmp_path / "nowhere", "which does not exist"),
        (tmp_path / "empty", "a directory without bin/python"),
        (text, f"but {text} does not run as a Python"),
    ]:
        with pytest.raises(TorchError, match=re.escape(f"-C torch.runtime is {path}, {reason}")) as caught:
            target.named_target(path, "-C torch.runtime", 7, CLEAN, OWN, tmp_path)
        assert "Set torch.runtime to a Python" in caught.value.hint
