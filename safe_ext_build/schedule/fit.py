"""Command lines made to fit: the C++ standard that torch's headers need, the architectures that nvcc knows.

Pure; standard library only (the supervisor imports this). Options are read as nvcc reads them: `-name value`,
`-name=value`, and the long spelling of either.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from .command import call_words, compiler_index, is_nvcc, split_compiler

# What follows `c++` or `gnu++` is a year, or what a draft was called before it had one.
_DRAFTS = {"98": "3", "0x": "11", "1y": "14", "1z": "17", "2a": "20", "2b": "23", "2c": "26"}
_STANDARD = re.compile(r"(?P<option>^|--?std=)(?P<kind>c|gnu)\+\+(?P<year>\w\w)(?!\w)")
_STANDARD_FLAGS = ("-std", "--std")
_TO_HOST = ("-Xcompiler", "--compiler-options")
_INCLUDE = ("-I", "-isystem", "--include-path", "--system-include")
_INCLUDED = re.compile(r"(?:-I|-isystem|--include-path|--system-include)=?(.+)")

_GENCODE = ("-gencode", "--generate-code")
_ARCH = ("-arch", "--gpu-architecture")
_CODE = ("-code", "--gpu-code")
_ARCH_OPTIONS = (*_GENCODE, *_ARCH, *_CODE)
_TARGET = re.compile(r"(?:sm|compute|lto)_(\d+[af]?)")
_LIMITED_API = re.compile(r"-DPy_LIMITED_API(=.*)?")
_CCBIN = ("-ccbin", "--compiler-bindir")
# What torch's own helper defines in each of its compiles: there, no architecture at all is never meant.
_HELPER = "TORCH_EXTENSION_NAME"


@dataclass(frozen=True)
class Fit:
    """What the compiles of a build have to fit.

    `torch`, `nvcc`: their names, for messages. `standard`: the lowest C++ standard that torch's headers accept,
    which lie in `includes`; 0 without torch. `known`: the architectures of this nvcc (`86`); empty if it cannot
    tell. `planned`: TORCH_CUDA_ARCH_LIST. `asked`: who has asked for that list; '' if nobody did.
    `free_threaded`: this Python has no limited API.
    """

    torch: str = ""
    standard: int = 0
    includes: Sequence[str] = ()
    nvcc: str = "nvcc"
    known: Sequence[str] = ()
    planned: str = ""
    asked: str = ""
    free_threaded: bool = False


@dataclass(frozen=True)
class Call:
    """A compiler's command, and what nvcc adds to it: NVCC_PREPEND_FLAGS before it, NVCC_APPEND_FLAGS after."""

    command: tuple[str, ...]
    prepend: str = ""
    append: str = ""

    @property
    def is_cuda(self) -> bool:
        return is_nvcc(self.command[compiler_index(self.command)])

    @property
    def arguments(self) -> list[str]:
        """All arguments, in the order in which they count."""
        if not self.is_cuda:
            return list(self.command[compiler_index(self.command) + 1 :])
        return call_words(self.command, self.prepend, self.append)

    def mapped(self, change: Callable[[list[str]], list[str]]) -> Call:
        """The call with its arguments changed, wherever they stand."""
        start = compiler_index(self.command) + 1
        command = (*self.command[:start], *change(list(self.command[start:])))
        if not self.is_cuda:
            return replace(self, command=command)
        return Call(command, _mapped_flags(self.prepend, change), _mapped_flags(self.append, change))

    def with_more(self, words: Sequence[str]) -> Call:
        return replace(self, command=(*self.command, *words))


@dataclass(frozen=True)
class Fitted:
    """A call that fits, and the lines that say what was changed; or why it cannot be made to fit."""

    call: Call
    lines: tuple[str, ...] = ()
    error: str = ""


def _mapped_flags(flags: str, change: Callable[[list[str]], list[str]]) -> str:
    words = flags.split()  # as nvcc does it
    changed = change(words)
    return flags if changed == words else " ".join(changed)


def fit(call: Call, to: Fit, *, ours: bool = True) -> Fitted:
    """Make a call fit. `ours`: its nvcc is the one that `to` speaks of."""
    call, lines = _raised(call, to)
    call, said = _without_limited_api(call, to)
    lines += said
    if not call.is_cuda:
        return Fitted(call, lines)
    call = call.mapped(_with_plain_ccbin)
    if ours and to.known:
        call, said, error = _without_unknown(call, to)
        lines += said
        if error:
            return Fitted(call, lines, error)
    call, said = _with_planned(call, to)
    return Fitted(call, (*lines, *said, *_difference(call, to)))


