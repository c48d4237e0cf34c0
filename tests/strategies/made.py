"""Every strategy, made by the keywords that users may rely on, and a grid that only knows node ids."""

from collections.abc import Callable
from typing import Any

import pytest
from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import Grid

from fedappeal.core.registry import STRATEGIES
from fedappeal.protocol import keys
from strategies import AdaGD, FedALIGN, FedNova, MaxFL, MaxFLAdaGD, MWFed, Oracle, QFedAvg, Strategy
from tests.grid import MemoryGrid, Volunteer
from tests.quadratics import config, nodes

Make = Callable[..., Strategy]

BY_KEYWORDS: dict[str, Make] = {
    "maxfl": lambda **shared: MaxFL(server_lr=1.0, stabilizer=1e-3, **shared),
    "fedalign": lambda **shared: FedALIGN(epsilon=0.2, warmup_rounds=0, priority_ids=["100", "101"], **shared),
    "adagd": lambda **shared: AdaGD(step_size=0.1, precision=1e-3, slack=2.0, on_missing="proceed", **shared),
    "maxfl-adagd": lambda **shared: MaxFLAdaGD(step_size=0.1, precision=1e-3, on_missing="proceed", **shared),
    "fednova": lambda **shared: FedNova(local_steps=10, **shared),
    "oracle": lambda **shared: Oracle(probabilities="0.5", **shared),
    "qfedavg": lambda **shared: QFedAvg(q=1.0, learning_rate=0.1, **shared),
    "mwfed": lambda **shared: MWFed(local_steps=10, **shared),
}
"""Strategies with the keywords that the contract names; all others are made without any."""

MADE: dict[str, Make] = {name: BY_KEYWORDS.get(name) or STRATEGIES.load(name) for name in STRATEGIES.names()}

every_strategy = pytest.mark.parametrize("name", list(MADE))


def told() -> ConfigRecord:
    return ConfigRecord({keys.RUN_KEY: "k"})


def crowd() -> MemoryGrid:
    """Three real clients, and one each that sits out, leaves, fails."""
    others: dict[int, Any] = {
        110: Volunteer("silent", decision=0),
        111: Volunteer("leaver", decision=-1),
        112: Volunteer("broken", decision=RuntimeError("out of memory")),
    }
    return MemoryGrid(nodes(config(3)) | others)


def one_round(strategy: Strategy, grid: Grid, number: int, arrays: ArrayRecord) -> tuple[ArrayRecord | None, Any]:
    messages = list(strategy.configure_train(number, arrays, told(), grid))
    return strategy.aggregate_train(number, grid.send_and_receive(messages))
