"""`safe-ext-build completion`: a script that completes our commands and options in a shell, made of the parser."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from ..catalogue import CATALOGUE
from . import printing

_EPILOG = """
bash: put `eval "$(safe-ext-build completion bash)"` into ~/.bashrc; zsh: the same with zsh into ~/.zshrc, after
compinit; fish: safe-ext-build completion fish > ~/.config/fish/completions/safe-ext-build.fish
"""
PROGRAM = "safe-ext-build"
# What may be given, and is no choice of the parser's, since it may be written in other ways, too.
_MORE_WORDS = {"explain": tuple(CATALOGUE)}


@dataclass(frozen=True)
class Option:
    """An option: its spellings, whether a value follows, and what it is for."""

    names: tuple[str, ...]
    has_value: bool
    help: str


@dataclass(frozen=True)
class Verb:
    """A command. `words`: what may stand in it beside options and files."""

    name: str
    help: str
    options: tuple[Option, ...]
    words: tuple[str, ...]


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Declare the command."""
    what = "print a script that completes commands and options in a shell"
    parser = commands.add_parser(
        "completion",
        help=what,
        description=what.capitalize() + ".",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("shell", choices=("bash", "zsh", "fish"))
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Print the script."""
    from .main import parser  # which imports us

    verbs = read_parser(parser())
    printing.out({"bash": bash, "zsh": zsh, "fish": fish}[arguments.shell](verbs))
    return 0


def read_parser(parser: argparse.ArgumentParser) -> list[Verb]:
    """The commands that a parser knows, the program's own options first (under the name ''). Pure."""
    found = [Verb("", "", tuple(_options(parser)), ())]
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {choice.dest: choice.help or "" for choice in action._choices_actions}
            for name, inner in action.choices.items():
                words = [word for one in inner._actions if not one.option_strings for word in one.choices or ()]
                words += _MORE_WORDS.get(name, ())
                found.append(Verb(name, helps.get(name, ""), tuple(_options(inner)), tuple(words)))
    return found


def _options(parser: argparse.ArgumentParser) -> Iterator[Option]:
    for action in parser._actions:
        if action.option_strings:
            yield Option(tuple(action.option_strings), action.nargs != 0, action.help or "")


def bash(verbs: list[Verb]) -> str:
    """A function for `complete`: commands first, then a command's options and words, or files."""
    cases = []
    for verb in verbs:
        names = [name for option in verb.options for name in option.names]
        values = [name for option in verb.options if option.has_value for name in option.names]
        words = verb.words if verb.name else [other.name for other in verbs if other.name]
        lists = [shlex.quote(" ".join(words)) for words in (names, values, words)]
        cases.append(f"        {verb.name or _QUOTED}) options={lists[0]} values={lists[1]} words={lists[2]} ;;")
    return _BASH.replace("@CASES@", "\n".join(cases)).replace("@PROGRAM@", PROGRAM)


_QUOTED = '""'
# Where nothing is offered, `-o default` has files: for an option's value, and for the command after `run --`.
_BASH = """\
_safe_ext_build() {
    local current="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}" command="" word
    local options="" values="" words=""
    if [ "$COMP_CWORD" -gt 1 ]; then command="${COMP_WORDS[1]}"; fi
    case "$command" in
@CASES@
    esac
    COMPREPLY=()
    for word in "${COMP_WORDS[@]:1:$((COMP_CWORD - 1))}"; do
        if [ "$word" = -- ]; then return; fi
    done
    case " $values " in *" $before "*) return ;; esac
    case "$current" in -*) words=$options ;; esac
    COMPREPLY=($(compgen -W "$words" -- "$current"))
}
complete -o default -F _safe_ext_build @PROGRAM@"""


def zsh(verbs: list[Verb]) -> str:
    """bash's function: zsh runs it."""
    return f"{_ZSH}\n{bash(verbs)}"


_ZSH = """\
if ! whence compdef >/dev/null; then autoload -U compinit && compinit -i; fi
autoload -U +X bashcompinit && bashcompinit"""


# Told by the place of a word: `run -- pip wheel` runs no `wheel` of ours.
_FIRST = "test (count (commandline -opc)) -eq 1"
_IN = "contains -- {} (commandline -opc)[2]; and not contains -- -- (commandline -opc)"


def fish(verbs: list[Verb]) -> str:
    """A line for each command, and for each option."""
    lines = [_fish(_FIRST, "-f", "")]
    for verb in verbs:
        when = _IN.format(verb.name) if verb.name else _FIRST
        if verb.name:
            lines.append(_fish(_FIRST, f"-a {verb.name}", verb.help))
        if verb.words:
            lines.append(_fish(when, f"-a {_fish_quoted(' '.join(verb.words))}", ""))
        for option in verb.options:
            flags = " ".join(
                f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in option.names
            )
            lines.append(_fish(when, f"{flags}{' -r' if option.has_value else ''}", option.help))
    return "\n".join(lines)


def _fish(when: str, what: str, help: str) -> str:
    about = f" -d {_fish_quoted(help)}" if help else ""
    return f"complete -c {PROGRAM} -n {_fish_quoted(when)} {what}{about}"


def _fish_quoted(text: str) -> str:
    """fish escapes a quote within quotes with a backslash."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
