"""What an ELF file says about itself: what it needs, which symbols it lacks, which GPUs its code is for.

Only 64-bit little-endian files, which is all that CUDA has on Linux.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .fatbin import Code, read_codes

_IDENT = b"\x7fELF\x02\x01"
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_ENTRY = struct.Struct("<QQ")
_TYPE_DYNAMIC, _TYPE_NO_BITS, _TYPE_DYNSYM = 6, 8, 11
_TAG_NEEDED = 1
_WEAK = 2
# Whole programs, and relocatable device code.
FATBIN_SECTIONS = (".nv_fatbin", "__nv_relfatbin")

Data = bytes | mmap.mmap


@dataclass(frozen=True)
class Library:
    """A shared library. `undefined`: the symbols that others must have; those that may be missing left out."""

    needed: tuple[str, ...]
    undefined: tuple[str, ...]
    defined: frozenset[str]
    codes: tuple[Code, ...]


@dataclass(frozen=True)
class _Section:
    name: str
    kind: int
    offset: int
    size: int
    link: int


class NotElf(ValueError):
    """This is no ELF file that we can read."""


def read(path: Path) -> Library:
    """Read a shared library. Raises NotElf, and OSError."""
    with path.open("rb") as file:
        try:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError:  # an empty file
            raise NotElf(f"{path} is empty") from None
        with data:
            return parse(data)


def parse(data: Data) -> Library:
    """Read what a file holds. Raises NotElf, also where it is cut short."""
    if data[: len(_IDENT)] != _IDENT:
        raise NotElf("this is no 64-bit little-endian ELF file")
    try:
        sections = list(_sections(data))
        symbols = [
            symbol for one in sections if one.kind == _TYPE_DYNSYM for symbol in _symbols(data, sections, one)
        ]
        return Library(
            needed=tuple(
                name for one in sections if one.kind == _TYPE_DYNAMIC for name in _needed(data, sections, one)
            ),
            undefined=tuple(name for name, place, weak in symbols if not place and not weak),
            defined=frozenset(name for name, place, _ in symbols if place),
            codes=tuple(_codes(data, sections)),
        )
    except (struct.error, IndexError) as error:
        raise NotElf(f"this ELF file is damaged: {error}") from error


def _sections(data: Data) -> Iterator[_Section]:
    (table,) = struct.unpack_from("<Q", data, 0x28)
    size, count, names = struct.unpack_from("<HHH", data, 0x3A)
    rows = [_SECTION.unpack_from(data, table + index * size) for index in range(count)]
    for name, kind, _, _, offset, length, link, *_ in rows:
        yield _Section(_string(data, rows[names][4] + name), kind, offset, length, link)


def _string(data: Data, start: int) -> str:
    return data[start : data.find(b"\0", start)].decode(errors="replace")


def _symbols(data: Data, sections: list[_Section], table: _Section) -> Iterator[tuple[str, int, bool]]:
    """Name, section (0: undefined), and whether it may be missing."""
    strings = sections[table.link].offset
    for offset in range(table.offset, table.offset + table.size, _SYMBOL.size):
        name, info, _, section, *_ = _SYMBOL.unpack_from(data, offset)
        if name:
            yield _string(data, strings + name), section, info >> 4 == _WEAK


def _needed(data: Data, sections: list[_Section], table: _Section) -> Iterator[str]:
    strings = sections[table.link].offset
    for offset in range(table.offset, table.offset + table.size, _ENTRY.size):
        tag, value = _ENTRY.unpack_from(data, offset)
        if tag == _TAG_NEEDED:
            yield _string(data, strings + value)


def _codes(data: Data, sections: list[_Section]) -> list[Code]:
    found: set[Code] = set()
    for one in sections:
        if one.name in FATBIN_SECTIONS and one.kind != _TYPE_NO_BITS:
            found.update(read_codes(data, one.offset, one.offset + one.size))
    return sorted(found)
