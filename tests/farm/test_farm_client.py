"""What sccache is told of a farm, and what the farm's scheduler answers."""

from __future__ import annotations

import json
from pathlib import Path

import farm_stub
import pytest

from safe_ext_build.errors import FarmError
from safe_ext_build.farm import client
from safe_ext_build.farm.client import Farm

TOKEN = "s3cr3t-of-the-clients"
AUTH = f'[dist.auth]\ntype = "token"\ntoken = "{TOKEN}"\n'


def write(place: Path, text: str, name: str = "config") -> dict[str, str]:
    (place / name).write_text(text)
    return {"SCCACHE_CONF": str(place / name)}


def farm(scheduler: str, token: str = "right", kind: str = "token") -> Farm:
    return Farm(scheduler, token, Path("/home/u/.config/sccache/config"), kind)


@pytest.mark.parametrize(
    ("environ", "path"),
    [
        ({"SCCACHE_CONF": "/c", "HOME": "/h", "XDG_CONFIG_HOME": "/x"}, "/c"),
        ({"HOME": "/h", "XDG_CONFIG_HOME": "/x"}, "/x/sccache/config"),
        ({"HOME": "/h", "XDG_CONFIG_HOME": "relative"}, "/h/.config/sccache/config"),
        ({"HOME": "/h"}, "/h/.config/sccache/config"),
    ],
)
def test_where_sccache_looks(environ: dict[str, str], path: str) -> None:
    assert client.config_path(environ) == Path(path)


def test_a_farm_is_read(tmp_path: Path) -> None:
    environ = write(tmp_path, f'[dist]\nscheduler_url = "https://farm.example"\n{AUTH}')
    found = client.configured(environ)
    assert found == Farm("https://farm.example", TOKEN, tmp_path / "config", "token")
    assert TOKEN not in repr(found)


def test_the_mark_of_some_editors_is_no_damage(tmp_path: Path) -> None:
    environ = write(tmp_path, '\ufeff[dist]\nscheduler_url = "http://h:1"\n')
    found = client.configured(environ)
    assert found and found.scheduler == "http://h:1"


def test_json_is_read_as_sccache_does(tmp_path: Path) -> None:
    dist = {"scheduler_url": "http://h:1", "auth": {"type": "token", "token": TOKEN}}
    found = client.configured(write(tmp_path, json.dumps({"dist": dist}), "config.json"))
    assert found and (found.scheduler, found.token) == ("http://h:1", TOKEN)


@pytest.mark.parametrize(
    ("text", "token", "kind"),
    [
        ("", client.INSECURE, "insecure"),
        ('auth = { type = "oauth2_implicit", client_id = "i", auth_url = "u" }', "", "oauth2_implicit"),
    ],
)
def test_other_ways_to_be_let_in(text: str, token: str, kind: str, tmp_path: Path) -> None:
    found = client.configured(write(tmp_path, f'[dist]\nscheduler_url = "10.0.0.1:10600"\n{text}'))
    assert found and (found.scheduler, found.token, found.token_kind) == ("http://10.0.0.1:10600", token, kind)


@pytest.mark.parametrize("text", ["", "[cache.disk]\nsize = 1\n", AUTH])
def test_without_a_scheduler_there_is_no_farm(text: str, tmp_path: Path) -> None:
    assert client.configured(write(tmp_path, text)) is None
    assert client.configured({"SCCACHE_CONF": str(tmp_path / "none")}) is None
    assert client.configured({"SCCACHE_CONF": ""}) is None


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        (f'[dist]\nscheduler_url = "http://h"\n[dist.auth]\ntoken = "{TOKEN}', "SEB-9002", "is no valid config"),
        ("dist = 3", "SEB-9002", "dist in {place} is no table"),
        ('[dist]\nscheduler_url = "http://h"\nauth = 3', "SEB-9002", "dist.auth in {place} is no table"),
        (f'[dist]\nscheduler_url = "http://h"\n{AUTH.replace("token", "tokem", 1)}', "SEB-9002", "does not know"),
        (f'[dist]\nscheduler_url = "http://h"\n{AUTH.replace("s3", "s3 ")}', "SEB-9002", "has no valid token"),
        ('[dist]\nscheduler_url = "http://h"\n[dist.auth]\ntype = "token"', "SEB-9002", "has no valid token"),
        ("[dist]\nscheduler_url = 3", "SEB-9003", "scheduler_url in {place} is no URL: 3"),
        ('[dist]\nscheduler_url = "ftp://me:pass1@h"', "SEB-9003", "is no URL: ftp://***@h"),
        ('[dist]\nscheduler_url = "http://h:0"', "SEB-9003", "is no URL: http://h:0"),
        ('[dist]\nscheduler_url = "http://h:1/farm"', "SEB-9003", "has a path, which sccache does not take"),
    ],
)
def test_what_is_wrong_is_said(text: str, code: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(FarmError) as caught:
        client.configured(write(tmp_path, text))
    error = caught.value
    assert error.code == code and words.format(place=tmp_path / "config") in str(error), error
    assert str(tmp_path / "config") in str(error) and error.hint
    assert TOKEN not in f"{error} {error.hint}"


def test_a_farm_that_answers() -> None:
    with farm_stub.scheduler(servers=3) as address:
        assert client.ask(farm(address)) == client.Status(3, 12, 0)
        assert client.ask(farm(address, "", "oauth2_implicit")).servers == 3, "its token is not known here"


def test_a_token_is_never_shown() -> None:
    with farm_stub.scheduler() as address, pytest.raises(FarmError) as caught:
        client.ask(farm(address, TOKEN))
    where = "/home/u/.config/sccache/config has a token that is not taken by "
    assert str(caught.value) == f"{where}{address}"
    assert TOKEN not in f"{caught.value!r} {caught.value.hint} {caught.value.__cause__!r}"


def test_who_has_no_token_is_told_so() -> None:
    with farm_stub.scheduler() as address, pytest.raises(FarmError, match="has no token for") as caught:
        client.ask(farm(address, client.INSECURE, "insecure"))
    assert caught.value.code == "SEB-9009"


@pytest.mark.parametrize("status", [b"[]", b'{"num_servers": 1}', b'{"num_servers": "1"}', b"\xff", b"<html>"])
def test_what_is_no_status(status: bytes) -> None:
    with farm_stub.scheduler(status=status) as address, pytest.raises(FarmError, match="not in sccache's words"):
        client.ask(farm(address))


def test_proxies_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", farm_stub.nobody())
    with farm_stub.scheduler() as address:
        assert client.ask(farm(address)).servers == 1
