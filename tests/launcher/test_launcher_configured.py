"""What stands in the tools' own files is found: a storage that ccache shares, and what opens one."""

from __future__ import annotations

from pathlib import Path

import pytest

from safe_ext_build.launcher.configured import is_shared, secrets


def environ(home: Path, **more: str) -> dict[str, str]:
    return {"HOME": str(home), "PATH": "/usr/bin:/bin", **more}


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def program(place: Path, *answers: str) -> dict[str, str]:
    """A ccache that knows settings: `name=value`."""
    cases = "".join(f"{name}) echo '{value}';; " for name, _, value in (one.partition("=") for one in answers))
    write(place / "ccache", f"#!/bin/sh\ncase $2 in {cases}esac\n")
    (place / "ccache").chmod(0o755)
    return {"ccache": str(place / "ccache")}


@pytest.mark.parametrize(
    ("answers", "shared"),
    [
        ([], False),
        (["remote_storage=redis://cache"], True),
        (["remote_storage=redis://cache", "log_file=/home/u/log"], False),  # that log is his
    ],
)
def test_whether_ccache_shares_a_storage(tmp_path: Path, answers: list[str], shared: bool) -> None:
    assert is_shared(program(tmp_path, *answers)["ccache"], environ(tmp_path)) == shared
    assert not is_shared(str(tmp_path / "missing"), environ(tmp_path))


@pytest.mark.parametrize("value", ["redis://u:hunter22@cache", "hunter22@cache", "http://c|bearer-token=hunter22"])
def test_secrets_of_ccache(tmp_path: Path, value: str) -> None:
    assert secrets(program(tmp_path, f"remote_storage={value}"), environ(tmp_path)) == ["hunter22"]


SCCACHE = """
[cache.redis]
endpoint = "tcp://u:correct1@cache:6379"
password = "horse222"
db = 3
[cache.s3]
bucket = "public"
[cache.webdav]
token = "staple33"
"""


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (SCCACHE, ["correct1", "horse222", "staple33"]),
        ("[cache.redis]\npassword = hunter22\n", ["hunter22"]),  # no TOML: sccache shows the line
        ("", []),
    ],
)
def test_secrets_of_sccache(tmp_path: Path, text: str, found: list[str]) -> None:
    write(tmp_path / ".config" / "sccache" / "config", text)
    programs = {"sccache": "/bin/sccache"}
    assert secrets(programs, environ(tmp_path)) == found
    write(tmp_path / "mine", text)
    elsewhere = environ(tmp_path / "nowhere", SCCACHE_CONF=str(tmp_path / "mine"))
    assert secrets(programs, elsewhere) == found
    assert secrets({}, elsewhere) == []
