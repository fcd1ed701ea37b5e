"""`python -m safe_ext_build`: the same as the command `safe-ext-build`."""

from __future__ import annotations

import signal
import sys


def main() -> int:
    """Run the command; returns its exit status. Who interrupts it while it is still loaded need not read where."""
    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if usual:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from .cli import main as cli

    if usual:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
