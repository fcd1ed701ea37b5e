"""Runs the commands of a block in one shell, and holds what they print against what the page shows."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

TIMEOUT = 240.0  # seconds
_MARK = "=== ended with"


@dataclass(frozen=True)
class Command:
    """What is typed, and the lines that the page shows below it."""

    text: str
    shown: tuple[str, ...] = ()


@dataclass(frozen=True)
class Ended:
    """A command that has ended."""

    command: Command
    status: int
    output: str


@dataclass
class Shell:
    """A place in which blocks run one after the other: the directory and what is exported stay."""

    place: Path
    cwd: Path
    environ: dict[str, str]
    stands_for: dict[str, str] = field(default_factory=dict)
    """What stands in this place for a path, or a word, of the page."""

    def run(self, commands: Sequence[Command], interrupted_after: int | None = None) -> list[Ended]:
        """Run them. The first one that the shell itself does not survive is the last."""
        text = "\n".join(self._one(command, interrupted_after) for command in commands)
        state = self.place / "shell-state"
        before = f". {shlex.quote(str(state))}" if state.exists() else f"cd {shlex.quote(str(self.cwd))}"
        after = f"{{ export -p; printf 'cd %q\\n' \"$PWD\"; }} > {shlex.quote(str(state))}"
        done = subprocess.run(
            ["bash", "-c", f"exec 2>&1\n{before}\n{text}\n{after}\n"],
            env=self.environ,
            cwd=self.place,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            timeout=TIMEOUT,
            check=False,
        )
        return _ended(commands, done.stdout.decode(errors="replace"))

    def _one(self, command: Command, interrupted_after: int | None) -> str:
        text = command.text
        for word, stands_in in self.stands_for.items():
            text = text.replace(word, stands_in)
        if interrupted_after is not None:
            text = f"timeout -s INT {interrupted_after} {text}"
        return f'{text}\nprintf "\\n{_MARK} %d\\n" $?'

    def write(self, name: str, text: str) -> None:
        """Write a file below the directory in which the shell now is."""
        path = self.now_in() / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def now_in(self) -> Path:
        state = self.place / "shell-state"
        if not state.exists():
            return self.cwd
        words = shlex.split(state.read_text().splitlines()[-1])
        return Path(words[1])

    def as_on_the_page(self, output: str) -> str:
        """An output with the page's own paths."""
        for word, stands_in in self.stands_for.items():
            output = output.replace(stands_in, word)
        return output


def commands_of(language: str, text: str) -> list[Command]:
    """The commands of a block: a script is one; in a session they begin with `$ `, or go on after a backslash."""
    if language != "console":
        return [Command(text)]
    found: list[Command] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            found.append(Command(line[2:]))
        elif found and found[-1].text.endswith("\\") and not found[-1].shown:
            found[-1] = Command(f"{found[-1].text}\n{line}")
        else:
            assert found, f"a session begins with a command, and not with {line!r}"
            found[-1] = Command(found[-1].text, (*found[-1].shown, line))
    return found


def _ended(commands: Sequence[Command], output: str) -> list[Ended]:
    parts = re.split(rf"\n?^{_MARK} (\d+)\n", output, flags=re.MULTILINE)
    pairs = zip(commands, parts[0::2], parts[1::2], strict=False)
    return [Ended(command, int(status), text) for command, text, status in pairs]


# --- what changes from run to run, and what may not ---

_SHAPES = (
    (r"^Linux .*", "KERNEL"),
    (r"\b[0-9a-f]{12}\b", "ID"),
    (r"\b\d+(\.\d+)? (h|min|s|ms)\b( \d+ (min|s)\b)?", "TIME"),
    (r"\b\d+(\.\d+)? [KMGT]?i?B\b", "SIZE"),
    (r"\b\d+\.\d+( of \d+\.\d+)? [KMGT]iB\b", "SIZE"),
    (r"\b\w+\.cu\b", "SOURCE"),
    (r"(?<![\w:/])[~.]{0,2}(/[\w.+@-]+)+/?", "PATH"),
    (r"\d+(\.\d+)*(\+cu\d+)?", "N"),
    (r"\bN(;N)+(\+PTX)?", "ARCHS"),
    (r"-+", "-"),
    (r"\s+", " "),
)


def shape(line: str) -> str:
    """A line without its figures and paths."""
    for pattern, name in _SHAPES:
        line = re.sub(pattern, name, line)
    return line.strip()


def first_not_seen(shown: Sequence[str], output: str) -> str | None:
    """The first line of a sample that the output does not have, in this order; None when it has all.

    `…` stands for anything within a line, and alone on a line for any lines.
    """
    lines = iter([shape(line) for line in output.splitlines()])
    for line in shown:
        parts = [re.escape(shape(part)) for part in line.split("…")]
        pattern = re.compile(".*".join(parts))
        if line.strip() and not any(pattern.fullmatch(seen) for seen in lines):
            return line
    return None