def _without_limited_api(call: Call, to: Fit) -> tuple[Call, tuple[str, ...]]:
    if not to.free_threaded or not any(_LIMITED_API.fullmatch(word) for word in call.arguments):
        return call, ()
    line = "Py_LIMITED_API is left out: this Python is free-threaded, and has no limited API"
    return call.mapped(lambda words: [word for word in words if not _LIMITED_API.fullmatch(word)]), (line,)


# The C++ standard


def _raised(call: Call, to: Fit) -> tuple[Call, tuple[str, ...]]:
    """torch's headers stop below their standard. Of several `-std` the last counts; nvcc's own and those that
    it passes on to the host compiler count apart."""
    if not to.standard or not uses_torch(call.arguments, to):
        return call, ()
    last = {passed: word for word, passed in _standards(call.arguments)}
    low = [match for word in last.values() for match in _below(word, to.standard)]
    if not low:
        return call, ()
    pinned = f"{low[0]['kind']}++{low[0]['year']}"
    line = f"-std={pinned} is raised to {low[0]['kind']}++{to.standard}, the least that {to.torch} compiles with"
    return call.mapped(lambda words: _with_standard(words, to.standard)), (line,)


def uses_torch(arguments: Sequence[str], to: Fit) -> bool:
    """Whether a compile looks for headers where torch's are."""
    places = [posixpath.normpath(place) for place in to.includes]
    found = [posixpath.normpath(path) for path in _include_dirs(arguments)]
    return any(path == place or path.startswith(place + "/") for path in found for place in places)


def _include_dirs(arguments: Sequence[str]) -> Iterator[str]:
    for before, word in zip(["", *arguments], arguments, strict=False):
        if before in _INCLUDE:
            yield word
        elif word not in _INCLUDE and (joined := _INCLUDED.fullmatch(word)):
            yield joined[1]


def _standards(arguments: Sequence[str]) -> Iterator[tuple[str, bool]]:
    """The words that set a standard, in order, and whether they are passed on to the host compiler."""
    for before, word in zip(["", *arguments], arguments, strict=False):
        passed = before in _TO_HOST or word.startswith(tuple(f"{name}=" for name in _TO_HOST))
        if _sets_standard(before, word) and _STANDARD.search(word):
            yield word, passed


def _sets_standard(before: str, word: str) -> bool:
    if before in _TO_HOST or word.startswith(tuple(f"{name}=" for name in _TO_HOST)):
        return True
    return before in _STANDARD_FLAGS or word.startswith(tuple(f"{name}=" for name in _STANDARD_FLAGS))


def _below(word: str, standard: int) -> list[re.Match[str]]:
    return [match for match in _STANDARD.finditer(word) if _year(match) < standard]


def _year(match: re.Match[str]) -> int:
    """A name that nobody knows yet is newer than all."""
    text = _DRAFTS.get(match["year"], match["year"])
    return int(text) if text.isdigit() else 99


def _with_standard(words: list[str], standard: int) -> list[str]:
    def raised(match: re.Match[str]) -> str:
        return f"{match['option']}{match['kind']}++{standard}" if _year(match) < standard else match[0]

    return [
        _STANDARD.sub(raised, word) if _sets_standard(before, word) else word
        for before, word in zip(["", *words], words, strict=False)
    ]


# Architectures


def _options(words: Sequence[str], names: Sequence[str]) -> Iterator[tuple[int, int, str, str]]:
    """Where such options stand: index, number of words, name and value."""
    for index, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in names and (index == 0 or words[index - 1] not in _TO_HOST):
            if equals:
                yield index, 1, name, value
            elif index + 1 < len(words):
                yield index, 2, name, words[index + 1]


def _replaced(words: Sequence[str], spans: Sequence[tuple[int, int, list[str]]]) -> list[str]:
    """The words with those from an index on, so many, replaced."""
    result = list(words)
    for index, count, instead in reversed(spans):
        result[index : index + count] = instead
    return result


def _without_unknown(call: Call, to: Fit) -> tuple[Call, tuple[str, ...], str]:
    values = [value for *_, value in _options(call.arguments, _ARCH_OPTIONS)]
    unknown = dict.fromkeys(number for value in values for number in _strangers(value, to))
    if not unknown:
        return call, (), ""
    names = ", ".join(f"sm_{number}" for number in unknown)
    changed = call.mapped(lambda words: _known_only(words, to))
    left = _compiled(changed.arguments)
    if not left:
        known = ", ".join(to.known)
        return call, (), f"compiled for {names} only, which {to.nvcc} does not know; it knows {known}"
    line = (
        f"{to.nvcc} does not know {names}: left out of the package's flags, which compile for {_named(left)} now"
    )
    return changed, (line,), ""


