"""What is made of a storage that fails, is slow or is full: told once, and given up when waiting gains nothing."""

from __future__ import annotations

import pytest

from safe_ext_build.launcher.storage import PATIENCE, SHARE, FromServer, Storage, Word, from_ccache

LEFT = "what is only there is compiled"
DISK = "it is not asked any more, and what is not on this disk is compiled"


def ccache_log(*lines: tuple[float, str]) -> str:
    """Its lines; `(seconds, text)`."""
    return "".join(f"[2026-11-30T22:04:{seconds:09.6f} 815  ] {text}\n" for seconds, text in lines)


BEGIN = (
    (1.0, "Config: (environment) remote_storage = redis://********@c:6379"),
    (1.0, "Executing /usr/bin/g++ -c a.c"),
)
FAILED = "Marking remote storage backend for redis as failed"


@pytest.mark.parametrize(
    ("lines", "word"),
    [
        # The compile itself is no waiting.
        ([(3.0, "Redis GET ccache:85c"), (3.1, "No 85c in redis://********@c:6379 (100.00 ms)")], Word(0.1)),
        (
            [
                (3.0, "Redis AUTH ********"),
                (13.0, "Redis command failed: Resource temporarily unavailable"),
                (13.0, FAILED),
            ],
            Word(10.0, "nothing came in time", True),
        ),
        (
            [(3.0, "Redis SET ccache:1"), (3.0, "Redis command failed: OOM command not allowed."), (3.0, FAILED)],
            Word(0.0, "OOM command not allowed"),
        ),
        (
            [
                (3.0, "Released /c/lock"),
                (5.5, "PUT http://********@c/x/85c -> 507"),
                (5.5, "Failed to put /x/85c to http storage: status code: 507"),
                (5.5, "Marking remote storage backend for http as failed"),
                (9.0, "Stored 85c in local storage (/home/u/.cache/ccache/8/5/c)"),
            ],
            Word(2.5, "status code: 507"),
        ),
        ([(3.0, "Redis GET ccache:85c"), (9.0, "Retrieved 85c from"), (9.0, "Result: direct_cache_hit")], Word()),
    ],
)
def test_the_log_of_one_ccache(lines: list[tuple[float, str]], word: Word) -> None:
    found = from_ccache(ccache_log(*BEGIN, *lines))
    assert (round(found.waited, 3), found.trouble, found.silent) == (word.waited, word.trouble, word.silent)


SERVER = """\
[T INFO  sccache::server] server has setup with ReadWrite
[T DEBUG sccache::compiler::compiler] [m.o]: Cache hit in 9.000 s
[T DEBUG sccache::compiler::compiler] [a.o]: Cache miss in 2.001 s
[T DEBUG sccache::server] [a.o]: Cache write finished in 1.001 s
"""
NO_READ = "[T WARN x] Got unexpected error: Unexpected (temporary) at read => get connection from pool failed\n"
NO_WRITE = (
    "[T DEBUG x] Error executing cache write: Unexpected (temporary) at write, context: { path: f/9 }"
    " => extension error, source: OOM: command not allowed when used memory > 'maxmemory'.\n"
)
READ_ERROR = "[T ERROR x] [a.o]: Cache read error: PermissionDenied (permanent) at read => denied in 0.200 s\n"
TIMED_OUT = "[T DEBUG x] [a.o]: Cache timed out 60.001 s\n"


def test_the_log_of_an_sccache_server() -> None:
    log = FromServer()

    def word(text: str) -> Word:
        for line in text.splitlines():
            log.take(line)
        return log.word()

    assert word(SERVER) == Word(3.002)
    assert word(NO_READ) == Word()  # how long it took, the next line says
    assert word("[T D x] [a.o]: Cache miss in 30.071 s") == Word(30.071, "get connection from pool failed", True)
    assert word(NO_WRITE) == Word(0.0, "OOM: command not allowed when used memory > 'maxmemory'")
    assert word(READ_ERROR) == Word(0.2, "denied")
    assert word(TIMED_OUT) == Word(60.001, "nothing came within a minute", True)
    assert word("[T I x] server has setup with ReadOnly") == Word(0.0, "sccache found it to be read-only")


@pytest.mark.parametrize(
    ("word", "tool", "line", "given_up"),
    [
        (Word(0.1), "ccache", "", False),
        (Word(0.1, "Connection refused"), "ccache", f"does not answer (Connection refused); {LEFT}", False),
        (Word(0.1, "NOAUTH x"), "sccache", f"refuses us (NOAUTH x); {LEFT}", False),
        (
            Word(0.1, "OOM"),
            "sccache",
            "takes nothing new (OOM); what this build compiles is not kept there",
            False,
        ),
        (
            Word(10, "nothing came in time", True),
            "ccache",
            f"does not answer (nothing came in time); {DISK}",
            True,
        ),
        (
            Word(30, "get connection from pool failed", True),
            "sccache",
            "does not answer (get connection from pool failed); what is left is compiled without a cache",
            True,
        ),
        (Word(40), "ccache", f"is slow (compiles have waited 20 s for it); {DISK}", True),
    ],
)
def test_what_is_made_of_it(word: Word, tool: str, line: str, given_up: bool) -> None:
    """Two compiles wait at the same time."""
    storage = Storage()
    storage.began(1.0)
    expected = [f"the storage that {tool} shares {line}"] if line else []
    assert (storage.heed(word, 2, 30.0, tool), storage.given_up) == (expected, given_up)
    assert storage.heed(word, 2, 30.0, tool) == []  # once


def test_slow_is_what_is_slow_beside_the_compiles() -> None:
    storage = Storage()
    storage.began(0.0)
    hour = 3600.0
    assert storage.heed(Word(SHARE * hour - 1), 1, hour, "ccache") == []
    assert storage.heed(Word(2), 1, hour, "ccache") != []
    many = Storage()
    many.began(0.0)
    assert many.heed(Word(64.0), 64, PATIENCE, "ccache") == []  # one second for each of 64
