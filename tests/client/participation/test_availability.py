"""Availability: by independent formulas, by hand, and a client that declines unseen."""

import math
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client.participation import availability
from client.participation.availability import Bernoulli, Diurnal, Markov, Trace
from client.participation.behaviour import compose
from client.participation.policies import Always
from fedappeal.protocol import keys
from fedappeal.protocol.draws import generator
from fedappeal.settings.config import ConfigError
from server.build import run_plugins
from tests.node import Node, run_config

CLIENTS = [f"client-{k:04d}" for k in range(400)]


def test_bernoulli_has_its_probability_and_no_memory() -> None:
    behaviour = Bernoulli(Bernoulli.Settings(available=0.3))
    found = np.array([[behaviour.available(5, client, t) for t in range(1, 21)] for client in CLIENTS])
    sigma = math.sqrt(0.3 * 0.7 / found.size)
    assert abs(found.mean() - 0.3) < 4 * sigma
    after = found[:, 1:][found[:, :-1]]
    assert abs(after.mean() - 0.3) < 4 * math.sqrt(0.21 / after.size)
    assert [behaviour.available(5, "client-0003", t) for t in range(1, 21)] == found[3].tolist()
    assert [behaviour.available(6, "client-0003", t) for t in range(1, 21)] != found[3].tolist()
    assert all(Bernoulli(Bernoulli.Settings(available=1.0)).available(0, c, 1) for c in CLIENTS)
    assert not any(Bernoulli(Bernoulli.Settings(available=0.0)).available(0, c, 1) for c in CLIENTS)


def test_markov_has_its_shares_and_its_steps() -> None:
    behaviour = Markov(Markov.Settings(goes=0.2, returns=0.3))
    found = np.array([[behaviour.available(1, client, t) for t in range(1, 31)] for client in CLIENTS])
    # In the long run 0.3 / (0.2 + 0.3) of the clients are here, from the first round on.
    for column in (0, 29):
        assert abs(found[:, column].mean() - 0.6) < 4 * math.sqrt(0.24 / len(CLIENTS))
    here, later = found[:, :-1], found[:, 1:]
    assert abs((~later[here]).mean() - 0.2) < 4 * math.sqrt(0.16 / here.sum())
    assert abs(later[~here].mean() - 0.3) < 4 * math.sqrt(0.21 / (~here).sum())


def replayed(behaviour: Markov, seed: int, client: str, server_round: int) -> bool:
    """The chain followed from round 1, one draw at a time."""
    goes, returns = float(behaviour.settings.goes), float(behaviour.settings.returns)
    draws = generator(seed, "markov", client=client)
    here = draws.random() < returns / (goes + returns)
    for _ in range(server_round - 1):
        here = draws.random() >= goes if here else draws.random() < returns
    return bool(here)


def test_the_order_of_questions_changes_no_answer() -> None:
    one, two = Markov(Markov.Settings(goes=0.2, returns=0.3)), Markov(Markov.Settings(goes=0.5, returns=0.5))
    rng = np.random.default_rng(0)
    for _ in range(1500):
        behaviour, seed, client = (one, two)[rng.integers(2)], int(rng.integers(2)), f"c{rng.integers(3)}"
        server_round = int(rng.integers(1, 60))
        expected = replayed(behaviour, seed, client, server_round)
        assert behaviour.available(seed, client, server_round) is expected, (seed, client, server_round)


