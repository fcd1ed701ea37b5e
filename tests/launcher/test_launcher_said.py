"""What the tools say is understood, and what opens a shared cache is shown to nobody."""

from __future__ import annotations

from pathlib import Path

import pytest

from safe_ext_build.launcher.redact import is_secret, of_caches, redact
from safe_ext_build.launcher.verdict import ServerLog, Verdict, from_ccache
from safe_ext_build.report.caches import Said, sentence


@pytest.mark.parametrize(
    ("log", "verdict"),
    [
        ("# /p/a.cu\ndirect_cache_hit\nlocal_storage_hit\nlocal_storage_read_hit\n", Verdict("hit")),
        ("preprocessed_cache_hit\ndirect_cache_miss\nlocal_storage_write\n", Verdict("hit")),
        ("cache_miss\ndirect_cache_miss\nlocal_storage_miss\n", Verdict("miss")),
        ("cache_miss\nlocal_storage_miss\nremote_storage_timeout\n", Verdict("miss")),
        ("unsupported_compiler_option\n", Verdict("uncacheable", "unsupported compiler option")),
        (
            "unsupported_code_directive\n",
            Verdict("uncacheable", "the source includes a binary file (.incbin, #embed)"),
        ),
        ("disabled\n", Verdict("uncacheable", "ccache is disabled")),
        ("", Verdict()),
    ],
)
def test_the_log_of_ccache(log: str, verdict: Verdict) -> None:
    assert from_ccache(log) == verdict


# As 0.16.0 writes it; before 0.15 the second line had no name.
SERVER = """\
[D DEBUG sccache::compiler::compiler] [m.seb-1.o]: Cache hit in 0.000 s
[D DEBUG sccache::server] [m.seb-1.o]: compile result: cache hit
[D DEBUG sccache::compiler::compiler] [k.seb-2.o]: Cache miss in 0.000 s
[D DEBUG sccache::compiler::compiler] [k.ptx]: Cache miss in 0.004 s
[D DEBUG sccache::compiler::compiler] [k.seb-2.o]: Cache hit in 0.000 s
[D DEBUG sccache::server] [k.seb-2.o]: compile result: not cacheable
[D DEBUG sccache::server] parse_arguments: CannotCache(-fplugin, nothing): ["-c", "a.cpp", "-o", "/p/a.seb-3.o"]
[D DEBUG sccache::compiler::compiler] [n.seb-4.o]: Cache mi"""


