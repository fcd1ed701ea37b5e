"""Writes what the machines of a farm are told: whole or not at all, and for nobody else to read."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..errors import FarmError
from . import client, roles
from .roles import Join

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_HEADER = re.compile(r"\s*\[+\s*(?P<name>[^\]#]+?)\s*\]+\s*(?:#.*)?")
_SAYS_NOTHING = re.compile(r"\s*(#|$)")
_OURS = re.compile(r"\s*(scheduler_url|auth)\s*=")


def write_new(files: Mapping[Path, str], *, force: bool, public: Mapping[Path, str] | None = None) -> None:
    """Write files that only their owner may read, and `public` ones. Raises FarmError where one cannot be written,
    and, without `force`, where there is one already: then none is written."""
    public = public or {}
    there = next((path for path in (*files, *public) if os.path.lexists(path)), None)
    if there and not force:
        hint = "Keep it, or have it replaced: --force. With new tokens, each machine has to join the farm again."
        raise FarmError(f"{there} is there already", code="SEB-9101", hint=hint)
    for path, text in files.items():
        write(path, text)
    for path, text in public.items():
        write(path, text, mode=0o644)


def write(path: Path, text: str, mode: int = 0o600) -> None:
    """Write a file in the place of the one that is there, and its directory if there is none. Raises FarmError."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _beside(path, text, mode) as new:
            new.replace(path)
    except OSError as error:
        hint = "Run it as the user whom that place belongs to (root, for a service), or name another: --dir DIR."
        raise FarmError(f"{path} cannot be written: {error.strerror}", code="SEB-9104", hint=hint) from error


@contextlib.contextmanager
def _beside(path: Path, text: str, mode: int) -> Iterator[Path]:
    """A file that is complete on disk, in the directory of `path`; removed, unless it was moved."""
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            os.fchmod(descriptor, mode)
            file.write(text)
            file.flush()
            os.fsync(descriptor)
        yield Path(name)
    finally:
        Path(name).unlink(missing_ok=True)


# The client's, which is sccache's own.


def join_client(path: Path, join: Join, *, force: bool) -> bool:
    """Tell sccache's clients of a farm in `path`, and keep whatever else stands there; False where it says so
    already. With `force`, the farm that stands there is replaced. Raises FarmError."""
    path = path.resolve()  # the file, where dotfiles are links
    before = client.read(path)
    if "dist" not in before:
        _refuse_json(path, join)
        write(path, _appended(path, join))
        return True
    dist = before["dist"] if isinstance(before["dist"], dict) else {}
    auth = {"type": "token", "token": join.token}
    if dist.get("scheduler_url") == join.scheduler and dist.get("auth") == auth:
        return False
    if not force:
        hint = f"Have it replaced by this farm: --force. By hand: {_by_hand(join)}"
        raise FarmError(f"{path} has a table [dist] already", code="SEB-9105", hint=hint)
    _refuse_json(path, join)
    text = _replaced(path.read_text(encoding="utf-8"), join)
    if _parsed(text) != {**before, "dist": {**dist, "scheduler_url": join.scheduler, "auth": auth}}:
        raise _not_understood(path, join)
    write(path, text)
    return True


def _appended(path: Path, join: Join) -> str:
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    gap = "" if not text else "\n" if text.endswith("\n") else "\n\n"
    return text + gap + roles.client_config(join)


def _replaced(text: str, join: Join) -> str:
    """The text with another farm, as far as that can be done line by line. Pure."""
    head, url, *rest = roles.client_config(join).splitlines()
    lines, table = [], ""
    for line in text.splitlines():
        if header := _HEADER.fullmatch(line):
            table = re.sub(r"[\s'\"]", "", header["name"])
        is_ours = table == "dist.auth" or (table == "dist" and _OURS.match(line))
        if is_ours and not _SAYS_NOTHING.match(line):
            continue
        lines += [head, url] if header and table == "dist" else [line]
    while lines and not lines[-1].strip():
        lines.pop()
    return "\n".join([*lines, *rest]) + "\n"


def _parsed(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except ValueError:
        return {}


def _refuse_json(path: Path, join: Join) -> None:
    if path.suffix == ".json":
        raise _not_understood(path, join)


def _not_understood(path: Path, join: Join) -> FarmError:
    what = f"{path} is written in a way that is not changed by programs"
    return FarmError(what, code="SEB-9105", hint=f"Write it by hand: {_by_hand(join)}")


def _by_hand(join: Join) -> str:
    return (
        f'in [dist], scheduler_url = "{join.scheduler}"; in [dist.auth], type = "token", and as token what stands '
        "in the word after the last equals sign."
    )
