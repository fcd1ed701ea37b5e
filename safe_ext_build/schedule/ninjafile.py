"""Rewrites a build.ninja: compiles go through J, unstable prefixes become shell variables, long compiles first.

Pure, but for `missing`. ninja's own words for what is handled here: https://ninja-build.org/manual.html#ref_ninja_file
"""

from __future__ import annotations

import itertools
import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from .command import compiler_index, is_compiler

JOB = "seb-job"
_LANGUAGES = (".cu", ".c", ".cc", ".cpp", ".cxx", ".c++", ".C")
_ASSIGNMENT = re.compile(r"(\s*)([\w.-]+)\s*=\s*(.*)", re.DOTALL)
# Bindings of a rule or an edge that ninja reads itself.
_NOT_FOR_A_SHELL = {"depfile", "dyndep", "rspfile", "rspfile_content", "deps", "msvc_deps_prefix", "pool"}
_REFERENCE = re.compile(r"\$(?:\{([\w.-]+)\}|([\w-]+))")
# What a path may be made of to stand unquoted in a shell command.
_PLAIN = re.compile(r"[\w@%+=,./-]+")


@dataclass(frozen=True)
class Block:
    """A statement with the indented lines that belong to it. A statement may go over several lines."""

    head: str
    body: tuple[str, ...]

    @property
    def kind(self) -> str:
        return "#" if self.head.lstrip().startswith("#") else self.head.split(" ", 1)[0]

    def text(self) -> str:
        return "\n".join([self.head, *self.body])


@dataclass(frozen=True)
class Edge:
    """A `build` statement: what is made, and what it is made from (explicitly), by which rule."""

    outputs: tuple[str, ...]
    inputs: tuple[str, ...]
    rule: str = field(default="", compare=False)

    @property
    def makes(self) -> tuple[str, ...]:
        """What running it makes. phony runs nothing: its outputs may be anybody's files. (CMake writes a phony
        edge whose outputs are all that it was configured from: the project's CMakeLists.txt, its own modules.)
        """
        return () if self.rule == "phony" else self.outputs


@dataclass(frozen=True)
class Rewritten:
    """The new text, and its edges in the order of the text."""

    text: str
    edges: tuple[Edge, ...]


def rewrite(text: str, prefixes: Mapping[str, str], cost: Callable[[str], float]) -> Rewritten:
    """Rewrite a build.ninja. `prefixes` maps the name of an environment variable to the path that it stands
    for; ninja hashes command lines, so a path that changes with every build would rebuild everything.
    `cost` forecasts what compiling a source costs; the edges stand in falling order of it, after one of each
    language."""
    blocks = parse(text)
    variables, literal = _variables(blocks), _literal_variables(blocks)
    changed = [_rewrite_block(block, variables, prefixes, literal) for block in blocks]
    result = [block for run in _runs_of_edges(changed) for block in _in_order(run, cost)]
    edges = tuple(read_edge(block) for block in result if block.kind == "build")
    return Rewritten("\n".join(block.text() for block in result) + "\n", edges)


def edges(text: str) -> tuple[Edge, ...]:
    """The edges of a build.ninja, in its order."""
    return tuple(read_edge(block) for block in parse(text) if block.kind == "build")


def missing(edges: Sequence[Edge], directory: str) -> list[str]:
    """The inputs that neither exist nor are made by an edge."""
    made = {path for edge in edges for path in edge.outputs}
    inputs = dict.fromkeys(path for edge in edges for path in edge.inputs if path not in made)
    return [path for path in inputs if "$" not in path and not os.path.exists(os.path.join(directory, path))]


def move(text: str, places: Mapping[str, str]) -> str:
    """Replace directories by others throughout, which are plain paths; those replaced may be any."""
    spelled = {spelling: new for old, new in places.items() for spelling in _spellings(old)}
    alternatives = "|".join(re.escape(path) for path in sorted(spelled, key=len, reverse=True))
    pattern = re.compile(rf"(?<![\w./])(-[A-Za-z]+)?({alternatives})(?![\w.-])")
    return pattern.sub(lambda match: (match[1] or "") + spelled[match[2]], text)


