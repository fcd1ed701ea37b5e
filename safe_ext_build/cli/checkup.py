"""Looks at all that a build depends on, and says of each thing whether it will do. torch is never imported."""

from __future__ import annotations

import os
import platform
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from .. import __version__, advice, plan, preflight, probe, settings, staging
from ..errors import FarmError, PlaceError, SafeExtBuildError, SettingsError, ToolkitError
from ..farm import client, share
from ..launcher import tools
from ..launcher.redact import redact
from ..machine import MemoryLimit, read_machine, reserve
from ..machine.neighbours import Neighbours, domains, neighbours_root
from ..report.words import count, duration, size
from ..settings import Settings
from ..supervise import linux, shims, workspace
from ..supervise.shelter import Ward
from ..toolchain import cuda, find, host, rank
from ..toolchain.find import Survey, Torch
from ..toolchain.torch import TorchFacts

Status = Literal["ok", "note", "problem"]
_PATIENCE = 0.5  # seconds for the size of one cache
_ASKED, _FARM = 1.0, 1.5  # ... for each step of asking a farm, and for all of it
_FITS = "the CUDA of torch"
_ASK = "Open an issue with this output."


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. `fix`: what to do about a problem. `values`: the same for programs; sizes in
    bytes. `code`: the id of the error that a build would end with."""

    topic: str
    text: str
    status: Status = "ok"
    fix: str = ""
    values: Mapping[str, str | int | None] = field(default_factory=dict)
    code: str = ""


@dataclass(frozen=True)
class Checkup:
    """All that was found. `system`: kernel and architecture."""

    version: str
    python: str
    system: str
    findings: tuple[Finding, ...]

    @property
    def problems(self) -> int:
        return sum(finding.status == "problem" for finding in self.findings)


def look(environ: Mapping[str, str], project: Path) -> Checkup:
    """Look at this machine as a build in the directory `project` would see it. Raises nothing expected."""
    chosen, unreadable = read_settings(project, environ)
    torch, no_torch = find_torch(chosen, environ)
    topics: dict[str, Callable[[], Iterable[Finding]]] = {
        "toolkit": lambda: toolchain(chosen, torch, environ) if torch else (),
        "ninja": ninja,
        "machine": machine,
        "supervision": lambda: supervision(chosen.workspace.dir),
        "space": lambda: space(chosen, project),
        "builds": lambda: neighbours(environ),
        "compiler cache": lambda: compiler_cache(chosen, environ),
        "compile farm": lambda: compile_farm(chosen, environ),
        "cache": lambda: caches(workspace.cache_root(dict(environ), make=False)),
    }
    found = probe.each(lambda topic: guarded(topic, topics[topic]), topics)
    own = (*unreadable, *no_torch, *(torch_findings(torch) if torch else ()))
    return Checkup(
        __version__,
        f"{platform.python_version()} in {sys.prefix}",
        f"{platform.system()} {platform.release()} {platform.machine()}",
        (*own, *(finding for findings in found for finding in findings)),
    )


def guarded(topic: str, action: Callable[[], Iterable[Finding]]) -> list[Finding]:
    """What cannot be looked at is a finding too: the rest of the checkup must not be lost with it."""
    try:
        return list(action())
    except SafeExtBuildError as error:
        return [problem(topic, error)]
    except Exception as error:
        return [Finding(topic, f"this could not be looked at: {error!r}", "problem", _ASK)]


def problem(topic: str, error: SafeExtBuildError) -> Finding:
    return Finding(topic, str(error), "problem", error.hint, code=error.code)


def read_settings(project: Path, environ: Mapping[str, str]) -> tuple[Settings, list[Finding]]:
    """The settings of a build here; the defaults where they are not valid, which is a finding."""
    try:
        chosen, _ = settings.load(project, None, environ)
    except SettingsError as error:
        return Settings(), [problem("settings", error)]
    given = [
        Finding("settings", f"{name} is set by {source}", values={"name": name, "source": source})
        for name, source in chosen.sources.items()
    ]
    return chosen, given


# What to build with.


def find_torch(chosen: Settings, environ: Mapping[str, str]) -> tuple[Torch | None, list[Finding]]:
    try:
        return find.find_torch(chosen, os.getpid(), environ), []
    except SafeExtBuildError as error:
        return None, [problem("torch", error)]


def torch_findings(torch: Torch) -> Iterator[Finding]:
    """The torch of a build, and where the build and its result live."""
    facts, target = torch.facts, torch.target
    if facts is None:
        yield Finding("torch", torch.source.line or "there is no torch", "problem", advice.GET_TORCH)
    else:
        values = {"version": facts.version, "cuda": facts.cuda, "package": str(facts.package)}
        status: Status = "ok" if facts.cuda else "note"
        only = "" if facts.cuda else ": no code for CUDA can be built with it"
        yield Finding("torch", f"{facts.describe()} in {facts.package.parent}{only}", status, values=values)
    yield Finding("torch", f"build environment: {_environment(torch.own.python, torch.own.torch)}")
    if target and target.prefix != torch.own.prefix:
        yield Finding("torch", f"target environment: {_environment(target.python, target.torch)}")
    if torch.source.warning:
        yield Finding("torch", torch.source.warning, "note")


def _environment(python: Path, torch: Path | None) -> str:
    return f"{python}, {f'with torch in {torch.parent}' if torch else 'without torch'}"


def toolchain(chosen: Settings, torch: Torch, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Toolkits, GPUs, and the host compilers that fit the chosen toolkit."""
    surveyed = find.survey(chosen, torch, environ)
    yield from toolkits(surveyed, torch)
    gpus = cuda.gpus(environ)
    driver = cuda.driver_cuda(environ) if gpus else None
    yield from graphics(surveyed, gpus, driver)
    if torch.facts:
        yield from compilers(surveyed, torch.facts, environ)


