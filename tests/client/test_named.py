"""What a message may ask: the run's strategy with the run's settings, in the form in which the model was sent."""

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, RecordDict

from client.named import named_strategy
from client.terms import rule_of
from fedappeal.core.algorithm import ClientSide, personal_of
from fedappeal.core.local_rule import LocalRule
from fedappeal.core.registry import STRATEGIES
from fedappeal.flower.messages import copy_for_node
from fedappeal.protocol import keys
from fedappeal.protocol.packing import array_record
from fedappeal.settings.config import ConfigError, RunConfig, Scalar
from strategies.fedavg import FedAvg
from strategies.maxfl import APPEAL_WEIGHT
from strategies.rounds.algorithm import Algorithm
from strategies.scaffold import CONTROL, CONTROL_DELTA
from tests.node import Node, changed, metrics_of, run_config

CONFIG = run_config(clients=4, solo__steps=2, batch_size=16, local_steps=2, model="logistic")
MAXFL = changed(CONFIG, maxfl__stabilizer=0.5)
FEDAVG = changed(CONFIG, strategy="fedavg")


def ask(config: RunConfig, kind: str = "train", **told: Scalar | None) -> RecordDict:
    return Node(config)(kind, told={keys.MANDATORY: 1, **told})


# -- the strategy ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["train", "evaluate"])
@pytest.mark.parametrize("strategy", STRATEGIES.built_in)
def test_a_message_that_names_another_strategy_than_the_run_is_refused(strategy: str, kind: str) -> None:
    other = "fedavg" if strategy == "maxfl" else "maxfl"
    config = changed(CONFIG, strategy=strategy)
    with pytest.raises(ConfigError) as error:
        ask(config, kind, strategy=other)
    assert str(error.value) == f"strategy = '{other}' is not allowed in this run: '{strategy}'"


@pytest.mark.parametrize("kind", ["train", "evaluate"])
@pytest.mark.parametrize(
    ("key", "value", "run"), [("server-lr", 2.0, 1.0), ("stabilizer", 0.001, 0.5), ("tuning-steps", 3, 0)]
)
def test_other_settings_than_the_runs_are_refused(kind: str, key: str, value: float, run: float) -> None:
    with pytest.raises(ConfigError) as error:
        ask(MAXFL, kind, **{f"maxfl.{key}": value})
    assert str(error.value) == f"maxfl.{key} = {value} is not allowed in this run: {run}"


def test_a_setting_that_is_not_allowed_at_all_is_one_line() -> None:
    with pytest.raises(ConfigError, match=r"^maxfl\.server-lr = -1 is not allowed: input should be greater") as error:
        ask(MAXFL, **{"maxfl.server-lr": -1})
    assert "\n" not in str(error.value)


def test_what_a_message_leaves_out_is_the_runs() -> None:
    left_out: dict[str, Scalar | None] = {
        "maxfl.server-lr": None,
        "maxfl.stabilizer": None,
        "maxfl.tuning-steps": None,
    }
    assert ask(MAXFL, **left_out) == ask(MAXFL)
    # A number may be written as a whole one.
    assert ask(MAXFL, **{"maxfl.server-lr": 1}) == ask(MAXFL)


def test_values_of_a_round_are_not_settings() -> None:
    assert ask(MAXFL, **{"maxfl.round-temperature": 0.7}) == ask(MAXFL)


PLAIN = [
    name
    for name in STRATEGIES.built_in
    if not STRATEGIES.load(name).LocalRule and STRATEGIES.load(name).report is Algorithm.report
]


DO_MORE = {
    *("maxfl", "fedalign", "adagd", "maxfl-adagd", "fedprox", "scaffold", "qfedavg", "afl", "term", "mwfed"),
    *("ditto", "perfedavg", "pfedme"),
}


def test_a_message_without_a_strategy_is_fine_where_clients_only_train() -> None:
    assert set(PLAIN) >= {"fedavg", "fedadam", "fednova", "fedau", "oracle", "mifa"}
    assert not set(PLAIN) & DO_MORE
    assert ask(FEDAVG, strategy=None, **{keys.LOCAL_RULE: None}) == ask(FEDAVG)
    assert ask(FEDAVG, "evaluate", strategy=None) == ask(FEDAVG, "evaluate")


@pytest.mark.parametrize("strategy", sorted(set(STRATEGIES.built_in) - set(PLAIN)))
def test_a_message_without_a_strategy_is_refused_where_clients_do_more(strategy: str) -> None:
    with pytest.raises(ConfigError) as error:
        ask(changed(CONFIG, strategy=strategy), strategy=None)
    assert str(error.value) == f"strategy = '' is not allowed in this run: '{strategy}'"


