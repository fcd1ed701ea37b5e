"""The documentation as fenced blocks, each with what stands above it about its test.

A comment above a block says how it is tested, or why it is not:

    <!-- test: SCENE... -->     in a new place, which these scenes of docs_scenes.py have prepared
    <!-- test: continue -->     where the block before it has ended, with its directory and its variables
    <!-- test: file NAME -->    as a file of that name, which later blocks of the page find
    <!-- not run: WHY -->       not at all

More words of a test: `status=N`, with which each command ends; `seconds=N`, after which each is interrupted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
PAGES = (
    REPOSITORY / "README.md",
    REPOSITORY / "example_package" / "README.md",
    *sorted((REPOSITORY / "docs").rglob("*.md")),
)

COMMANDS = ("console", "sh", "bash")
RECIPES = ("dockerfile", "yaml")
"""Languages of files that hold commands."""
DATA = ("toml", "ini", "python", "cuda")
OUTPUT = ("text", "")
"""What a program prints; holds no commands."""

# These two pages are read as plain text, too: what would stand above their blocks stands here.
_SAID_HERE = {
    ("README.md", "python -m pip install . torch &&"): "not run: CI runs this very block",
    ("README.md", 'python -m pip install ".[test]" &&'): "not run: CI runs this very block",
    ("README.md", 'python -m pip install ".[cli]"'): "test: clone index",
    ("example_package/README.md", "$ pip install ."): "not run: CI builds and imports it with the README's block",
    ("example_package/README.md", "$ pip install '.[test]'"): "not run: its tests need its own build, and a GPU",
}

_FENCE = re.compile(r"^( *)```([a-z]*|\{.*)$")
_SAID = re.compile(r"^ *<!-- ((?:test|not run):.*?) -->$")
_INLINE = re.compile(r"`([^`\n]+)`")


@dataclass(frozen=True)
class Block:
    """A fenced block: `said` is the text of the comment above it."""

    page: str
    line: int
    language: str
    text: str
    said: str

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def why_not(self) -> str:
        """Why it is not run; empty when it is."""
        kind, _, why = self.said.partition(": ")
        return why if kind == "not run" else ""

    @property
    def words(self) -> list[str]:
        kind, _, rest = self.said.partition(": ")
        return rest.split() if kind == "test" else []

    def number(self, name: str) -> int | None:
        """The N of the word `name=N`."""
        found = [word.partition("=")[2] for word in self.words if word.startswith(f"{name}=")]
        return int(found[0]) if found else None

    @property
    def file(self) -> str:
        """The name of the file that it is; empty when it is none."""
        words = self.words
        return words[words.index("file") + 1] if "file" in words else ""

    @property
    def scenes(self) -> list[str]:
        words = self.words
        at = words.index("file") if "file" in words else len(words)
        named = [*words[:at], *words[at + 2 :]]
        return [word for word in named if "=" not in word and word != "continue"]

    @property
    def goes_on(self) -> bool:
        return not self.scenes and ("continue" in self.words or bool(self.file))


def blocks_of(page: Path) -> Iterator[Block]:
    """The fenced blocks of a page, in order."""
    name = str(page.relative_to(REPOSITORY)).removeprefix("docs/")
    lines = page.read_text().splitlines()
    at = 0
    while at < len(lines):
        opened = _FENCE.match(lines[at])
        if not opened:
            at += 1
            continue
        indent, language = opened.groups()
        end = lines.index(f"{indent}```", at + 1)
        body = [line.removeprefix(indent) for line in lines[at + 1 : end]]
        said = _said_above(lines, at) or _SAID_HERE.get((name, "".join(body[:1])), "")
        if not language.startswith("{"):  # which Sphinx fills
            yield Block(name, at + 1, language, "\n".join(body) + "\n", said)
        at = end + 1


def _said_above(lines: list[str], at: int) -> str:
    while at and not lines[at - 1].strip():
        at -= 1
    found = _SAID.match(lines[at - 1]) if at else None
    return found[1] if found else ""


def all_blocks() -> list[Block]:
    return [block for page in PAGES for block in blocks_of(page)]


def passages(blocks: list[Block]) -> list[list[Block]]:
    """The blocks that are tested, in lists of those that go on from each other."""
    result: list[list[Block]] = []
    for block in blocks:
        if not block.words:
            continue
        if block.goes_on and result and result[-1][0].page == block.page:
            result[-1].append(block)
        else:
            result.append([block])
    return result


def inline_code(page: Path) -> Iterator[tuple[int, str]]:
    """What stands between single backquotes, with its line."""
    fenced = False
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced:
            yield from ((number, text) for text in _INLINE.findall(line))
