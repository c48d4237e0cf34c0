"""Clipping and noise around local training: against hand computations, and what stays as it was."""

import math
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from client.limits.privacy import Protection, noise_key, protected_records
from client.settings import NodeSettings
from client.state.store import ContextStore, DiskStore
from client.training.models import arrays_of
from client.training.sgd import SGD
from fedappeal.core.local_rule import LocalRule, Store, StoredRecord
from fedappeal.flower.messages import be_sender
from fedappeal.protocol import keys
from fedappeal.protocol.packing import Layout
from fedappeal.settings.config import ConfigError, RunConfig, Scalar
from fedappeal.tasks import load_task
from strategies import AdaGD, MaxFLAdaGD, Scaffold
from strategies.maxfl import APPEAL_WEIGHT
from tests.node import Node, metrics_of, run_config


@pytest.fixture(autouse=True)
def server() -> None:
    be_sender(run_id=7, node_id=1, task_id=9)  # else no message can be made outside of a Flower process


CLIP = RunConfig(judge_on="train", adaptation_steps=0, goodwill=-1, clipping_norm=1.0)
NOISE = RunConfig(judge_on="train", adaptation_steps=0, goodwill=-1, clipping_norm=1.0, dp_epsilon=5.0)


def memory(key: str = "a secret") -> Store:
    """A store that holds a known secret, so that no test depends on chance."""
    store = ContextStore(RecordDict())
    store.write("noise-key", StoredRecord({"key": key}))
    return store


class Owner:
    """What `protected` asks of a participant, around any model."""

    def __init__(
        self,
        config: RunConfig,
        store: Store | None = None,
        client_id: str = "anna",
        node: NodeSettings | None = None,
    ) -> None:
        self.config = config
        self.client_id = client_id
        self.store = store or memory()
        self.node = node or NodeSettings()


def record(values: object) -> ArrayRecord:
    return ArrayRecord({"flat": Array(np.array(values, dtype=np.float32))})


def asked(sent: object, server_round: int = 1, **more: ArrayRecord) -> Message:
    content = RecordDict({keys.ARRAYS: record(sent), keys.CONFIG: ConfigRecord({keys.SERVER_ROUND: server_round})})
    for name, value in more.items():
        content[name] = value
    return Message(content, 3, "train")


def reply(owner: Owner, sent: object, own: object, server_round: int = 1) -> NDArray[np.float32]:
    """The model of a joined reply whose local training ended at ``own``."""
    message = asked(sent, server_round)
    update = protected_records(owner, message, {keys.ARRAYS: record(own)})  # type: ignore[arg-type]
    assert message.content.array_records[keys.ARRAYS] == record(sent)
    found: NDArray[np.float32] = update[keys.ARRAYS]["flat"].numpy()
    assert found.dtype == np.float32
    return found


def test_clipping_by_hand() -> None:
    # the update (3, 4) has norm 5: clipped to 1 it is (0.6, 0.8)
    assert reply(Owner(CLIP), [10, 20], [13, 24]).tolist() == pytest.approx([10.6, 20.8], rel=1e-6)
    tenth = RunConfig(judge_on="train", adaptation_steps=0, goodwill=-1, clipping_norm=0.1)
    assert reply(Owner(tenth), [0, 0], [-30, 40]).tolist() == pytest.approx([-0.06, 0.08], rel=1e-6)


def test_an_update_inside_the_norm_stays_as_it_is() -> None:
    values = np.array([0.1, 0.3], np.float32)
    assert reply(Owner(CLIP), [0.1, 0.7], values).tobytes() == values.tobytes()
    assert reply(Owner(CLIP), values, values).tobytes() == values.tobytes()
    assert reply(Owner(RunConfig()), [0, 0], [300, 400]).tolist() == [300, 400]


@given(st.integers(1, 50), st.floats(0.01, 100), st.floats(0.01, 100), st.integers(0, 2**32 - 1))
def test_no_clipped_update_is_longer_than_the_norm(size: int, norm: float, spread: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    sent, update = rng.normal(size=size), spread * rng.normal(size=size)
    found = (
        reply(
            Owner(RunConfig(judge_on="train", adaptation_steps=0, goodwill=-1, clipping_norm=norm)),
            sent,
            sent + update,
        )
        - sent
    )
    expected = update * min(1.0, norm / math.sqrt(float(update @ update)))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5 * (1 + spread))


SIZE = 200_000


@pytest.mark.parametrize(("epsilon", "delta", "sensitivity"), [(5.0, 1e-5, 1.0), (0.5, 1e-3, 0.01)])
def test_the_noise_has_the_standard_deviation_of_the_gaussian_mechanism(
    epsilon: float, delta: float, sensitivity: float
) -> None:
    config = RunConfig(
        judge_on="train",
        adaptation_steps=0,
        goodwill=-1,
        clipping_norm=3.0,
        dp_epsilon=epsilon,
        dp_delta=delta,
        dp_sensitivity=sensitivity,
    )
    sent, update = np.full(SIZE, 0.5), np.zeros(SIZE)
    update[0] = 30.0  # clipped to 3
    noise = reply(Owner(config), sent, sent + update) - sent
    noise[0] -= 3.0
    # Dwork and Roth, theorem A.1: sigma = sensitivity sqrt(2 ln(1.25 / delta)) / epsilon
    sigma = sensitivity * math.sqrt(2 * (math.log(1.25) - math.log(delta))) / epsilon
    assert noise.std() == pytest.approx(sigma, rel=0.01)  # six standard errors, sigma / sqrt(2 n)
    assert abs(noise.mean()) < 6 * sigma / math.sqrt(SIZE)
    assert np.mean(np.abs(noise) < sigma) == pytest.approx(0.6827, abs=0.01)


