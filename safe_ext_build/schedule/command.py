"""What a compiler's command line asks for. Pure; standard library only (the supervisor imports this)."""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass

NVCC = re.compile(r"nvcc(\.exe)?")
HOST_COMPILER = re.compile(r"([\w.]+-)*(g\+\+|gcc|c\+\+|cc|clang|clang\+\+|icpx|icx|hipcc|nvc\+\+|nvc)(-[\d.]+)?")
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
# With these the compiler names further files after the output, so the output keeps its name.
_NAMES_BY_OUTPUT = (
    *("-gsplit-dwarf", "--coverage", "-fprofile-arcs", "-ftest-coverage", "-ftime-trace"),
    *("--keep", "-keep", "-save-temps", "--save-temps", "-fdump-", "-fstack-usage"),
)
_DEPFILE_FLAGS = ("-MF", "--dependency-output")
_WRITES_DEPFILE = {
    "-MD",
    "-MMD",
    "--generate-dependencies-with-compile",
    "--generate-nonsystem-dependencies-with-compile",
}
_DEPFILE_TARGET = {"-MT", "-MQ", "--dependency-target-name"}
_THREADS = ("-t", "--threads")


@dataclass(frozen=True)
class CompileJob:
    """One compile: `output` and `depfile` are as written on the command line; empty where there is none."""

    command: tuple[str, ...]
    cuda: bool
    compiles: bool
    source: str
    output: str
    depfile: str
    archs: int
    threads: int

    @property
    def weight(self) -> int:
        """How many CPUs it keeps busy: nvcc runs one compiler per arch, at most `threads` at a time."""
        return max(1, min(self.threads, self.archs)) if self.cuda else 1


def is_compiler(program: str) -> bool:
    name = os.path.basename(program)
    return bool(NVCC.fullmatch(name) or HOST_COMPILER.fullmatch(name))


def parse(command: list[str], prepend: str = "", append: str = "", cpus: int = 1) -> CompileJob | None:
    """Read a compiler's command line; None when it compiles nothing (`--version`, `-E`, `--dryrun`).

    `prepend` and `append` are the values of NVCC_PREPEND_FLAGS and NVCC_APPEND_FLAGS, which nvcc adds to
    what it was called with. `cpus` stands for nvcc's `--threads 0`.
    """
    cuda = bool(NVCC.fullmatch(os.path.basename(command[0])))
    arguments = command[1:]
    everything = [*_split(prepend), *arguments, *_split(append)] if cuda else arguments
    sources = [word for word in arguments if SOURCE.fullmatch(word) and not word.startswith("-")]
    inputs = [word for word in arguments if not word.startswith("-")]
    if _ASKS_ONLY.intersection(arguments) or not inputs:
        return None
    return CompileJob(
        command=tuple(command),
        cuda=cuda,
        compiles=bool(_COMPILES.intersection(arguments)) and len(sources) == 1,
        source=sources[0] if len(sources) == 1 else "",
        output=_value(arguments, ("-o", "--output-file")),
        depfile=_value(arguments, _DEPFILE_FLAGS) if _WRITES_DEPFILE.intersection(arguments) else "",
        archs=max(1, len(device_archs(everything))) if cuda else 1,
        threads=_threads(everything, cpus) if cuda else 1,
    )


def _split(flags: str) -> list[str]:
    try:
        return shlex.split(flags)
    except ValueError:
        return flags.split()


def _value(arguments: list[str], names: tuple[str, ...]) -> str:
    """The last value of an option, as `-o x`, `--output-file=x` or `-ox`."""
    found = ""
    for index, word in enumerate(arguments):
        for name in names:
            if word == name and index + 1 < len(arguments):
                found = arguments[index + 1]
            elif word.startswith(name + "="):
                found = word[len(name) + 1 :]
            elif name == "-o" and len(word) > 2 and word.startswith("-o") and word[2] in "/.":
                found = word[2:]
    return found


def _threads(arguments: list[str], cpus: int) -> int:
    text = _value(arguments, _THREADS)
    joined = [word[2:] for word in arguments if re.fullmatch(r"-t\d+", word)]
    text = joined[-1] if joined and not text else text
    if not text.isdigit():
        return 1
    return int(text) or cpus


def device_archs(arguments: list[str]) -> set[str]:
    """The architectures that nvcc compiles device code for; one run of cicc and ptxas each."""
    found: set[str] = set()
    for index, word in enumerate(arguments):
        name, _, value = word.partition("=")
        if not value and index + 1 < len(arguments):
            value = arguments[index + 1]
        if name in ("-gencode", "--generate-code"):
            found.update(re.findall(r"arch=compute_(\w+)", value))
        elif name in ("-arch", "--gpu-architecture"):
            found.update(re.findall(r"(?:sm|compute)_(\w+)", value) or [value])
    return found


def with_temporary_output(job: CompileJob, tag: str) -> tuple[list[str], str]:
    """The command with its output under a temporary name, and that name; unchanged and '' where names matter.

    A compiler that dies half-way must leave nothing under the final name: ninja would trust its time stamp.
    """
    unsafe = any(word.startswith(_NAMES_BY_OUTPUT) for word in job.command)
    if not job.compiles or not job.output or unsafe:
        return list(job.command), ""
    folder, name = os.path.split(job.output)
    stem, suffix = os.path.splitext(name)
    temporary = os.path.join(folder, f"{stem[:200]}.{tag}{suffix}")
    command = [_renamed(word, job.output, temporary) for word in job.command]
    if temporary not in command and not any(word.endswith("=" + temporary) for word in command):
        return list(job.command), ""
    if job.depfile and not _DEPFILE_TARGET.intersection(command):
        command += ["-MT", job.output]
    return command, temporary


def _renamed(word: str, output: str, temporary: str) -> str:
    if word == output:
        return temporary
    for name in ("--output-file=", "-o="):
        if word == name + output:
            return name + temporary
    return word
