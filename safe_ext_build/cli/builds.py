"""`safe-ext-build builds`: the builds of this user that run, also those that pip and uv keep silent about."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..supervise import registry
from ..supervise.heartbeat import GIB, duration, memory, on_farm, progress
from ..supervise.processes import read
from ..supervise.registry import Found
from ..supervise.status import Running, Status
from . import printing

EVERY = 2.0
"""Seconds between two looks of `--watch`."""
_MOST = 12
_CLEAR = "\x1b[H\x1b[J"
_EPILOG = """
A build is listed by the id that `safe-ext-build kill` takes. Builds of other users, and those in other
containers, are not seen.
"""


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Declare the command."""
    what = "list your builds that run on this machine, also those inside pip and uv"
    parser = commands.add_parser("builds", help=what, description=what.capitalize() + ".", epilog=_EPILOG)
    parser.add_argument("--watch", action="store_true", help="look again every two seconds, until Ctrl-C")
    parser.add_argument("--json", action="store_true", help="for programs: one line of JSON for each look")
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Show the builds, once or again and again."""
    try:
        while True:
            is_read = _show(registry.running(os.environ), arguments.json, arguments.watch)
            if not (is_read and arguments.watch):
                return 0
            time.sleep(EVERY)
    except KeyboardInterrupt:
        if not arguments.watch:
            raise
        return 0  # it is how one leaves it


def _show(builds: Sequence[Found], as_json: bool, again: bool) -> bool:
    if as_json:
        return printing.out(json.dumps([as_data(build) for build in builds]))
    lines = list(describe_all(builds))
    if again and sys.stdout.isatty():
        lines = [f"{_CLEAR}{time.strftime('%X')}", *lines]
    elif again:
        lines = [time.strftime("%X"), *lines]
    return printing.out("\n".join(lines))


def as_data(build: Found) -> dict[str, Any]:
    """A build for `--json`; without an answer of its supervisor, `status` is null."""
    record = build.record
    return {
        "id": record.build,
        "project": record.project,
        "pid": record.pid,
        "started": record.started,
        "elapsed": round(build.elapsed, 1),
        "status": asdict(build.status) if build.status else None,
    }


def describe_all(builds: Sequence[Found]) -> Iterator[str]:
    """All builds, in lines for people."""
    if not builds:
        yield "no build of yours runs on this machine"
    for build in builds:
        yield from describe(build)


def describe(build: Found) -> Iterator[str]:
    """One build."""
    record, status = build.record, build.status
    head = f"{record.build}  {record.project}, for {duration(build.elapsed)}"
    if status is None:
        yield f"{head}: its supervisor (pid {record.pid}) does not answer{_why(record.pid)}"
        return
    yield f"{head}: {', '.join(_facts(status))}"
    yield f"    in {status.root}, supervisor {status.pid}"
    for one in status.running[:_MOST]:
        yield f"    {_compile(one, status.root)}"
    if len(status.running) > _MOST:
        yield f"    ... and {len(status.running) - _MOST} more that run"
    if status.waiting:
        why = f": the first one because {status.why}" if status.why else ""
        yield f"    {status.waiting} held back{why}"
    if status.failed:
        yield f"    {_inside(status.failed, status.root)} has failed; what runs is waited for"


def _facts(status: Status) -> Iterator[str]:
    if status.ending:
        yield f"it ends ({status.ending})"
    if not status.compiled and not status.running and not status.waiting:
        yield "nothing is compiled at the moment"
        return
    yield progress(status)
    if count := len(status.running):
        yield f"{count} {'runs' if count == 1 else 'run'}"
    if text := on_farm(status):
        yield text
    if count := status.waiting:
        yield f"{count} {'waits' if count == 1 else 'wait'}"
    if text := memory(status):
        yield text
    if status.expected is not None:
        yield f"at least {duration(status.expected)} to go"


def _compile(one: Running, root: str) -> str:
    threads = f", {one.threads} threads" if one.threads > 1 else ""
    frozen = ", held still until there is memory" if one.frozen else ""
    where, here = (" on the farm", " here") if one.remote else ("", "")
    took = f"{duration(one.seconds)}{where}, {one.held / GIB:.1f} GiB{here}"
    return f"{_inside(one.source, root)}  {took}{threads}{frozen}"


def _inside(source: str, root: str) -> str:
    """A source as the project's author names it."""
    path = Path(source)
    return str(path.relative_to(root)) if path.is_relative_to(root) else source


def _why(pid: int) -> str:
    process = read(pid)
    return " (it is stopped)" if process and process.state in "Tt" else ""
