"""The counts of answers where several processes change them, and where they cannot be read."""

import multiprocessing
from pathlib import Path

import pytest

from client.limits.answer_book import ANSWERS, EVALUATE, AnswerBook
from client.limits.limits import LimitReached, Limits
from client.process.owner import PAUSED, reset


def _move(folder: Path, times: int) -> None:
    book = AnswerBook(folder)
    for _ in range(times):
        book.move(1)


def test_two_processes_lose_no_count(tmp_path: Path) -> None:
    fork = multiprocessing.get_context("fork")
    both = [fork.Process(target=_move, args=(tmp_path, 300)) for _ in range(2)]
    for each in both:
        each.start()
    for each in both:
        each.join(60)
        assert each.exitcode == 0
    assert AnswerBook(tmp_path).bytes_moved() == 600


def test_counts_that_cannot_be_read_are_not_begun_anew(tmp_path: Path) -> None:
    (tmp_path / ANSWERS).mkdir()  # cannot be read, for root neither
    (tmp_path / PAUSED).touch()
    book = AnswerBook(tmp_path)
    for act in (
        lambda: book.answer(EVALUATE, "run", 1, "digest", Limits()),
        lambda: book.begin("run", "initial", Limits()),
        lambda: book.bytes_moved(),
        lambda: book.move(1),
        lambda: reset(tmp_path, forget=True),
    ):
        with pytest.raises(LimitReached, match="what this client answered cannot be read") as caught:
            act()
        assert "\n" not in str(caught.value)
    assert (tmp_path / ANSWERS).is_dir()
    assert (tmp_path / PAUSED).exists(), "a reset that is refused does nothing"


def test_another_user_cannot_hold_the_lock(tmp_path: Path) -> None:
    AnswerBook(tmp_path).move(1)
    assert {path.name: path.stat().st_mode & 0o077 for path in tmp_path.iterdir()} == {ANSWERS: 0, "changes.lock": 0}
