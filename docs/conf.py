"""Sphinx: build with `sphinx-build -W -n docs docs/_build`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from safe_ext_build import __version__

project = "safe-ext-build"
author = "the safe-ext-build contributors"
copyright = f"2025, {author}"
release = version = __version__

extensions = ["myst_parser"]
exclude_patterns = ["_build"]
myst_heading_anchors = 3
nitpicky = True

html_theme = "furo"
html_title = f"{project} {release}"
