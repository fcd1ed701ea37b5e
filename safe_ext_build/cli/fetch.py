"""Fetches the sdist of a package from where pip would, without running any of its code.

`pip download` would run the package's own build system to learn of its metadata. unearth (PDM's index client)
looks and downloads only: indexes, links, credentials, hashes and yanked files are its business.
"""

from __future__ import annotations

import ast
import os
import ssl
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.requirements import InvalidRequirement, Requirement

from .. import probe, ui
from ..errors import SafeExtBuildError
from .target import Target

if TYPE_CHECKING:
    from unearth import PackageFinder

_INSTALL = "Install it: python -m pip install 'safe-ext-build[cli]'"
_WHERE = "pip's configuration says where packages come from: pip config list"
_SECTIONS = ("global", "install", "download", ":env:")  # in rising order of weight, as in pip
_CERTIFICATES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE")
_TIMEOUT = 15.0  # seconds, pip's own default


class FetchError(SafeExtBuildError):
    """There is no such sdist, or it could not be had."""


def fetch(package: str, target: Target, place: Path) -> Path:
    """Download the newest sdist that meets `NAME[==VERSION]`; returns it. Raises FetchError."""
    try:
        requirement = Requirement(package)
    except InvalidRequirement:
        raise FetchError(
            f"{package!r} is neither a requirement nor a path",
            code="SEB-8101",
            hint="Write NAME, NAME==VERSION, or ./DIRECTORY.",
        ) from None
    if requirement.url:
        hint = "Download it yourself, and name the file."
        raise FetchError(f"{package}: URLs are not fetched", code="SEB-8102", hint=hint)
    finder = make_finder(pip_configuration(), requirement.name, target)
    return _download(finder, requirement, place)


def _download(finder: PackageFinder, requirement: Requirement, place: Path) -> Path:
    from unearth.preparer import HTTPErrors, download_link

    expected: tuple[type[Exception], ...] = (OSError, RuntimeError, ValueError, *HTTPErrors)
    try:
        found = finder.find_best_match(requirement)
        if found.best is None:
            raise _nothing(requirement, [str(one.version) for one in found.candidates])
        ui.say(f"sdist of {requirement.name} {found.best.version}: {found.best.link.redacted}")
        return download_link(finder.session, found.best.link, place)
    except expected as error:
        raise FetchError(f"{requirement} cannot be fetched: {error}", code="SEB-8103", hint=_WHERE) from error
    finally:
        finder.session.close()  # type: ignore[attr-defined]


def _nothing(requirement: Requirement, versions: list[str]) -> FetchError:
    if not versions:
        return FetchError(
            f"no sdist of {requirement.name} was found",
            code="SEB-8104",
            hint=f"Is the name right? {_WHERE}",
        )
    seen = ", ".join(dict.fromkeys(versions[:10]))
    return FetchError(
        f"no sdist of {requirement} was found; there are versions {seen}",
        code="SEB-8105",
        hint=f"Name one of these ({requirement.name}=={versions[0]}), or no version for the newest.",
    )


def make_finder(options: Mapping[str, str], name: str, target: Target) -> PackageFinder:
    """An index client with pip's configuration, for the sdists of one package."""
    try:
        from unearth import PackageFinder, TargetPython
        from unearth.auth import MultiDomainBasicAuth
        from unearth.fetchers import PyPIClient
    except ImportError:
        what = "unearth is not installed, which fetches packages by name"
        raise FetchError(what, code="SEB-8016", hint=_INSTALL) from None
    offline = options.get("no-index", "").lower() in ("1", "true", "yes", "on")
    index = [] if offline else options.get("index-url", "").split()
    links = options.get("find-links", "").split()
    if offline and not links:
        raise FetchError(
            "pip's configuration has no-index and no find-links: there is nowhere to look",
            code="SEB-8106",
            hint="Set PIP_FIND_LINKS to the directory with the sdists, or take no-index out (pip config list).",
        )
    credentials = MultiDomainBasicAuth(prompting=False)
    session: Any = PyPIClient(**_connection(options), auth=credentials)
    finder = PackageFinder(
        session,
        index_urls=index,
        find_links=links if offline else (),
        target_python=TargetPython(py_ver=target.environment.version),
        no_binary=[name],
    )
    if not offline:  # where no index is named, the client has put in the usual one
        for url in options.get("extra-index-url", "").split():
            finder.add_index_url(url)
        for url in links:
            finder.add_find_links(url)
    credentials.index_urls = [source["url"] for source in finder.sources if source["type"] == "index"]
    return finder


def _connection(options: Mapping[str, str]) -> dict[str, Any]:
    named = [options.get("cert"), *map(os.environ.get, _CERTIFICATES)]
    certificates = next(filter(None, named), None)
    return {
        "trusted_hosts": options.get("trusted-host", "").split(),
        "verify": ssl.create_default_context(cafile=certificates) if certificates else True,
        "cert": options.get("client-cert") or None,
        "proxy": options.get("proxy") or None,
        "timeout": float(options.get("timeout") or options.get("default-timeout") or _TIMEOUT),
        "follow_redirects": True,
    }


def pip_configuration() -> dict[str, str]:
    """What pip's files and variables say, by option; nothing where there is no pip."""
    command = [sys.executable, "-I", "-m", "pip", "config", "list"]
    try:
        return parse_configuration(probe.run(command, os.environ)[1])
    except subprocess.TimeoutExpired:
        return {}


def parse_configuration(text: str) -> dict[str, str]:
    """Read what `pip config list` prints: `global.index-url='…'`."""
    found: dict[tuple[int, str], str] = {}
    for line in text.splitlines():
        key, equals, value = line.partition("=")
        section, _, option = key.rpartition(".")
        if equals and section in _SECTIONS:
            found[_SECTIONS.index(section), option] = str(ast.literal_eval(value))
    return {option: value for (_, option), value in sorted(found.items())}
