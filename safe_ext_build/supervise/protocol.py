"""What the hook process, the supervisor and the builder hand each other. Standard library only."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

# Bytes on the lifeline, from the hook process to the supervisor.
STOP, CONTINUE = b"S", b"C"
SIGNAL_BYTES = {b"I": "SIGINT", b"T": "SIGTERM", b"H": "SIGHUP", b"Q": "SIGQUIT"}

# Why a build is stopped: its builder, or the command that was to be run, has died by this signal.
BUILDER_KILLED = "the builder was killed by signal {}"
# Stands in the workspace while it is known why the build fails: a compile has just failed, or it is stopped.
FAILED = "compile-failed"
# What earlier builds have shown of this project's compiles: entry -> [seconds, bytes...].
HISTORY = "history.json"


@dataclass(frozen=True)
class SupervisorRequest:
    """How the supervisor is to run a build.

    `limits` and `compiles` are the fields of policy.Limits and broker.Naming. `neighbours`: where the builds
    of this user tell each other what they use; '' where there is no such place. `patience`: see stall.PATIENCE.
    `heartbeat`: see heartbeat.INTERVAL.
    """

    workspace: str
    lock: int
    lifeline: int
    hook: int
    frontend: int
    frontend_start: int
    command: list[str]
    environ: dict[str, str]
    limits: dict[str, Any]
    compiles: dict[str, Any]
    neighbours: str
    patience: float
    heartbeat: float

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def load(cls, path: Path) -> SupervisorRequest:
        return cls(**json.loads(path.read_text()))


@dataclass(frozen=True)
class Verdict:
    """How a build ended, as the supervisor tells it: `reason` is '' when the builder ended by itself."""

    reason: str = ""
    builder_status: int = 0
    failure: dict[str, Any] | None = None
    stuck: list[str] | None = None

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def load(cls, path: Path) -> Verdict | None:
        """None when the supervisor never came to write it."""
        try:
            return cls(**json.loads(path.read_text()))
        except (OSError, ValueError, TypeError):
            return None
