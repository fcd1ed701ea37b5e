"""How far a build is: what the supervisor answers to who asks on its socket. Standard library only.

The question is a message as a J sends them (see schedule/job.py): `status`, or `end REASON`, which ends the
build. The answer to both is one line of JSON, the fields of Status.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from ..schedule.broker import Broker, Job
from ..schedule.policy import Memory

VERSION = 1
ASK, END = b"status", b"end"
# An answer has to fit into a socket's buffer, since nobody waits for a client: this much does.
MOST_RUNNING = 256
LONGEST_NAME = 200


@dataclass(frozen=True)
class Running:
    """A compile that runs: `source` as the compiler is given it, for how many `seconds`, on how many
    `threads`, how many bytes it `held` last on this machine, whether it is `frozen` until there is memory for it,
    and whether it is `remote`: on a farm of other machines."""

    source: str
    seconds: float
    threads: int
    held: int
    frozen: bool
    remote: bool = False


@dataclass(frozen=True)
class Status:
    """A build at one moment.

    `pid`: the supervisor's. `root`: the project's directory. `compiled` of `total`: objects; `total` is 0 where
    nobody knows. `running`: the longest first. `waiting`: compiles that wait for admission, and `why`. `held`
    of `budget`: bytes of all running compiles, and what they may hold. `expected`: seconds until all is
    compiled, at least; None where no history tells. `failed`: what has failed, after which nothing is begun any
    more. `ending`: why the build is being stopped. `hits`: how many of those compiled a compiler cache had,
    `farmed`: how many a farm has compiled. `remote`: how many of the running ones are there, which takes `slots`
    steps of ours at a time (0: none, or none now).
    """

    build: str
    pid: int
    project: str
    root: str
    workspace: str
    compiled: int
    total: int
    running: tuple[Running, ...]
    waiting: int
    why: str
    held: int
    budget: int
    expected: float | None
    failed: str = ""
    ending: str = ""
    hits: int = 0
    farmed: int = 0
    remote: int = 0
    slots: int = 0
    version: int = VERSION

    def to_line(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def parse(cls, line: bytes) -> Status:
        """Raises ValueError, TypeError or KeyError when it is none. What a newer build adds is left out."""
        found = json.loads(line)
        running = tuple(Running(**_known(Running, one)) for one in found["running"])
        return cls(**{**_known(cls, found), "running": running})


def _known(kind: type[Status] | type[Running], found: dict[str, Any]) -> dict[str, Any]:
    return {item.name: found[item.name] for item in fields(kind) if item.name in found}


def look(workspace: Path, broker: Broker, memory: Memory, now: float) -> Status:
    """The build as its broker knows it; `memory` as it was last seen."""
    jobs = sorted(broker.running(), key=lambda job: job.started)
    waiting = sum(job.state == "waiting" for job in broker.jobs.values())
    held = sum(map(_held, jobs))
    known = broker.compiled + len(jobs) + waiting
    away = broker.scheduler.away
    return Status(
        build=workspace.name,
        pid=os.getpid(),
        project=broker.naming.project,
        root=broker.naming.root,
        workspace=str(workspace),
        compiled=broker.compiled,
        total=max(broker.planned, known) if broker.planned else 0,
        running=tuple(_running(job, broker, now) for job in jobs[:MOST_RUNNING]),
        waiting=waiting,
        why=broker.held if waiting else "",
        held=held,
        budget=max(0, memory.available + held - memory.reserve - max(memory.promised, default=0)),
        expected=broker.scheduler.expected(max(0, broker.planned - known)),
        failed=broker.failure.source if broker.failure and broker.winding_down else "",
        ending=broker.stop_reason,
        hits=broker.cached["hit"],
        farmed=broker.farmed,
        remote=sum(job.remote for job in jobs),
        slots=away.slots if away.open else 0,
    )


def _held(job: Job) -> int:
    return job.samples[-1][1] if job.samples else 0


def _running(job: Job, broker: Broker, now: float) -> Running:
    name = job.name[-LONGEST_NAME:]
    return Running(name, now - job.started, job.threads, _held(job), job.id in broker.frozen, job.remote)
