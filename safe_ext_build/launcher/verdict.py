"""What a compiler cache says of a compile: hit, miss, or that it cannot cache it, and why. Pure but for reading;
standard library only (the supervisor imports this)."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Literal

from . import storage

Result = Literal["", "hit", "miss", "uncacheable"]

# What ccache counts (src/ccache/core/statistics.cpp): what it has looked up, and else the reason why it has not.
_CCACHE_HITS = {"direct_cache_hit", "preprocessed_cache_hit"}
_CCACHE_LOOKED_UP = re.compile(r".*_(hit|miss|write|error|timeout)|cache_.*|files_in_cache|cleanups_performed")
_CCACHE_REASONS = {
    "disabled": "ccache is disabled",
    "unsupported_code_directive": "the source includes a binary file (.incbin, #embed)",
    "recache": "CCACHE_RECACHE is set",
}
_SCCACHE_REASONS = {
    "multiple input files": "several sources in one command",
    "no input file": "no source in the command",
    "no output file": "no object in the command",
}
# Of nvcc's own run, which it never stores, it says "miss"; then of its last step, which has the same output.
_LOOKED_UP = re.compile(r"\[([^\]]+)\]: Cache (hit in|miss in|none in|read error|timed out)")
# What sccache calls the steps of nvcc by.
_STEP = re.compile(r"\.(?:module_id|ptx|cubin)$")
_RESULTS: dict[str, Result] = {"hit in": "hit", "none in": "uncacheable"}
_CANNOT = re.compile(r"parse_arguments: CannotCache\((.*?)\): \[")


@dataclass(frozen=True)
class Verdict:
    """`why`: the reason, of one that cannot be cached; of a miss, how much of it was a hit."""

    result: Result = ""
    why: str = ""


def from_ccache(text: str) -> Verdict:
    """Read a CCACHE_STATSLOG of one compile."""
    counted = {line for line in text.splitlines() if line and not line.startswith("#")}
    if counted & _CCACHE_HITS:
        return Verdict("hit")
    for counter in sorted(counted):
        if counter in ("internal_error", "preprocessor_error") or not _CCACHE_LOOKED_UP.fullmatch(counter):
            return Verdict("uncacheable", _CCACHE_REASONS.get(counter, counter.replace("_", " ")))
    return Verdict("miss") if "cache_miss" in counted else Verdict()


def read_ccache(path: str) -> Verdict:
    try:
        with open(path, errors="replace") as file:
            return from_ccache(file.read())
    except OSError:
        return Verdict()


class ServerLog:
    """What the log of an sccache server says of compiles, by the name of their output."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._offset = 0
        self._rest = ""
        self._found: dict[str, Verdict] = {}
        self._steps: dict[str, bool] = {}
        self._storage = storage.FromServer()

    def verdict(self, output: str, source: str = "") -> Verdict:
        """What was said of the compile of `source` that wrote `output`, whose name no other has; it is then
        forgotten."""
        self._read()
        found = self._found.pop(os.path.basename(output), Verdict())
        steps = self._steps_of(os.path.splitext(os.path.basename(source))[0])
        if not steps or found.result not in ("hit", "miss"):
            return found
        hits = [*steps, found.result == "hit"].count(True)
        if hits > len(steps):
            return Verdict("hit")
        return Verdict("miss", f"{hits} of {len(steps) + 1} steps hit" if hits else "")

    def _steps_of(self, stem: str) -> list[bool]:
        """Which steps of an nvcc compile hit, but for the last. Their files are called as the source is."""
        mine = [name for name in self._steps if name.startswith(f"{stem}.")]
        return [self._steps.pop(name) for name in mine]

    def word(self) -> storage.Word:
        """What it says of the storage, since the last time."""
        self._read()
        return self._storage.word()

    def _read(self) -> None:
        try:
            with open(self.path, "rb") as file:
                file.seek(self._offset)
                data = file.read()
        except OSError:
            return
        self._offset += len(data)
        *whole, self._rest = (self._rest + data.decode(errors="replace")).split("\n")
        for line in whole:
            self._take(line)

    def _take(self, line: str) -> None:
        self._storage.take(line)
        if found := _LOOKED_UP.search(line):
            result = _RESULTS.get(found[2], "miss")
            why = "sccache was told not to" if result == "uncacheable" else ""
            self._found[found[1]] = Verdict(result, why)
            if _STEP.search(found[1]):
                self._steps[found[1]] = result == "hit"
        elif cannot := _CANNOT.search(line):
            reason, _, more = cannot[1].partition(", ")
            why = _SCCACHE_REASONS.get(reason, reason if not more else f"{reason}: {more}")
            for word in re.findall(r'"((?:[^"\\]|\\.)*)"', line[cannot.end() :]):
                if ".seb-" in word:
                    self._found[os.path.basename(word)] = Verdict("uncacheable", why)
