"""Runs one supervised hook on a stage that is set for it; then clears that away, and remembers what was seen."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import checking, events, preflight, scenery, ui
from .delivery import deliver_or_keep
from .errors import PlaceError
from .here import here
from .report.summary import summarize
from .scene import WHEELS, Scene, is_project, naming
from .schedule import objects
from .schedule.forecast import Curve
from .schedule.history import History
from .schedule.history_key import scope
from .supervise import hook, shelter, workspace
from .supervise.protocol import HISTORY
from .supervise.turn import Taken
from .supervise.workspace import Workspace

if TYPE_CHECKING:
    from .report.account import Account
    from .report.record import Outcome

_WRITABLE = "Make it yours to write, or build from a copy of it; or free room where temporary files go."


def run(scene: Scene) -> Any:
    """Run a hook in a supervised builder; returns its result. Raises SafeExtBuildError, and Taken."""
    hook.leave_if_orphaned()
    cache = workspace.cache_root(dict(os.environ))
    account = _account(scene, cache) if scene.compiles else None
    with hook.Signals() as signals:
        place = _workspace(scene, frontend=True)
        project = scene.project
        history = History(cache / "history.sqlite")
        outcome: Outcome = "failed"
        error: Exception | None = None
        try:
            with workspace.writing(place.path):
                if scene.compiles:
                    _write_history(history.lookup_all(scope(project)), place)
                build = scenery.build(scene, place, project, _ground(scene, place))
            with _trusted_modules(scene, build) as give_back:

                def take_leave() -> None:
                    give_back()
                    _conclude(place, account, history, "interrupted")

                result = hook.run(build, place, signals, take_leave)
            if build.check:
                checking.settle(scene.settings, scene.torch, scene.cuda, place.path)
            if WHEELS in scene.arguments:
                _deliver(place, result, here() / scene.arguments[WHEELS], cache)
            outcome = "built"
            return result
        except Exception as reason:
            error = reason
            raise
        finally:
            _conclude(place, account, history, outcome, error)


def run_command(scene: Scene, command: list[str]) -> tuple[int, int]:
    """Run a command of the user's on a stage; returns its exit status, and the signal that it died by or that we
    were sent, or 0. Raises SafeExtBuildError, and Taken."""
    cache = workspace.cache_root(dict(os.environ))
    account, history = _account(scene, cache), History(cache / "history.sqlite")
    with hook.Signals() as signals:
        place = _workspace(scene)
        status, number = 1, 0
        error: Exception | None = None
        try:
            with workspace.writing(place.path):
                _write_history(history.lookup_all(scope(scene.project)), place)
                tree = scenery.tree(scene, place, scene.project, _command_ground(place))
                tree = scenery.with_nvcc_on_path(tree) if scene.cuda else tree
            status, number = hook.run_command(command, tree, place, signals, stands_for_us=True)
        except Exception as reason:
            error = reason
            raise
        finally:
            failed: Outcome = "interrupted" if number else "failed"
            _conclude(place, account, history, failed if status or number else "built", error)
    return status, number


def _workspace(scene: Scene, frontend: bool = False) -> Workspace:
    """A workspace that has the turn to build. Raises SafeExtBuildError; Taken when another build has it."""
    root = workspace.root(scene.settings.workspace.dir, dict(os.environ))
    place = shelter.stage(root, shim_roots(), frontend)
    try:
        if scene.turn:
            scene.turn.claim(place)
    except Taken:
        place.remove()
        raise
    return place


def _command_ground(place: Workspace) -> Path:
    """Where the sources are: in a directory that is no project, a command is about what it unpacks itself."""
    return here() if is_project(here()) else place.path / "tmp"


def _conclude(
    place: Workspace, account: Account | None, history: History, outcome: Outcome, error: Exception | None = None
) -> None:
    """After a build, however it ended: clear its workspace away, say what it has cost, and remember it."""
    seen = list(events.read(place.path / "events.jsonl"))
    place.remove()
    if line := summarize(seen):
        ui.say(line)
    if account:
        account.settle(place.id, seen, outcome, error)
    history.record(
        (one.entry, Curve(one.alone, one.curve)) for one in seen if one.outcome == "compiled" and one.curve
    )


def _deliver(place: Workspace, name: str, directory: Path, cache: Path) -> None:
    hint = "Free some room there, or have the wheel put elsewhere."
    note = place.path / "jobs" / "wheel" / "output"
    deliver_or_keep(place.path / "wheel" / name, directory, hint, cache, note)


def _account(scene: Scene, cache: Path) -> Account:
    from .report.account import Account

    facts, cuda = scene.torch.facts if scene.torch else None, scene.cuda
    toolkit = f"{cuda.build} in {cuda.home}" if cuda else ""
    torch = facts.describe() if facts else ""
    return Account(scene.project, scene.hook, scene.settings, scene.plan, toolkit, torch, cache)


def _write_history(known: dict[str, Curve], place: Workspace) -> None:
    text = json.dumps({entry: [curve.seconds, *curve.points] for entry, curve in known.items()})
    (place.path / HISTORY).write_text(text)


def shim_roots() -> list[Path]:
    """Where shims go when the workspace cannot hold them, best first."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    roots = [Path(runtime) / "safe-ext-build"] if runtime else []
    last = Path(f"/var/tmp/safe-ext-build-{os.getuid()}.shims")  # a home may be long, or execute nothing
    return [*roots, workspace.cache_root(dict(os.environ)) / "shims", last]


def _ground(scene: Scene, place: Workspace) -> Path:
    """The directory that the builder works in: the project's, or a copy of one that cannot be written.

    An editable install is about the project's own directory: there, setuptools has to say what it cannot do.
    """
    project = here()
    blocked = preflight.unwritable(project)
    why = f"{blocked} cannot be written" if blocked else ""
    if not preflight.is_text(project):
        why = f"the path of {project} is not UTF-8, in which torch writes it down"
        if "editable" in scene.hook:
            hint = "Rename the directory: an editable install is about its very path."
            raise PlaceError(why, code="SEB-4016", hint=hint)
    if not why or "editable" in scene.hook:
        return project
    if scene.compiles:
        ui.say(f"{why}, so a copy of {project} is built")
    try:
        return preflight.copy(project, place.path / "copy")
    except shutil.Error as error:
        _, _, reason = error.args[0][0]
        what = f"{why}, nor can it be copied to be built elsewhere: {reason}"
        raise PlaceError(what, code="SEB-4001", hint=_WRITABLE) from error


@contextlib.contextmanager
def _trusted_modules(scene: Scene, build: hook.Build) -> Iterator[Callable[[], None]]:
    """What setuptools takes for up to date while the hook runs really is. What is yielded gives the files back
    their own times, if the process is going to end before this does."""
    give_back: Callable[[], None] = _nothing
    project = here()
    if scene.compiles and build.cwd == str(project) and "editable" not in scene.hook:
        mark = naming(scene.torch, scene.cuda, scene.plan)["fingerprint"]
        with contextlib.suppress(OSError):  # a full disk: setuptools will say so
            where = build.apart.build if build.apart else ""
            give_back = objects.distrust_modules(str(project), mark, where)[1].give_back
    try:
        yield give_back
    finally:
        give_back()


def _nothing() -> None: ...
