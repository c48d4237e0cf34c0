"""Losses measured with dropout on: against masks drawn by hand, and only where the setting says so."""

import numpy as np
import pytest
import torch
from flwr.app import RecordDict
from torch import Tensor, nn
from torch.nn import functional

from client.learner import Sent
from client.participant import Participant
from client.settings import NodeSettings
from client.state.store import ContextStore
from client.training.models import arrays_of, evaluate
from client.training.task_learner import TaskLearners
from fedappeal.protocol import keys
from fedappeal.protocol.draws import draw_seed
from fedappeal.protocol.keys import TEST_SPLIT, TRAIN_SPLIT
from fedappeal.settings.config import Scalar
from strategies.maxfl import APPEAL_WEIGHT, appeal_weight
from tests.node import Node, participant_of, run_config

RATE = 0.2
NODE = NodeSettings(partition_id=1, device="cpu")


def participant(
    mode: str = "training", node: NodeSettings = NODE, learners: TaskLearners | None = None, **settings: Scalar
) -> Participant:
    config = run_config(**{"clients": 4, "solo__steps": 3, "batch_size": 16, "loss_mode": mode, **settings})
    return participant_of(config, node, ContextStore(RecordDict()), learners)


def model_of(one: Participant, seed: int = 3) -> nn.Module:
    """Return a model that has learned something: an untrained one has nearly the same loss with and without."""
    model = one.learner.task.initial_model(seed)
    descent = torch.optim.SGD(model.parameters(), 0.5)
    for _ in range(60):
        descent.zero_grad()
        functional.cross_entropy(model.eval()(one.learner.data.train.x), one.learner.data.train.y).backward()
        descent.step()
    return model


def by_hand(
    model: nn.Module, x: Tensor, y: Tensor, draws: torch.Generator | np.random.Generator
) -> tuple[float, float]:
    """Return loss and accuracy of the task's mlp, its hidden units masked by hand."""
    w = model.state_dict()
    with torch.no_grad():
        hidden = functional.relu(x.flatten(1) @ w["hidden1.weight"].T + w["hidden1.bias"])
        if isinstance(draws, torch.Generator):
            kept = torch.empty_like(hidden).bernoulli_(1 - RATE, generator=draws) / (1 - RATE)
        else:
            kept = torch.from_numpy(draws.random(tuple(hidden.shape), np.float32) >= RATE) / (1 - RATE)
        second = functional.relu((hidden * kept) @ w["hidden2.weight"].T + w["hidden2.bias"])
        logits = (second @ w["output.weight"].T + w["output.bias"]).double()
    loss = (torch.logsumexp(logits, 1) - logits.gather(1, y[:, None])[:, 0]).mean()
    return float(loss), float((logits.argmax(1) == y).double().mean())


