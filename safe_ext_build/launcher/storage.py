"""The storage that a compiler cache shares, as a build sees it: whether it answers, and what waiting for it costs.
Pure but for reading; standard library only (the supervisor imports this).

Where nobody answers, ccache 4.14 waits 10 s for each object, sccache 0.16 30 s for each step of each object, and
30 s more to store it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime

LOG = "said"
"""In a compile's own directory: what ccache has done, where it shares a storage."""
PATIENCE = 15.0
"""Seconds that a build waits for it, and gets nothing for that, before it is given up..."""
SHARE = 0.25
"""...if they are more than this share of the time that the build has been compiling."""
SILENCE = 3.0
"""Seconds after which an answer that does not come, or is an error, is not waited for again."""

_FULL = re.compile(r"\bOOM\b|maxmemory|no space|quota|insufficient storage|\b507\b|read-?only", re.IGNORECASE)
_REFUSED = re.compile(
    r"WRONGPASS|NOAUTH|NOPERM|invalid password|AccessDenied|Forbidden|Unauthorized|\b40[13]\b"
    r"|SignatureDoesNotMatch|InvalidAccessKeyId|PermissionDenied",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Word:
    """What was heard of it. `waited`: seconds for which compiles waited, and got nothing. `trouble`: what went
    wrong, in the tool's words. `silent`: something took longer than SILENCE."""

    waited: float = 0.0
    trouble: str = ""
    silent: bool = False


@dataclass
class Storage:
    """What one build has seen of it. `given_up`: it is not to be asked any more."""

    given_up: bool = False
    _waited: float = 0.0
    _since: float = 0.0
    _said: set[str] = field(default_factory=set)

    def began(self, now: float) -> None:
        """A compile begins at `now` (seconds of any clock)."""
        self._since = self._since or now

    def heed(self, word: Word, running: int, now: float, tool: str) -> list[str]:
        """Take note; returns what is to be said now. `running`: so many compiles wait at the same time."""
        if self.given_up:
            return []
        self._waited += word.waited / max(1, running)
        slow = self._waited > max(PATIENCE, SHARE * (now - self._since))
        self.given_up = slow or (bool(word.trouble) and word.silent)
        what = _what(word.trouble)
        if slow and not what:
            what = f"is slow (compiles have waited {self._waited:.0f} s for it)"
        if not what or (what.split()[0] in self._said and not self.given_up):
            return []
        self._said.add(what.split()[0])
        return [f"the storage that {tool} shares {what}{self._follows(word.trouble, tool)}"]

    def _follows(self, trouble: str, tool: str) -> str:
        if self.given_up and tool == "sccache":
            return "; what is left is compiled without a cache"
        if self.given_up:
            return "; it is not asked any more, and what is not on this disk is compiled"
        kept = "what this build compiles is not kept there"
        return f"; {kept if _FULL.search(trouble) else 'what is only there is compiled'}"


def _what(trouble: str) -> str:
    if not trouble:
        return ""
    if _FULL.search(trouble):
        return f"takes nothing new ({trouble})"
    return f"refuses us ({trouble})" if _REFUSED.search(trouble) else f"does not answer ({trouble})"


_STAMP = re.compile(r"\[(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+) +\d+ *\] (.*)")
# What is written when the storage has answered, or has not. (After a compile, something else takes the time.)
_ANSWER = re.compile(
    r"Redis |(?:GET|PUT|HEAD|DELETE) \S+ -> |Failed to |Connected to |Remote storage "
    r"|(?:No|Retrieved|Stored) \w+ (?:in|from) (?!local )"
)
_GIVEN_UP = re.compile(r"Marking remote storage backend for \S+ as failed")
_HIT = re.compile(r"Result: (?:direct|preprocessed)_cache_hit")
_WHY = re.compile(r"(?:command failed|Redis connection error|storage (?:get|put) failed|http storage): (.+)")

_PLAIN = {"Resource temporarily unavailable": "nothing came in time"}


def from_ccache(text: str) -> Word:
    """Read the log of one compile."""
    gaps, trouble, why, hit = [0.0], "", "", False
    before, what = None, ""
    for match in _STAMP.finditer(text):
        now = datetime.fromisoformat(match[1])
        if before and _ANSWER.match(match[2]) and not what.startswith("Executing "):
            gaps.append(max(0.0, (now - before).total_seconds()))
        before, what = now, match[2]
        if found := _WHY.search(what):
            why = _PLAIN.get(found[1], found[1])
        if _GIVEN_UP.search(what):
            trouble = why or "it gave no reason"
        hit = hit or bool(_HIT.match(what))
    if hit and not trouble:
        return Word()
    return Word(sum(gaps), trouble.rstrip("."), max(gaps) > SILENCE)


def read_ccache(path: str) -> Word:
    try:
        with open(path, errors="replace") as file:
            return from_ccache(file.read())
    except OSError:
        return Word()


_ANSWERED = re.compile(r"\[[^\]]+\]: Cache (miss in|timed out|write finished in|read error: (.*) in) ([\d.]+) s")
_READ_FAILED = re.compile(r"Got unexpected error: (.*)")
_WRITE_FAILED = re.compile(r"Error executing cache write: (.*)")
_READ_ONLY = "server has setup with ReadOnly"


class FromServer:
    """Takes the lines of an sccache server's log one by one, and keeps the word that they make."""

    def __init__(self) -> None:
        self._waits = [0.0]
        self._trouble = self._coming = ""

    def take(self, line: str) -> None:
        if found := _ANSWERED.search(line):
            self._waits.append(float(found[3]))
            late = "nothing came within a minute" if found[1] == "timed out" else ""
            self._trouble = late or _source(found[2] or self._coming) or self._trouble
            self._coming = ""
        elif failed := _READ_FAILED.search(line):
            self._coming = failed[1]  # how long it took is said in a line to come
        elif failed := _WRITE_FAILED.search(line):
            self._trouble = _source(failed[1])
        elif _READ_ONLY in line:
            self._trouble = "sccache found it to be read-only"

    def word(self) -> Word:
        """What was heard since the last time."""
        word = Word(sum(self._waits), self._trouble, max(self._waits) > SILENCE)
        self._waits, self._trouble = [0.0], ""
        return word


def _source(error: str) -> str:
    """The end of an error of opendal's, which says what it was; the rest is where."""
    return re.split(r", source: |=> ", error)[-1].strip().rstrip(".")[:200]
