"""What a compiler's command line asks for. Pure; standard library only (the supervisor imports this)."""

from __future__ import annotations

import itertools
import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

NVCC = re.compile(r"nvcc(\.exe)?")
HOST_COMPILER = re.compile(r"([\w.]+-)*(g\+\+|gcc|c\+\+|cc|clang|clang\+\+|icpx|icx|hipcc|nvc\+\+|nvc)(-[\d.]+)?")
LAUNCHERS = {"ccache", "sccache"}
SOURCE = re.compile(r".+\.(cu|cpp|cc|cxx|c\+\+|C|c|mm|m|hip|ptx|cubin|ii|i|s|S)")

_ASKS_ONLY = {
    "--version",
    "-V",
    "--help",
    "-h",
    "--dryrun",
    "-dryrun",
    "-dumpversion",
    "-dumpmachine",
    "-###",
}
_ASKS_ONLY |= {
    "--list-gpu-arch",
    "--list-gpu-code",
    "-print-search-dirs",
    "--print-search-dirs",
    "-E",
    "-M",
    "-MM",
}
_COMPILES = {"-c", "--compile", "-dc", "--device-c", "-dw", "-x"}
# What the next word belongs to: it is neither a source nor a question to this compiler.
_TAKES_VALUE = {"-o", "--output-file", "-x", "-D", "-U", "-I", "-L", "-include", "-imacros", "-isystem", "-iquote"}
_TAKES_VALUE |= {"-idirafter", "-MF", "-MT", "-MQ", "--dependency-output", "--dependency-target-name", "-ccbin"}
_PASSES_ON = re.compile(r"-X[a-z]\w*|--(compiler|linker|ptxas|archive|nvlink|fatbin|cudafe)-options")
# With these the compiler names further files after the output, so the output keeps its name.
_NAMES_BY_OUTPUT = (
    *("-gsplit-dwarf", "--coverage", "-fprofile-", "-ftest-coverage", "-ftime-trace", "-fcallgraph-info"),
    *("--keep", "-keep", "-save-temps", "--save-temps", "-fdump-", "-fstack-usage", "-fsave-optimization-record"),
)
_DEPFILE_FLAGS = ("-MF", "--dependency-output")
_WRITES_DEPFILE = {
    "-MD",
    "-MMD",
    "--generate-dependencies-with-compile",
    "--generate-nonsystem-dependencies-with-compile",
}
_DEPFILE_TARGET = ("-MT", "-MQ", "--dependency-target-name")
_OUTPUT_FLAGS = ("-o", "--output-file")
_THREADS = ("-t", "--threads")
# What nvcc 13.0 makes of its names for a whole family (`nvcc --dryrun`); "native" is one arch, or few.
_FAMILIES = {
    "all": ["75", "80", "86", "87", "88", "89", "90", "100", "103", "110", "120", "121"],
    "all-major": ["75", "80", "90", "100", "110", "120"],
}


@dataclass(frozen=True)
class CompileJob:
    """One compile: `output` and `depfile` are as written on the command line; empty where there is none."""

    command: tuple[str, ...]
    cuda: bool
    compiles: bool
    source: str
    output: str
    depfile: str
    archs: tuple[str, ...]
    threads: int

    @property
    def weight(self) -> int:
        """How many CPUs it keeps busy: nvcc runs one compiler per arch, at most `threads` at a time."""
        return max(1, min(self.threads, len(self.archs))) if self.cuda else 1


def is_compiler(program: str) -> bool:
    """Whether a command that begins so compiles; `program` may be a CC or CXX of several words."""
    return _names_compiler(split_compiler(program)[1])


def is_nvcc(program: str) -> bool:
    return bool(NVCC.fullmatch(os.path.basename(program)))


