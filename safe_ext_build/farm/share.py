"""What a build may have of the farm, if anything; and sccache's configuration for what stays here."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .. import probe
from ..errors import FarmError
from ..launcher.call import SCCACHE
from ..launcher.redact import redact
from . import client

if TYPE_CHECKING:
    from ..launcher.tools import Launcher
    from ..settings import Settings

_CORRECT = "Correct or remove that name; what may stand there says sccache: `sccache --dist-auth`."
_CONFIGURE = "Have `safe-ext-build farm init client` tell it of one, or leave farm.required out."


@dataclass(frozen=True)
class Share:
    """`slots`: steps of compiles that the farm may run at a time; 0: none. `lines`: what is decided, and why.
    `scheduler`: its URL. `fixed`: somebody has said how many slots."""

    slots: int
    lines: tuple[str, ...]
    scheduler: str = ""
    fixed: bool = False


def choose(settings: Settings, launcher: Launcher | None, environ: Mapping[str, str]) -> Share | None:
    """The share of a build that compiles; None where there is nothing to say. Raises FarmError where
    `farm.required` says that without a farm there is to be no build."""
    if settings.jobs.remote == 0 and not settings.farm.required:
        return None
    try:
        farm = client.configured(environ)
        return share_of(farm, settings, launcher, environ) if farm else _nothing(settings)
    except FarmError as error:
        if settings.farm.required:
            raise
        return Share(0, (f"the compile farm is not used: {error}",))


def _nothing(settings: Settings) -> Share | None:
    if not settings.farm.required:
        return None
    what = f"{settings.source('farm.required')} asks for a compile farm, and sccache is told of none"
    raise FarmError(what, code="SEB-9051", hint=_CONFIGURE)


def share_of(
    farm: client.Farm,
    settings: Settings,
    launcher: Launcher | None,
    environ: Mapping[str, str],
    timeout: float = 3.0,
) -> Share:
    """What a build may have of this farm, which is asked; `timeout`: see client.ask. Raises FarmError."""
    if settings.jobs.remote == 0:
        what = f"{settings.source('jobs.remote')} is 0, and {settings.source('farm.required')} asks for the farm"
        raise FarmError(what, code="SEB-9052", hint='Write jobs.remote = "auto", or leave farm.required out.')
    if launcher is None or not any(tool.name == SCCACHE and not tool.too_old for tool in launcher.tools):
        hint = "Install it: python -m pip install safe-ext-build[farm]."
        raise FarmError(f"{farm.origin} needs sccache, which is not installed", code="SEB-9053", hint=hint)
    if not launcher.keeps:
        hint = f'Compiles reach a farm through sccache: set launcher = "{SCCACHE}" or "auto".'
        raise FarmError(f'{farm.origin} needs sccache, and launcher is "none"', code="SEB-9053", hint=hint)
    have_read(farm, next(tool.path for tool in launcher.tools if tool.name == SCCACHE), environ)
    found = client.ask(farm, timeout)
    slots = settings.jobs.remote or max(1, found.cpus - found.in_progress)
    source = f", as {settings.source('jobs.remote')} says" if settings.jobs.remote else ""
    what = f"{slots} {'compile' if slots == 1 else 'compiles'} at a time"
    servers = f"{found.servers} {'server' if found.servers == 1 else 'servers'}, {found.cpus} CPUs"
    line = f"up to {what} on the farm of {farm.origin}{source}: {servers}, {found.in_progress} in use"
    return Share(slots, (redact(line, environ),), farm.scheduler, fixed=bool(settings.jobs.remote))


def have_read(farm: client.Farm, program: Path, environ: Mapping[str, str]) -> None:
    """Have sccache itself read the configuration: where a word in it is none of sccache's, it does not start.

    Raises FarmError."""
    if farm.token_kind not in ("token", "insecure"):
        return  # it would open a browser
    try:
        status, said = probe.run([str(program), "--dist-auth"], environ)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return
    if status and "config file" in said:
        raise FarmError(
            f"{farm.config} is no valid configuration of sccache: {_refusal(said)}", code="SEB-9002", hint=_CORRECT
        )


def _refusal(said: str) -> str:
    """What sccache does not take, and where. Not in its words: they show the line, which may hold the token."""
    word, place = re.search(r"unknown field `([\w-]+)`", said), re.search(r"\bat (line \d+, column \d+)", said)
    what = f"it does not know the name {word[1]}" if word else "it does not take it"
    return f"{what} (at {place[1]})" if place else what


def local_configuration(environ: Mapping[str, str], place: Path) -> Path | None:
    """Write the configuration that applies without its farm into a directory; None where it names none.

    Raises FarmError, and OSError."""
    found = client.read(client.config_path(environ))
    if "dist" not in found:
        return None
    return write_configuration({name: value for name, value in found.items() if name != "dist"}, place)


def write_configuration(what: Mapping[str, object], place: Path) -> Path:
    """Write a configuration of sccache into a directory. Raises OSError."""
    # As JSON, which sccache reads, too: there are many ways to write a farm in TOML, and all are left out.
    local = place / "sccache.json"
    local.touch(0o600)
    local.write_text(json.dumps(what, default=str), encoding="utf-8")
    return local
