"""`python -m safe_ext_build`: the same as the command `safe-ext-build`."""

import sys

from .cli.main import main

if __name__ == "__main__":
    sys.exit(main())
