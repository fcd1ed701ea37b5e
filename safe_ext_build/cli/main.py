"""The command `safe-ext-build`: reads the arguments, runs one command behind the error boundary."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn, Protocol

from .. import __version__, ui
from ..errors import SafeExtBuildError
from ..here import here
from ..shortage import shortage
from ..supervise import hook, shelter
from . import builds, completion, doctor, explain, farm, history, kill, plan, report, wheel
from . import run as run_
from .session import Interrupted


class Command(Protocol):
    """What a module of a command has."""

    def add_to(self, commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
        """Declare the command and its arguments."""

    def run(self, arguments: argparse.Namespace) -> int:
        """Do it; returns the exit status. Raises SafeExtBuildError."""


COMMANDS: tuple[Command, ...] = (
    wheel,
    run_,
    builds,
    kill,
    doctor,
    plan,
    farm,
    report,
    history,
    explain,
    completion,
)


# They look at nothing in the directory: a build is ended from one that is gone, too.
_ANYWHERE = (builds.run, kill.run, explain.run, completion.run)


class _Parser(argparse.ArgumentParser):
    """Shows wrong arguments as any error of ours. Its commands are parsers of the same kind."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        error = SafeExtBuildError(message, code="SEB-8001", hint=f"`{self.prog} --help` shows what may be given.")
        ui.show_error(error)
        sys.exit(2)


def parser() -> argparse.ArgumentParser:
    """All commands with their arguments; what is parsed has `run`, the command's function."""
    result = _Parser(prog="safe-ext-build", description="Builds PyTorch CUDA extensions.")
    result.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands: argparse._SubParsersAction[argparse.ArgumentParser]
    commands = result.add_subparsers(title="commands", metavar="COMMAND", required=True)  # type: ignore[assignment]
    for command in COMMANDS:
        command.add_to(commands).set_defaults(run=command.run)
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status: 0, 1 when it failed (`run`: or that of the program), 2 when the
    arguments are wrong.

    Dies by the signal that interrupts it, once what it has started is gone.
    """
    _open_streams()
    parsed = parser().parse_args(arguments)
    try:
        if parsed.run not in _ANYWHERE:
            here()
        with shelter.sheltered(None, frontend=False):
            status: int = parsed.run(parsed)
    except SafeExtBuildError as error:
        ui.show_error(error)
        return error.status
    except Interrupted as interrupted:
        hook.die_by(interrupted.number)
    except KeyboardInterrupt:
        hook.die_by(signal.SIGINT)
    except (OSError, RuntimeError, MemoryError) as unexpected:
        lacking = shortage(unexpected)
        if lacking is None:
            raise
        ui.show_error(lacking)
        return 1
    return status


def _open_streams() -> None:
    """Give what was closed (`>&-`) an end: else the next file that is opened would be taken for a stream, by us
    and by every child."""
    while (opened := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(opened, True)
    os.close(opened)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False)
