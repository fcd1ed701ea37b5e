"""Keeps what opens a shared cache out of everything that is shown or kept. Pure; standard library only."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

HIDDEN = "***"
# Variables of ccache, sccache and of the clouds that they store in, by what their values are.
_SECRET_NAME = re.compile(
    r"(?:.*_)?(?:PASSWORD|PASSWD|SECRET|SECRET_ACCESS_KEY|TOKEN|CREDENTIALS?(?:_URL)?|CONNECTION_STRING"
    r"|(?:ACCESS|ACCOUNT|SECRET|API|AUTH|SESSION|RUNTIME)_?(?:KEY|TOKEN)(?:_ID|_SECRET)?|SECRET_ID)",
    re.IGNORECASE,
)
_OF_CACHES = re.compile(r"(?:SCCACHE|CCACHE|AWS|AZURE|ALIBABA_CLOUD|TENCENTCLOUD|ACTIONS|REDIS|MEMCACHED)_?.*")
# `scheme://user:password@host`, and `scheme://password@host`, as Redis takes it.
_USER_INFO = re.compile(r"(?P<scheme>\b[a-z][a-z0-9+.-]*://)[^\s/@'\"|]+(?:/[^\s/@'\"|]*)*@", re.IGNORECASE)
_ASSIGNED = re.compile(
    r"(?P<name>\b[\w.-]*(?:(?:password|passwd|secret|signature|access[-_]?key(?:[-_]id)?|account[-_]?key"
    r"|api[-_]?key)\b\s*[=:]|token\s*=|#(?:client|server)=|(?<=['\"])token['\"]\s*:)\s*['\"]?)(?P<value>(?:bearer\s+)?[^\s,;&|'\"]+)",
    re.IGNORECASE,
)
# A server of sccache-dist sends its address before its token.
_BEARER = re.compile(
    r"(?P<word>\bbearer[\s=]+(?:(?:\d+(?:\.\d+){3}|\[[0-9a-f:.]+\]):\d+\s+)?)[^\s,;&|'\"]+", re.IGNORECASE
)
_SHORTEST = 4


def redact(text: str, environ: Mapping[str, str] | None = None, known: Sequence[str] = ()) -> str:
    """The text without passwords, tokens and keys: those in addresses and assignments, and every value that a
    secret variable of `environ` has, or that is `known`, wherever it stands."""
    for value in [*secrets(environ or {}), *known]:
        text = text.replace(value, HIDDEN)
    text = _USER_INFO.sub(rf"\g<scheme>{HIDDEN}@", text)
    text = _BEARER.sub(rf"\g<word>{HIDDEN}", text)
    return _ASSIGNED.sub(rf"\g<name>{HIDDEN}", text)


def secrets(environ: Mapping[str, str]) -> list[str]:
    """The secret values in an environment, the longest first."""
    found = {value for name, value in environ.items() if is_secret(name)}
    found |= {part for name, value in environ.items() if _OF_CACHES.fullmatch(name) for part in passwords(value)}
    return ordered(found)


def of_caches(environ: Mapping[str, str]) -> list[str]:
    """Those that a compiler cache may know, and print. (That of another may be a word that a compiler uses.)"""
    return secrets({name: value for name, value in environ.items() if _OF_CACHES.fullmatch(name)})


def ordered(values: Iterable[str]) -> list[str]:
    """Without those that are too short to be looked for; the longest first, since one may hold another."""
    return sorted({value for value in values if len(value) >= _SHORTEST}, key=len, reverse=True)


def is_secret(name: str) -> bool:
    """Whether the value of a variable is a secret as a whole."""
    return bool(_SECRET_NAME.fullmatch(name))


def passwords(value: str) -> list[str]:
    """What is secret in a setting of a cache: passwords in addresses, and what is assigned to a telling name."""
    found = [match[1] for match in re.finditer(r"://(?:[^\s/@:|]*:)?([^\s/@|]+)@", value)]
    if "://" not in value:  # it is wrong, and the tool may well print it
        found += [match[1] for match in re.finditer(r"([^\s/@:|]+)@", value)]
    return found + [match["value"] for match in _ASSIGNED.finditer(value)]