def test_the_same_question_gets_the_same_answer_also_after_a_restart(tmp_path: Path) -> None:
    one = Owner(NOISE, store=DiskStore(tmp_path))
    np.random.seed(1)
    state = np.random.get_state()[1].tolist()  # type: ignore[union-attr]
    first = reply(one, [0, 0], [3, 4])
    assert np.random.get_state()[1].tolist() == state  # type: ignore[union-attr]
    np.random.seed(2)
    assert reply(one, [0, 0], [3, 4]).tobytes() == first.tobytes()
    assert reply(Owner(NOISE, store=DiskStore(tmp_path)), [0, 0], [3, 4]).tobytes() == first.tobytes()


def test_everything_else_gets_noise_of_its_own() -> None:
    clipped = np.array([0.6, 0.8])
    noise = [
        reply(Owner(NOISE), [0, 0], [3, 4]) - clipped,
        reply(Owner(NOISE), [0, 0], [3, 4], server_round=2) - clipped,
        reply(Owner(NOISE, client_id="ben"), [0, 0], [3, 4]) - clipped,
        # the secret: all that the server knows is the same
        reply(Owner(NOISE, store=memory("another secret")), [0, 0], [3, 4]) - clipped,
        # another update in the same round: else the difference of two replies would be free of noise
        reply(Owner(NOISE), [0, 0], [4, 3]) - clipped[::-1],
    ]
    for k, one in enumerate(noise):
        for other in noise[:k]:
            assert np.linalg.norm(one - other) > 1e-2


def test_the_secret_is_drawn_once_a_client(tmp_path: Path) -> None:
    stores: list[Store] = [DiskStore(tmp_path / "a"), DiskStore(tmp_path / "b"), ContextStore(RecordDict())]
    found = [noise_key(store) for store in stores]
    assert len(set(found)) == 3
    assert min(len(key) for key in found) == 32
    assert [noise_key(store) for store in (DiskStore(tmp_path / "a"), *stores[1:])] == found


@pytest.mark.parametrize("value", [0.0, 1e6])
def test_an_update_of_zero_gets_its_noise_too(value: float) -> None:
    found = reply(Owner(NOISE), [value, 0], [value, 0]) - [value, 0]
    assert np.isfinite(found).all()
    assert np.abs(found).min() > 0


def refused(config: RunConfig, rule: type[LocalRule] = SGD, **arrays: NDArray[np.generic]) -> str:
    layout = Layout.of(arrays or {"w": np.zeros(2, np.float32)})
    with pytest.raises(ConfigError) as error:
        Protection.of(config, NodeSettings()).check(rule(), layout)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_what_cannot_be_protected_is_refused() -> None:
    assert (
        refused(RunConfig(judge_on="train", adaptation_steps=0, goodwill=-1, dp_epsilon=5.0))
        == "clipping-norm = 0 is not allowed with dp-epsilon = 5: more than 0"
    )
    for rule in (Scaffold.LocalRule, AdaGD.LocalRule, MaxFLAdaGD.LocalRule):
        for config in (CLIP, NOISE):
            assert f"local-rule = '{rule.name}'" in refused(config, rule)
    counter = {"layer.weight": np.zeros(2, np.float32), "norm.num_batches_tracked": np.zeros((), np.int64)}
    assert "'norm.num_batches_tracked' is not floating point" in refused(CLIP, **counter)


def test_what_flowers_mod_does_not_take_is_its_error() -> None:
    message = asked([0, 0], control=record([0, 0]))
    with pytest.raises(ConfigError, match="exactly one ArrayRecord"):
        protected_records(Owner(NOISE), message, {keys.ARRAYS: record([3, 4])})  # type: ignore[arg-type]


# -- of the owner --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("run", "own", "length"), [(0.0, 1.0, 1.0), (2.0, 1.0, 1.0), (0.5, 1.0, 0.5), (2.0, 0.0, 2.0), (0.0, 0.0, 5.0)]
)
def test_the_smaller_norm_counts(run: float, own: float, length: float) -> None:
    owner = Owner(
        RunConfig(judge_on="train", adaptation_steps=0, goodwill=-1, clipping_norm=run),
        node=NodeSettings(clipping_norm=own),
    )
    found = reply(owner, [10, 20], [13, 24]) - np.array([10, 20])
    assert found.tolist() == pytest.approx([0.6 * length, 0.8 * length], rel=1e-6)