def split_compiler(text: str) -> tuple[list[str], str, list[str]]:
    """The launchers, the compiler and the flags in a CC or CXX of several words: `ccache g++ -m64`.

    A path may hold blanks too: what does not begin with a compiler, or goes on like a path, stays whole.
    """
    words = text.split()
    launchers = list(itertools.takewhile(_is_launcher, words))
    program, *flags = words[len(launchers) :] or [""]
    named = _names_compiler(program) and not any("/" in flag and flag[0] not in "-/" for flag in flags)
    return (launchers, program, flags) if named else ([], text, [])


def split_program(command: list[str]) -> list[str]:
    """The command with its compiler in words of its own: torch quotes a CXX of several words as if it were one."""
    start = compiler_index(command)
    launchers, program, flags = split_compiler(command[start])
    return [*command[:start], *(launchers if start == 0 else []), program, *flags, *command[start + 1 :]]


def _is_launcher(word: str) -> bool:
    return os.path.basename(word) in LAUNCHERS


def _names_compiler(program: str) -> bool:
    return is_nvcc(program) or bool(HOST_COMPILER.fullmatch(os.path.basename(program)))


def parse(command: list[str], prepend: str = "", append: str = "", cpus: int = 1) -> CompileJob | None:
    """Read a compiler's command line; None when it compiles nothing (`--version`, `-E`, `--dryrun`).

    `prepend` and `append` are the values of NVCC_PREPEND_FLAGS and NVCC_APPEND_FLAGS, which nvcc adds to
    what it was called with. `cpus` stands for nvcc's `--threads 0`.
    """
    start = compiler_index(command)
    cuda = is_nvcc(command[start])
    arguments = command[start + 1 :]
    everything = call_words(command, prepend, append) if cuda else arguments
    own = _without_values(arguments)
    inputs = [word for word in own if word == "-" or not word.startswith("-")]
    sources = [word for word in inputs if SOURCE.fullmatch(word)]
    if _ASKS_ONLY.intersection(own) or not (inputs or {"--options-file", "-optf"}.intersection(own)):
        return None
    return CompileJob(
        command=tuple(command),
        cuda=cuda,
        compiles=bool(_COMPILES.intersection(arguments)) and len(sources) == 1,
        source=sources[0] if len(sources) == 1 else "",
        output=_file(arguments, _OUTPUT_FLAGS),
        depfile=_file(arguments, _DEPFILE_FLAGS) if _WRITES_DEPFILE.intersection(arguments) else "",
        archs=tuple(sorted(device_archs(everything))) if cuda else (),
        threads=_threads(everything, cpus) if cuda else 1,
    )


def without_launchers(command: list[str]) -> tuple[list[str], str]:
    """The command from its compiler on, and the launcher that stood before it; '' where there was none."""
    own = list(itertools.takewhile(_is_launcher, command))
    rest = command[len(own) :]
    return (rest, own[0]) if own and rest and not rest[0].startswith("-") else (command, "")


def compiler_index(command: Sequence[str]) -> int:
    """Where in a command the compiler stands: behind a launcher such as ccache, if there is one."""
    return 1 if len(command) > 1 and _is_launcher(command[0]) else 0


def call_words(command: Sequence[str], prepend: str, append: str) -> list[str]:
    """All arguments of a call of nvcc, in the order in which they count."""
    return [*_split(prepend), *command[compiler_index(command) + 1 :], *_split(append)]


def _without_values(arguments: list[str]) -> list[str]:
    """The words that stand for themselves, not the value of the option before them."""
    behind = zip(["", *arguments], arguments, strict=False)
    return [word for before, word in behind if before not in _TAKES_VALUE and not _PASSES_ON.fullmatch(before)]


def _split(flags: str) -> list[str]:
    try:
        return shlex.split(flags)
    except ValueError:
        return flags.split()


def _value(arguments: list[str], names: tuple[str, ...]) -> str:
    """The last value of an option, as `-o x` or `--output-file=x`."""
    index, start = _find(arguments, names)
    return arguments[index][start:] if index >= 0 else ""