def test_an_evaluation_without_a_strategy_is_answered_without_its_additions() -> None:
    config = changed(CONFIG, strategy="perfedavg")
    assert keys.ADAPTED_LOSS in metrics_of(ask(config, "evaluate"))
    assert keys.ADAPTED_LOSS not in metrics_of(ask(config, "evaluate", strategy=None))


class Unnamed(Node):
    """A client of a run whose settings name no strategy: another's bundle started it."""

    def __init__(self, config: RunConfig, **more: Any) -> None:
        super().__init__(config, **more)
        self.context.run_config.pop("strategy")


def test_a_run_that_names_no_strategy_leaves_it_to_the_message() -> None:
    node = Unnamed(FEDAVG)
    node.told = {}
    plain = node("train", mandatory=1)
    assert set(metrics_of(plain)) == {keys.NUM_EXAMPLES, keys.DECISION}
    weighted = node("train", told={keys.STRATEGY: "maxfl", "maxfl.tuning-steps": 3}, mandatory=1)
    assert set(metrics_of(weighted)) == {keys.NUM_EXAMPLES, keys.DECISION, APPEAL_WEIGHT}
    assert weighted[keys.ARRAYS] == plain[keys.ARRAYS]
    assert weighted == ask(changed(CONFIG, tuning_steps=3))
    participant = node.participants.of(node.context)
    told_by_message: dict[str, Scalar] = {keys.STRATEGY: "maxfl", "maxfl.tuning-steps": 3, "maxfl.word": "x"}
    algorithm, told = named_strategy(
        participant.config, participant.strategy, participant.node.allowed, told_by_message
    )
    assert (algorithm.name, personal_of(algorithm).tuning_steps()) == ("maxfl", 3)
    assert dict(told) == {
        **{"server-lr": 1.0, "stabilizer": 0.001, "step-sizes": "set", "local-steps": 2},
        **{"tuning-steps": 3, "word": "x"},
    }


def test_what_a_message_asks_of_all_clients_of_a_process_is_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    first, checked = Node(MAXFL), list[str]()
    other = Node(MAXFL, participants=first.participants, partition_id=2)
    other.answer, other.context.run_config = first.answer, first.context.run_config
    for node in (first, other):
        node("query")

    def named(run: RunConfig, expected: ClientSide, *more: Any) -> Any:
        checked.append(expected.name)
        return named_strategy(run, expected, *more)

    monkeypatch.setattr("client.answers.named_strategy", named)
    refused = pytest.raises(ConfigError, match=r"^maxfl\.server-lr = 2\.0 is not allowed")
    for server_round, setting in ((1, 1.0), (2, 1.0), (3, 2.0)):
        message = first.message("evaluate", server_round=server_round, told={"maxfl.server-lr": setting})
        for node in (first, other):
            with nullcontext() if setting == 1 else refused:
                assert keys.LOSS in (node.answer(copy_for_node(message, 3), node.context).told or {})
    assert len(checked) == 4, "once a round, and each time where it is refused"


class Foreign(FedAvg):
    """A strategy that does not come with fedappeal, and may remember in itself."""


def test_a_strategy_that_a_message_alone_names_is_each_clients_own(monkeypatch: pytest.MonkeyPatch) -> None:
    first = Unnamed(FEDAVG, allow="tests")
    other = Unnamed(FEDAVG, participants=first.participants, partition_id=2, allow="tests")
    other.answer, other.context.run_config = first.answer, first.context.run_config
    algorithms = list[ClientSide]()

    def noted(algorithm: ClientSide) -> Any:
        algorithms.append(algorithm)
        return personal_of(algorithm)

    for node in (first, other):
        node("query")
    monkeypatch.setattr("client.answers.personal_of", noted)
    message = first.message("evaluate", told={keys.STRATEGY: f"{__name__}:Foreign"})
    for node in (first, other):
        node.answer(copy_for_node(message, 3), node.context)
    one, another = algorithms
    assert one is not another


def test_a_record_that_a_strategy_changes_in_place_is_read_again() -> None:
    node = Node(FEDAVG)
    message = node.message("evaluate", server_round=1)
    model, config = message.content.array_records[keys.ARRAYS], message.content.config_records[keys.CONFIG]
    losses = [node.answer(copy_for_node(message, 3), node.context).told[keys.LOSS]]
    for name in model:
        model[name] = array_record({name: 2 * model[name].numpy()})[name]
    losses.append(node.answer(copy_for_node(message, 3), node.context).told[keys.LOSS])
    assert losses[0] != losses[1]
    config[keys.SERVER_ROUND] = 10**9
    with pytest.raises(ConfigError, match="server-round = 1000000000 is not allowed"):
        node.answer(copy_for_node(message, 3), node.context)


