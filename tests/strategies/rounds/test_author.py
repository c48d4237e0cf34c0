"""How much an author of a strategy sees, and that no attribute of an author's can be one of the rounds'."""

import inspect
from typing import Any

import pytest

from fedappeal.core.algorithm import ClientSide, Part, PersonalModels, Priority
from fedappeal.core.faults import check_class
from fedappeal.core.plugins import Plugin
from fedappeal.settings.config import ConfigError
from strategies import FedALIGN, FedAvg, Strategy
from strategies.rounds.algorithm import Algorithm, Influence, Survey
from strategies.rounds.strategy import shared_of
from tests.grid import MemoryGrid, Volunteer, run

MOST, MOST_OF_A_PART = 15, 5
FLOWERS = {"aggregate_evaluate", "aggregate_train", "configure_evaluate", "configure_train", "start", "summary"}


def methods(*classes: type) -> list[str]:
    """Public methods that these classes themselves define; properties are attributes."""
    own = {name: getattr(c, name) for c in classes for name in vars(c)}
    return sorted(n for n, m in own.items() if n[0] != "_" and (inspect.isfunction(m) or inspect.ismethod(m)))


def test_the_contract_of_an_algorithm_has_at_most_15_methods() -> None:
    assert len(methods(Algorithm, ClientSide)) <= MOST


def test_a_strategy_has_flowers_methods_besides() -> None:
    assert set(methods(Strategy)) == FLOWERS
    assert [c for c in Strategy.__mro__ if c.__module__ != "builtins"] == [Strategy, Algorithm, ClientSide, Plugin]


def test_what_few_algorithms_decide_stands_apart_with_a_default_for_each() -> None:
    assert shared_of(Strategy()).influence == "off"
    for part in (Survey, Influence, PersonalModels, Priority):
        assert issubclass(part, Part)
        assert 0 < len(methods(part)) <= MOST_OF_A_PART


def test_a_small_object_that_is_a_method_is_named_in_one_line() -> None:
    class Asks(FedAvg):
        def survey(self, round: Any, order: Any) -> Any:
            return order

    line = r"^plug-in Asks: survey is not allowed: a class derived from strategies\.rounds\.algorithm\.Survey \(.*\)$"
    with pytest.raises(ConfigError, match=line):
        check_class(Asks)
    check_class(FedALIGN)


EARLIER = """
    _accept _add_held _can_begin _checked_weight _cut_alone _direction _divergence _evaluated _finish_bounded
    _hear _is_mandatory _last_good _leave_out _medians _next_model _opened _sender _settled _survey _train
    adaptation asking asks_priority bounds_lack check_influence close_round evaluate_messages
    evaluation_settings finished granted granted_nodes has_own_models layout log_weight members metric
    moves_model needs_train_split num_rounds of_run open_round order other_metrics own_model pool_empty record
    reports restore rule_name shared state surveyed surveys take told train_messages tuning_steps under_name
    update_unit use wanted _algorithm _bounds _faults _influence _open algorithm alone begun close direction
    divergence hear influence_weight intake last_good loop medians new_round next_model round rounds seed setup
    settings_of
"""
"""Names that rounds had, or have, and that are neither of the contract nor Flower's."""


@pytest.mark.parametrize("on_class", [False, True])
@pytest.mark.parametrize("value", [[], 7])
def test_no_attribute_of_an_authors_is_the_rounds(on_class: bool, value: Any) -> None:
    class Collides(FedAvg):
        def __init__(self, **settings: Any) -> None:
            if not on_class:
                vars(self).update(own)
            super().__init__(**settings)
            if not on_class:
                vars(self).update(own)

    assert not {name for name in EARLIER.split() if hasattr(FedAvg, name)}
    own = dict.fromkeys(EARLIER.split(), value)
    if on_class:
        for name in own:
            setattr(Collides, name, value)
    shared: dict[str, Any] = {"clients_per_round": 3, "influence": "bounded", "mandatory_rounds": "auto", "seed": 3}

    def trained(kind: type[Strategy]) -> Any:
        local = {"a": 1.5, "b": -0.3, "c": 2.0, "d": 0.1, "e": 0.7}
        clients = [Volunteer(name, local=step, examples=k + 1) for k, (name, step) in enumerate(local.items())]
        _, watch = run(kind(**shared), MemoryGrid({10 + k: client for k, client in enumerate(clients)}), 6)
        return watch.models, [(record.decisions, record.metrics) for record in watch.records]

    assert trained(Collides) == trained(FedAvg)
