"""Promise: a server gets one weight and one appeal bit for a round number of a run, and no more than a day allows."""

import json
from pathlib import Path

import numpy as np
import pytest

from client.limits.answer_book import (
    ANSWERS,
    EVALUATE,
    KEPT_ROUNDS,
    KEPT_RUNS,
    MOST_REPEATS,
    TRAIN,
    AnswerBook,
)
from client.limits.limits import LimitReached, Limits, write_limits
from client.process.owner import reset
from fedappeal.protocol import keys
from fedappeal.protocol.packing import Arrays
from fedappeal.settings.config import Scalar
from tests.node import Node, run_config

CONFIG = run_config(task="digits", strategy="maxfl", clients=4, local_steps=8, solo__steps=2, learning_rate=0.1)
DAY = 86400.0


def moved(model: Arrays, by: float) -> Arrays:
    return {name: array + np.float32(by) for name, array in model.items()}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Node:
    """A client that has answered the roll call."""
    made = Node(CONFIG, tmp_path_factory.mktemp("state"))
    made("query")
    return made


def test_one_weight_for_a_round_number(node: Node) -> None:
    """A bisection for rho_k sends model after model under one number."""
    first = node("train", mandatory=1, server_round=1)
    for by in (0.1, 0.2, 0.3):
        with pytest.raises(LimitReached, match="another question in round 1 of this run: it trains one model"):
            node("train", moved(node.initial, by), mandatory=1, server_round=1)
    settings: list[dict[str, Scalar]] = [{"batch-size": 9}, {"local-steps": 9}, {"learning-rate": 0.2}]
    for told in settings:
        with pytest.raises(LimitReached, match="another question in round 1"):
            node("train", None, told, mandatory=1, server_round=1)
    # A run that was killed and resumed repeats a round, to a client that may have been started again.
    again = node.restarted()
    again.answer, again.participants = node.answer, node.participants
    assert again("train", mandatory=0, server_round=1)[keys.METRICS] is not None
    assert node("train", mandatory=1, server_round=1)[keys.ARRAYS] == first[keys.ARRAYS]
    assert keys.ARRAYS in node("train", moved(node.initial, 0.1), mandatory=1, server_round=2)


def test_a_further_record_is_part_of_the_question(tmp_path: Path) -> None:
    """With another control variate the same model trains to another."""
    config = run_config(task="digits", strategy="scaffold", clients=4, local_steps=8, solo__steps=2)
    one = Node(config, tmp_path)
    zero = one.layout.pack({name: np.zeros_like(array) for name, array in one.initial.items()})
    told: dict[str, Scalar] = {"scaffold.control-round": 0}
    assert keys.ARRAYS in one("train", None, told, {"control": zero}, mandatory=1)
    with pytest.raises(LimitReached, match="another question in round 1"):
        one("train", None, told, {"control": one.layout.pack(one.initial)}, mandatory=1)


def test_three_models_are_evaluated_under_a_round_number(node: Node) -> None:
    """The survey's, the round's, and another where a resumed run had other joiners."""
    models = [moved(node.initial, 0.01 * k) for k in range(4)]
    for model, split in zip(models[:3], ("train", "test", "test"), strict=True):
        node("evaluate", model, server_round=5, split=split)
    for told in ({"split": "test"}, {"split": "train"}, {"split": "test", "tuning-steps": 3}):
        with pytest.raises(LimitReached, match="another question in round 5 of this run: max-evaluations = 3"):
            node("evaluate", models[3], told, server_round=5)
    node("evaluate", models[1], server_round=5, split="test", final=1)


def test_a_storm_of_evaluations_is_answered_for_a_while(node: Node) -> None:
    for _ in range(MOST_REPEATS):
        node("evaluate", server_round=6)
    for _ in range(100):
        with pytest.raises(LimitReached, match=f"the same question {MOST_REPEATS} times in round 6"):
            node("evaluate", server_round=6)


def test_a_number_made_up_costs_of_the_days(tmp_path: Path) -> None:
    write_limits(tmp_path, Limits(max_rounds=3))
    one = Node(CONFIG, tmp_path)
    for number in (7, 10**5, 10**6 - 1):
        one("evaluate", server_round=number)
        one("train", server_round=number)
    with pytest.raises(LimitReached, match="max-rounds = 3 a day is reached"):
        one("evaluate", server_round=10**6)
    with pytest.raises(LimitReached, match="max-rounds = 3 a day is reached"):
        one("train", None, {keys.RUN_KEY: "another"}, server_round=1)
    reset(tmp_path, forget=True)  # is the owner's, and gives the server nothing
    with pytest.raises(LimitReached, match="max-rounds = 3 a day is reached"):
        one("evaluate", server_round=1)


# -- the book alone ------------------------------------------------------------------------------------


class Clock:
    """A clock that a test sets, in days."""

    def __init__(self) -> None:
        self.now = 20_000 * DAY

    def __call__(self) -> float:
        return self.now


def ask(book: AnswerBook, number: int, digest: str = "a", kind: str = TRAIN, run: str = "run") -> None:
    book.answer(kind, run, number, digest, Limits(max_rounds=40, max_runs=2))


def test_rounds_go_forward_and_may_be_repeated(tmp_path: Path) -> None:
    book = AnswerBook(tmp_path)
    for number in range(1, 13):
        ask(book, number)
    for number in range(12 - KEPT_ROUNDS + 1, 13):
        ask(AnswerBook(tmp_path), number)
    with pytest.raises(LimitReached, match="round 4 of this run is over: this client was asked about round 12"):
        ask(book, 4, "b")
    ask(book, 4, kind=EVALUATE)


def test_a_day_ends(tmp_path: Path) -> None:
    clock = Clock()
    book = AnswerBook(tmp_path, clock)
    for number in range(40):
        ask(book, number)
    ask(book, 39, kind=EVALUATE)  # of a round that counts already
    with pytest.raises(LimitReached, match="max-rounds = 40 a day"):
        ask(book, 41)
    clock.now += DAY
    ask(book, 41)
    for number in range(2):
        book.begin(f"run{number}", "model", Limits(max_runs=2))
        book.begin(f"run{number}", "model", Limits(max_runs=2))
    with pytest.raises(LimitReached, match="max-runs = 2 a day"):
        book.begin("run1", "another model", Limits(max_runs=2))
    clock.now += DAY
    book.begin("run1", "another model", Limits(max_runs=2))


def test_the_file_is_small_and_a_damaged_one_is_begun_anew(tmp_path: Path) -> None:
    book = AnswerBook(tmp_path)
    for run in range(KEPT_RUNS + 2):
        ask(book, 1, run=f"run{run}")
    file = tmp_path / ANSWERS
    assert book.runs() == [f"run{run}" for run in range(2, KEPT_RUNS + 2)]
    assert file.stat().st_mode & 0o777 == 0o600
    for text in (
        "{",
        "[]",
        "null",
        json.dumps({"day": 1, "counts": {}, "runs": {}}),
        '{"runs": {"a": {"train": 3}}}',
    ):
        file.write_text(text)
        assert book.runs() == []
    ask(book, 1)
    assert book.runs() == ["run"]
