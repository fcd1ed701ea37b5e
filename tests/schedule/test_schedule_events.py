"""The file of events: what is written is read again, whatever a crash or a full disk left of it."""

from __future__ import annotations

from pathlib import Path

from safe_ext_build.events import Event, read

EVENT = Event("job", 1.5, "a\udcff\n.cu", "compiled", 0.5, 2.0, 3.25, 1 << 30, 4, 2, "a\t.cu:2", 1.5, (1, 2))


def test_what_is_written_is_read(tmp_path: Path) -> None:
    (tmp_path / "events").write_text(EVENT.to_line() * 3)
    assert list(read(tmp_path / "events")) == [EVENT] * 3


def test_damaged_lines_are_left_out(tmp_path: Path) -> None:
    line = EVENT.to_line()
    damage = [
        '{"kind": "job"}',
        "[]",
        "null",
        "nonsense",
        "",
        line.replace("}", ', "more": 1}').strip(),
        line[:40],
        line.replace("[1, 2]", "3").strip(),
        line.replace('"curve"', '"curves"').strip(),
    ]
    (tmp_path / "events").write_bytes((line + "\n".join(damage)).encode() + b"\xff\xfe")
    assert list(read(tmp_path / "events")) == [EVENT]


def test_no_file_is_no_event(tmp_path: Path) -> None:
    assert list(read(tmp_path / "none")) == []
