"""What a farm of other machines has done for a build, in words. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Protocol


class Ran(Protocol):
    """One run of a compiler, as an event or in a record: see record.Run."""

    @property
    def job(self) -> int: ...
    @property
    def outcome(self) -> str: ...
    @property
    def remote(self) -> bool: ...
    @property
    def why(self) -> str: ...
    @property
    def cache(self) -> str: ...


def came_back(run: Ran) -> bool:
    """Whether it was to run on the farm, which did not compile it."""
    return run.outcome == "returned"


def is_compiled(run: Ran) -> bool:
    """Whether it was compiled there: what a cache has never gets that far."""
    return run.remote and run.outcome == "compiled" and run.cache != "hit"


def compiled(runs: Iterable[Ran]) -> int:
    """How many were compiled there."""
    return sum(map(is_compiled, runs))


def returned(runs: Sequence[Ran]) -> int:
    """How many compiles came back for good, however often: another server may have done what one did not."""
    done = {run.job for run in runs if is_compiled(run)}
    return len({run.job for run in runs if came_back(run)} - done)


def sentence(runs: Sequence[Ran], before: str = "") -> str:
    """`5 on the farm, 2 came back`; '' where nothing was sent there."""
    there, back = compiled(runs), returned(runs)
    if not there and not back:
        return ""
    return f"{before}{there or 'none'} on the farm{f', {back} came back' if back else ''}"


def main_reason(runs: Iterable[Ran]) -> str:
    """Why most of them came back."""
    found = Counter(run.why for run in runs if came_back(run) and run.why)
    return found.most_common(1)[0][0] if found else ""