def test_the_log_of_an_sccache_server(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = ServerLog(str(path))
    assert log.verdict("m.seb-1.o") == Verdict()
    path.write_text(SERVER)
    assert log.verdict("/p/m.seb-1.o") == Verdict("hit")
    assert log.verdict("k.seb-2.o") == Verdict("hit")
    assert log.verdict("/p/a.seb-3.o") == Verdict("uncacheable", "-fplugin: nothing")
    assert log.verdict("n.seb-4.o") == Verdict()
    with path.open("a") as file:
        file.write("ss in 0.1 s\n")
    assert log.verdict("n.seb-4.o") == Verdict("miss")


@pytest.mark.parametrize(
    ("steps", "last", "verdict"),
    [
        ({"module_id": "hit", "compute_80.ptx": "hit"}, "hit", Verdict("hit")),
        ({"module_id": "miss", "compute_80.ptx": "miss"}, "miss", Verdict("miss")),
        ({"module_id": "hit", "ptx": "hit", "cubin": "miss"}, "miss", Verdict("miss", "2 of 4 steps hit")),
        ({"compute_90.cubin": "miss"}, "hit", Verdict("miss", "1 of 2 steps hit")),
    ],
)
def test_an_nvcc_compile_of_which_a_part_hits(
    tmp_path: Path, steps: dict[str, str], last: str, verdict: Verdict
) -> None:
    names = {"a.seb-1.o": "miss", "b.ptx": "miss", **{f"a.{name}": word for name, word in steps.items()}}
    lines = [f"[D] [{name}]: Cache {word} in 0.000 s\n" for name, word in (*names.items(), ("a.seb-1.o", last))]
    (tmp_path / "log").write_text("".join(lines))
    assert ServerLog(str(tmp_path / "log")).verdict("/p/a.seb-1.o", "/p/csrc/a.cu") == verdict


def test_what_a_cache_did_in_one_line() -> None:
    hit, miss = Said("hit", "", 61.0), Said("miss", "", 0.0)
    why = Said("uncacheable", "-fplugin", 0.0)
    assert sentence([]) == sentence([Said("", "", 0.0)]) == ""
    assert sentence([hit, hit, miss]) == "cache: 2 hits (saved 2 min 02 s), 1 miss"
    assert sentence([miss, miss, why], "; ") == "; cache: 0 hits, 2 misses, 1 not cacheable (-fplugin)"
    assert sentence([miss, Said("miss", "2 of 4 steps hit", 0.0)]) == "cache: 0 hits, 2 misses (1 in part)"
    assert sentence([hit, Said("", "", 0.0)]) == "cache: 1 hit (saved 1 min 01 s), 1 without a word"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("redis://bob:hunter2@cache:6379/1", "redis://***@cache:6379/1"),
        ("redis://:hunter2@cache", "redis://***@cache"),
        ("https://token123@host/bucket and more", "https://***@host/bucket and more"),
        ("http://host/a|bearer-token=abc.def|layout=flat", "http://host/a|bearer-token=***|layout=flat"),
        ("Authorization: Bearer abc.def", "Authorization: Bearer ***"),
        ("Authorization: Bearer 10.0.0.2:10501 0a1b", "Authorization: Bearer 10.0.0.2:10501 ***"),
        ("Bearer [::1]:10501 0a1b", "Bearer [::1]:10501 ***"),
        ("http://10.0.0.1:10600#server=0a1b", "http://10.0.0.1:10600#server=***"),
        ('4 | token = "0a1b"', '4 | token = "***"'),
        ('{"type": "token", "token": "0a1b"}', '{"type": "token", "token": "***"}'),
        ("AccountName=me;AccountKey=Zm9v+/==;EndpointSuffix=x", "AccountName=me;AccountKey=***;EndpointSuffix=x"),
        ("secret_access_key = 'abcd/efgh'", "secret_access_key = '***'"),
        ("https://s3/x?X-Amz-Signature=abcdef&a=1", "https://s3/x?X-Amz-Signature=***&a=1"),
        ("error: a.cu(3): token expected; https://docs.rs/x", "error: a.cu(3): token expected; https://docs.rs/x"),
        ("git@github.com:a/b and name@example.org", "git@github.com:a/b and name@example.org"),
    ],
)
def test_secrets_are_not_shown(text: str, shown: str) -> None:
    assert redact(text) == shown


def test_the_values_of_secret_variables_are_shown_nowhere() -> None:
    environ = {
        "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI",
        "SCCACHE_REDIS_PASSWORD": "correct horse",
        "SCCACHE_REDIS": "redis://u:battery1@h",
        "SCCACHE_AZURE_CONNECTION_STRING": "BlobEndpoint=x;SharedAccessSignature=staple22",
        "ACTIONS_RUNTIME_TOKEN": "eyJhbGci",
        "SCCACHE_BUCKET": "public",
        "HOME": "/home/u",
    }
    text = redact(" ".join(environ.values()) + " battery1 alone, in public", environ)
    for secret in ("wJalr", "correct horse", "battery1", "staple22", "eyJ"):
        assert secret not in text
    assert "public" in text and "/home/u" in text
    assert of_caches({"MY_TOKEN": "test", "AWS_SESSION_TOKEN": "staple33"}) == ["staple33"]


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        *[(name, True) for name in ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_ACCESS_KEY_ID")],
        *[(name, True) for name in ("SCCACHE_WEBDAV_TOKEN", "SCCACHE_GCS_CREDENTIALS_URL", "GITHUB_TOKEN")],
        *[(name, True) for name in ("ALIBABA_CLOUD_ACCESS_KEY_SECRET", "TENCENTCLOUD_SECRET_ID")],
        *[(name, False) for name in ("SCCACHE_BUCKET", "CCACHE_DIR", "PATH", "TORCH_CUDA_ARCH_LIST", "KEYBOARD")],
    ],
)
def test_which_variables_are_secret(name: str, secret: bool) -> None:
    assert is_secret(name) == secret
