"""A file that grows, read on from where it was last read."""

from pathlib import Path

from fedappeal.views.live.tail import Tail


def test_each_line_is_read_once(tmp_path: Path) -> None:
    file = tmp_path / "history.jsonl"
    tail = Tail(file)
    assert tail.read() == ([], False)
    file.write_text('{"round": 1}\n{"rou')
    assert tail.read() == ([{"round": 1}], False)
    assert tail.read() == ([], False)
    with file.open("a") as out:
        out.write('nd": 2}\n')
    assert tail.read() == ([{"round": 2}], False)


def test_a_file_that_took_the_place_of_another_is_read_anew(tmp_path: Path) -> None:
    file, other = tmp_path / "history.jsonl", tmp_path / "other"
    file.write_text('{"round": 1}\n{"round": 2}\n')
    tail = Tail(file)
    tail.read()
    other.write_text('{"round": 1}\n')
    other.replace(file)
    assert tail.read() == ([{"round": 1}], True)
    assert tail.read() == ([], False)


def test_a_file_that_was_cut_is_read_anew(tmp_path: Path) -> None:
    file = tmp_path / "history.jsonl"
    file.write_text('{"round": 1}\n{"round": 2}\n')
    tail = Tail(file)
    tail.read()
    file.write_text('{"round": 7}\n')
    assert tail.read() == ([{"round": 7}], True)


def test_damaged_lines_are_left_out_and_control_characters_replaced(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    file.write_bytes(b'{"a"\n[1]\n\xff\n' + b"[" * 100_000 + b'\n{"event": "a\\u001b[2J"}\n')
    assert Tail(file).read() == ([{"event": "a?[2J"}], False)