def _find(arguments: list[str], names: tuple[str, ...]) -> tuple[int, int]:
    """Where the last value of an option stands: which word, and from which character on; (-1, 0) if nowhere."""
    found = (-1, 0)
    for index, word in enumerate(arguments):
        for name in names:
            if word == name and index + 1 < len(arguments):
                found = (index + 1, 0)
            elif word.startswith(name + "="):
                found = (index, len(name) + 1)
            elif len(name) == 2 and re.match(r"-o[/.]|-t\d", word) and word.startswith(name):
                found = (index, 2)
    return found


def _file(arguments: list[str], names: tuple[str, ...]) -> str:
    """A file that the compiler writes; '' for a stream or a device, which are nobody's to rename or to remove."""
    path = _value(arguments, names)
    return "" if path == "-" or path.startswith("/dev/") else path


def _threads(arguments: list[str], cpus: int) -> int:
    text = _value(arguments, _THREADS)
    if not text.isdigit():
        return 1
    return int(text) or cpus


def device_archs(arguments: list[str]) -> set[str]:
    """The architectures that nvcc compiles device code for; one run of cicc each."""
    found: set[str] = set()
    for index, word in enumerate(arguments):
        name, _, value = word.partition("=")
        if not value and index + 1 < len(arguments):
            value = arguments[index + 1]
        if name in ("-gencode", "--generate-code"):
            found.update(re.findall(r"arch=compute_(\w+)", value))
        elif name in ("-arch", "--gpu-architecture"):
            found.update(re.findall(r"(?:sm|compute)_(\w+)", value) or _FAMILIES.get(value, [value]))
    return found


def with_temporary_output(job: CompileJob, tag: str) -> tuple[list[str], str]:
    """The command with its output under a temporary name, and that name; unchanged and '' where names matter.

    A compiler that dies half-way must leave nothing under the final name: ninja would trust its time stamp.
    """
    index, start = _find(list(job.command), _OUTPUT_FLAGS)
    if not job.compiles or not job.output or _names_matter(job):
        return list(job.command), ""
    folder, name = os.path.split(job.output)
    stem, suffix = os.path.splitext(name)
    temporary = os.path.join(folder, f"{stem[:60]}.{tag}{suffix}")
    command = list(job.command)
    command[index] = command[index][:start] + temporary
    if job.depfile and not any(word.startswith(_DEPFILE_TARGET) for word in command):
        command += [_target_flag(job), job.output]
    return command, temporary


def _names_matter(job: CompileJob) -> bool:
    parts = [part for word in job.command for part in re.split(r"[=,]", word)]
    own_depfile = bool(_WRITES_DEPFILE.intersection(job.command)) and not job.depfile
    return own_depfile or any(part.startswith(_NAMES_BY_OUTPUT) for part in parts)


def _target_flag(job: CompileJob) -> str:
    """gcc and clang quote the target in a depfile as make wants it; nvcc never does, and knows only -MT."""
    return "-MT" if job.cuda else "-MQ"


def with_threads(
    job: CompileJob, command: list[str], prepend: str, append: str, threads: int
) -> tuple[list[str], str, str]:
    """The command at another `--threads`, and the NVCC_PREPEND_FLAGS and NVCC_APPEND_FLAGS that go with it.

    The last `--threads` counts for nvcc, which warns when there are two: so the one that counts is replaced.
    """
    if not job.cuda or threads == job.threads:
        return command, prepend, append
    if changed := _flags_with_threads(append, threads):
        return command, prepend, changed
    command = list(command)
    index, start = _find(command, _THREADS)
    if index >= 0:
        command[index] = command[index][:start] + str(threads)
    elif changed := _flags_with_threads(prepend, threads):
        return command, changed, append
    else:
        command += ["--threads", str(threads)]
    return command, prepend, append


def _flags_with_threads(flags: str, threads: int) -> str:
    """The value of one of nvcc's variables at another `--threads`; '' if it holds none."""
    words = list(re.finditer(r"\S+", flags))  # nvcc cuts it at blanks; to quote a word would change it
    index, start = _find([word[0] for word in words], _THREADS)
    if index < 0:
        return ""
    return flags[: words[index].start() + start] + str(threads) + flags[words[index].end() :]