def _compiled(words: Sequence[str]) -> set[str]:
    """What is compiled for: `90a`, and names such as `native`."""
    codes = any(_options(words, _CODE))
    found: set[str] = set()
    for _, _, name, value in _options(words, _ARCH_OPTIONS):
        if name in _GENCODE:
            found.update(_TARGET.findall(value.partition("code=")[2] or value))
        elif name in _CODE or not codes:
            found.update(_TARGET.findall(value) or [value])
    return found


def _named(archs: Iterable[str]) -> str:
    ordered = sorted(archs, key=lambda arch: (int(re.sub(r"\D", "", arch) or 0), arch))
    return ", ".join(f"sm_{arch}" if arch[0].isdigit() else arch for arch in ordered)


def _strangers(value: str, to: Fit) -> list[str]:
    return [number for arch in _TARGET.findall(value) if (number := arch.rstrip("af")) not in to.known]


def _known_only(words: list[str], to: Fit) -> list[str]:
    """The options without what nvcc does not know. Without its architecture, a list of codes goes too."""
    orphaned = any(_strangers(value, to) for *_, value in _options(words, _ARCH))
    spans: list[tuple[int, int, list[str]]] = []
    for index, count, name, value in _options(words, _ARCH_OPTIONS):
        if name in _CODE and orphaned:
            spans.append((index, count, []))
        elif _strangers(value, to):
            codes = _known_codes(name, value, to)
            spans.append((index, count, [f"{name}={codes}"] if codes else []))
    return _replaced(words, spans)


def _known_codes(name: str, value: str, to: Fit) -> str:
    """The value with the codes that nvcc knows; '' if it does not know the architecture, or no code is left."""
    head, separator, codes = ("", "", value) if name in _CODE else value.partition("code=")
    if _strangers(head, to):
        return ""
    known = [code for code in re.findall(r"\w+", codes) if not _strangers(code, to)]
    listed = ",".join(known) if name in _CODE or len(known) == 1 else f"[{','.join(known)}]"
    return f"{head}{separator}{listed}" if known else ""


def _with_planned(call: Call, to: Fit) -> tuple[Call, tuple[str, ...]]:
    """torch's helper adds no architecture when some flag holds the letters "arch": nvcc would then compile for its
    own default alone, in silence."""
    words = call.arguments
    flags = words[words.index("-o") + 2 :] if "-o" in words else words  # behind it stand those that torch looks at
    culprit = next((word for word in flags if "arch" in word and _HELPER not in word), "")
    helper = any(_HELPER in word for word in words)
    if not (to.planned and culprit and helper) or any(_options(words, _ARCH_OPTIONS)):
        return call, ()
    line = f"torch leaves its architectures out because of the flag {culprit}: added those of {to.planned}"
    return call.with_more(gencode(to.planned)), (line,)


def gencode(planned: str) -> list[str]:
    """The flags that torch makes of a TORCH_CUDA_ARCH_LIST."""
    flags = []
    for arch in planned.split(";"):
        number = arch.partition("+")[0].replace(".", "")
        flags.append(f"-gencode=arch=compute_{number},code=sm_{number}")
        if arch.endswith("+PTX"):
            flags.append(f"-gencode=arch=compute_{number},code=compute_{number}")
    return flags


def _difference(call: Call, to: Fit) -> tuple[str, ...]:
    """What is compiled for, where that is not what was asked for."""
    compiled = _compiled(call.arguments)
    wanted = {arch.partition("+")[0].replace(".", "") for arch in to.planned.split(";")}
    if not to.asked or not compiled or compiled == wanted or not all(arch[0].isdigit() for arch in compiled):
        return ()
    return (f"{to.asked} asks for {to.planned}, but the package's own flags win: compiled for {_named(compiled)}",)


# The host compiler


def _with_plain_ccbin(words: list[str]) -> list[str]:
    """nvcc takes the value of -ccbin for one program: `ccache gcc` or `gcc -m64`, which torch makes of CC, is
    none. A launcher is dropped, and what follows the compiler is passed on to it."""
    spans: list[tuple[int, int, list[str]]] = []
    for index, count, name, value in _options(words, _CCBIN):
        _, program, flags = split_compiler(value)
        if not value.strip():
            spans.append((index, count, []))
        elif program != value:
            passed = [part for flag in flags for part in ("-Xcompiler", flag)]
            spans.append((index, count, [name, program, *passed]))
    return _replaced(words, spans)
