"""Appendix D's data: an agent keeps the share q of one class and mixes the rest; settings; w_0 = 0."""

from collections.abc import Mapping

import numpy as np
import pytest

from fedappeal.reproductions.adagd.task import SOURCES, mix_pools
from fedappeal.settings.config import ConfigError, TaskSettings
from fedappeal.tasks import load_task
from fedappeal.tasks.datasets.cifar10 import CIFAR10
from fedappeal.tasks.datasets.idx_images import FashionMNIST
from fedappeal.tasks.examples import Labels, Pixels

TASK = "fedappeal.reproductions.adagd.task:KeptShare"


def kept_share(classes: str, keep: float, examples: int, data: str = "fmnist") -> dict[str, object]:
    """Return the task's settings."""
    values = {"data": data, "classes": classes, "keep": keep, "examples": examples}
    return {"task": TASK, **{f"kept-share.{key}": value for key, value in values.items()}}


A_CLASS = 40


def _images() -> tuple[Pixels, Labels]:
    """Ten classes of 40 images in a mixed order; every pixel is the class, but for the first: the place in it."""
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), A_CLASS))
    place = np.zeros(len(labels), dtype=np.int64)
    for c in range(10):
        place[labels == c] = np.arange(A_CLASS)
    pixels = np.zeros((len(labels), 1, 28, 28), dtype=np.uint8)
    pixels[:] = labels[:, None, None, None]
    pixels[:, 0, 0, 0] = place
    return pixels, labels


class Small(FashionMNIST):
    """Stands in for Fashion-MNIST with its layout."""

    num_examples = 10 * A_CLASS

    def check_data(self) -> None: ...

    def read(self) -> tuple[Pixels, Labels]:
        return _images()


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SOURCES, "fmnist", Small)


def settings(task: Mapping[str, object], clients: int = 2, unseen: int = 0, **more: object) -> TaskSettings:
    """Settings of a task by its own ones."""
    return TaskSettings.parse({**task, "clients": clients, "unseen-clients": unseen, "train-share": 0.5, **more})


@pytest.mark.parametrize(("keep", "kept"), [(1.0, 10), (0.9, 9), (0.5, 5), (0.0, 0)])
def test_mixing_by_hand(keep: float, kept: int) -> None:
    pools = [np.arange(10 * i, 10 * i + 10) for i in range(4)]
    found = mix_pools(pools, keep, seed=3)
    assert [len(rows) for rows in found] == [10] * 4
    assert sorted(np.concatenate(found)) == list(range(40))  # nothing is lost, nothing is there twice
    for i, rows in enumerate(found):
        assert set(rows[:kept]) <= set(pools[i])
    others = sum(len(set(rows) - set(pools[i])) for i, rows in enumerate(found))
    assert others <= 4 * (10 - kept)
    if 0 < kept < 10:
        assert others > 0


def test_the_share_of_an_agents_own_class() -> None:
    """An agent of n = 2 has q + (1 - q) / 2 of its own class in the mean: 0.95 for q = 0.9, not 0.55."""
    pools = [np.arange(0, 10_000), np.arange(10_000, 20_000)]
    for keep, share in ((0.9, 0.95), (0.1, 0.55)):
        rows = mix_pools(pools, keep, seed=0)[0]
        assert (rows < 10_000).mean() == pytest.approx(share, abs=0.01)


def test_two_classes() -> None:
    task = load_task(settings(kept_share("5,9", 0.9, 40)))
    data = [task.load(k) for k in range(2)]
    assert task.num_classes == 2
    assert [(len(d.train), len(d.test)) for d in data] == [(20, 20)] * 2
    labels = [np.concatenate([d.train.y.numpy(), d.test.y.numpy()]) for d in data]
    assert sorted(round(y.mean() * 40) for y in labels) in ([2, 38], [3, 37], [4, 36], [1, 39], [0, 40])
    # 36 of 40 are kept: at most 4 of the other class. Label 0 is class 5, label 1 is class 9, in the pixels too.
    mean, std = FashionMNIST.mean, FashionMNIST.std
    for part in (data[0].train, data[1].test):
        pixel = part.x[:, 0, 5, 5].numpy() * std + mean
        assert np.round(255 * pixel).tolist() == [(5, 9)[y] for y in part.y.tolist()]
    assert task.class_names == ("sandal", "ankle-boot")


def test_pixels_between_0_and_1() -> None:
    raw, scaled = (
        load_task(settings({**kept_share("5,9", 0.9, 40), **more})).load(0).train.x
        for more in ({"kept-share.pixels": "unit"}, {})
    )
    assert np.round(255 * raw[:, 0, 5, 5].numpy()).tolist() == pytest.approx(255 * raw[:, 0, 5, 5].numpy(), abs=1e-4)
    assert (float(raw.min()), float(raw.max()) <= 1) == (0.0, True)
    assert scaled.numpy() == pytest.approx((raw.numpy() - FashionMNIST.mean) / FashionMNIST.std, abs=1e-6)


