"""The oracle's server against inverse probabilities written out, and that it is unbiased where they are right."""

from collections.abc import Sequence

import numpy as np
import pytest

from fedappeal.core.algorithm import of_run
from fedappeal.settings.config import ConfigError, Scalar
from server.build import check_settings
from strategies import MIFA, FedAvg, Oracle
from strategies.rounds.strategy import rounds_of
from tests.grid import model
from tests.node import run_config
from tests.strategies.played import LEAVES, Floats, Joins, Turns, close, drawn, play
from tests.strategies.rounds.mixed_round import Join, check_mixed

START = np.array([0.5, -1.0, 2.0, 0.0, 3.0])
P = [1.0, 0.6, 0.3, 0.1]
KNOWN = ",".join(f"{100 + k}={p}" for k, p in enumerate(P))


def written_out(start: Floats, rounds: Sequence[Turns], probabilities: Sequence[float], eta: float) -> list[Floats]:
    """Each update divided by its client's probability, and their sum by the number of clients."""
    here = set(range(len(probabilities)))
    w, models = start.copy(), []
    for turns in rounds:
        here -= {k for k, turn in turns.items() if turn == LEAVES}
        joins = {k: turn for k, turn in turns.items() if isinstance(turn, Joins)}
        w = w + eta / len(here) * sum(turn.update / probabilities[k] for k, turn in joins.items())
        models.append(w)
    return models


@pytest.mark.parametrize("resumed_after", [0, 7])
def test_several_rounds_are_inverse_probabilities(resumed_after: int) -> None:
    rounds = drawn(1, 25, P)
    rounds[4] = {}
    rounds[11] = {**rounds[11], 3: LEAVES}
    rounds[12:] = [{k: turn for k, turn in turns.items() if k != 3} for turns in rounds[12:]]
    models = play(lambda: Oracle(probabilities=KNOWN, server_lr=0.7), START, rounds, 4, resumed_after)
    close(models, written_out(START, rounds, P, 0.7))


def test_its_expected_step_is_that_of_full_participation() -> None:
    """Over all 2^4 sets of joiners, each with its probability."""
    rng = np.random.default_rng(0)
    updates, p = rng.normal(size=(4, 5)), np.array([0.9, 0.6, 0.3, 0.1])
    known = ",".join(f"{100 + k}={share}" for k, share in enumerate(p))
    expected = np.zeros(5)
    for chosen in range(16):
        joins = [k for k in range(4) if chosen >> k & 1]
        chance = float(np.prod([p[k] if k in joins else 1 - p[k] for k in range(4)]))
        turns = {k: Joins(updates[k]) for k in joins}
        (w,) = play(lambda: Oracle(probabilities=known), START, [turns], 4)
        expected += chance * (w - START)
    np.testing.assert_allclose(expected, updates.mean(axis=0), rtol=1e-9)


def test_where_all_always_join_it_is_the_plain_average() -> None:
    rounds = drawn(6, 5, [1.0, 1.0, 1.0])
    alike = [{k: Joins(turn.update) for k, turn in turns.items() if isinstance(turn, Joins)} for turns in rounds]
    ones = "100=1,101=1,102=1"
    close(play(lambda: Oracle(probabilities=ones), START, rounds, 3), play(FedAvg, START, alike, 3))
    close(play(lambda: Oracle(probabilities="1"), START, rounds, 3), play(MIFA, START, rounds, 3))


def test_a_round_of_mixed_replies() -> None:
    # 30 nodes, one of which leaves; probability 1/2 for all: 1 + 2 * ((1, -1) + (-1, 3)) / 29
    check_mixed(Oracle(probabilities="0.5"), [Join(model(2, 0)), Join(model(0, 4))], [1.0, 1 + 4 / 29])


def test_a_client_whose_probability_is_not_known_is_left_out() -> None:
    strategy = Oracle(probabilities="100=1,101=1")
    (w,) = play(lambda: strategy, START, drawn(6, 1, [1.0, 1.0, 1.0]), 3)
    assert rounds_of(strategy).record.failures == {"102": "oracle.probabilities does not name client '102'"}
    assert (w != START).any()


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"probabilities": ""}, "oracle.probabilities = '' is not allowed: '' is no probability in (0, 1]"),
        ({"probabilities": "0"}, "oracle.probabilities = '0' is not allowed: '0' is no probability in (0, 1]"),
        ({"probabilities": "a=2"}, "oracle.probabilities = 'a=2' is not allowed: '2' is no probability in (0, 1]"),
        ({"probabilities": "a=x"}, "oracle.probabilities = 'a=x' is not allowed: 'x' is no probability in (0, 1]"),
        (
            {"probabilities": "a=nan"},
            "oracle.probabilities = 'a=nan' is not allowed: 'nan' is no probability in (0, 1]",
        ),
        ({"probabilities": "a=1,a=1"}, "oracle.probabilities = 'a=1,a=1' is not allowed: 'a' stands there twice"),
        ({"probabilities": "a=1,1"}, "oracle.probabilities = 'a=1,1' is not allowed: '1' names no client"),
    ],
)
def test_what_is_not_allowed(settings: dict[str, Scalar], line: str) -> None:
    with pytest.raises(ConfigError) as error:
        Oracle(**settings)
    assert str(error.value) == line


def test_no_message_says_what_the_oracle_knows() -> None:
    config = run_config(strategy="oracle", oracle__probabilities="client-0000=0.5,client-0001=1", clients=2)
    check_settings(config)
    assert set(rounds_of(of_run(Oracle, config)).told()) == {"strategy", "oracle.server-lr"}
    with pytest.raises(ConfigError, match=r"^model with BatchNorm is not allowed with strategy = 'oracle': bn "):
        Oracle(probabilities="1").check_model(["bn.running_var"])
