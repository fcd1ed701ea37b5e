"""The name under which a compile is remembered. Pure; standard library only (the supervisor imports this)."""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

_SEPARATOR = "\t"
_LONGEST = 200

# What changes a compiler's memory, by the name that is kept; each is written `-x v`, `-x=v` or, where it has
# one letter, `-xv`.
_WITH_VALUE = {
    **dict.fromkeys(("-std", "--std"), "-std"),
    **dict.fromkeys(("-gencode", "--generate-code"), "-gencode"),
    **dict.fromkeys(("-arch", "--gpu-architecture"), "-arch"),
    **dict.fromkeys(("-code", "--gpu-code"), "-code"),
    **dict.fromkeys(("-maxrregcount", "--maxrregcount"), "-maxrregcount"),
    **dict.fromkeys(("-rdc", "--relocatable-device-code"), "-rdc"),
    **dict.fromkeys(("-split-compile", "--split-compile"), "-split-compile"),
    **dict.fromkeys(("-Ofc", "-Ofast-compile", "--Ofast-compile"), "-Ofc"),
}
_MACROS = {
    **dict.fromkeys(("-D", "--define-macro"), "-D"),
    **dict.fromkeys(("-U", "--undefine-macro"), "-U"),
}
_PASSED_ON = {
    **dict.fromkeys(("-Xcompiler", "--compiler-options"), "-Xcompiler"),
    **dict.fromkeys(("-Xptxas", "--ptxas-options"), "-Xptxas"),
    **dict.fromkeys(("-Xcicc", "--cicc-options"), "-Xcicc"),
}
_INCLUDES = dict.fromkeys(("-include", "--include", "--pre-include"), "-include")
_VALUES = {**_WITH_VALUE, **_MACROS, **_PASSED_ON, **_INCLUDES, "--optimize": "-O"}
_ALONE = {
    **dict.fromkeys(("-G", "--device-debug"), "-G"),
    **dict.fromkeys(("-g", "--debug"), "-g"),
    **dict.fromkeys(("-lineinfo", "--lineinfo", "--generate-line-info"), "-lineinfo"),
    **dict.fromkeys(("-use_fast_math", "--use_fast_math"), "-use_fast_math"),
    **dict.fromkeys(("-dc", "--device-c"), "-dc"),
    **dict.fromkeys(("-dlto", "--dlink-time-opt"), "-dlto"),
}
_LEVEL = re.compile(r"-O(\d|s|z|g|fast)?")
_HOST = re.compile(r"-g(\d|gdb\d?|dwarf.*|split-dwarf)|-f(lto|sanitize|profile).*")
# Warnings, and values that name a place, which the next build has elsewhere.
_IDLE = re.compile(r"-(W|I|L|isystem|iquote|B|o|M|fdebug-prefix-map|ffile-prefix-map|fmacro-prefix-map).*")
_ABSOLUTE = re.compile(r"""(^|[=:,"'\\<])/""")


def scope(project: str, compiler: str | None = None) -> str:
    """How the keys of a project begin, and of one compiler build; what `History.lookup_all` is asked for."""
    names = [project] if compiler is None else [project, compiler]
    return "".join(_plain(name) + _SEPARATOR for name in names)


def key(
    project: str,
    source: str,
    command: Sequence[str],
    archs: Collection[str],
    threads: int | None,
    compiler: str,
    *,
    root: str = "",
) -> str:
    """What a compile's memory depends on, as one line that is the same in the next build.

    `command` holds the flags (with those of NVCC_PREPEND_FLAGS and NVCC_APPEND_FLAGS, where wanted); paths
    below `root`, the project's directory, count by what follows it. Where headers, temporary files and the
    toolkit lie does not count. `threads` is None for the `key` of `forecast.Features`, which adds its own.
    """
    chosen = "\n".join(flags(command, root))
    digest = hashlib.sha256(chosen.encode("utf-8", "backslashreplace")).hexdigest()[:16]
    what = [_place(source, root), ",".join(sorted(set(archs))), f"flags={digest}"]
    if threads is not None:
        what.append(f"threads={threads}")
    return scope(project, compiler) + _SEPARATOR.join(map(_plain, what))


@dataclass(frozen=True)
class Parts:
    """What an entry of the history is about. `key` and `at_once` are those of `forecast.Features`."""

    project: str
    compiler: str
    source: str
    archs: tuple[str, ...]
    key: str
    at_once: int

    @property
    def cuda(self) -> bool:
        return bool(self.archs)


def read(entry: str) -> Parts | None:
    """Take the name of a curve in the history apart; None where it is none of ours."""
    name, _, at_once = entry.rpartition(":")
    words = name.split(_SEPARATOR)
    if len(words) != 5 or not at_once.isdecimal():
        return None
    project, compiler, source, archs, _ = words
    return Parts(project, compiler, source, tuple(filter(None, archs.split(","))), name, int(at_once))


def flags(command: Sequence[str], root: str = "") -> list[str]:
    """The flags that matter, spelt one way and sorted; of the optimisation levels the last, which counts."""
    found = set()
    level = ""
    for name, value in _options(command):
        if name == "-O":
            level = f"-O{value}"
        elif value is None:
            found.add(name)
        else:
            found.update(f"{name} {item}" for item in _settled(name, value, root))
    return sorted(found | ({level} if level else set()))


def _options(command: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    words = iter(command[1:])
    for word in words:
        if not word.startswith("-") or word.startswith("-I"):
            continue  # most of a long command line
        if (name := _ALONE.get(word)) is not None:
            yield name, None
        elif word in _VALUES:
            yield _VALUES[word], next(words, "")
        elif match := _LEVEL.fullmatch(word):
            yield "-O", match[1] or "1"
        elif _HOST.fullmatch(word):
            yield word, None
        else:
            yield from _joined(word)


def _joined(word: str) -> Iterator[tuple[str, str]]:
    name, equals, value = word.partition("=")
    if equals and name in _VALUES:
        yield _VALUES[name], value
    elif word[:2] in _MACROS and len(word) > 2:
        yield word[:2], word[2:]


def _settled(name: str, value: str, root: str) -> list[str]:
    """The value without what changes from build to build; nothing when there is nothing else in it."""
    if name == "-include":
        return [_place(value, root)]
    if name in ("-Xcompiler", "-Xptxas", "-Xcicc"):
        return [item for item in value.split(",") if not (_IDLE.fullmatch(item) or _ABSOLUTE.search(item))]
    macro, _, text = value.partition("=")
    return [macro] if name == "-D" and _ABSOLUTE.search(text) else [value]


def _place(path: str, root: str) -> str:
    """A path that means the same in the next build: below `root`, else by its last two parts."""
    path = posixpath.normpath(path)
    root = posixpath.normpath(root) if root else ""
    if root and path.startswith(root + "/"):
        return path[len(root) + 1 :]
    return "/".join(path.split("/")[-2:]) if path.startswith("/") else path


def _plain(text: str) -> str:
    """Text that a database takes and that holds no separator; a long one is cut, and told apart by a digest."""
    text = re.sub(r"[\x00-\x1f\x7f]", " ", text).encode("utf-8", "backslashreplace").decode()
    if len(text) <= _LONGEST:
        return text
    return text[-_LONGEST:] + "#" + hashlib.sha256(text.encode()).hexdigest()[:12]
