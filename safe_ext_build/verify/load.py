"""Loads extension modules as their users would, each in a process of its own, and says how it went.

Run as a script by gather.py, with the path of a request: JSON with `path` (sys.path), `torch` (whether there is
one), `torch_first` (modules are linked to it), `modules` (path, name, root, needed, undefined) and `answer` (where
to write a line of JSON for each module).
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

# What is said of a module. `unsure`: it does not load alone, and its package fails for another reason.
LOADED, UNDEFINED, UNSURE, LIBRARY, FAILED, CRASHED = (
    "loaded",
    "undefined",
    "unsure",
    "library",
    "failed",
    "crashed",
)
_UNDEFINED_SYMBOL, _NO_LIBRARY = "undefined symbol: ", ": cannot open shared object file"

Answer = dict[str, Any]
# Seconds for one module; torch, which takes longest, is there by then.
PATIENCE = 60.0


def main() -> None:
    request = json.loads(Path(sys.argv[1]).read_text())
    sys.path[:] = request["path"]
    facts = import_torch() if request["torch_first"] else {}
    with Path(request["answer"]).open("w") as answers:
        for module in request["modules"]:
            outcome = attempt(module, facts)
            if outcome["outcome"] != LOADED and request["torch"] and not facts:
                # Once torch is imported, some CUDA libraries are there for everybody.
                facts = import_torch()
                outcome = attempt(module, facts)
            answers.write(json.dumps({"path": module["path"], **facts, **outcome}) + "\n")
            answers.flush()


def attempt(module: Answer, facts: Answer) -> Answer:
    return facts if "torch_error" in facts else in_a_child(partial(examine, module))


def import_torch() -> Answer:
    try:
        torch = importlib.import_module("torch")
        return {"cxx11_abi": bool(torch.compiled_with_cxx11_abi())}
    except Exception as error:
        return {"outcome": FAILED, "detail": f"torch cannot be imported: {last_line(error)}", "torch_error": True}


def in_a_child(work: Callable[[], Answer]) -> Answer:
    """Do this in a forked process: what crashes there, or registers a name twice, is nobody else's matter."""
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.write(writer, json.dumps(work()).encode() + b"\n")
        finally:
            os._exit(0)
    os.close(writer)
    answer = _line(reader, time.monotonic() + PATIENCE)
    os.close(reader)
    if answer is None:
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    if answer:
        return dict(json.loads(answer))
    detail = how_it_ended(status) if answer is not None else f"it did not end within {PATIENCE:.0f} s"
    return {"outcome": CRASHED, "detail": detail}


def _line(reader: int, deadline: float) -> bytes | None:
    """A whole line; b"" when there will be none, None when it takes too long.

    The end of the pipe may never come: a library may have started a daemon.
    """
    data = b""
    while not data.endswith(b"\n"):
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([reader], [], [], left)[0]:
            return None
        part = os.read(reader, 1 << 16)
        if not part:
            return b""
        data += part
    return data


def how_it_ended(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    return f"killed by signal {-code}" if code < 0 else f"exit status {code}"


def examine(module: Answer) -> Answer:
    """Load one module. When it lacks a symbol or a library, its package gets its chance to bring that."""
    try:
        ctypes.CDLL(module["path"])
        return {"outcome": LOADED}
    except OSError as error:
        text = str(error)
    lacks_library = _NO_LIBRARY in text
    if not lacks_library and _UNDEFINED_SYMBOL not in text:
        return {"outcome": FAILED, "detail": text}
    outcome = in_a_child(partial(by_package, module))
    if outcome["outcome"] == LOADED:
        return outcome
    if lacks_library:
        return {"outcome": LIBRARY, "detail": text.partition(_NO_LIBRARY)[0]}
    named = text.partition(_UNDEFINED_SYMBOL)[2].split()[0].strip(",")
    return {**outcome, "symbols": missing(module["undefined"], module["needed"]) or [named]}


def by_package(module: Answer) -> Answer:
    """Import the module by its name: its package may load libraries first."""
    sys.path.insert(0, module["root"])
    try:
        importlib.import_module(module["name"])
        return {"outcome": LOADED}
    except Exception as error:
        sure = isinstance(error, ImportError) and _UNDEFINED_SYMBOL in str(error)
        return {"outcome": UNDEFINED if sure else UNSURE, "detail": last_line(error)}


def missing(undefined: list[str], needed: list[str]) -> list[str]:
    """Those of a module's undefined symbols that nothing here has: neither what it needs, nor what is loaded."""
    handles = [ctypes.CDLL(None)]
    for name in needed:
        try:
            handles.append(ctypes.CDLL(name))
        except OSError:
            continue
    return [symbol for symbol in undefined if not any(has(handle, symbol) for handle in handles)]


def has(library: ctypes.CDLL, symbol: str) -> bool:
    # Not through the attributes of a CDLL: those make a function of each, and of `_name` something else.
    find = ctypes.CDLL(None).dlsym
    find.restype, find.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_char_p]
    return find(library._handle, symbol.encode()) is not None


def last_line(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1].strip() if lines else ''}"


if __name__ == "__main__":
    main()
