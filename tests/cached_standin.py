"""A compiler that sccache takes for g++, which it is, and that takes the time and memory a source asks for."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

SCCACHE = Path(sys.executable).with_name("sccache")
_SCRIPT = """#!/bin/sh
case " $* " in *" -E "*|*" -M "*) exec g++ "$@";; esac
for word; do case $word in *.cu)
  plan=$(sed -n 's#^//! ##p' "$word")
  [ -z "$plan" ] || {python} -S -c "import time; s, n = $plan
held = [(b'x' * (n // 20), time.sleep(s / 20)) for _ in range(20)]";; esac
done
exec g++ "$@"
"""


def slow_compiler(folder: Path) -> Path:
    """Make it, in `folder`."""
    folder.mkdir(parents=True)
    compiler = folder / "g++"
    compiler.write_text(_SCRIPT.replace("{python}", sys.executable))
    compiler.chmod(0o755)
    return compiler


def sources(plans: Mapping[str, str]) -> dict[str, str]:
    """`plans`: name -> seconds and bytes of its compile. No two sources are the same to a cache."""
    return {name: f"{plan}\nint f{name}() {{ return 1; }}" for name, plan in plans.items()}


def variables(cache: Path) -> dict[str, str]:
    """What lets the stand-in project compile with it, through sccache."""
    return {
        "STANDIN_DEPENDENCIES": "-MMD -MF",
        "STANDIN_FLAGS": "-x c++",
        "SCCACHE_DIR": str(cache),
        "SAFE_EXT_BUILD_LAUNCHER": "sccache",
        "PATH": os.pathsep.join([str(SCCACHE.parent), os.environ["PATH"]]),
    }
