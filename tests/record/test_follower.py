"""A run's folder that grows, read on from where it was last read."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from fedappeal.record import follower
from fedappeal.record.decisions import decisions_of, pack_decisions
from fedappeal.record.folder import RunFolder
from fedappeal.record.follower import MOST_WAITS, Follower, News, Tail
from fedappeal.record.lines import CONFIG, HISTORY, PARTICIPATION, parsed_line


def test_each_line_is_read_once(tmp_path: Path) -> None:
    file = tmp_path / "history.jsonl"
    tail = Tail(file)
    assert tail.read() == []
    file.write_text('{"round": 1}\n{"rou')
    assert tail.read() == [{"round": 1}]
    assert tail.read() == []
    with file.open("a") as out:
        out.write('nd": 2}\n')
    assert tail.read() == [{"round": 2}]


def test_a_file_that_is_there_no_more_is_not_read_on(tmp_path: Path) -> None:
    file, other = tmp_path / "history.jsonl", tmp_path / "other"
    file.write_text('{"round": 1}\n{"round": 2}\n')
    replaced, cut = Tail(file), Tail(tmp_path / "cut")
    replaced.read()
    other.write_text('{"round": 1}\n{"round": 2}\n{"round": 3}\n')
    other.replace(file)
    assert replaced.read() is None
    (tmp_path / "cut").write_text('{"round": 1}\n{"round": 2}\n')
    cut.read()
    (tmp_path / "cut").write_text('{"round": 7}\n')
    assert cut.read() is None


def a_run(path: Path, rounds: int) -> RunFolder:
    folder = RunFolder.create(path, {})
    folder.event("enrolled", client="a", enrolled=1)
    for number in range(1, rounds + 1):
        a_round(folder, number)
    return folder


def a_round(folder: RunFolder, number: int) -> None:
    folder.event("round", round=number)
    folder.append(PARTICIPATION, pack_decisions(number, {"a": "joined"}))
    folder.append(HISTORY, {"round": number, "joined": 1})


def is_nothing(news: News) -> bool:
    return not (news.anew or news.events or news.rounds or news.decisions or news.new_events or news.new_rounds)


def test_following_a_long_run_costs_what_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, parsed = a_run(tmp_path / "run", 2000), [0]

    def counted(body: bytes) -> dict[str, Any]:
        parsed[0] += 1
        return parsed_line(body)

    monkeypatch.setattr(follower, "parsed_line", counted)
    follow = Follower(folder.path, decisions=True)
    assert len(follow.read().new_rounds) == 2000
    assert parsed == [6001]
    before, parsed[0] = bytes_read(), 0
    for number in (2001, 2002, 2003):
        a_round(folder, number)
        news = follow.read()
        assert [line["round"] for line in news.new_rounds] == [number]
        assert decisions_of(news.decisions, number) == {"a": "joined"}
    assert parsed == [9]
    assert bytes_read() - before < 20_000, "the files hold some 400,000"


def bytes_read() -> int:
    """Bytes that this process has read so far, by Linux's own count."""
    return int(Path("/proc/self/io").read_text().split()[1])


def test_a_resumed_run_is_read_anew_once_it_says_after_which_round(tmp_path: Path) -> None:
    folder = a_run(tmp_path / "run", 5)
    follow = Follower(folder.path, decisions=True)
    follow.read()
    folder.forget_after(2)
    assert is_nothing(follow.read())
    assert is_nothing(follow.read())
    folder.event("resumed", round=2)
    a_round(folder, 3)
    news = follow.read()
    assert news.anew
    assert [line["round"] for line in news.rounds] == [line["round"] for line in news.decisions] == [1, 2, 3]
    assert [line["round"] for line in news.new_rounds] == [3]
    assert [line["event"] for line in news.new_events] == ["resumed", "round"]
    assert (follow.after, follow.resumed) == (3, 1)
    assert is_nothing(follow.read())


def test_a_resume_that_was_killed_before_it_said_so_is_not_waited_for_without_end(tmp_path: Path) -> None:
    folder = a_run(tmp_path / "run", 5)
    follow = Follower(folder.path)
    follow.read()
    folder.forget_after(2)
    looks = [follow.read() for _ in range(MOST_WAITS + 2)]
    assert [news.anew for news in looks] == [*[False] * MOST_WAITS, True, False]
    assert [line["round"] for line in looks[MOST_WAITS].rounds] == [1, 2]


def test_nothing_is_waited_for_in_a_run_that_is_over(tmp_path: Path) -> None:
    """Its files were replaced once more after it had said that it was resumed, and the last look is the only one."""
    folder = a_run(tmp_path / "run", 5)
    folder.event("resumed", round=5)
    follow = Follower(folder.path, after=5)
    assert not follow.read().new_rounds
    folder.forget_after(5)
    a_round(folder, 6)
    assert [line["round"] for line in follow.read(over=True).new_rounds] == [6]
    assert is_nothing(follow.read(over=True))


@pytest.mark.parametrize("looks", [0, 1, MOST_WAITS + 2])
@pytest.mark.parametrize("rounds", [1, 5, 9])
def test_a_new_run_in_the_same_folder_is_another_one(rounds: int, looks: int, tmp_path: Path) -> None:
    follow = Follower(a_run(tmp_path / "run", 5).path, decisions=True)
    follow.read()
    (tmp_path / "run" / CONFIG).unlink()  # a removal has begun
    for look in range(looks):
        news = follow.read()
        assert (news.anew, news.rounds) == (look == 0, ())
    shutil.rmtree(tmp_path / "run")
    folder = a_run(tmp_path / "run", rounds)
    news = follow.read()
    assert news.anew == (not looks)
    assert [line["round"] for line in news.new_rounds] == [*range(1, rounds + 1)]
    assert (follow.after, len(news.new_events)) == (rounds, rounds + 1)
    a_round(folder, rounds + 1)
    news = follow.read()
    assert (news.anew, [line["round"] for line in news.rounds]) == (False, [rounds + 1])


def test_a_round_and_its_decisions_come_together(tmp_path: Path) -> None:
    folder = a_run(tmp_path / "run", 1)
    follow = Follower(folder.path, decisions=True)
    follow.read()
    folder.append(PARTICIPATION, pack_decisions(2, {"a": "left"}))
    assert is_nothing(follow.read())
    folder.append(HISTORY, {"round": 2})
    assert decisions_of(follow.read().decisions, 2) == {"a": "left"}


def test_damaged_lines_are_left_out_and_control_characters_replaced(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    file.write_bytes(b'{"a"\n[1]\n\xff\n' + b"[" * 100_000 + b'\n{"event": "a\\u001b[2J"}\n')
    assert Tail(file).read() == [{"event": "a?[2J"}]
