"""The catalogue against the code: each error has an id, each id an entry, each entry words for people."""

from __future__ import annotations

import ast
import re
import subprocess
import sys

import errors_in_source as source
import pytest

from safe_ext_build import _errors_docs
from safe_ext_build.catalogue import _ALL, CATALOGUE, RETIRED, ROOMS, Entry
from safe_ext_build.cli import explain
from safe_ext_build.cli.main import main

ROOT = source.PACKAGE.parent
# They pass on an id that another process, or a pure function beside them, has chosen.
RELAYS = {"supervise.hook._answer", "supervise.blame.compile_failure", "verify.judge._symbol_error"}
# What only those know who have read our code.
OURS = re.compile(
    r"\b(hooks?|builder|supervisor|shims?|broker|subreaper|pidfd|dataclass|exception|traceback|call stack|parser|"
    r"AST|stdlib|teardown|lease|verdict|mangled|enum|boundary|workspaces?(?!\.dir))\b",
    re.IGNORECASE,
)
# A remedy tells somebody to do something.
TELLS = re.compile(
    r"\b(Write|Set|Unset|Install|Name|Correct|Rename|Look|Add|Choose|Run|Make|Move|Delete|Free|Remove|Build|Give|Use|"
    r"Start|Compile|Read|Do|Let|Tell|Mend|Pass|Take|Compare|Copy|Fetch|Download|Try|Leave out|Send|Watch|"
    r"Raise|Change)\b|\bsend the output\b|: `apt install|For (a|SIGKILL)|If that was"
)


def test_every_error_has_a_literal_id() -> None:
    found = list(source.made())
    assert len(found) > 90
    without = [one.place for one in found if one.literals is None and one.function not in RELAYS]
    assert without == [], 'an error says code="SEB-1234", in so many words'
    unknown = [(one.place, code) for one in found for code in one.literals or () if code not in CATALOGUE]
    assert unknown == []


def test_who_passes_an_id_on_still_does() -> None:
    assert {one.function for one in source.made() if one.literals is None} == RELAYS


def test_every_entry_is_used_and_every_id_has_one() -> None:
    assert source.used() == set(CATALOGUE)


def test_ids_are_one_of_a_kind_and_never_used_again() -> None:
    assert len(_ALL) == len(CATALOGUE)
    assert [entry.code for entry in _ALL] == sorted(CATALOGUE)
    assert RETIRED.isdisjoint(CATALOGUE)
    assert all(re.fullmatch(r"SEB-\d{4}", code) and code[4] in ROOMS for code in CATALOGUE)


def test_who_compiles_never_loads_the_catalogue() -> None:
    loaders = {
        name
        for name, tree in source.trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and "catalogue" in f"{node.module} {[one.name for one in node.names]}"
    }
    assert loaders == {"cli.explain", "cli.completion"}
    modules = "safe_ext_build.build_meta, safe_ext_build.driver, safe_ext_build.supervise.supervisor"
    code = f"import sys, {modules}; sys.exit('safe_ext_build.catalogue' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("entry", _ALL, ids=lambda entry: entry.code)
def test_an_entry_is_for_people(entry: Entry) -> None:
    assert 15 <= len(entry.title) <= 90 and not entry.title.endswith(".")
    for text in (entry.meaning, entry.remedy):
        assert len(text) >= 30 and text.endswith("."), text
    for text in (entry.title, entry.meaning, entry.remedy):
        assert text == " ".join(text.split()) and text.isascii()
        assert text.count("`") % 2 == 0
        plain = re.sub(r"`[^`]*`", "", text)
        assert not OURS.search(plain), OURS.search(plain)
    assert TELLS.search(entry.remedy), "a remedy says what to do"


def test_titles_are_told_apart() -> None:
    titles = [entry.title for entry in _ALL]
    assert len(set(titles)) == len(titles)


def test_the_page_is_what_the_catalogue_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert _errors_docs.main(["--check"]) == 0
    page = _errors_docs.PAGE.read_text(encoding="utf-8")
    for code in CATALOGUE:
        assert f"\n({code.lower()})=\n### {code}: " in page


def test_what_the_documentation_names_exists() -> None:
    for page in [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]:
        unknown = set(source.CODE.findall(page.read_text(encoding="utf-8"))) - set(CATALOGUE)
        assert unknown == set(), page


# `safe-ext-build explain`.


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_ids_are_completed(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "SEB-" in line)
    assert "explain" in line and set(source.CODE.findall(line)) == set(CATALOGUE)


@pytest.mark.parametrize("text", ["SEB-2003", "seb-2003", "2003", "SEB2003", "error[SEB-2003]:", " seb 2003 "])
def test_an_id_as_people_type_it(text: str) -> None:
    assert explain.find(text).code == "SEB-2003"


def test_explain_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "2003"]) == 0
    title, _, meaning, _, remedy = capsys.readouterr().out.splitlines()
    entry = CATALOGUE["SEB-2003"]
    assert (title, meaning) == (f"SEB-2003: {entry.title}", entry.meaning)
    assert remedy == f"What to do: {entry.remedy}"


def test_explain_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("SEB-")] == [
        f"{entry.code}  {entry.title}" for entry in _ALL
    ]
    assert set(ROOMS.values()) <= set(lines)


@pytest.mark.parametrize(
    ("text", "near"),
    [
        ("2999", ["SEB-3001", "SEB-3002", "SEB-3003"]),
        ("seb-1009", ["SEB-1007", "SEB-1008", "SEB-1010"]),
        ("nonsense", []),
    ],
)
def test_explain_what_is_none(text: str, near: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", text]) == 1
    first, hint = capsys.readouterr().err.splitlines()
    assert first == f"safe-ext-build: error[SEB-8017]: there is no error with the id {text}"
    assert hint.endswith("`safe-ext-build explain` lists all.")
    assert source.CODE.findall(hint) == near