def test_agents_share_no_image() -> None:
    task = load_task(settings(kept_share("0,1,2,3,4,5,6,7,8,9", 0.5, 20), clients=12, unseen=8))
    seen = []
    for k in range(20):
        data = task.load(k)
        for part in (data.train, data.test):
            place = np.round(255 * (part.x[:, 0, 0, 0].numpy() * FashionMNIST.std + FashionMNIST.mean))
            seen += list(zip(part.y.tolist(), place.tolist(), strict=True))
    assert len(seen) == 400
    assert len(set(seen)) == 400


def test_the_model_starts_at_zero() -> None:
    for model, zero in (("auto", True), ("logistic", True), ("mlp", False)):
        task = load_task(settings(kept_share("5,9", 0.9, 40), model=model))
        found = [bool(parameter.any()) for parameter in task.initial_model(0).parameters()]
        assert any(found) != zero
    assert load_task(settings(kept_share("0,1,2", 0.9, 40))).initial_model(0)[-1].weight.shape == (3, 784)  # type: ignore[index]


def test_every_seed_deals_anew_and_alike() -> None:
    first, again, other = (load_task(settings(kept_share("5,9", 0.9, 40), seed=seed)).load(0) for seed in (0, 0, 1))
    assert first.fingerprint == again.fingerprint != other.fingerprint


@pytest.mark.parametrize(
    ("own", "more", "line"),
    [
        ({"examples": 41}, {}, "clients = 2 + unseen-clients = 0 is not allowed: 1 agents share a class, 41"),
        ({"examples": 30}, {"clients": 3}, "2 agents share a class, 30 examples each, and it has 40"),
        ({}, {"flip-share": 0.5}, "flip-share = 0.5 is not allowed with this task: 0"),
        (
            {"classes": "5,5"},
            {},
            "kept-share.classes = '5,5' is not allowed: two or more different classes of 0 to 9",
        ),
        ({"classes": "5"}, {}, "kept-share.classes = '5' is not allowed: two or more different classes"),
        ({"classes": "5,10"}, {}, "kept-share.classes = '5,10' is not allowed"),
        ({"keep": 1.01}, {}, "kept-share.keep = 1.01 is not allowed: input should be less than or equal to 1"),
        ({"examples": 1}, {}, "kept-share.examples = 1 is not allowed"),
        ({"data": "digits"}, {}, "kept-share.data = 'digits' is not allowed: input should be 'fmnist' or 'cifar10'"),
        ({"kept": 0.5}, {}, "unknown setting 'kept-share.kept'; did you mean 'kept-share.keep'?"),
    ],
)
def test_what_is_not_allowed(own: dict[str, object], more: dict[str, object], line: str) -> None:
    given = {"classes": "5,9", "keep": 0.9, "examples": 40, **own}
    values = {"task": TASK, "clients": 2, **{f"kept-share.{key}": value for key, value in given.items()}, **more}
    with pytest.raises(ConfigError) as error:
        load_task(TaskSettings.parse(values)).check()
    assert line in str(error.value)
    assert "\n" not in str(error.value)


def test_without_its_data_an_arm_cannot_run(monkeypatch: pytest.MonkeyPatch) -> None:
    class Missing(CIFAR10):
        def check_data(self) -> None:
            raise ConfigError("no data here")

    monkeypatch.setitem(SOURCES, "cifar10", Missing)
    with pytest.raises(ConfigError, match="no data here"):
        load_task(settings(kept_share("0,1", 0.9, 40, "cifar10"))).check()


def test_settings_as_a_command_line_gives_them() -> None:
    """``0,1`` stays a text: as the digits 01 it would be the number 1."""
    own = "kept-share.data=fmnist kept-share.classes=0,1 kept-share.keep=1 kept-share.examples=40"
    written = load_task(TaskSettings.parse({"task": TASK, "clients": 2, "train-share": 0.5, "set": own})).load(0)
    assert written.fingerprint == load_task(settings(kept_share("0,1", 1.0, 40))).load(0).fingerprint


def test_the_draws_stay_what_they_are() -> None:
    """The committed pages' runs have these data: a change here would make them other experiments."""
    task = load_task(settings(kept_share("5,9", 0.9, 40), clients=2, unseen=0, seed=3))
    assert [task.load(k).fingerprint for k in range(2)] == ["4c0adf5e621776b1", "2042f602b5c636d8"]
