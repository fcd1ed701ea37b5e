"""Spells out, in what ninja prints, the paths that its command lines hold as variables of ours (see shim.py).

A command line that failed is there to be read, and to be tried again by hand: our variables mean nothing then.
"""

from __future__ import annotations

import os
from collections.abc import Mapping


class Spelling:
    """Spells out a stream that comes in pieces, which end anywhere."""

    def __init__(self, prefixes: Mapping[str, str]) -> None:
        """`prefixes`: variable -> path."""
        self._paths = {b"${%s}" % os.fsencode(name): os.fsencode(path) for name, path in prefixes.items()}
        self._held = b""

    def out(self, piece: bytes) -> bytes:
        """What can be said by now; of the last piece, which is empty, all that was held back."""
        text, self._held = self._held + piece, b""
        for name, path in self._paths.items():
            text = text.replace(name, path)
        begun = text.rfind(b"$") if piece else -1
        if begun >= 0 and any(name.startswith(text[begun:]) for name in self._paths):
            text, self._held = text[:begun], text[begun:]
        return text