def _spellings(path: str) -> set[str]:
    """What stands in a build.ninja for a path: torch escapes spaces at most, and quotes flags for a shell;
    others escape all that ninja's syntax asks for."""
    quoted = shlex.quote(path).removeprefix("'").removesuffix("'")
    words = {path, quoted, path.replace(" ", "$ ")}
    return words | {re.sub("([ :$])", r"$\1", path), quoted.replace("$", "$$")}


def _runs_of_edges(blocks: Sequence[Block]) -> list[list[Block]]:
    """Split where something other than an edge stands: edges see the rules and variables above them only,
    and `default` the edges above it, so none may move across."""
    runs: list[list[Block]] = [[]]
    for block in blocks:
        if block.kind in ("build", "", "#"):
            runs[-1].append(block)
        else:
            runs += [[block], []]
    return runs


def _in_order(run: Sequence[Block], cost: Callable[[str], float]) -> list[Block]:
    builds = [block for block in run if block.kind == "build"]
    falling = sorted(builds, key=lambda block: -max(map(cost, read_edge(block).inputs), default=0.0))
    ordered = iter(_scouts_first(falling))
    return [next(ordered) if block.kind == "build" else block for block in run]


def _scouts_first(builds: Sequence[Block]) -> list[Block]:
    """The first of each language before all others: the one C++ file of a package with seventy kernels would
    otherwise come last, and say only then that its headers and this torch do not go together."""
    scouts: dict[str, Block] = {}
    for block in builds:
        language = os.path.splitext("".join(read_edge(block).inputs[:1]))[1]
        if language in _LANGUAGES:
            scouts.setdefault(language, block)
    return [*scouts.values(), *(block for block in builds if block not in scouts.values())]


def is_generated(text: str) -> bool:
    """Whether the file rebuilds itself (CMake's, meson's): then it must keep its name. One that includes others
    is taken for such a file, too: CMake's has its rules there, and what is not seen is not to be rewritten."""
    return re.search(r"^\s+generator\s*=|^(?:include|subninja)\s", text, re.MULTILINE) is not None


def is_plain(path: str) -> bool:
    """Whether a path may stand unquoted in a shell command and unescaped in a build.ninja."""
    return _PLAIN.fullmatch(path) is not None


def can_name(path: str) -> bool:
    """Whether a path survives in a build.ninja whose author escapes nothing but spaces, as torch does, and in
    the depfiles that nvcc writes (there, `#` and quotes do not)."""
    return not bad_sign(path)


def bad_sign(path: str) -> str:
    """The first sign for which it does not; '' when it does."""
    found = re.search(r"[^\w@%+=,./ ~^-]", path)
    return found[0] if found else ""


def parse(text: str) -> list[Block]:
    """Split into blocks; blank lines and comments stay where they are, as blocks of their own."""
    blocks: list[Block] = []
    for line in _logical_lines(text):
        owner = next((index for index in range(len(blocks) - 1, -1, -1) if blocks[index].kind != "#"), -1)
        if line[:1] == " " and line.strip() and owner >= 0 and blocks[owner].head:
            # Comments may stand between a statement and its lines, and go with them.
            between = [comment.head for comment in blocks[owner + 1 :]]
            blocks[owner:] = [Block(blocks[owner].head, (*blocks[owner].body, *between, line))]
        else:
            blocks.append(Block(line, ()))
    return blocks


def _logical_lines(text: str) -> list[str]:
    lines: list[str] = []
    open_line = False
    for line in text.removesuffix("\n").split("\n"):
        if open_line:
            lines[-1] = lines[-1] + "\n" + line
        else:
            lines.append(line)
        comment = not open_line and line.lstrip().startswith("#")
        open_line = not comment and re.search(r"(?<!\$)(?:\$\$)*\$$", line) is not None
    return lines