def generator(who: str, server_round: int, seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(draw_seed(seed, "noise", client=who, server_round=server_round))


def test_the_training_loss_is_that_of_masks_drawn_by_hand_and_the_test_loss_has_none() -> None:
    one, plain = participant(), participant("evaluation")
    model = model_of(one)
    arrays, data = arrays_of(model), one.learner.data
    for server_round in (4, 5):
        expected = by_hand(model, data.train.x, data.train.y, generator("client-0001/loss", server_round))
        found = one.judge(arrays, Sent("m", server_round), TRAIN_SPLIT)
        assert (found.loss, found.score) == pytest.approx(expected, rel=1e-5)
    without = plain.judge(arrays, Sent("m"), TRAIN_SPLIT)
    assert found.loss > without.loss + 0.01
    assert one.judge(arrays, Sent("m", 4), TEST_SPLIT) == plain.judge(arrays, Sent("m"), TEST_SPLIT)


def test_by_key_the_training_loss_is_that_of_the_first_layers_mask_of_the_first_forward_pass() -> None:
    one = participant(dropout_noise="keyed")
    model, data = model_of(one), one.learner.data.train
    key = draw_seed(0, "dropout", client="client-0001/loss", server_round=4)
    expected = by_hand(model, data.x, data.y, np.random.Generator(np.random.Philox(key=key)))
    found = one.judge(arrays_of(model), Sent("m", 4), TRAIN_SPLIT)
    assert (found.loss, found.score) == pytest.approx(expected, rel=1e-5)


def test_the_mean_over_many_rounds_is_the_expected_loss() -> None:
    one = participant()
    model = model_of(one)
    arrays, data, draws = arrays_of(model), one.learner.data.train, torch.Generator().manual_seed(99)
    found = [one.judge(arrays, Sent("m", r), TRAIN_SPLIT).loss for r in range(1, 201)]
    expected = [by_hand(model, data.x, data.y, draws)[0] for _ in range(200)]
    error = float(np.sqrt((np.var(found) + np.var(expected)) / 200))
    assert abs(np.mean(found) - np.mean(expected)) < 5 * error
    assert np.std(found) == pytest.approx(np.std(expected), rel=0.3)


def test_each_client_seed_and_round_has_noise_of_its_own_that_repeats_bit_for_bit() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    one = participant()
    arrays = arrays_of(model_of(one))

    def loss(who: Participant, server_round: int) -> float:
        return who.judge(arrays, Sent("m", server_round), TRAIN_SPLIT).loss

    first = loss(one, 1)
    found = [first, loss(one, 2), loss(participant(seed=1, task="digits"), 1)]
    renamed = participant(node=NODE.model_copy(update={"client_id": "other"}))
    assert renamed.learner.data.fingerprint == one.learner.data.fingerprint
    assert len({*found, loss(renamed, 1)}) == 4
    assert loss(one, 1) == loss(participant(), 1) == first
    assert torch.equal(torch.get_rng_state(), before)


def test_the_requirement_is_measured_with_noise_of_its_own() -> None:
    one, plain = participant(solo__steps=60), participant("evaluation", solo__steps=60)
    initial = arrays_of(one.learner.task.initial_model(0))
    noisy, usual = one.begin_run("k", initial), plain.begin_run("k", initial)
    model = one.learner.task.initial_model(0)
    model.load_state_dict({name: torch.from_numpy(np.array(a)) for name, a in noisy.solo.items()})
    data = one.learner.data.train
    expected, _ = by_hand(model, data.x, data.y, generator("client-0001/requirement", 0))
    assert noisy.rho == pytest.approx(expected, rel=1e-5)
    assert noisy.rho > usual.rho + 0.01
    assert noisy.solo_score == usual.solo_score, "on test data"
    for name, values in usual.solo.items():
        np.testing.assert_array_equal(noisy.solo[name], values)


def test_without_dropout_both_modes_are_one() -> None:
    noisy, usual = participant(model="logistic"), participant("evaluation", model="logistic")
    initial = arrays_of(noisy.learner.task.initial_model(0))
    assert noisy.begin_run("k", initial).rho == usual.begin_run("k", initial).rho
    for split in (TRAIN_SPLIT, TEST_SPLIT):
        tuned = usual.judge(initial, Sent("m"), split, usual.tuning(2))
        assert noisy.judge(initial, Sent("m", 3), split, noisy.tuning(2)) == tuned


def answers(
    mode: str, requirement: float, server_round: int, strategy: str = "maxfl"
) -> tuple[dict[str, object], dict[str, object]]:
    """Return what a client answers to TRAIN, and to EVALUATE on its training data."""
    config = run_config(
        clients=4,
        strategy=strategy,
        loss_mode=mode,
        requirement="fixed",
        fixed__loss=requirement,
        report_train_loss=True,
        local_steps=1,
    )
    model = arrays_of(model_of(participant(mode)))
    node = Node(config)
    trained = node.metrics("train", model, server_round=server_round)
    return trained, node.metrics("evaluate", model, server_round=server_round, split=TRAIN_SPLIT)


def test_weight_decision_and_reports_are_of_the_round_that_the_message_names() -> None:
    one = participant()
    arrays = arrays_of(model_of(one))
    first, second = (one.judge(arrays, Sent("m", r), TRAIN_SPLIT).loss for r in (1, 2))
    low, high = sorted((first, second))
    between = (low + high) / 2
    for server_round, loss in ((1, first), (2, second)):
        trained, evaluated = answers("training", between, server_round)
        assert trained[keys.DECISION] == (keys.Decision.JOINED if loss < between else keys.Decision.SAT_OUT)
        assert evaluated[keys.APPEALED_TRAIN] == int(loss < between)
        assert evaluated[keys.TRAIN_LOSS] == evaluated[keys.LOSS] == loss
        if loss < between:
            assert trained[APPEAL_WEIGHT] == appeal_weight(loss, between)
            reported, _ = answers("training", between, server_round, "qfedavg")
            assert reported[keys.LOSS] == loss
    usual = participant("evaluation").judge(arrays, Sent("m"), TRAIN_SPLIT).loss
    assert all(answers("evaluation", 9.0, r, "qfedavg")[n][keys.LOSS] == usual for r in (1, 2) for n in (0, 1))


def test_the_model_that_clients_share_is_left_in_no_mode_that_others_would_notice() -> None:
    learners = TaskLearners()
    one, plain = participant(learners=learners), participant("evaluation", learners=learners)
    assert one.learner.model is plain.learner.model is learners.scratch_model(one.learner.task, 0, one.learner.device)
    arrays = arrays_of(model_of(one))
    usual = plain.judge(arrays, Sent("m"), TRAIN_SPLIT)
    one.judge(arrays, Sent("m", 1), TRAIN_SPLIT)
    assert participant("evaluation", learners=learners).judge(arrays, Sent("m"), TRAIN_SPLIT) == usual


def test_two_federations_in_one_process_share_no_model() -> None:
    one, other = participant("evaluation"), participant("evaluation")
    assert one.learner.model is not other.learner.model
    assert one.learner.task is not other.learner.task


def test_a_normalisation_by_batches_is_measured_as_always() -> None:
    torch.manual_seed(0)
    one = participant()
    x = one.learner.data.train.x
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(x[0].numel()), nn.Linear(x[0].numel(), 10))
    model.train()(x)  # its running statistics are no longer those of a fresh one
    task, data = one.learner.task, one.learner.data.train
    assert evaluate(task, model, data, training=True) == evaluate(task, model, data)
