"""A want of files, processes, memory or room is no bug of ours: no traceback."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from safe_ext_build.shortage import shortage


@pytest.mark.parametrize(
    ("error", "said", "hint"),
    [
        (OSError(errno.EMFILE, os.strerror(errno.EMFILE), "/a"), "Too many open files: /a", "ulimit -n"),
        (BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)), "temporarily unavailable", "ulimit -u"),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/b"), "No space left on device: /b", "df -h"),
        (MemoryError(), "not enough memory", "ulimit -v"),
        (RuntimeError("can't start new thread"), "no more threads", "ulimit -u"),
    ],
)
def test_a_shortage_has_a_way_out(error: Exception, said: str, hint: str) -> None:
    found = shortage(error)
    assert found is not None and said in str(found) and hint in found.hint


def test_a_copy_that_was_not_finished(tmp_path: Path) -> None:
    (tmp_path / "from").mkdir()
    (tmp_path / "from" / "a").write_text("much")

    def full(source: str, target: str) -> str:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), target)

    with pytest.raises(shutil.Error) as caught:
        shutil.copytree(tmp_path / "from", tmp_path / "to", copy_function=full)
    found = shortage(caught.value)
    assert str(found) == f"the system refuses to go on: No space left on device: {tmp_path / 'to' / 'a'}"
    assert shortage(shutil.Error("not what copytree raises")) is None


@pytest.mark.parametrize("error", [FileNotFoundError(errno.ENOENT, "No"), RuntimeError("a bug"), ValueError()])
def test_everything_else_keeps_its_traceback(error: Exception) -> None:
    assert shortage(error) is None
