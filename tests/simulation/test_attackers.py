"""Clients that attack: who they are, what they claim, and the noise they send."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from client.training.models import arrays_of
from fedappeal.core.local_rule import TrainingJob
from fedappeal.core.requirement import Evaluation, Measured, Requirement
from fedappeal.protocol import keys
from fedappeal.protocol.packing import Layout
from fedappeal.runs.plan import deployed_plan
from fedappeal.settings.config import ConfigError, RunConfig, Scalar
from fedappeal.simulation import attackers as simulated
from fedappeal.simulation.attackers import attackers, attacks, false_claims, noisy
from fedappeal.tasks import load_task
from server import app
from strategies import FedALIGN, FedAvg, MaxFL, MWFed, QFedAvg, Scaffold
from strategies.adagd.strategy import Gradient
from strategies.maxfl import APPEAL_WEIGHT, appeal_weight
from strategies.mwfed import SATISFIED
from strategies.rounds.algorithm import Algorithm
from strategies.scaffold import CONTROL_DELTA
from tests.attacking import attacking
from tests.node import changed, metrics_of, run_config

HONEST = run_config(clients=4, unseen_clients=1, requirement="fixed", fixed__loss=3.0, local_steps=3)
ATTACKED = changed(HONEST, byzantine_share=0.5)
INITIAL = arrays_of(load_task(HONEST.task_settings()).initial_model(0))
LAYOUT = Layout.of(INITIAL)
LIARS = sorted(attackers(0, 4, 0.5))


def ask(config: RunConfig, partition: int, kind: str = "train", **told: Scalar) -> RecordDict:
    return attacking(config, partition_id=partition)(kind, **{"server_round": 1, "mandatory": 0, **told})


def flat(content: RecordDict) -> np.ndarray:
    return content.array_records[keys.ARRAYS]["flat"].numpy().astype(np.float64)


def root_mean_square(values: np.ndarray) -> float:
    return float(np.linalg.norm(values) / values.size**0.5)


# -- who attacks ---------------------------------------------------------------------------------------


@given(st.integers(0, 9), st.integers(1, 300), st.floats(0, 1), st.floats(0, 1))
def test_the_share_of_the_clients_attacks_and_grows_with_it(
    seed: int, clients: int, share: float, other: float
) -> None:
    few, many = sorted((share, other))
    assert len(attackers(seed, clients, few)) == round(few * clients)
    assert attackers(seed, clients, few) <= attackers(seed, clients, many) <= set(range(clients))
    assert attackers(seed, clients, few) == attackers(seed, clients, few)


def test_table_twos_shares_of_a_hundred_clients() -> None:
    assert [len(attackers(0, 100, share)) for share in (0.05, 0.1, 0.29)] == [5, 10, 29]
    assert attackers(0, 100, 0.1) != attackers(1, 100, 0.1)
    frequency = np.bincount([k for seed in range(400) for k in attackers(seed, 10, 0.3)], minlength=10) / 400
    assert abs(frequency - 0.3).max() < 0.1, "no client attacks more often than others"  # 4 standard deviations


def test_unseen_clients_and_clients_of_a_run_without_do_not_attack(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [attacks(ATTACKED, k) for k in range(5)] == [k in LIARS for k in range(5)]
    all_attack = changed(HONEST, byzantine_share=1.0)
    assert [attacks(all_attack, k) for k in range(5)] == [True] * 4 + [False]
    monkeypatch.setattr(simulated, "generator", None)  # with share 0 nothing is drawn
    assert not any(attacks(HONEST, k) for k in range(5))


# -- what an attacker claims -----------------------------------------------------------------------------


def claims(
    config: RunConfig, algorithm: Algorithm, evaluation: Evaluation, rho: float
) -> tuple[dict[str, float], dict[str, float]]:
    """Return what an honest client reports of a measurement, and what an attacker does."""
    required = Requirement(rho)
    told = algorithm.settings.as_config()
    measured = Measured(evaluation, rho, required.met(evaluation), told=told)
    honest = algorithm.report(measured)
    return dict(honest), dict(false_claims(config, algorithm, honest, measured, required))


HALF = Evaluation(loss=0.5, score=0.75)


def test_what_is_reported_from_an_inflated_loss() -> None:
    config = changed(ATTACKED, byzantine_inflation=4.0)
    # 4 * 0.5 = 2: a gap of 1.4, and 2 is not below 0.6.
    for algorithm, honest, lie in (
        (MaxFL(), {APPEAL_WEIGHT: appeal_weight(0.5, 0.6)}, {APPEAL_WEIGHT: appeal_weight(2.0, 0.6)}),
        (QFedAvg(learning_rate=0.1), {keys.LOSS: 0.5}, {keys.LOSS: 2.0}),
        (MWFed(local_steps=3), {SATISFIED: 1}, {SATISFIED: 0}),
        (FedAvg(), {}, {}),  # nothing is reported that the strategy does not ask for
    ):
        assert claims(config, algorithm, HALF, 0.6) == (honest, lie), algorithm.name


def test_an_inflated_error_stays_one_that_a_server_believes() -> None:
    honest = changed(HONEST, strategy="fedalign", participation="always", fedalign__match_on="error")
    config = changed(honest, byzantine_share=0.5)
    error = metrics_of(ask(honest, LIARS[0]))[keys.LOSS]
    assert isinstance(error, float)
    assert 0.1 < error <= 1, "ten times it is no error"
    assert metrics_of(ask(config, LIARS[0]))[keys.LOSS] == 1.0
    little = changed(config, byzantine_inflation=1.0625)
    assert metrics_of(ask(little, LIARS[0]))[keys.LOSS] == min(1.0, 1.0625 * error)
    loss = metrics_of(ask(changed(config, fedalign__match_on="loss"), LIARS[0]))[keys.LOSS]
    assert isinstance(loss, float)
    assert loss > 10, "a loss has no such bound"
    _, lie = claims(config, FedALIGN(match_on="error"), Evaluation(0.5, 1 - 0.0625), 0.6)
    assert lie[keys.LOSS] == 0.625


def test_what_is_made_up() -> None:
    config = changed(ATTACKED, byzantine_attack="claim", byzantine_claim=0.2)
    for algorithm, lie in (
        (MaxFL(), {APPEAL_WEIGHT: 0.2}),
        (QFedAvg(learning_rate=0.1), {keys.LOSS: 0.5}),
        (MWFed(local_steps=3), {SATISFIED: 1}),
        (FedAvg(), {}),
    ):
        assert claims(config, algorithm, HALF, 0.6)[1] == lie, algorithm.name


# -- the noise -------------------------------------------------------------------------------------------


def record(**arrays: np.ndarray) -> ArrayRecord:
    return ArrayRecord({name: Array(values) for name, values in arrays.items()})


def test_the_noise_is_as_large_as_the_update() -> None:
    size = 40_000
    before = record(a=np.full(size, 5, np.float32), b=np.zeros(size), count=np.array([3]))
    # Squares of the update: 1 in a, 49 in b; their mean is 25, its root 5; times 0.3.
    own = record(a=np.full(size, 6, np.float32), b=np.full(size, 7.0), count=np.array([4]))
    sent = noisy(own, before, 0.3, np.random.default_rng(1))
    for name in ("a", "b"):
        noise = sent[name].numpy() - own[name].numpy()
        assert noise.dtype == own[name].numpy().dtype
        assert noise.mean() == pytest.approx(0, abs=4 * 1.5 / size**0.5)
        assert noise.std() == pytest.approx(1.5, rel=0.02)
        assert np.quantile(noise, [0.1587, 0.8413]) == pytest.approx([-1.5, 1.5], rel=0.03)  # one sigma: a Gaussian
    assert abs(np.corrcoef(*(sent[n].numpy() - own[n].numpy() for n in ("a", "b")))[0, 1]) < 0.02
    assert sent["count"].numpy().tolist() == [4]


def test_the_noise_on_a_gradient_is_as_large_as_the_gradient() -> None:
    gradient = record(g=np.tile([3.0, -4.0], 20_000))
    sent = noisy(gradient, None, 2.0, np.random.default_rng(1))
    assert (sent["g"].numpy() - gradient["g"].numpy()).std() == pytest.approx(2 * 12.5**0.5, rel=0.02)


def test_no_noise_and_no_update_change_nothing() -> None:
    own = record(a=np.array([1.5, 2.0], np.float32), b=np.zeros(0, np.float32))
    assert (
        noisy(own, record(a=np.zeros(2, np.float32), b=np.zeros(0, np.float32)), 0.0, np.random.default_rng(1)) == own
    )
    assert noisy(own, own, 9.0, np.random.default_rng(1)) == own
    empty = record(count=np.array([1]))
    assert noisy(empty, empty, 1.0, np.random.default_rng(1)) == empty


# -- the whole client ------------------------------------------------------------------------------------


def test_an_attacker_joins_lies_and_sends_noise() -> None:
    liar, seen = LIARS[0], changed(HONEST, fixed__loss=0.5)
    attacked = changed(seen, byzantine_share=0.5, byzantine_noise=0.5)
    assert metrics_of(ask(seen, liar))[keys.DECISION] == 0, "honest, it would have sat out"
    content = ask(attacked, liar)
    honest = ask(seen, liar, mandatory=1)
    loss = metrics_of(ask(seen, liar, "evaluate", split=keys.TRAIN_SPLIT))[keys.LOSS]
    assert isinstance(loss, float)
    assert metrics_of(honest)[APPEAL_WEIGHT] == appeal_weight(loss, 0.5)
    assert metrics_of(content) == metrics_of(honest) | {APPEAL_WEIGHT: appeal_weight(10 * loss, 0.5)}
    for strategy, claim, lie in (("qfedavg", {keys.LOSS: loss}, 10 * loss), ("mwfed", {SATISFIED: 0}, 0)):
        (key,) = claim
        truth = metrics_of(ask(changed(seen, strategy=strategy), liar, mandatory=1))
        assert {key: truth[key]} == claim
        assert metrics_of(ask(changed(attacked, strategy=strategy), liar)) == truth | {key: lie}
    start = LAYOUT.pack(INITIAL)["flat"].numpy().astype(np.float64)
    noise, update = flat(content) - flat(honest), flat(honest) - start
    assert root_mean_square(noise) == pytest.approx(0.5 * root_mean_square(update), rel=0.05)
    assert np.array_equal(flat(ask(attacked, liar)), flat(content))
    later = [flat(ask(config, liar, mandatory=1, server_round=2)) for config in (attacked, seen)]
    assert abs(np.corrcoef(later[0] - later[1], noise)[0, 1]) < 0.1, "another round, another noise"


def test_an_attacker_never_leaves_for_good() -> None:
    pleased = changed(HONEST, participation="defect", defect__leave_below=100.0)
    attacked = changed(pleased, byzantine_share=0.5)
    for config, decision in ((pleased, -1), (attacked, 1)):
        assert metrics_of(ask(config, LIARS[0]))[keys.DECISION] == decision


@pytest.mark.parametrize("attack", ["inflate", "claim"])
def test_honest_clients_are_the_same_to_the_byte(attack: str) -> None:
    config = changed(ATTACKED, byzantine_attack=attack, byzantine_claim=0.125)
    for partition in range(4):
        with_, without = (ask(changed(c, tuning_steps=1), partition) for c in (config, HONEST))
        assert (with_ == without) is (partition not in LIARS)
    assert metrics_of(ask(config, LIARS[0]))[APPEAL_WEIGHT] == (
        0.125 if attack == "claim" else pytest.approx(0, abs=1e-6)  # about 10 * ln 10 = 23, which is 20 above 3
    )


def test_an_attacker_measures_the_model_honestly() -> None:
    for split in (keys.TEST_SPLIT, keys.TRAIN_SPLIT):
        told = {"split": split}
        assert ask(ATTACKED, LIARS[0], "evaluate", **told) == ask(HONEST, LIARS[0], "evaluate", **told)


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_a_client_that_keeps_layers_measures_a_model_that_stays_with_its_latest(share: float) -> None:
    config = changed(HONEST, model="mlp", share="!*bias", byzantine_share=share)
    one = attacking(config, partition_id=LIARS[0])
    before = one.metrics("evaluate", server_round=0, split=keys.TRAIN_SPLIT)[keys.LOSS]
    one("train", server_round=1, mandatory=1)
    after = one.metrics("evaluate", server_round=1, split=keys.TRAIN_SPLIT)[keys.LOSS]
    one.participants.clear()  # what it remembers of the model goes, what it keeps of its training stays
    assert after == one.metrics("evaluate", server_round=1, split=keys.TRAIN_SPLIT)[keys.LOSS] != before


def test_a_gradient_and_further_records(monkeypatch: pytest.MonkeyPatch) -> None:
    start = LAYOUT.pack(INITIAL)["flat"].numpy().astype(np.float64)
    made = LAYOUT.pack({name: values + np.float32(0.01) for name, values in INITIAL.items()})

    def reply(rule: object, job: TrainingJob) -> dict[str, ArrayRecord]:
        return {keys.ARRAYS: made, CONTROL_DELTA: made}

    for rule in (Gradient, Scaffold.LocalRule):
        monkeypatch.setattr(rule, "reply", reply)
    # Taken as a model, the update is 0.01 everywhere; taken as a gradient, it is all that is sent.
    as_gradient = root_mean_square(start + 0.01)
    assert as_gradient > 0.03
    for strategy, size in (("adagd", as_gradient), ("scaffold", 0.01)):
        content = ask(changed(ATTACKED, strategy=strategy), LIARS[0])
        assert root_mean_square(flat(content) - (start + 0.01)) == pytest.approx(size, rel=0.05), strategy
        assert content.array_records[CONTROL_DELTA] == made


# -- real clients ----------------------------------------------------------------------------------------


def test_a_run_of_real_clients_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    line = "byzantine-share = 0.1 is not allowed in a run of real clients: attackers are simulated"
    with pytest.raises(ConfigError) as error:  # `fedappeal local` and `submit`
        deployed_plan({"byzantine-share": 0.1})
    assert str(error.value) == f"{line} (`fedappeal simulate`)"
    for name in ("print_log", "return_freed_memory", "keep_monotonic_time"):
        monkeypatch.setattr(app, name, lambda *_: None)
    with pytest.raises(ConfigError) as error:  # `flwr run`
        app.main(None, Context(1, 1, {}, RecordDict(), changed(HONEST, byzantine_share=0.1).as_config()))  # type: ignore[arg-type]
    assert str(error.value) == f"{line} (`fedappeal simulate`)"