def toolkits(surveyed: Survey, torch: Torch) -> Iterator[Finding]:
    """Every candidate with its verdict, then what is wrong with all of them. Pure."""
    facts, choice = torch.facts, surveyed.choice
    for line in surveyed.found.lines:
        yield Finding("toolkit", line, "note")
    for one in surveyed.found.found:
        used = choice is not None and one == choice.toolkit
        verdict = "used" if used else "not used"
        reason = _verdict(one.version, facts)
        if choice is None and reason == _FITS:
            reason += ", but another one is named"
        elif choice is not None and not used and one.version == choice.toolkit.version:
            reason = f"{choice.toolkit.home}, of the same version, is used"
        values = {"home": str(one.home), "origin": one.origin, "build": one.build, "verdict": verdict}
        text = f"{one.describe()}: {verdict}: {reason}{_completed(one) if used else ''}"
        yield Finding("toolkit", text, "ok" if used else "note", values={**values, "reason": reason})
    for bad in surveyed.found.rejected:
        values = {"home": bad.candidate.path, "origin": bad.candidate.origin, "verdict": "no toolkit"}
        text = f"{bad.candidate.path} ({bad.candidate.origin}): no toolkit: {bad.reason}"
        yield Finding("toolkit", text, "note", values={**values, "reason": bad.reason})
    yield from _without_toolkit(surveyed, torch)


def _verdict(version: tuple[int, int], facts: TorchFacts | None) -> str:
    if facts is None or facts.cuda is None:
        return "there is no torch for CUDA to compile for"
    wanted = tuple(int(part) for part in facts.cuda.split(".")[:2])
    if version == wanted:
        return _FITS
    kind = "minor" if version[0] == wanted[0] else "major"
    return f"another {kind} version than torch's CUDA {facts.cuda}"


def _completed(toolkit: cuda.Toolkit) -> str:
    filled = [name for name in toolkit.missing if name not in toolkit.lacks]
    return f"; {', '.join(filled)} come from torch's wheels" if filled else ""


def _without_toolkit(surveyed: Survey, torch: Torch) -> Iterator[Finding]:
    if torch.facts is None or torch.facts.cuda is None:
        return
    if surveyed.choice is None and not surveyed.found.found and not _is_refused(surveyed):
        yield Finding("toolkit", advice.NO_COMPILER, "problem", torch.how_to_install())
    elif surveyed.error:
        text = str(surveyed.error).partition("; looked at:")[0]
        yield Finding("toolkit", text, "problem", surveyed.error.hint, code=surveyed.error.code)
    elif surveyed.choice and (line := rank.lacking_line(surveyed.choice.toolkit, "")):
        yield Finding("toolkit", line.removesuffix("; "), "problem", torch.how_to_install())


def _is_refused(surveyed: Survey) -> bool:
    return any(one.candidate.required for one in surveyed.found.rejected)


def graphics(surveyed: Survey, gpus: list[str], driver: tuple[int, int] | None) -> Iterator[Finding]:
    """The GPUs here. Pure."""
    if not gpus:
        yield Finding("gpu", "no GPU here: builds are for what torch was built for, unless cuda.archs says it")
        return
    knows = f"; the driver knows CUDA {driver[0]}.{driver[1]}" if driver else ""
    yield Finding("gpu", f"compute capability {', '.join(gpus)}{knows}", values={"archs": ";".join(gpus)})
    if surveyed.choice and (line := rank.driver_line(surveyed.choice.toolkit.version, driver)):
        yield Finding("gpu", line, "note")


