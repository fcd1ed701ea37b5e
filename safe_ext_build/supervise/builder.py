"""B, the builder: the one process that runs the project's code. It calls one hook of the inner backend.

Its result travels in a file: what the project prints on its streams is the user's.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .. import apart, stamp
from ..errors import SafeExtBuildError
from ..schedule.shim import MISSING
from .backend import load
from .blame import AGAIN
from .linux import set_name
from .protocol import FAILED
from .reasons import Project, cause_of


def main() -> None:
    workspace = Path(sys.argv[1])
    set_name("seb-builder")
    request = json.loads((workspace / "request.json").read_text())
    os.chdir(request["cwd"])
    sys.path[:] = request["path"]
    sys.argv[:] = [sys.argv[0]]
    answer = _answer(request, (workspace / FAILED, workspace / MISSING))
    temporary = workspace / "result.tmp"
    try:
        temporary.write_text(json.dumps(answer))
        temporary.rename(workspace / "result.json")
    except OSError as error:  # a full disk; or the setup script has tidied up, and taken too much
        print(f"safe-ext-build: the result cannot be written: {error}", file=sys.stderr)
        sys.exit(1)
    sys.exit("error" in answer)


def _answer(request: dict[str, Any], explained: Sequence[Path]) -> dict[str, Any]:
    try:
        backend = load(request["backend"], request["backend_path"], Path.cwd())
        hook = getattr(backend, request["hook"], None)
        if hook is None:
            return {"missing": True}
        if request["apart"]:
            apart.install(apart.Apart(**request["apart"]), Path.cwd())
        if any(request["stamp"].values()):
            stamp.install(stamp.Stamp(**request["stamp"]))
        value = hook(**request["arguments"])
        if request["check"]:
            from ..verify import gather

            gather.record(request["check"], request, value, explained[0].parent)
        return {"value": value}
    except SafeExtBuildError as error:
        return {"error": str(error), "code": error.code, "hint": error.hint}
    except SystemExit as error:
        status = f"exit status {error.code}" if isinstance(error.code, int) else error.code or "no reason given"
        return {"error": f"the setup script gave up: {status}", **_cause(error, request, "SEB-6102")}
    except KeyboardInterrupt:
        return {"error": "the build was interrupted", "code": "SEB-5003", "hint": AGAIN}
    except BaseException as error:
        if not any(flag.exists() for flag in explained):
            # A compiler's own words are the last that a user should see; of all else the traceback is shown.
            traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}", **_cause(error, request, "SEB-6101")}


def _cause(error: BaseException, request: dict[str, Any], otherwise: str) -> dict[str, str]:
    """The id of an error of the setup script and what to do; `otherwise` is its id where no cause is known."""
    cause = cause_of(error, Project.read(Path(request["cwd"])))
    return {"code": cause.code, "hint": cause.hint} if cause else {"code": otherwise, "hint": ""}
