"""What ninja prints, with paths in place of our variables."""

from __future__ import annotations

from safe_ext_build.schedule.spelling import Spelling

PREFIXES = {"SEB_INCLUDE": "/env/include", "SEB_ENV1": "/p\udcff"}


def said(*pieces: bytes) -> list[bytes]:
    spelling = Spelling(PREFIXES)
    return [spelling.out(piece) for piece in (*pieces, b"")]


def test_variables_of_ours_are_spelt_out_and_no_others() -> None:
    line = b"c++ -I${SEB_INCLUDE}/python3 -I${SEB_ENV1} ${HOME} ${SEB_INCLUDED} $SEB_ENV1\n"
    plain = b"c++ -I/env/include/python3 -I/p\xff ${HOME} ${SEB_INCLUDED} $SEB_ENV1\n"
    assert said(line) == [plain, b""]
    assert b"".join(said(*(line[at : at + 1] for at in range(len(line))))) == plain


def test_only_what_may_become_a_variable_is_held_back() -> None:
    assert said(b"a ${SEB_", b"ENV1} b") == [b"a ", b"/p\xff b", b""]
    assert said(b"a ${HO", b"ME}") == [b"a ${HO", b"ME}", b""]
    assert said(b"costs 3 $") == [b"costs 3 ", b"$"]