def compilers(surveyed: Survey, facts: TorchFacts, environ: Mapping[str, str]) -> Iterator[Finding]:
    """The host compilers, and what a build would do about one that does not fit."""
    toolkit = surveyed.choice.toolkit if surveyed.choice else None
    home, build = (toolkit.include.parent, toolkit.build) if toolkit else (None, "")
    for one in host.survey(facts, home, build, environ):
        values = {"path": str(one.compiler.path), "version": one.compiler.version, "objection": one.objection}
        status: Status = "note" if one.objection else "ok"
        yield Finding("compiler", one.describe(), status, values={**values, "named_by": one.named_by})
    try:
        lines = host.fit_host(facts, home, build, environ).lines
    except ToolkitError as error:
        yield problem("compiler", error)
    else:
        yield from (Finding("compiler", line, "note") for line in lines)


def ninja() -> Iterator[Finding]:
    path = shims.real_ninja()
    _, said = probe.run([str(path), "--version"], os.environ)
    yield Finding("ninja", f"ninja {said.strip()} in {path}", values={"path": str(path), "version": said.strip()})


# What to build on.


def machine() -> Iterator[Finding]:
    """CPUs, and memory by domain."""
    found = read_machine()
    yield Finding("machine", f"CPUs: {found.cpus.why}", values={"cpus": found.cpus.count})
    for limit in found.memory:
        yield memory(limit, limit == found.budget and len(found.memory) > 1)
    if not found.memory:
        yield Finding("machine", "memory cannot be read: compiles run one at a time", "note")
    if found.pids_free is not None:
        fits = found.pids_free // plan.TASKS_PER_JOB
        text = f"processes: {found.pids_free} more may be started: {count(fits, 'compile')} at a time"
        yield Finding("machine", text, "ok" if fits > found.cpus.count else "note")
    if found.wsl:
        yield Finding("machine", "in WSL, whose memory .wslconfig limits ([wsl2] memory=...)", "note")


def memory(limit: MemoryLimit, binds: bool) -> Finding:
    """A memory domain. Pure."""
    values: dict[str, str | int | None] = {
        "domain": limit.name,
        "total": limit.total,
        "available": limit.available,
    }
    text = f"memory: {limit.name}: {size(limit.available)} of {size(limit.total)} free"
    text += ", the limit that binds" if binds else ""
    if limit.available - reserve(limit.total) >= plan.CUDA_JOB:
        return Finding("machine", text, values=values)
    text += f": one compile at a time ({size(reserve(limit.total))} are left alone, and nvcc takes 3 GiB and more)"
    return Finding("machine", text, "note", values=values)


def supervision(named: Path | None) -> Iterator[Finding]:
    """What kills and clears up here: the kernel's part, then a workspace, made and removed."""
    yield from _kernel()
    root = workspace.root(named, dict(os.environ))
    place = workspace.create(root, staging.shim_roots(), lambda path: Ward(path, frontend=False), clear=False)
    try:
        values = {"workspace": str(root), "shims": str(place.shims.parent)}
        yield Finding("supervision", f"workspaces in {root}", values=values)
        inside = place.shims.is_relative_to(place.path)
        where = "in the workspace" if inside else f"in {place.shims.parent}, as the workspace cannot hold them"
        yield Finding("supervision", f"shims and socket {where}: a trial run worked", "ok" if inside else "note")
    finally:
        place.remove()


def _kernel() -> Iterator[Finding]:
    trials: dict[str, Callable[[], None]] = {"pidfd": _try_pidfd, "subreaper": _try_subreaper, "/proc": _try_proc}
    for name, trial in trials.items():
        try:
            trial()
        except OSError as error:
            what = f"{name} does not work here: {error.strerror}"
            fix = "Supervision needs Linux 5.3 or later; a sandbox (seccomp, gVisor) may refuse it."
            yield Finding("supervision", what, "problem", fix)
        else:
            yield Finding("supervision", f"{name} works")
    if not Path("/proc/pressure/memory").exists():
        yield Finding("supervision", "no PSI: how much processes wait for memory is not known here", "note")


def _try_pidfd() -> None:
    os.close(linux.pidfd_open(os.getpid()))


def _try_subreaper() -> None:
    before = linux.is_subreaper()
    linux.set_subreaper(True)
    linux.set_subreaper(before)


def _try_proc() -> None:
    Path("/proc/self/stat").read_bytes()


