"""AdamW against torch's own, and by hand."""

import math

import pytest
import torch
from torch import nn

from client.training.sgd import AdamW
from fedappeal.core.plugins import parse_section
from fedappeal.core.registry import LOCAL_RULES
from fedappeal.settings.config import ConfigError, RunConfig
from fedappeal.settings.training import LocalTrainingSettings
from server.build import check_settings
from tests.client.training.descents import BATCHES, X, Y, after, descended, flat, network, training
from tests.problems import local_problem

OWN: list[dict[str, float]] = [{}, {"beta1": 0.0}, {"beta1": 0.5, "beta2": 0.7, "eps": 0.1}, {"beta2": 0.0}]


def rule(**own: float) -> AdamW:
    return AdamW(AdamW.Settings.parse(own))


def torchs(model: nn.Module, x: torch.Tensor, rounds: int, decay: float, **own: float) -> torch.Tensor:
    """torch.optim.AdamW, a new one each round."""
    settings = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8} | own
    for _ in range(rounds):
        optimiser = torch.optim.AdamW(
            model.parameters(),
            lr=0.3,
            betas=(settings["beta1"], settings["beta2"]),
            eps=settings["eps"],
            weight_decay=decay,
        )
        for batch in torch.from_numpy(BATCHES):
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(x[batch]), Y[batch]).backward()
            optimiser.step()
    return flat(model)


@pytest.mark.parametrize("decay", [0.0, 0.05])
@pytest.mark.parametrize("own", OWN)
def test_it_is_torchs_adamw(own: dict[str, float], decay: float) -> None:
    got = after(rule(**own), **{"weight-decay": decay})
    torch.testing.assert_close(got, torchs(network(), X, 1, decay, **own), rtol=1e-10, atol=1e-12)


def test_it_is_torchs_adamw_in_float32() -> None:
    model = network().float()
    problem = local_problem(nn.functional.cross_entropy, X.float(), Y, BATCHES, training(**{"weight-decay": 0.05}))
    rule().train(model, problem)
    torch.testing.assert_close(flat(model), torchs(network().float(), X.float(), 1, 0.05), rtol=1e-6, atol=1e-6)


def test_each_local_training_starts_with_fresh_means() -> None:
    model, one = network(), rule()
    for _ in range(2):
        one.train(model, local_problem(nn.functional.cross_entropy, X, Y, BATCHES, training()))
    torch.testing.assert_close(flat(model), torchs(network(), X, 2, 0.0), rtol=1e-10, atol=1e-12)


def trained(batches: list[list[int]], decay: float = 0.0, **own: float) -> float:
    given = {"learning-rate": 0.5, "batch-size": 2, "local-steps": len(batches), "weight-decay": decay}
    return descended(rule(**own), 1.0, batches, LocalTrainingSettings.parse(given))


def test_two_steps_by_hand() -> None:
    # w = 1, gradient w - 3 = -2: m / sqrt(v) = -1, whatever the betas; w = 1.5
    assert trained([[1, 2]]) == pytest.approx(1.5)
    # decoupled: w - 0.5 (-1 + 0.2 * 1) = 1.4
    assert trained([[1, 2]], decay=0.2) == pytest.approx(1.4)
    # beta1 = beta2 = 0.5: m = -1, v = 2; then, gradient 1.5 - 3: m = -1.25, v = 2.125; both over 1 - 0.25
    expected = 1.5 + 0.5 * (1.25 / 0.75) / math.sqrt(2.125 / 0.75)
    assert trained([[1, 2], [1, 2]], beta1=0.5, beta2=0.5) == pytest.approx(expected)
    # eps = 2 halves the first step: 2 / (2 + 2)
    assert trained([[1, 2]], eps=2.0) == pytest.approx(1.25)
    assert trained([]) == 1.0


def test_a_parameter_without_a_gradient_and_a_frozen_one_stay() -> None:
    model = network()
    first, *others = model.parameters()
    first.requires_grad_(False)
    before = [p.detach().clone() for p in (first, *others)]
    problem = local_problem(lambda logits, y: 0.0 * logits.sum(), X, Y, BATCHES, training())
    rule().train(model, problem)
    assert all(map(torch.equal, model.parameters(), before))
    rule().train(model, local_problem(nn.functional.cross_entropy, X, Y, BATCHES, training()))
    assert torch.equal(first, before[0])
    assert not any(map(torch.equal, others, before[1:]))


def test_momentum_is_refused_and_weight_decay_is_not() -> None:
    rule().check(training(**{"weight-decay": 0.1}))
    with pytest.raises(ConfigError, match=r"^momentum = 0.5 is not allowed with local-rule = 'adamw': 0$"):
        rule().check(training(momentum=0.5))


@pytest.mark.parametrize(
    ("own", "line"),
    [
        ({"beta1": 1.0}, "adamw.beta1 = 1.0 is not allowed: input should be less than 1"),
        ({"beta2": -0.1}, "adamw.beta2 = -0.1 is not allowed: input should be greater than or equal to 0"),
        ({"beta2": math.nan}, "adamw.beta2 = nan is not allowed: input should be less than 1"),
        ({"eps": 0.0}, "adamw.eps = 0.0 is not allowed: input should be greater than 0"),
        ({"beta3": 0.5}, "unknown setting 'adamw.beta3'; did you mean 'adamw.beta2'?"),
    ],
)
def test_bad_settings_are_one_line(own: dict[str, float], line: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_section(AdamW, own)
    assert str(error.value) == line


@pytest.mark.parametrize("strategy", ["fedavg", "maxfl", "fedalign", "qfedavg", "mwfed"])
def test_strategies_that_leave_the_rule_open_take_it(strategy: str) -> None:
    assert check_settings(RunConfig(strategy=strategy, local_rule="adamw")).rule is LOCAL_RULES.load("adamw") is AdamW


@pytest.mark.parametrize("strategy", ["fedprox", "scaffold", "adagd", "perfedavg", "pfedme"])
def test_strategies_with_a_rule_of_their_own_refuse_it(strategy: str) -> None:
    with pytest.raises(ConfigError, match=r"local-rule = 'adamw' is not allowed.*it has a rule of its own"):
        check_settings(RunConfig(strategy=strategy, local_rule="adamw"))
