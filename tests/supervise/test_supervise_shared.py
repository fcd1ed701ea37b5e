"""A cache that machines share, in a real Redis and a real S3 server: a cold machine hits everything, and whatever
the storage does, a build goes on, says so in one line, and shows no secret."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cached_standin import slow_compiler, sources, variables
from kill_harness import Build, Project, make_project, started
from shared_storage import KEY, PASSWORD, S3, SECRET, Redis, hits, network

pytestmark = pytest.mark.frontend

TOOLS = ("ccache", "sccache")
FULL = "takes nothing new (OOM"
NOT_KEPT = "what this build compiles is not kept there"


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[Redis]:
    server = Redis(tmp_path)
    try:
        yield server
    finally:
        server.end()


def machine(place: Path, tool: str, **storage: str) -> Project:
    """A machine with a home, caches and a directory of its own."""
    settings = {**variables(place / "cache"), "SAFE_EXT_BUILD_LAUNCHER": tool, "CCACHE_DIR": str(place / "ccache")}
    place.mkdir(parents=True)
    compiler = slow_compiler(place.parent / "bin" / place.name)
    project = make_project(place, compiler, **settings, HOME=str(place), **storage)
    project.write_sources(sources(dict.fromkeys("abcd", "0.5, 0")))
    return project


def finished(build: Build) -> str:
    assert build.wait() == 0, build.text()
    text = build.text()
    assert "compiled 4 objects" in text
    assert_no_secret(build.project, text)
    return text


def assert_no_secret(project: Project, text: str) -> None:
    records = [path.read_text() for path in project.scratch.glob("cache/safe-ext-build/reports/*.json*")]
    assert len(records) == 1
    for secret in (PASSWORD, KEY, SECRET):
        assert secret not in "".join([text, *records])


def text_of(project: Project, *enter: str) -> str:
    with started(project, [*enter, *project.hook()]) as build:
        return finished(build)


def words_of_storage(text: str, tool: str) -> list[str]:
    """What was said of the storage."""
    begin = f"safe-ext-build: the storage that {tool} shares "
    return [line.removeprefix(begin) for line in text.splitlines() if line.startswith(begin)]


@pytest.mark.parametrize("tool", TOOLS)
def test_a_cold_machine_in_another_network_hits_everything(tool: str, tmp_path: Path) -> None:
    """Of the first, it reaches the Redis alone."""
    with network() as net:
        redis = Redis(tmp_path, net.address)
        try:
            first = text_of(machine(tmp_path / "first", tool, **redis.variables(tool)))
            second = text_of(machine(tmp_path / "an/other", tool, **redis.variables(tool)), *net.enter)
        finally:
            redis.end()
    assert (hits(first), hits(second)) == ((0, 4), (4, 0)), second


@pytest.mark.skipif(sys.version_info < (3, 11), reason="nanio, which is our S3 server, needs Python 3.11")
def test_a_cold_machine_hits_everything_in_s3(tmp_path: Path) -> None:
    """And with a wrong key nothing at all, which is said."""
    s3 = S3(tmp_path)
    try:
        seen = [hits(text_of(machine(tmp_path / name, "sccache", **s3.variables()))) for name in ("one", "two")]
        stranger = text_of(machine(tmp_path / "stranger", "sccache", **s3.variables("wrong-" + SECRET)))
    finally:
        s3.end()
    assert seen == [(0, 4), (4, 0)]
    assert (
        "the sccache server of this build is lost: error: cache storage failed to read: PermissionDenied"
        in stranger
    ), stranger
    assert "cache: " not in stranger.splitlines()[-1]


@pytest.mark.parametrize("tool", TOOLS)
def test_a_storage_that_is_full_is_told_once(tool: str, redis: Redis, tmp_path: Path) -> None:
    project = machine(tmp_path / "one", tool, **redis.variables(tool))
    with started(project, project.hook()) as build:
        build.wait_for("g++")
        redis.do("CONFIG", "SET", "maxmemory", "1")
        text = finished(build)
    (line,) = words_of_storage(text, tool)
    assert line.startswith(FULL) and line.endswith(NOT_KEPT)
    assert hits(text) == (0, 4)


@pytest.mark.parametrize("tool", TOOLS)
def test_a_storage_that_is_wiped_costs_hits_only(tool: str, redis: Redis, tmp_path: Path) -> None:
    project = machine(tmp_path / "one", tool, **redis.variables(tool))
    with started(project, project.hook()) as build:
        build.wait_until(lambda: redis.do("DBSIZE") != b":0\r\n", "an object in it")
        redis.do("FLUSHALL")
        text = finished(build)
    assert (hits(text), words_of_storage(text, tool)) == ((0, 4), [])


def test_one_that_is_gone_or_refuses_us_costs_nothing(redis: Redis, tmp_path: Path) -> None:
    """With ccache, which is told of it at once. (With sccache it costs 15 to 20 s, once.)"""
    url = f"redis://wrong-password@127.0.0.1:{redis.port}"
    refused = text_of(machine(tmp_path / "stranger", "ccache", CCACHE_REMOTE_STORAGE=url))
    assert "wrong-password" not in refused
    project = machine(tmp_path / "one", "ccache", **redis.variables("ccache"))
    with started(project, project.hook()) as build:
        build.wait_for("g++")
        redis.end()
        gone = finished(build)
    left = "what is only there is compiled"
    (line,) = words_of_storage(refused, "ccache")
    assert line == f"refuses us (WRONGPASS invalid username-password pair or user is disabled); {left}"
    (line,) = words_of_storage(gone, "ccache")
    assert line.startswith("does not answer (") and line.endswith(left)


def test_one_that_hangs_is_waited_for_once(redis: Redis, tmp_path: Path) -> None:
    """ccache waits anew for each object (10 s, here 4); those that begin later do not."""
    project = machine(tmp_path / "one", "ccache", **redis.variables("ccache", "|operation-timeout=4000"))
    redis.stop()
    text = text_of(project)
    (line,) = words_of_storage(text, "ccache")
    what, _, follows = line.partition("; ")
    assert what == "does not answer (nothing came in time)"
    assert follows == "it is not asked any more, and what is not on this disk is compiled"
    (record,) = project.scratch.glob("cache/safe-ext-build/reports/*.json*")
    seconds = sorted(run["end"] - run["start"] for run in json.loads(record.read_text())["runs"])
    assert seconds[1] < 4 < seconds[2]