def test_each_round_of_a_run_draws_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chain that is asked for round after round goes on from where it was: a long run costs no more a round."""
    drawn: list[int] = []

    class Counted(np.random.Generator):
        def random(self, size: int) -> Any:  # type: ignore[override]
            drawn.append(size)
            return super().random(size)

    monkeypatch.setattr(np.random, "Generator", Counted)
    behaviour = Markov(Markov.Settings())
    for server_round in (*range(1, 301), 300):
        behaviour.available(0, "round-after-round", server_round)
    assert drawn == [1] * 300 + [0]


def test_few_places_in_chains_are_remembered() -> None:
    before = availability._place.cache_info()
    Markov(Markov.Settings()).available(0, "a-new-client", 1)
    after = availability._place.cache_info()
    assert after.misses == before.misses + 1
    assert after.maxsize == availability.PLACES


def test_a_chain_that_always_changes_alternates() -> None:
    behaviour = Markov(Markov.Settings(goes=1.0, returns=1.0))
    found = [behaviour.available(2, "a", t) for t in range(1, 9)]
    assert all(one is not two for one, two in pairwise(found))


def test_a_day_rises_and_falls() -> None:
    together = Diurnal(Diurnal.Settings(mean=0.5, swing=0.4, period=8, spread=0.0))
    expected = [0.5 + 0.4 * math.sqrt(0.5), 0.5, 0.5 - 0.4 * math.sqrt(0.5), 0.1, 0.5 - 0.4 * math.sqrt(0.5), 0.5]
    assert [together.probability(0, "a", t) for t in range(1, 7)] == pytest.approx(expected)
    assert together.probability(0, "a", 8) == together.probability(3, "b", 16) == pytest.approx(0.9)
    steep = Diurnal(Diurnal.Settings(mean=0.9, swing=1.0, period=2, spread=0.0))
    assert [steep.probability(0, "a", t) for t in (1, 2)] == [0.0, 1.0]
    assert [steep.available(0, "a", t) for t in range(1, 7)] == [False, True] * 3
    spread = Diurnal(Diurnal.Settings(mean=0.5, swing=0.5, period=24, spread=1.0))
    at_once = [spread.probability(0, client, 1) for client in CLIENTS]
    # Noons all round the clock: the mean is the mean, the variance that of a cosine.
    assert np.mean(at_once) == pytest.approx(0.5, abs=4 * math.sqrt(0.125 / 400))
    assert np.var(at_once) == pytest.approx(0.125, rel=0.2)


def trace(path: Path, text: str, repeat: int = 0) -> Trace:
    path.write_text(text)
    made = Trace(Trace.Settings.parse({"file": str(path), "repeat": repeat}))
    made.check()
    return made


def test_a_trace_says_who_is_there(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    made = trace(path, "# who, from, to\nann,1,2\nann , 4,4\n\nbob,3,3\n")
    days = range(1, 7)
    assert [t for t in days if made.available(0, "ann", t)] == [1, 2, 4]
    assert [t for t in days if made.available(9, "bob", t)] == [3]
    assert not any(made.available(0, "cyd", t) for t in days)
    made = trace(path, "*,2,3\nann,1,1\n", repeat=3)
    assert [t for t in days if made.available(0, "cyd", t)] == [2, 3, 5, 6]
    assert [t for t in days if made.available(0, "ann", t)] == [1, 4]


@pytest.mark.parametrize(
    "line",
    ["ann,1", "ann,1,2,3", "ann,2,1", "ann,0,1", "ann,1,x", "ann,1,-2", "-ann,1,2", "ann,1,9999999999", ",1,1"],
)
def test_a_damaged_trace_is_one_line(tmp_path: Path, line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        trace(tmp_path / "t", f"bob,1,1\n{line}\n")
    expected = "expected client-id (or *), first and last round, by commas"
    assert str(caught.value) == f"trace.file = '{tmp_path / 't'}', line 2: {expected}"


def test_a_trace_is_bounded_and_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(availability, "MAX_TRACE", 10)
    with pytest.raises(ConfigError, match="is not allowed: a file of up to 10 bytes"):
        trace(tmp_path / "t", "bob,1,1\n" * 2)
    with pytest.raises(ConfigError, match="is not allowed: a file of"):
        Trace(Trace.Settings.parse({"file": str(tmp_path)})).check()
    with pytest.raises(ConfigError, match=r"trace\.file = '.*none' cannot be read: No such file"):
        Trace(Trace.Settings.parse({"file": str(tmp_path / "none")})).check()
    with pytest.raises(ConfigError, match=r"^trace\.file is missing: "):
        Trace().check()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="is not allowed: a file of"):
        Trace(Trace.Settings.parse({"file": str(tmp_path / "pipe")})).check()


def test_all_behaviours_have_to_agree(tmp_path: Path) -> None:
    one, two = trace(tmp_path / "one", "*,1,3\n"), trace(tmp_path / "two", "*,2,4\n")
    both = compose([Always(), one, two])
    assert [t for t in range(1, 6) if both.available(0, "a", t)] == [2, 3]


def test_a_client_that_is_away_declines_without_looking_at_the_model(tmp_path: Path) -> None:
    (tmp_path / "trace").write_text("client-0001,2,2\n")
    config = run_config(strategy="maxfl", requirement="fixed", local_steps=1, participation="always+trace")
    node = Node(config, participation="always+trace", set=f"trace.file={tmp_path / 'trace'}")
    judged = node.participants.of(node.context).measured
    away = node("train", server_round=1, mandatory=1)
    assert away[keys.METRICS][keys.DECISION] == 0
    assert keys.ARRAYS not in away
    assert node.participants.of(node.context).measured == judged
    assert node.metrics("train", server_round=2)[keys.DECISION] == 1
    assert node.metrics("train", server_round=3)[keys.DECISION] == 0
    assert node.metrics("evaluate", server_round=3)[keys.LOSS] > 0


def test_a_run_names_no_file_of_another_owners_device(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("password\n")
    config = run_config(
        strategy="fedavg", requirement="fixed", participation="always+trace", trace__file=str(tmp_path / "secret")
    )
    node = Node(config)
    with pytest.raises(ConfigError, match=r"^trace\.file is not allowed in a run: it names a file of this device"):
        node("train")
    with pytest.raises(ConfigError, match=r"^trace\.file is not allowed in a run"):
        Node(config, set="trace.repeat=4")("train")
    # A simulation's clients are its own user's, who is their owner.
    (tmp_path / "secret").write_text("*,1,1\n")
    node = Node(config, set=run_plugins(config).owner_files())
    assert [node.metrics("train", server_round=t)[keys.DECISION] for t in (1, 2)] == [1, 0]
