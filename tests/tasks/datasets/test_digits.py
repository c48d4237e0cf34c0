"""The digits task, end to end: what each client gets."""

import sys

import pytest
import torch

from fedappeal.settings.config import ConfigError, TaskSettings
from fedappeal.tasks import load_task
from fedappeal.tasks.datasets import digits
from fedappeal.tasks.examples import ClientData
from fedappeal.tasks.labelled import PartitionedTask


def digits_task(**values: object) -> PartitionedTask:
    task = load_task(TaskSettings.model_validate({"task": "digits", "clients": 6, **values}))
    assert isinstance(task, PartitionedTask)
    return task


def all_data(task: PartitionedTask) -> list[ClientData]:
    return [task.load(k) for k in range(task.settings.clients + task.settings.unseen_clients)]


def test_clients_share_out_all_examples_60_to_40() -> None:
    everyone = all_data(digits_task(unseen_clients=2))
    assert sum(len(d.train) + len(d.test) for d in everyone) == 1797
    for data in everyone:
        n = len(data.train) + len(data.test)
        assert abs(len(data.train) - 0.6 * n) <= 0.5
        assert data.train.x.shape == (len(data.train), 1, 8, 8)
        assert data.train.x.dtype == data.test.x.dtype == torch.float32
        assert data.train.y.dtype == torch.int64


def test_pixels_are_normalised() -> None:
    x = torch.cat([split.x for d in all_data(digits_task()) for split in (d.train, d.test)])
    assert x.mean().item() == pytest.approx(0, abs=1e-3)
    assert x.std().item() == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("flip_on", ["train", "both"])
def test_flipping_changes_the_chosen_clients_labels_and_nothing_else(flip_on: str) -> None:
    plain, flipped = digits_task(), digits_task(flip_share=0.5, flip_on=flip_on)
    assert len(flipped.flipped) == 3
    for client, (before, after) in enumerate(zip(all_data(plain), all_data(flipped), strict=True)):
        assert torch.equal(before.train.x, after.train.x)
        assert torch.equal(before.test.x, after.test.x)
        on_train = client in flipped.flipped
        on_test = on_train and flip_on == "both"
        assert torch.equal(after.train.y, 9 - before.train.y if on_train else before.train.y)
        assert torch.equal(after.test.y, 9 - before.test.y if on_test else before.test.y)


def test_loading_again_gives_the_same_and_a_copy() -> None:
    task = digits_task()
    first = task.load(2)
    fingerprint = first.fingerprint
    first.train.x.zero_()
    first.train.y.zero_()
    assert task.load(2).fingerprint == fingerprint


def test_models_train_on_it() -> None:
    for model in ("auto", "logistic", "cnn"):
        task = digits_task(model=model, partition="iid")
        data, net = task.load(0), task.initial_model(0)
        for _ in range(60):
            # By hand: the first torch.optim.SGD of a process imports torch._dynamo, which takes seconds.
            parameters = list(net.parameters())
            gradients = torch.autograd.grad(task.loss(net(data.train.x), data.train.y), parameters)
            with torch.no_grad():
                for parameter, gradient in zip(parameters, gradients, strict=True):
                    parameter -= 0.1 * gradient
        net.eval()
        assert task.metrics(net(data.test.x), data.test.y)["accuracy"] > 0.6


def test_there_is_no_client_beyond_the_last() -> None:
    for client in (-1, 8):
        with pytest.raises(ConfigError, match=rf"client = {client} is not allowed: 0 to 7 \(clients = 6, unseen"):
            digits_task(unseen_clients=2).load(client)


def test_missing_scikit_learn_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    digits._digits.cache_clear()
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    task = digits.Digits(TaskSettings())
    for use in (task.check_data, task.read):
        with pytest.raises(ConfigError, match=r"pip install 'fedappeal\[data\]'"):
            use()


def test_the_data_are_those_of_scikit_learns_own_loader() -> None:
    from sklearn.datasets import load_digits

    pixels, labels = digits.Digits(TaskSettings()).read()
    expected = load_digits()
    assert (pixels[:, 0] == expected.images).all()
    assert (labels == expected.target).all()
