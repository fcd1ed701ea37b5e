"""What the files of ccache and sccache say: whether ccache shares a storage, and which secrets stand in them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from .. import probe
from .redact import is_secret, passwords

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def of_ccache(program: str, name: str, environ: Mapping[str, str]) -> str:
    """A setting as ccache itself reads it from the environment and its files; '' where it does not say."""
    try:
        status, said = probe.run([program, "--get-config", name], environ)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return ""
    return "" if status else said.strip()


def is_shared(program: str, environ: Mapping[str, str]) -> bool:
    """Whether ccache has a storage beside its disk, and a log of it is ours to have."""
    return bool(of_ccache(program, "remote_storage", environ)) and not of_ccache(program, "log_file", environ)


def secrets(programs: Mapping[str, str], environ: Mapping[str, str]) -> list[str]:
    """Passwords, tokens and keys that stand in the files of the tools that are installed."""
    found: list[str] = []
    if "ccache" in programs:
        found += passwords(of_ccache(programs["ccache"], "remote_storage", environ))
    if "sccache" in programs:
        found += _in_toml(_sccache_file(environ))
    return [value for value in found if value]


def _sccache_file(environ: Mapping[str, str]) -> Path:
    config = environ.get("XDG_CONFIG_HOME") or f"{environ.get('HOME') or '/'}/.config"
    return Path(environ.get("SCCACHE_CONF") or f"{config}/sccache/config")


def _in_toml(path: Path) -> Iterator[str]:
    text = ""
    try:
        text = path.read_text()
        yield from _in_table(tomllib.loads(text))
    except (OSError, ValueError):  # sccache itself says what is wrong with it, and shows the line
        yield from passwords(text)


def _in_table(table: Mapping[str, object]) -> Iterator[str]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _in_table(value)
        elif isinstance(value, str):
            yield from [value] if is_secret(name) else passwords(value)
