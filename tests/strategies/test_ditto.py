"""Ditto against its two descents written out, on quadratics, and its global model, which is FedAvg's."""

from pathlib import Path

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord

from client.state.store import DiskStore
from fedappeal.core.algorithm import personal_of
from fedappeal.protocol import keys
from fedappeal.record.lines import MODEL
from fedappeal.record.reader import Record
from fedappeal.runs.plan import RunPlan
from fedappeal.settings.config import ConfigError, RunConfig
from fedappeal.simulation.engine import simulate
from fedappeal.simulation.options import Simulation
from fedappeal.system.files import read_safetensors
from server.build import check_settings
from strategies import Ditto, FedAvg, Hooks, RoundRecord
from tests.grid import MemoryGrid, time_of
from tests.node import Node, changed, run_config
from tests.quadratics import CURVATURES, OPTIMA, RATE, STEPS, config, learned, model, nodes, value_of

RUN = config(3)


def written_out(asked: list[list[int]], strength: float) -> tuple[list[float], list[dict[int, float]]]:
    """The global model and the clients' own after each round, of quadratics with full batches."""
    w, own, models, owned = 0.0, dict[int, float](), [], []
    for joiners in asked:
        sent = []
        for k in joiners:
            local, personal = w, own.get(k, w)
            for _ in range(STEPS):
                local -= RATE * CURVATURES[k] * (local - OPTIMA[k])
                personal -= RATE * (CURVATURES[k] * (personal - OPTIMA[k]) + strength * (personal - w))
            own[k] = personal
            sent.append(local)
        w = float(np.mean(sent))
        models.append(w)
        owned.append(dict(own))
    return models, owned


class Seen(Hooks):
    """The model and the numbers of each round."""

    def __init__(self) -> None:
        self.models: list[float] = []
        self.numbers: list[dict[str, float]] = []

    def on_round_end(self, record: RoundRecord, arrays: ArrayRecord) -> None:
        self.models.append(value_of(arrays))
        self.numbers.append(dict(record.metrics))


@pytest.mark.parametrize("strength", [0.0, 0.5, 3.0])
def test_several_rounds_are_the_two_descents(strength: float, tmp_path: Path) -> None:
    """Two of three clients a round: the third is not asked, and its own model stays."""
    grid, seen = MemoryGrid(nodes(RUN, tmp_path)), Seen()
    strategy = Ditto(personal_lambda=strength, clients_per_round=2, min_clients=3, seed=3)
    told = ConfigRecord({keys.RUN_KEY: "k", "learning-rate": RATE, "batch-size": 3, "local-steps": STEPS})
    with time_of(grid):
        strategy.start(grid, model(), 8, train_config=told, evaluate_config=told, hooks=seen)
    asked = [[node - 100 for node in grid.asked(number)] for number in range(1, 9)]
    assert len({tuple(sorted(each)) for each in asked}) == 3
    models, owned = written_out(asked, strength)
    assert seen.models == pytest.approx(models, rel=1e-6)
    for k, own in owned[-1].items():
        stored = personal_of(Ditto()).own_model(DiskStore(tmp_path / str(k)), "k", 9)
        assert float(stored["w"][0]) == pytest.approx(own, rel=1e-6)
    for numbers, own in zip(seen.numbers, owned, strict=True):
        losses = [CURVATURES[k] / 2 * (v - OPTIMA[k]) ** 2 for k, v in own.items()]
        # a client that has not joined yet has no model of its own to report on
        assert numbers["adapted_loss"] == pytest.approx(np.mean(losses), rel=1e-6, abs=1e-12)


def test_the_global_model_is_fedavgs_to_the_bit_whatever_lambda_is() -> None:
    plain = learned(FedAvg(), MemoryGrid(nodes(RUN)), 6, RUN)
    for strength in (0.0, 1.0, 7.0):
        assert learned(Ditto(personal_lambda=strength), MemoryGrid(nodes(RUN)), 6, RUN) == plain


def test_the_own_model_lies_between_training_alone_and_the_global_model(tmp_path: Path) -> None:
    found = {}
    for strength in (0.0, 1.0, 5.0):
        folder = tmp_path / str(strength)
        w = learned(Ditto(personal_lambda=strength), MemoryGrid(nodes(RUN, folder)), 12, RUN)
        found[strength] = float(personal_of(Ditto()).own_model(DiskStore(folder / "2"), "k", 13)["w"][0])
        # where it stops: (a b + lambda w) / (a + lambda)
        wanted = (CURVATURES[2] * OPTIMA[2] + strength * w) / (CURVATURES[2] + strength)
        assert found[strength] == pytest.approx(wanted, rel=1e-6)
    assert found[0.0] == pytest.approx(OPTIMA[2])