# -- the local rule --------------------------------------------------------------------------------------


def test_the_local_rule_has_the_settings_that_the_message_names() -> None:
    node = Node(changed(FEDAVG, fedprox__proximal_mu=0.25))
    participant = node.participants.of(node.context)

    def named(config: dict[str, Scalar]) -> LocalRule:
        return rule_of(participant.config, participant.strategy, participant.terms.allowed, config)

    assert named({}).name == "sgd"
    prox = named({keys.LOCAL_RULE: "prox"})
    assert (prox.name, prox.settings.proximal_mu) == ("prox", 0.25)
    prox = named({keys.LOCAL_RULE: "prox", "fedprox.proximal-mu": 0.5})
    assert prox.settings.proximal_mu == 0.5
    with pytest.raises(ConfigError, match=r"^fedprox\.proximal-mu = -1 is not allowed"):
        named({keys.LOCAL_RULE: "prox", "fedprox.proximal-mu": -1})


@pytest.mark.parametrize("strategy", ["fedprox", "scaffold", "ditto", "perfedavg", "pfedme", "adagd", "maxfl-adagd"])
def test_a_strategy_with_a_rule_of_its_own_takes_no_other(strategy: str) -> None:
    own = STRATEGIES.load(strategy).LocalRule
    assert own is not None
    with pytest.raises(ConfigError) as error:
        ask(changed(CONFIG, strategy=strategy, participation="always"), **{keys.LOCAL_RULE: "sgd"})
    assert str(error.value) == f"local-rule = 'sgd' is not allowed with strategy = '{strategy}': '{own.name}'"


# -- named arrays ----------------------------------------------------------------------------------------


def named(node: Node) -> ArrayRecord:
    return node.layout.named(node.initial)


@pytest.mark.parametrize("strategy", STRATEGIES.built_in)
def test_a_model_that_came_as_named_arrays_goes_back_so(strategy: str) -> None:
    config = changed(CONFIG, strategy=strategy, participation="always")
    node = Node(config)
    zeros = {name: np.zeros_like(array) for name, array in node.initial.items()}
    records = [
        {CONTROL: form(zeros)} if strategy == "scaffold" else {} for form in (node.layout.named, node.layout.pack)
    ]
    content, packed = Node(config)("train", named(node), records=records[0]), node("train", records=records[1])
    for name in [keys.ARRAYS] + ([CONTROL_DELTA] if strategy == "scaffold" else []):
        assert set(content.array_records[name]) == set(node.initial)
        found, same = (node.layout.unpack(one.array_records[name]) for one in (content, packed))
        for key in node.initial:
            np.testing.assert_array_equal(found[key], same[key])
    assert metrics_of(content) == metrics_of(packed)
    assert Node(config)("evaluate", named(node)) == node("evaluate")


def test_privacy_goes_around_named_arrays_too() -> None:
    config = changed(FEDAVG, clipping_norm=0.01)
    node = Node(config)
    content = Node(config)("train", named(node), mandatory=1)
    found = node.layout.unpack(content.array_records[keys.ARRAYS])
    squares = sum(float(((found[name] - node.initial[name]) ** 2).sum()) for name in found)  # type: ignore[operator]
    assert squares**0.5 == pytest.approx(0.01, rel=1e-3)
    packed = node.layout.unpack(node("train", mandatory=1).array_records[keys.ARRAYS])
    for name in found:
        np.testing.assert_allclose(found[name], packed[name], rtol=1e-6, atol=1e-9)


def test_named_arrays_of_another_model_are_refused() -> None:
    node = Node(FEDAVG)
    wrong = {**node.initial, "output.bias": np.zeros(3, np.float32)}
    with pytest.raises(ValueError, match=r"model layout .* does not match the run's layout"):
        node("train", array_record(wrong))
    with pytest.raises(ValueError, match="array 'flat'"):
        node("train", array_record({"output.bias": node.initial["output.bias"]}))


def test_what_a_strategy_reports_does_not_stand_in_for_the_replys_own_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    claims = {keys.DECISION: 0.0, keys.NUM_EXAMPLES: 1e9, "mine": 2.0}
    honest = metrics_of(ask(FEDAVG))
    monkeypatch.setattr(STRATEGIES.load("fedavg"), "report", lambda self, measured: claims)
    assert metrics_of(ask(FEDAVG)) == {**honest, "mine": 2.0}
