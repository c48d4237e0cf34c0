"""SYNTH(alpha, beta): the draws against their formulas, and the noise that is asked for."""

import numpy as np
import pytest
import torch

from fedappeal.settings.config import ConfigError, TaskSettings
from fedappeal.tasks import load_task
from fedappeal.tasks.datasets.synth import Law, Synth


def unchecked(**values: object) -> Synth:
    """Return the task; its own settings start with ``synth_``."""
    given = {key.replace("synth_", "synth.").replace("_", "-"): value for key, value in values.items()}
    task = load_task(TaskSettings.parse({"task": "synth", **given}))
    assert isinstance(task, Synth)
    return task


def made(**values: object) -> Synth:
    task = unchecked(**{"clients": 6, "synth_examples": 400, **values})
    load_task(task.settings).check()
    return task


def law_of(task: Synth, client: int) -> Law:
    return task.law(f"client-{client}")


def test_labels_are_those_of_the_clients_own_linear_model() -> None:
    task = made()
    for k in range(6):
        x, y = task.clients[k]
        assert x.shape == (400, 60)
        assert x.dtype == np.float32
        law = law_of(task, k)
        logits = x.astype(np.float64) @ law.weight + law.bias
        assert np.array_equal(logits.argmax(axis=1), y)
    assert len({law_of(task, k).bias.tobytes() for k in range(6)}) == 6


def test_inputs_have_the_variances_of_fedprox() -> None:
    x, _ = made(synth_examples=40_000, clients=1).clients[0]
    expected = np.arange(1, 61) ** -1.2
    assert x.var(axis=0) == pytest.approx(expected, rel=0.05)
    assert x.mean(axis=0) == pytest.approx(law_of(made(clients=1), 0).centre, abs=0.03)


def test_alpha_and_beta_are_how_much_clients_differ() -> None:
    def spreads(alpha: float, beta: float) -> tuple[float, float]:
        laws = [unchecked(synth_alpha=alpha, synth_beta=beta).law(str(k)) for k in range(400)]
        return float(np.std([law.weight.mean() for law in laws])), float(np.std([law.centre.mean() for law in laws]))

    # The mean of 600 weights of variance 1 about u_k: variance alpha^2 + 1/600; of 60 centres: beta^2 + 1/60.
    assert spreads(0, 0) == pytest.approx((600**-0.5, 60**-0.5), rel=0.12)
    assert spreads(1, 0.5) == pytest.approx(((1 + 1 / 600) ** 0.5, (0.25 + 1 / 60) ** 0.5), rel=0.12)


def test_sizes_are_fedproxs_lognormal() -> None:
    task = unchecked()
    sizes = np.array([task.size(k) for k in range(4000)])
    assert sizes.min() >= 50
    assert np.log(sizes - 50 + 0.5).mean() == pytest.approx(4.0, abs=0.1)
    assert np.log(sizes - 50 + 0.5).std() == pytest.approx(2.0, abs=0.1)


def test_noise_levels_spread_about_their_mean() -> None:
    assert unchecked(clients=8, synth_noisy=4, synth_noise=0.4).noise_levels().tolist() == pytest.approx(
        [0.1, 0.3, 0.5, 0.7]
    )
    assert not len(unchecked().noise_levels())


def test_noisy_clients_hold_the_others_kind_of_data_with_wrong_labels_and_irrelevant_ones() -> None:
    task = made(clients=4, synth_noisy=2, synth_noise=0.3, synth_examples=2000)
    laws = [law_of(task, k) for k in range(2)]
    for k, level in ((2, 0.15), (3, 0.45)):
        x, y = task.clients[k]
        assert len(y) == 2000 + round(level * 2000)
        # The clean clients hold equally much, so each law gives about half of the first 2000, in the laws' order.
        first = int(
            sum(np.abs(x[:2000] - laws[0].centre).sum(axis=1) < np.abs(x[:2000] - laws[1].centre).sum(axis=1))
        )
        assert first == pytest.approx(1000, abs=100)
        right = np.concatenate(
            [
                (x[rows].astype(np.float64) @ law.weight + law.bias).argmax(axis=1) == y[rows]
                for rows, law in ((slice(0, first), laws[0]), (slice(first, 2000), laws[1]))
            ]
        )
        assert (~right).sum() == round(level * 2000)
        irrelevant = task.law(f"irrelevant-{k}")
        assert np.abs(x[2000:].mean(axis=0) - irrelevant.centre).max() < 0.3
        agree = (x[2000:].astype(np.float64) @ irrelevant.weight + irrelevant.bias).argmax(axis=1) == y[2000:]
        assert agree.all()


