"""Rewrites a build.ninja: compiles go through J, unstable prefixes become shell variables, long compiles first.

Pure. ninja's own words for what is handled here: https://ninja-build.org/manual.html#ref_ninja_file
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from .command import is_compiler

JOB = "seb-job"
_ASSIGNMENT = re.compile(r"(\s*)([\w.-]+)\s*=\s*(.*)", re.DOTALL)
_REFERENCE = re.compile(r"\$(?:\{([\w.-]+)\}|([\w-]+))")
_LAUNCHERS = {"ccache", "sccache"}
# What a path may be made of to stand unquoted in a shell command.
_PLAIN = re.compile(r"[\w@%+=,./-]+")


@dataclass(frozen=True)
class Block:
    """A statement with the indented lines that belong to it. A statement may go over several lines."""

    head: str
    body: tuple[str, ...]

    @property
    def kind(self) -> str:
        return self.head.split(" ", 1)[0]

    def text(self) -> str:
        return "\n".join([self.head, *self.body])


@dataclass(frozen=True)
class Edge:
    """A `build` statement: what is made, and what it is made from (explicitly)."""

    outputs: tuple[str, ...]
    inputs: tuple[str, ...]


@dataclass(frozen=True)
class Rewritten:
    """The new text, and its edges in the order of the text."""

    text: str
    edges: tuple[Edge, ...]


def rewrite(text: str, prefixes: Mapping[str, str], cost: Callable[[str], float]) -> Rewritten:
    """Rewrite a build.ninja. `prefixes` maps the name of an environment variable to the path that it stands
    for; ninja hashes command lines, so a path that changes with every build would rebuild everything.
    `cost` forecasts what compiling a source costs; the edges stand in falling order of it."""
    blocks = parse(text)
    variables = _variables(blocks)
    changed = [_rewrite_block(block, variables, prefixes) for block in blocks]
    builds = [(block, read_edge(block)) for block in changed if block.kind == "build"]
    builds.sort(key=lambda build: -max(map(cost, build[1].inputs), default=0.0))
    ordered = iter(builds)
    result = [next(ordered)[0] if block.kind == "build" else block for block in changed]
    return Rewritten("\n".join(block.text() for block in result) + "\n", tuple(edge for _, edge in builds))


def edges(text: str) -> tuple[Edge, ...]:
    """The edges of a build.ninja, in its order."""
    return tuple(read_edge(block) for block in parse(text) if block.kind == "build")


def move(text: str, places: Mapping[str, str]) -> str:
    """Replace directories by others throughout; all of them are plain paths."""
    alternatives = "|".join(re.escape(path) for path in sorted(places, key=len, reverse=True))
    pattern = re.compile(rf"(?<![\w./])(-[A-Za-z]+)?({alternatives})(?![\w.-])")
    return pattern.sub(lambda match: (match[1] or "") + places[match[2]], text)


def is_generated(text: str) -> bool:
    """Whether the file rebuilds itself (CMake's, meson's): then it must keep its name."""
    return re.search(r"^\s+generator\s*=", text, re.MULTILINE) is not None


def is_plain(path: str) -> bool:
    """Whether a path may stand unquoted in a shell command and unescaped in a build.ninja."""
    return _PLAIN.fullmatch(path) is not None


def parse(text: str) -> list[Block]:
    """Split into blocks; blank lines and comments stay where they are, as blocks of their own."""
    blocks: list[Block] = []
    for line in _logical_lines(text):
        if line[:1] in (" ", "\t") and line.strip() and blocks and blocks[-1].head:
            blocks[-1] = Block(blocks[-1].head, (*blocks[-1].body, line))
        else:
            blocks.append(Block(line, ()))
    return blocks


def _logical_lines(text: str) -> list[str]:
    lines: list[str] = []
    open_line = False
    for line in text.splitlines():
        if open_line:
            lines[-1] = lines[-1] + "\n" + line
        else:
            lines.append(line)
        open_line = re.search(r"(?<!\$)(?:\$\$)*\$$", line) is not None
    return lines


def _variables(blocks: Sequence[Block]) -> dict[str, str]:
    found = {}
    for block in blocks:
        assignment = _ASSIGNMENT.fullmatch(block.head)
        if assignment and not assignment[1]:
            found[assignment[2]] = assignment[3]
    return found


def _rewrite_block(block: Block, variables: Mapping[str, str], prefixes: Mapping[str, str]) -> Block:
    if block.kind == "build":
        return Block(block.head, tuple(map_prefixes(line, prefixes) for line in block.body))
    if block.kind == "rule":
        return Block(block.head, tuple(_rewrite_rule_line(line, variables, prefixes) for line in block.body))
    return Block(map_prefixes(block.head, prefixes), block.body)


def _rewrite_rule_line(line: str, variables: Mapping[str, str], prefixes: Mapping[str, str]) -> str:
    line = map_prefixes(line, prefixes)
    assignment = _ASSIGNMENT.fullmatch(line)
    if not assignment or assignment[2] != "command" or not _runs_compiler(assignment[3], variables):
        return line
    return f"{assignment[1]}command = {JOB} {assignment[3]}"


def _runs_compiler(command: str, variables: Mapping[str, str]) -> bool:
    words = expand(command, variables).split()[:2]
    if words and words[0].rsplit("/", 1)[-1] in _LAUNCHERS:
        words = words[1:]
    return bool(words) and is_compiler(words[0].strip("\"'"))


def expand(text: str, variables: Mapping[str, str], depth: int = 8) -> str:
    """Put the values of file-level variables in; an unknown one ($in, $out) is left as it stands."""

    def value(match: re.Match[str]) -> str:
        found = variables.get(match[1] or match[2])
        return match[0] if found is None else expand(found, variables, depth - 1)

    return _REFERENCE.sub(value, text) if depth else text


def map_prefixes(text: str, prefixes: Mapping[str, str]) -> str:
    """Replace a path, where it begins a word or follows an option, by the shell variable that holds it.

    Inside quotes a shell would not expand it (and a path that needs quotes is not plain): those stay.
    """
    names = {path: name for name, path in prefixes.items() if is_plain(path)}
    if not names:
        return text
    alternatives = "|".join(re.escape(path) for path in sorted(names, key=len, reverse=True))
    pattern = re.compile(
        rf"""'[^']*'|"[^"]*"|(?<![^\s=:,])(?P<option>-[A-Za-z]+)?(?P<path>{alternatives})(?=[/\s:,]|$)"""
    )

    def replace(match: re.Match[str]) -> str:
        if match["path"] is None:
            return match[0]
        return f"{match['option'] or ''}$${{{names[match['path']]}}}"

    return pattern.sub(replace, text)


def read_edge(block: Block) -> Edge:
    """Read a `build` statement; paths come out unescaped, implicit inputs are left out."""
    flat = block.head.replace("$\n", " ")
    words = re.findall(r"(?:\$.|[^\s$])+", flat)[1:]
    colon = next((n for n, word in enumerate(words) if word.endswith(":") and not word.endswith("$:")), len(words))
    outputs = [*words[:colon], *(word[:-1] for word in words[colon : colon + 1])]
    return Edge(_explicit(outputs), _explicit(words[colon + 2 :]))


def _explicit(words: Sequence[str]) -> tuple[str, ...]:
    end = next((n for n, word in enumerate(words) if word in ("|", "||", "|@")), len(words))
    return tuple(_unescape(word) for word in words[:end] if word)


def _unescape(word: str) -> str:
    return re.sub(r"\$([ :$])", r"\1", word)
