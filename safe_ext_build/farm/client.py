"""The compile farm as a client sees it: which one is configured, and whether its scheduler takes work.

Nothing here starts or changes anything: the scheduler is asked for its status, and the token is tried with a
request that it refuses as soon as it has looked at the token.
"""

from __future__ import annotations

import json
import operator
import os
import re
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, urlsplit

from ..errors import FarmError
from ..launcher.redact import redact

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    import http.client

INSECURE = "dangerously_insecure_client"
"""The token of sccache's clients that are given none."""
STATUS = "/api/v1/scheduler/status"
_ALLOCATE = "/api/v1/scheduler/alloc_job"
_LONGEST = 1 << 16
_ADDRESS = re.compile(r"(\d+(\.\d+){3}|\[[0-9a-fA-F:.]+\]):\d+")
_AUTH_KINDS = ("token", "oauth2_code_grant_pkce", "oauth2_implicit")
_WRITE_URL = 'Write the address that it listens on: scheduler_url = "http://10.0.0.1:10600".'
_LOOK = "`safe-ext-build farm check` on that machine says more."


@dataclass(frozen=True)
class Farm:
    """The farm that sccache is told to use. `scheduler`: its URL; `config`: the file that says so; `token_kind`:
    `token`, `insecure` (there is none), or sccache's name for another way, whose token is not known here ('')."""

    scheduler: str
    token: str = field(repr=False)
    config: Path
    token_kind: str

    @property
    def origin(self) -> str:
        """The scheduler and where it is named, for messages."""
        return f"{redact(self.scheduler)} (scheduler_url in {self.config})"


@dataclass(frozen=True)
class Status:
    """What a scheduler has: servers that reported within 90 s, their CPUs, and steps that run or wait on them."""

    servers: int
    cpus: int
    in_progress: int


@dataclass(frozen=True)
class Answer:
    """What came back. `date`: the answering machine's time, as HTTP has it, or ''; `why`: the reason for a 401."""

    status: int
    date: str
    body: bytes
    why: str = ""


# What is configured.


def config_path(environ: Mapping[str, str]) -> Path:
    """Where sccache's clients look for their configuration, whether it is there or not."""
    named = environ.get("SCCACHE_CONF")
    if named is not None:
        return Path(named)
    home = Path(environ.get("HOME") or os.path.expanduser("~"))  # noqa: PTH111 - where there is none, Path raises
    config = Path(environ.get("XDG_CONFIG_HOME") or "")
    return (config if config.is_absolute() else home / ".config") / "sccache" / "config"


def configured(environ: Mapping[str, str]) -> Farm | None:
    """The farm that sccache would use; None where it is told of none. Raises FarmError for a configuration that
    cannot be read or is not as sccache wants it."""
    path = config_path(environ)
    dist = _table(read(path), "dist", path)
    if "scheduler_url" not in dist:
        return None
    auth = _table(dist, "auth", path, "dist.")
    token, kind = _token(auth, path)
    return Farm(url(dist["scheduler_url"], f"scheduler_url in {path}"), token, path, kind)


