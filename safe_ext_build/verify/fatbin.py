"""Which GPUs the device code in a fat binary is for. Its headers say so, also where what they head is compressed.

The layout is fixed by fatBinaryHeader in CUDA's own fatbinary_section.h; that of an entry, and its flags, was read
off what nvcc 13.0 writes for known architectures.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import mmap

MAGIC = 0xBA55ED50
_MAGIC_BYTES = struct.pack("<I", MAGIC)
_HEADER = struct.Struct("<IHHQ")
# kind, version, size of this header, size of what follows it, ..., version of the code, architecture, ..., flags
_ENTRY = struct.Struct("<HHIQIIHHIIIQ")
_KINDS = {1: "compute", 2: "sm"}
_SPECIFIC, _FAMILY = 1 << 20, 1 << 21


@dataclass(frozen=True, order=True)
class Code:
    """Code for one architecture: `sm` runs on it, `compute` is PTX, which is compiled for what runs it.

    `arch` is 80 for 8.0; `suffix` is "a" (this one only) or "f" (its family).
    """

    arch: int
    suffix: str
    kind: str

    def __str__(self) -> str:
        return f"{self.kind}_{self.arch}{self.suffix}"


def read_codes(data: bytes | mmap.mmap, start: int, end: int) -> Iterator[Code]:
    """The codes in a section of fat binaries, one after the other. Raises struct.error if it is cut short."""
    place = data.find(_MAGIC_BYTES, start, end)
    while place >= 0:
        _, _, header, size = _HEADER.unpack_from(data, place)
        after = min(place + header + size, end)
        yield from _entries(data, place + header, after)
        place = data.find(_MAGIC_BYTES, max(after, place + _HEADER.size), end)


def _entries(data: bytes | mmap.mmap, start: int, end: int) -> Iterator[Code]:
    while start + _ENTRY.size <= end:
        kind, _, header, size, _, _, _, _, arch, _, _, flags = _ENTRY.unpack_from(data, start)
        if kind in _KINDS:
            suffix = "a" if flags & _SPECIFIC else "f" if flags & _FAMILY else ""
            yield Code(arch, suffix, _KINDS[kind])
        start += max(header + size, _ENTRY.size)