def _variables(blocks: Sequence[Block]) -> dict[str, str]:
    found = {}
    for block in blocks:
        assignment = _ASSIGNMENT.fullmatch(block.head)
        if assignment and not assignment[1]:
            found[assignment[2]] = assignment[3]
    return found


def _literal_variables(blocks: Sequence[Block]) -> set[str]:
    """The variables whose value no shell ever sees: ninja itself uses them as paths, or writes them to a file."""
    values: dict[str, list[str]] = {}
    found = {"builddir", "ninja_required_version"}
    for block in blocks:
        for line in (block.head, *block.body):
            assignment = _ASSIGNMENT.fullmatch(line)
            if assignment:
                values.setdefault(assignment[2], []).append(assignment[3])
            elif block.kind not in ("rule", "#"):
                found |= _references(line)
    found |= _NOT_FOR_A_SHELL & set(values)
    unseen = list(found)
    while unseen:
        new = set().union(*map(_references, values.get(unseen.pop(), []))) - found
        found |= new
        unseen += new
    return found


def _references(text: str) -> set[str]:
    return {match[1] or match[2] for match in _REFERENCE.finditer(text)} - {"in", "out"}


def _rewrite_block(
    block: Block, variables: Mapping[str, str], prefixes: Mapping[str, str], literal: set[str]
) -> Block:
    def mapped(line: str) -> str:
        assignment = _ASSIGNMENT.fullmatch(line)
        seen_by_shell = assignment and assignment[2] not in (*literal, "description")
        return map_prefixes(line, prefixes) if seen_by_shell else line

    if block.kind == "rule":
        return Block(block.head, tuple(_through_job(mapped(line), variables) for line in block.body))
    return Block(mapped(block.head), tuple(map(mapped, block.body)))


def _through_job(line: str, variables: Mapping[str, str]) -> str:
    assignment = _ASSIGNMENT.fullmatch(line)
    if not assignment or assignment[2] != "command" or not _runs_compiler(assignment[3], variables):
        return line
    return f"{assignment[1]}command = {JOB} {assignment[3]}"


def _runs_compiler(command: str, variables: Mapping[str, str]) -> bool:
    text = expand(command, variables).replace("$ ", " ")
    try:
        words = shlex.split(text)
    except ValueError:
        words = text.split()
    # CC and CXX may name any program: one that is called as a compiler is one.
    called_as_one = any(pair == ("-c", "$in") for pair in itertools.pairwise(words)) and "-o" in words
    return bool(words) and (called_as_one or is_compiler(words[compiler_index(words)]))


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
        rf"""\\.|'[^']*'|"(?:\\.|[^"\\])*"|(?<![^\s=:,])(?P<option>-[A-Za-z]+)?"""
        rf"""(?P<path>{alternatives})(?=[/\s:,]|\$\n|$)"""
    )

    def replace(match: re.Match[str]) -> str:
        if match["path"] is None:
            return match[0]
        return f"{match['option'] or ''}$${{{names[match['path']]}}}"

    return pattern.sub(replace, text)


def read_edge(block: Block) -> Edge:
    """Read a `build` statement; paths come out unescaped, implicit inputs are left out."""
    flat = re.sub(r"\$\n *", "", block.head)
    words = re.findall(r"(?:\$.|[^\s$:|])+|:|\|[|@]?", flat)[1:]
    colon = words.index(":") if ":" in words else len(words)
    return Edge(_explicit(words[:colon]), _explicit(words[colon + 2 :]), "".join(words[colon + 1 : colon + 2]))


def _explicit(words: Sequence[str]) -> tuple[str, ...]:
    return tuple(_unescape(word) for word in itertools.takewhile(lambda word: word[0] != "|", words))


def _unescape(word: str) -> str:
    return re.sub(r"\$([ :$])", r"\1", word)