def space(chosen: Settings, project: Path) -> Iterator[Finding]:
    """Free space wherever a build writes."""
    places = {"temporary files": workspace.root(chosen.workspace.dir, dict(os.environ), make=False)}
    places["caches"] = workspace.cache_root(dict(os.environ), make=False)
    if (project / "pyproject.toml").is_file() or (project / "setup.py").is_file():
        places["objects"] = project
    for what, path in places.items():
        room = preflight.look(path, what, preflight.WORKSPACE_HINT)
        text = f"{path}, where {what} go: {size(room.free)} free"
        try:
            said = preflight.judge([room], with_torch=True)
        except PlaceError as error:
            yield problem("space", error)
        else:
            yield Finding("space", said[0] if said else text, "note" if said else "ok", values={"free": room.free})


def neighbours(environ: Mapping[str, str]) -> Iterator[Finding]:
    """The builds of this user that run now."""
    root = neighbours_root(environ)
    if root is None:
        text = "there is no place for the records of running builds: builds do not see each other"
        yield Finding("builds", text, "note")
        return
    running = Neighbours(root / domains()["host"], "", "").records()
    for one in running:
        since = duration(max(0.0, time.time() - one.started))
        text = f"{one.project} builds since {since} (pid {one.pid}): {count(one.share.jobs, 'compile')} running"
        yield Finding("builds", text, values={"project": one.project, "pid": one.pid, "build": one.build})
    if not running:
        yield Finding("builds", "no build is running")


def compiler_cache(chosen: Settings, environ: Mapping[str, str]) -> Iterator[Finding]:
    """What compiles go through, and what else is installed. Raises SafeExtBuildError."""
    found = tools.choose(chosen.launcher, chosen.source("launcher"), environ)
    for line in found.lines or ("neither ccache nor sccache is installed",):
        yield Finding("compiler cache", line)
    for tool in found.tools:
        if tool != found.tool:
            yield Finding("compiler cache", f"{tool.name} {tool.version} in {tool.path} is not used")


def compile_farm(chosen: Settings, environ: Mapping[str, str]) -> Iterator[Finding]:
    """What a build may have of the farm that sccache is told of; nothing where it is told of none."""
    try:
        farm = client.configured(environ)
        if farm is None or (chosen.jobs.remote == 0 and not chosen.farm.required):
            return
        launcher = _launcher(chosen, environ)
        used = _in_time(lambda: share.share_of(farm, chosen, launcher, environ, _ASKED), farm)
    except FarmError as error:
        # A build goes on without one, unless it is told not to.
        bad = problem("compile farm", error)
        yield bad if chosen.farm.required else replace(bad, status="note", text=f"not used: {error}")
    else:
        values: dict[str, str | int | None] = {"scheduler": redact(used.scheduler), "slots": used.slots}
        yield from (Finding("compile farm", line, values=values) for line in used.lines)


def _launcher(chosen: Settings, environ: Mapping[str, str]) -> tools.Launcher | None:
    """What leads to the farm; a cache that is asked for and not installed is a finding of its own."""
    try:
        return tools.choose(chosen.launcher, chosen.source("launcher"), environ)
    except ToolkitError:
        return None


def _in_time(ask: Callable[[], share.Share], farm: client.Farm) -> share.Share:
    """What is answered soon: each step on the way to a scheduler, the look for its name too, may take long, and
    all of them together must not. Raises FarmError."""
    answers: list[share.Share | Exception] = []

    def note() -> None:
        try:
            answers.append(ask())
        except Exception as error:
            answers.append(error)

    asking = threading.Thread(target=note, daemon=True)
    asking.start()
    asking.join(_FARM)
    if not answers:
        hint = "`safe-ext-build farm check` waits longer, and says what is wrong."
        raise FarmError(f"{farm.origin} has not answered within {_FARM:g} s", code="SEB-9005", hint=hint)
    if isinstance(answers[0], Exception):
        raise answers[0]
    return answers[0]


def caches(root: Path) -> Iterator[Finding]:
    """What is kept, and how large it is."""
    if not root.is_dir():
        yield Finding("cache", f"{root}: nothing there yet")
        return
    yield Finding("cache", str(root), values={"path": str(root)})
    for name in ("objects", "toolkits", "wheels", "reports", "history.sqlite"):
        if (root / name).exists():
            held, whole = weigh(root / name, _PATIENCE)
            text = f"{name}: {'' if whole else 'more than '}{size(held)}"
            yield Finding("cache", text, values={"name": name, "bytes": held})


def weigh(path: Path, patience: float) -> tuple[int, bool]:
    """Bytes on disk below a path, and whether that is all; links count as nothing. `patience` in seconds."""
    total, until = _blocks(path), time.monotonic() + patience
    for place, _, names in os.walk(path):
        total += sum(_blocks(Path(place, name)) for name in names)
        if time.monotonic() > until:
            return total, False
    return total, True


def _blocks(path: Path) -> int:
    try:
        return path.lstat().st_blocks * 512
    except OSError:
        return 0
