"""What a compiler cache says of a compile: hit, miss, or that it cannot cache it, and why. Pure but for reading;
standard library only (the supervisor imports this)."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Literal

Result = Literal["", "hit", "miss", "uncacheable"]

# What ccache counts (src/ccache/core/statistics.cpp), in the order in which it tells.
_CCACHE_HITS = {"direct_cache_hit", "preprocessed_cache_hit"}
_CCACHE_REASONS = {
    "autoconf_test": "it looks like a test of configure",
    "bad_compiler_arguments": "ccache does not understand the command line",
    "bad_input_file": "the source cannot be read",
    "bad_output_file": "the output cannot be written",
    "compiler_check_failed": "its check of the compiler failed",
    "compiler_produced_empty_output": "the compiler wrote an empty object",
    "compiler_produced_no_output": "the compiler wrote no object",
    "could_not_find_compiler": "ccache does not find the compiler",
    "could_not_use_modules": "it uses C++ modules",
    "could_not_use_precompiled_header": "it uses a precompiled header",
    "disabled": "ccache is disabled",
    "error_hashing_extra_file": "a file to hash cannot be read",
    "internal_error": "ccache failed inside",
    "modified_input_file": "a source was modified meanwhile",
    "multiple_source_files": "several sources in one command",
    "output_to_stdout": "the object goes to standard output",
    "recache": "CCACHE_RECACHE is set",
    "unsupported_code_directive": "the source includes a binary file (.incbin, #embed)",
    "unsupported_compiler_option": "ccache does not support one of its options",
    "unsupported_environment_variable": "ccache does not support a variable of its environment",
    "unsupported_source_encoding": "the source is not in UTF-8",
}
_SCCACHE_REASONS = {
    "multiple input files": "several sources in one command",
    "no input file": "no source in the command",
    "no output file": "no object in the command",
}
_RESULT = re.compile(r"\[([^\]]+)\]: compile result: (cache hit|cache miss|not cacheable|not cached|cache error)")
_CANNOT = re.compile(r"parse_arguments: CannotCache\((.*?)\): \[")


@dataclass(frozen=True)
class Verdict:
    """`why`: the reason, of one that cannot be cached."""

    result: Result = ""
    why: str = ""


def from_ccache(text: str) -> Verdict:
    """Read a CCACHE_STATSLOG of one compile."""
    counted = {line for line in text.splitlines() if line and not line.startswith("#")}
    if counted & _CCACHE_HITS:
        return Verdict("hit")
    for counter, why in _CCACHE_REASONS.items():
        if counter in counted:
            return Verdict("uncacheable", why)
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

    def verdict(self, output: str) -> Verdict:
        """What was said of the compile that wrote `output`, whose name no other has; it is then forgotten."""
        self._read()
        name = os.path.basename(output)
        return self._found.pop(name, Verdict())

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
        if found := _RESULT.search(line):
            result = _of_sccache(found[2])
            # nvcc's own run is never cached, the last of its steps is: what was said first counts.
            if result.result and (result.result != "uncacheable" or found[1] not in self._found):
                self._found[found[1]] = result
        elif cannot := _CANNOT.search(line):
            reason, _, more = cannot[1].partition(", ")
            why = _SCCACHE_REASONS.get(reason, reason if not more else f"{reason}: {more}")
            for word in re.findall(r'"((?:[^"\\]|\\.)*)"', line[cannot.end() :]):
                if ".seb-" in word:
                    self._found[os.path.basename(word)] = Verdict("uncacheable", why)


def _of_sccache(words: str) -> Verdict:
    if words == "cache hit":
        return Verdict("hit")
    if words == "cache miss":
        return Verdict("miss")
    reason = {"cache error": "sccache failed inside", "not cached": "sccache was told not to cache it"}
    return Verdict("uncacheable", reason.get(words, "sccache does not cache what this compiler makes"))