def test_clean_clients_do_not_change_with_the_noise_of_others() -> None:
    clean, noisy = made(), made(synth_noisy=3, synth_noise=0.5)
    for k in range(3):
        assert np.array_equal(clean.clients[k][0], noisy.clients[k][0])
    for k in range(3, 6):
        assert not np.array_equal(clean.clients[k][0][:10], noisy.clients[k][0][:10])


def test_data_are_a_function_of_the_seed_and_clients_split_it() -> None:
    first, again, other = made(), made(), made(seed=1)
    assert first.load(3).fingerprint == again.load(3).fingerprint != other.load(3).fingerprint
    assert (len(first.load(3).train), len(first.load(3).test)) == (240, 160)
    short = made(max_train_examples=100)
    assert torch.equal(short.load(3).train.x, first.load(3).train.x[:100])
    assert torch.equal(short.load(3).test.x, first.load(3).test.x)
    assert first.fingerprint != made(synth_noise=0.1).fingerprint


def test_unseen_clients_have_laws_of_their_own() -> None:
    task = made(unseen_clients=1, synth_noisy=2)
    x, y = task.clients[6]
    law = law_of(task, 6)
    assert np.array_equal((x.astype(np.float64) @ law.weight + law.bias).argmax(axis=1), y)


def test_models() -> None:
    assert [tuple(p.shape) for p in made().initial_model(0).parameters()] == [(10, 60), (10,)]
    mlp = made(model="mlp").initial_model(0)
    assert [tuple(p.shape) for n, p in mlp.named_parameters() if "weight" in n] == [(64, 60), (30, 64), (10, 30)]
    with pytest.raises(ConfigError, match="model = 'cnn' is not allowed for inputs of shape"):
        made(model="cnn").initial_model(0)


def test_own_features_are_taken_as_they_are() -> None:
    raw = np.arange(120, dtype=np.float64).reshape(2, 60)
    assert torch.equal(made().inputs(raw), torch.arange(120.0).view(2, 60))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"synth_noisy": 6}, "synth.noisy = 6 is not allowed: fewer than clients = 6"),
        ({"synth_examples": 8}, "synth.examples: 8 examples a client are not allowed at min-examples = 10"),
        ({"synth_examples": 0, "min_examples": 51}, "50 examples a client are not allowed at min-examples = 51"),
        ({"synth_noise": 0.6}, "synth.noise = 0.6 is not allowed: input should be less than or equal to 0.5"),
        ({"synth_nosy": 1}, "unknown setting 'synth.nosy'; did you mean 'synth.noisy'?"),
    ],
)
def test_what_does_not_fit_is_one_line(values: dict[str, object], expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        made(**values)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_settings_of_other_plug_ins_change_nothing() -> None:
    plain, more = made(), made(**{"maxfl.server-lr": 0.5})
    assert plain.fingerprint == more.fingerprint
    assert plain.load(2).fingerprint == more.load(2).fingerprint
    digits = {load_task(TaskSettings.parse(given)).fingerprint for given in ({}, {"synth.noise": 0.1})}
    assert len(digits) == 1


def test_shifted_labels_are_the_next_ones_and_nothing_else_differs() -> None:
    given = {"clients": 4, "synth_noisy": 2, "synth_examples": 2000}
    clean, uniform, shifted = (
        made(**given, **more).read()
        for more in ({"synth_noise": 0.0}, {"synth_noise": 0.3}, {"synth_noise": 0.3, "synth_noise_form": "shifted"})
    )
    for k, level in ((2, 0.15), (3, 0.45)):  # 2 * 0.3 * (i - 1/2) / 2
        (_, right), (x, any_label), (same_x, y) = clean[k], uniform[k], shifted[k]
        assert (x == same_x).all()
        moved = (y[:2000] - right[:2000]) % 10
        assert sorted(set(moved.tolist())) == [0, 1]
        assert moved.sum() == round(level * 2000)
        assert ((any_label[:2000] != right[:2000]) == (moved == 1)).all(), "the same examples are wrong"
        assert (any_label[2000:] == y[2000:]).all(), "irrelevant ones are not shifted"