# -- in a client of the digits -------------------------------------------------------------------------

CONFIG = run_config(strategy="ditto", clients=4, solo__steps=2, batch_size=8, model="logistic", local_steps=3)


def test_a_round_that_is_run_again_starts_from_what_the_client_had(tmp_path: Path) -> None:
    node = Node(CONFIG, tmp_path, limits="off")
    store = DiskStore(tmp_path)
    for number in (1, 2, 2, 3):
        node("train", mandatory=1, server_round=number)
        if number == 2:
            second = personal_of(Ditto()).own_model(store, "k", 3)
            before = personal_of(Ditto()).own_model(store, "k", 2)
            again = Node(CONFIG, tmp_path, limits="off")
            again("train", mandatory=1, server_round=2)
            assert all((personal_of(Ditto()).own_model(store, "k", 3)[name] == second[name]).all() for name in second)
            assert any((before[name] != second[name]).any() for name in second)


def test_what_is_sent_is_fedavgs_and_an_evaluation_reports_the_own_model_besides(tmp_path: Path) -> None:
    node, plain = Node(CONFIG, tmp_path, limits="off"), Node(changed(CONFIG, strategy="fedavg"))
    assert "adapted-accuracy" not in node.metrics("evaluate", split="test", server_round=1)
    sent = node("train", mandatory=1, server_round=1)
    assert sent[keys.ARRAYS] == plain("train", mandatory=1, server_round=1)[keys.ARRAYS]
    assert set(sent) == {keys.ARRAYS, keys.METRICS}
    told = node.metrics("evaluate", split="test", server_round=1)
    without = plain.metrics("evaluate", split="test", server_round=1)
    assert {key: told[key] for key in without} == without
    assert set(told) - set(without) == {"adapted-accuracy", keys.ADAPTED_LOSS}
    assert told[keys.ADAPTED_LOSS] < told[keys.LOSS]  # type: ignore[operator]


def test_both_modes_and_sitting_out(tmp_path: Path) -> None:
    settings = {"rounds": 4, "participation": "appeal", "mandatory-rounds": 1, "on-empty-round": "keep", "seed": 2}
    run = RunConfig.parse_recorded({**CONFIG.as_config(), **settings, "learning-rate": 0.3})
    lines, models = {}, {}
    for mode, strategy in (("batched", "ditto"), ("sequential", "ditto"), ("batched", "fedavg")):
        folder = RunPlan.of(changed(run, strategy=strategy), tmp_path / f"{mode}-{strategy}").folder({})
        simulate(changed(run, strategy=strategy), folder, Simulation(mode, threads=1))
        lines[mode, strategy] = list(Record(folder.path).history)
        arrays, _ = read_safetensors(folder.path / MODEL)
        models[mode, strategy] = {name: array.tobytes() for name, array in arrays.items()}
    batched, sequential = lines["batched", "ditto"], lines["sequential", "ditto"]
    for one, other in zip(batched, sequential, strict=True):
        assert one["adapted_loss"] == pytest.approx(other["adapted_loss"], rel=1e-4)
    assert any(line["joined"] < CONFIG.clients for line in batched)
    assert models["batched", "ditto"] == models["batched", "fedavg"]


def test_what_is_not_allowed() -> None:
    with pytest.raises(ConfigError, match=r"^ditto\.personal-lambda = -1\.0 is not allowed"):
        Ditto(personal_lambda=-1.0)
    line = r"^ditto\.personal-lambda = 20 is not allowed with learning-rate = 0\.1: less than 20 "
    with pytest.raises(ConfigError, match=line):
        check_settings(changed(CONFIG, ditto__personal_lambda=20.0, learning_rate=0.1))
    check_settings(changed(CONFIG, ditto__personal_lambda=19.9, learning_rate=0.1))
    with pytest.raises(ConfigError, match="it has a rule of its own"):
        check_settings(changed(CONFIG, local_rule="sgd"))
    assert Ditto.LocalRule(Ditto.Settings()).gradients(7) == 14
