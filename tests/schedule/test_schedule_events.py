"""The file of events: what is written is read again, whatever a crash or a full disk left of it."""

from __future__ import annotations

from pathlib import Path

from safe_ext_build.events import Event, read

EVENT = Event("job", 1.5, "a\udcff\n.cu", "compiled", 0.5, 2.0, 3.25, 1 << 30, 4, 2, "a\t.cu:2", 1.5, (1, 2))


SHORT = [Event("start", 1.0), Event("job", 0.0, torch_header=False, cuda=True), Event("memory", 2.0, held=3)]


def test_what_is_written_is_read(tmp_path: Path) -> None:
    written = [*SHORT, EVENT, EVENT]
    (tmp_path / "events").write_text("".join(event.to_line() for event in written))
    assert list(read(tmp_path / "events")) == written


def test_a_line_holds_only_what_is_to_be_said() -> None:
    assert SHORT[2].to_line() == '{"kind": "memory", "time": 2.0, "held": 3}\n'


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