def read(path: Path) -> dict[str, Any]:
    """A configuration of sccache, TOML or JSON by its name; nothing where there is no such file.

    Raises FarmError."""
    try:
        text = path.read_text(encoding="utf-8") if str(path) != "." else ""
        # With the mark that some editors put first sccache takes TOML, and no JSON.
        found = json.loads(text) if path.suffix == ".json" else tomllib.loads(text.removeprefix("\ufeff"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        hint = f"Give yourself the right to read it (`ls -l {path}`), or name another file in SCCACHE_CONF."
        raise FarmError(f"{path} cannot be read: {error.strerror}", code="SEB-9001", hint=hint) from error
    except ValueError as error:
        # The line itself is not shown: it may hold the token.
        where = "" if isinstance(error, UnicodeDecodeError) else f": {str(error).splitlines()[0]}"
        hint = "Correct that place. Text stands in quotes, tables begin with a line such as [dist]."
        raise FarmError(
            f"{path} is no valid configuration of sccache{where}", code="SEB-9002", hint=hint
        ) from error
    return found if isinstance(found, dict) else {}


def _table(inside: Mapping[str, Any], name: str, path: Path, above: str = "") -> Mapping[str, Any]:
    found = inside.get(name, {})
    if isinstance(found, dict):
        return found
    hint = f"Write a line [{above}{name}], and what belongs to it in the lines below."
    raise FarmError(f"{above}{name} in {path} is no table", code="SEB-9002", hint=hint)


def _token(auth: Mapping[str, Any], path: Path) -> tuple[str, str]:
    """The token and its kind."""
    if not auth:
        return INSECURE, "insecure"
    kind, token = auth.get("type"), auth.get("token")
    if kind not in _AUTH_KINDS:
        hint = 'Write in [dist.auth]: type = "token", and the token of the farm\'s clients.'
        what = f"type in [dist.auth] of {path} is {json.dumps(kind)}, which sccache does not know"
        raise FarmError(what, code="SEB-9002", hint=hint)
    if kind != "token":
        return "", str(kind)
    # What cannot be sent in a header; the value itself stays unsaid.
    if not isinstance(token, str) or not re.fullmatch(r"[!-~]+", token):
        hint = 'Write it in quotes, without blanks: token = "…". It is what the scheduler\'s [client_auth] has.'
        raise FarmError(f"[dist.auth] in {path} has no valid token", code="SEB-9002", hint=hint)
    return token, kind


def url(value: object, source: str) -> str:
    """The URL of a scheduler as sccache takes it; `source` is what names it. Raises FarmError."""
    text = f"http://{value}" if isinstance(value, str) and _ADDRESS.fullmatch(value) else str(value)
    try:
        parts = urlsplit(text)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good:
        raise FarmError(f"{source} is no URL: {redact(str(value))}", code="SEB-9003", hint=_WRITE_URL)
    if parts.path not in ("", "/"):
        what = f"{source} has a path, which sccache does not take: {redact(str(value))}"
        raise FarmError(what, code="SEB-9003", hint=_WRITE_URL)
    return text


# Whether it answers.


def ask(farm: Farm, timeout: float = 3.0) -> Status:
    """What the scheduler has to offer, once it has taken the token. `timeout`: seconds for each step of the way.

    Raises FarmError: for a scheduler that is not there, does not answer or is none, for a token that it does not
    take, and where no server is registered.
    """
    status = read_status(exchange(farm.scheduler, farm.origin, "GET", STATUS, timeout), farm.origin)
    if farm.token:
        try_token(farm, timeout)
    if not status.servers:
        hint = (
            "Start sccache-dist on a server; a new one is known within seconds, one that was cut off is forgotten "
            "after 90 s. `safe-ext-build farm check` on a server says why it does not register."
        )
        raise FarmError(f"no server is registered at {farm.origin}", code="SEB-9010", hint=hint)
    return status


def read_status(answer: Answer, origin: str) -> Status:
    """The status in an answer. Raises FarmError where it is not a scheduler's."""
    if answer.status != 200:
        raise _no_scheduler(origin, f"its status is answered with HTTP {answer.status}")
    try:
        found = json.loads(answer.body)
        return Status(*(operator.index(found[name]) for name in ("num_servers", "num_cpus", "in_progress")))
    except (ValueError, KeyError, TypeError) as error:
        raise _no_scheduler(origin, "its status is not in sccache's words") from error


def try_token(farm: Farm, timeout: float) -> None:
    """Have the scheduler look at the token. It does that first, and then refuses the request, which asks for
    nothing: no server hears of it. Raises FarmError."""
    headers = {"Authorization": f"Bearer {farm.token}", "Content-Type": "application/octet-stream"}
    answer = exchange(farm.scheduler, farm.origin, "POST", _ALLOCATE, timeout, headers)
    if answer.status in (401, 403):
        what = "has no token for" if farm.token_kind == "insecure" else "has a token that is not taken by"
        hint = (
            "Write into [dist.auth] of that file the token that the scheduler has in [client_auth]: "
            "`safe-ext-build farm init client --force` does, with the word that the scheduler's machine gives."
        )
        raise FarmError(f"{farm.config} {what} {redact(farm.scheduler)}", code="SEB-9009", hint=hint)
    if answer.status != 400:
        raise _no_scheduler(farm.origin, f"a token is answered with HTTP {answer.status}")


def exchange(
    scheduler: str, origin: str, method: str, path: str, timeout: float, headers: Mapping[str, str] | None = None
) -> Answer:
    """One request without a body, not through a proxy, and without following where the answer may point: the token
    is for this scheduler only. `origin` names it in messages. Raises FarmError."""
    import http.client  # which most builds have no use for

    connection = _connect(urlsplit(scheduler), origin, timeout)
    try:
        # Its HTTP server cannot be trusted to keep a connection.
        always = {"Accept": "application/json", "Connection": "close"}
        connection.request(method, path, headers={**always, **(headers or {}), "Content-Length": "0"})
        response = connection.getresponse()
        date, why = (response.getheader(name) or "" for name in ("Date", "WWW-Authenticate"))
        return Answer(response.status, date, response.read(_LONGEST), why)
    except TimeoutError as error:
        what = f"{origin} takes connections and says nothing within {timeout:g} s: it hangs"
        hint = "Look at it on its machine, and restart it: `systemctl restart sccache-scheduler`."
        raise FarmError(what, code="SEB-9005", hint=hint) from error
    except (http.client.HTTPException, OSError) as error:
        raise _no_scheduler(origin, "what listens there does not speak HTTP") from error
    finally:
        connection.close()


def _connect(parts: SplitResult, origin: str, timeout: float) -> http.client.HTTPConnection:
    """A connection that stands. Raises FarmError."""
    import http.client
    import ssl

    host, port = parts.hostname or "", parts.port
    secure = parts.scheme == "https"
    kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
    connection = kind(host, port, timeout=timeout)
    try:
        connection.connect()
    except (OSError, UnicodeError) as error:
        stood = connection.sock is not None
        connection.close()
        if isinstance(error, ssl.SSLError) or (secure and stood):
            raise _without_tls(error, origin) from error
        raise _unreachable(error, host, origin, timeout) from error
    return connection


def _without_tls(error: Exception, origin: str) -> FarmError:
    reason = getattr(error, "verify_message", "") or getattr(error, "reason", "") or "what answers has none"
    hint = "Give what stands before the scheduler a certificate that this machine trusts, or write http://."
    return FarmError(f"TLS with {origin} fails: {reason}", code="SEB-9008", hint=hint)


def _unreachable(error: Exception, host: str, origin: str, timeout: float) -> FarmError:
    """What keeps from connecting, in words. Pure."""
    if isinstance(error, socket.gaierror | UnicodeError):
        hint = (
            f"Look whether the name is spelt well and known here (`getent hosts {host}`), or write the IP address."
        )
        return FarmError(f"there is no machine of the name {host}: {origin}", code="SEB-9006", hint=hint)
    if isinstance(error, ConnectionRefusedError):
        hint = f"Start it there (`systemctl start sccache-scheduler`), or correct the address. {_LOOK}"
        return FarmError(f"nobody listens at {origin}", code="SEB-9004", hint=hint)
    timed_out = isinstance(error, TimeoutError)
    why = f"no answer within {timeout:g} s" if timed_out else getattr(error, "strerror", None) or str(error)
    hint = f"Let the firewall there pass TCP from here to that port, and see whether the machine is up. {_LOOK}"
    return FarmError(f"{origin} cannot be reached: {why}", code="SEB-9005", hint=hint)


def _no_scheduler(origin: str, why: str) -> FarmError:
    hint = "Write the scheduler's own address and port, not those of a server or of another service."
    return FarmError(f"{origin} is no scheduler of sccache-dist: {why}", code="SEB-9007", hint=hint)
