"""What sccache takes for nvcc. It caches the steps of nvcc apart, which it reads from `nvcc --dryrun`; these hold
the true path of the source, and so never hit in another directory. Here names take its place (see names.py).

Started as `python -I -S -E` with the name of nvcc, its path, the number of pairs of directory and name, these, and
then nvcc's own arguments.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence

from .names import FOLDER

_VARIABLE = re.compile(r"#\$ [_A-Z]+=")


def rewritten(text: str, pairs: Sequence[tuple[str, str]], cwd: str) -> str:
    """The output of `nvcc --dryrun`. Its commands get names. Its variables get true paths: they lead to the tools,
    which sccache runs in another directory."""
    return "".join(_line(line, pairs, cwd) for line in text.splitlines(keepends=True))


def _line(line: str, pairs: Sequence[tuple[str, str]], cwd: str) -> str:
    if _VARIABLE.match(line):
        return re.sub(rf"(?<![\w/.-]){re.escape(FOLDER)}/", lambda _: f"{cwd}/{FOLDER}/", line)
    if line.startswith("#$ "):
        for place, name in pairs:
            line = line.replace(f'"{place}/', f'"{name}/')
    return line


def main() -> None:
    short, real, number, *rest = sys.argv[1:]
    count = 2 * int(number)
    pairs = sorted(zip(rest[:count:2], rest[1:count:2], strict=True), key=lambda pair: -len(pair[0]))
    arguments = rest[count:]
    nvcc = short if os.path.exists(short) else real  # sccache tries a compiler in a directory of its own
    if not {"--dryrun", "-dryrun"}.intersection(arguments):
        os.execv(nvcc, [nvcc, *arguments])
    done = subprocess.run(
        [nvcc, *arguments], capture_output=True, text=True, errors="surrogateescape", check=False
    )
    sys.stdout.write(done.stdout)
    sys.stderr.write(rewritten(done.stderr, pairs, os.getcwd()))
    sys.exit(done.returncode)