@pytest.mark.parametrize(
    ("run", "own", "sigma"),
    [
        # sqrt(2 ln 125000) = 4.845; the owner's sensitivity is twice the norm that counts
        ({}, {"clipping_norm": 1.0, "dp_epsilon": 5.0}, 2 * 4.845 / 5),
        ({"clipping_norm": 0.5}, {"clipping_norm": 1.0, "dp_epsilon": 5.0}, 2 * 0.5 * 4.845 / 5),
        # a run whose noise is nil by its own sensitivity
        (
            {"clipping_norm": 1.0, "dp_epsilon": 1.0, "dp_sensitivity": 1e-9},
            {"clipping_norm": 1.0, "dp_epsilon": 5.0},
            1.938,
        ),
        ({"clipping_norm": 1.0, "dp_epsilon": 1.0}, {"clipping_norm": 1.0, "dp_epsilon": 5.0}, 4.845),
        ({"clipping_norm": 1.0, "dp_epsilon": 1.0}, {"clipping_norm": 1.0}, 4.845),
    ],
)
def test_the_larger_noise_counts(run: dict[str, float], own: dict[str, float], sigma: float) -> None:
    owner = Owner(RunConfig.model_validate(run), node=NodeSettings.model_validate(own))
    sent = np.full(SIZE, 0.5)
    assert (reply(owner, sent, sent) - sent).std() == pytest.approx(sigma, rel=0.01)


def test_noise_of_the_owners_needs_a_norm() -> None:
    with pytest.raises(ConfigError, match="clipping-norm = 0 is not allowed with dp-epsilon = 5: more than 0"):
        NodeSettings.parse({"dp-epsilon": 5.0})


@pytest.mark.parametrize("config", [CLIP, NOISE])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_of_an_update_that_is_not_finite_no_value_is_sent(config: RunConfig, value: float) -> None:
    """Its norm is no number: it would bound nothing, and leave the other values as they are."""
    for sent, own in ([[0, 0], [value, 4]], [[value, 0], [value, 4]]):
        assert np.isnan(reply(Owner(config), sent, own)).all()


# -- in a client ---------------------------------------------------------------------------------------

RUN = run_config(clients=4, solo__steps=3, batch_size=8, local_steps=5)


def told_train(folder: Path, settings: dict[str, Scalar], **told: Scalar) -> RecordDict:
    config = RunConfig.parse_recorded({**RUN.as_config(), **settings})
    return Node(config, folder)("train", **{"mandatory": 1, **told})


def flat(content: RecordDict) -> NDArray[np.float32]:
    found: NDArray[np.float32] = content.array_records[keys.ARRAYS]["flat"].numpy()
    return found


def test_a_client_protects_its_model_and_nothing_else(tmp_path: Path) -> None:
    model = load_task(RUN.task_settings()).initial_model(0)
    sent = Layout.of(arrays_of(model)).pack(arrays_of(model))["flat"].numpy()
    plain = told_train(tmp_path, {})
    clipped = told_train(tmp_path, {"clipping-norm": 0.01})
    noisy = told_train(tmp_path, {"clipping-norm": 0.01, "dp-epsilon": 5.0})
    assert plain[keys.METRICS] == clipped[keys.METRICS] == noisy[keys.METRICS]
    assert APPEAL_WEIGHT in metrics_of(plain)
    before, after = flat(plain).astype(float) - sent, flat(clipped).astype(float) - sent
    assert np.linalg.norm(before) > 0.1
    assert np.linalg.norm(after) == pytest.approx(0.01, rel=1e-4)
    assert before @ after == pytest.approx(np.linalg.norm(before) * 0.01, rel=1e-4)
    # sigma = sqrt(2 ln 125000) / 5 = 0.969, over 6420 parameters
    assert np.std(flat(noisy) - flat(clipped)) == pytest.approx(0.969, rel=0.08)
    assert told_train(tmp_path, {"clipping-norm": 0.01, "dp-epsilon": 5.0}) == noisy


def test_a_client_refuses_what_it_cannot_protect_unless_it_sits_out(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="local-rule = 'scaffold'"):
        told_train(tmp_path, {"clipping-norm": 1.0, "strategy": "scaffold"})
    never: dict[str, Scalar] = {"clipping-norm": 1.0, "requirement": "fixed", "fixed.loss": 0.0}
    content = told_train(tmp_path, {**never, "strategy": "scaffold"}, mandatory=0)
    assert list(content) == [keys.METRICS]
    assert content.metric_records[keys.METRICS][keys.DECISION] == 0


@pytest.mark.parametrize("strategy", ["scaffold", "adagd", "maxfl-adagd"])
def test_an_owner_who_asks_for_clipping_declines_what_cannot_be_clipped(strategy: str, tmp_path: Path) -> None:
    config = RunConfig.parse_recorded({**RUN.as_config(), "strategy": strategy})
    with pytest.raises(ConfigError, match="clipping-norm = 1 of this client's owner is not allowed with local-rule"):
        Node(config, tmp_path, clipping_norm=1.0)("query")
    assert keys.INFO in Node(config, tmp_path)("query")
    assert keys.INFO in Node(RUN, tmp_path, clipping_norm=1.0)("query")
