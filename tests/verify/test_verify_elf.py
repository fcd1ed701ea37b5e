"""The readers of ELF files and fat binaries."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from safe_ext_build.verify import elf
from safe_ext_build.verify.fatbin import MAGIC, Code, read_codes

PTX, CUBIN, LTO = 1, 2, 8
PLAIN, SPECIFIC, FAMILY, COMPRESSED = 0x11, 0x100011, 0x200011, 0x8011


def entry(kind: int, arch: int, flags: int = PLAIN, body: bytes = b"\x7fELF....", header: int = 64) -> bytes:
    head = struct.pack("<HHIQIIHHIIIQ", kind, 0x101, header, len(body), 0, 0, 8, 1, arch, 0, 0, flags)
    return head.ljust(header, b"\0") + body


def fatbin(*entries: bytes) -> bytes:
    body = b"".join(entries)
    return struct.pack("<IHHQ", MAGIC, 1, 16, len(body)) + body


def codes(data: bytes) -> list[str]:
    return [str(code) for code in read_codes(data, 0, len(data))]


@pytest.mark.parametrize(
    ("kind", "arch", "flags", "name"),
    [
        (CUBIN, 80, PLAIN, "sm_80"),
        (CUBIN, 90, SPECIFIC, "sm_90a"),
        (CUBIN, 103, FAMILY | 1 << 24, "sm_103f"),
        (PTX, 100, PLAIN | COMPRESSED, "compute_100"),
        (PTX, 90, SPECIFIC | COMPRESSED, "compute_90a"),
    ],
)
def test_an_entry(kind: int, arch: int, flags: int, name: str) -> None:
    assert codes(fatbin(entry(kind, arch, flags))) == [name]


def test_headers_of_any_length_and_other_kinds_are_stepped_over() -> None:
    data = fatbin(entry(PTX, 90, header=80), entry(LTO, 80, header=120), entry(CUBIN, 100, header=112))
    assert codes(data) == ["compute_90", "sm_100"]


def test_fat_binaries_follow_each_other_with_gaps() -> None:
    # The magic number inside of an entry's body is no header.
    hidden = entry(CUBIN, 75, body=fatbin(entry(CUBIN, 50)))
    assert codes(b"\0" * 8 + fatbin(hidden) + b"\0" * 40 + fatbin(entry(CUBIN, 86)) + b"\0" * 3) == [
        "sm_75",
        "sm_86",
    ]


def test_nothing_beyond_the_section_is_read() -> None:
    data = fatbin(entry(CUBIN, 80))
    assert list(read_codes(data + fatbin(entry(CUBIN, 90)), 0, len(data))) == [Code(80, "", "sm")]
    assert codes(data[:40]) == []


def elf_file(*sections: tuple[str, int, bytes, int]) -> bytes:
    """An ELF file with these sections: name, type, contents, the number of the section it links to (from 1)."""
    names = b"\0" + b"".join(name.encode() + b"\0" for name, *_ in sections) + b".shstrtab\0"
    parts, rows, offset = [], [struct.pack("<IIQQQQIIQQ", *[0] * 10)], 64
    for name, kind, data, link in (*sections, (".shstrtab", 3, names, 0)):
        place = names.index(b"\0" + name.encode() + b"\0") + 1
        rows.append(struct.pack("<IIQQQQIIQQ", place, kind, 0, 0, offset, len(data), link, 0, 1, 0))
        parts.append(data)
        offset += len(data)
    head = b"\x7fELF\x02\x01\x01".ljust(16, b"\0") + struct.pack("<HHIQQQI", 3, 62, 1, 0, 0, offset, 0)
    head += struct.pack("<HHHHHH", 64, 0, 0, 64, len(rows), len(rows) - 1)
    return head + b"".join(parts) + b"".join(rows)


STRINGS = b"\0libc10.so\0_Zlack\0PyInit__C\0__gmon_start__\0"


def symbol(name: str, section: int, binding: int = 1) -> bytes:
    return struct.pack("<IBBHQQ", STRINGS.index(name.encode()), binding << 4, 0, section, 0, 0)


def test_a_library() -> None:
    symbols = bytes(24) + symbol("_Zlack", 0) + symbol("PyInit__C", 7) + symbol("__gmon_start__", 0, binding=2)
    dynamic = struct.pack("<QQQQQQ", 1, STRINGS.index(b"libc10.so"), 5, 0x1000, 0, 0)
    library = elf.parse(
        elf_file(
            (".dynsym", 11, symbols, 2),
            (".dynstr", 3, STRINGS, 0),
            (".dynamic", 6, dynamic, 2),
            (".nv_fatbin", 1, fatbin(entry(CUBIN, 90), entry(CUBIN, 80), entry(CUBIN, 80)), 0),
            ("__nv_relfatbin", 1, fatbin(entry(PTX, 90)), 0),
            (".data", 1, fatbin(entry(CUBIN, 50)), 0),
        )
    )
    assert library.needed == ("libc10.so",)
    assert library.undefined == ("_Zlack",)
    assert library.defined == {"PyInit__C"}
    assert [str(code) for code in library.codes] == ["sm_80", "compute_90", "sm_90"]


@pytest.mark.parametrize("data", [b"", b"#!/bin/sh\n", b"\x7fELF\x01\x01" + b"\0" * 60, b"\x7fELF\x02\x01\x01"])
def test_other_files_are_refused(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "module.so").write_bytes(data)
    with pytest.raises(elf.NotElf):
        elf.read(tmp_path / "module.so")


@pytest.mark.parametrize("end", [30, 70, -30])
def test_a_library_that_is_cut_short(end: int) -> None:
    with pytest.raises(elf.NotElf):
        elf.parse(elf_file((".dynsym", 11, bytes(24), 2), (".dynstr", 3, STRINGS, 0))[:end])
