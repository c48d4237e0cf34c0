"""Promise: what a server works out of a client's requirement, under each switch, is in docs/attacks.json."""

from collections.abc import Callable
from pathlib import Path

import pytest

from fedappeal.protocol import keys
from fedappeal.settings.config import ConfigError, RunConfig
from strategies.maxfl_adagd import MaxFLAdaGD
from tests.hostile.attacks.figures import NOISY, SILENT, check, requirement_figure
from tests.hostile.attacks.requirement import by_appeal, by_decisions, by_margin, by_rounded_weight, by_weight
from tests.hostile.attacks.victim import Found, Victim, write_images
from tests.node import changed, run_config

MAXFL = run_config(model="logistic")
FEDAVG = run_config(model="logistic", strategy="fedavg")
COMBINED = run_config(model="logistic", strategy="maxfl-adagd", maxfl_adagd__form="one-gradient")
SLACK = MaxFLAdaGD.Settings(form="one-gradient").slack * MaxFLAdaGD.Settings(form="one-gradient").precision


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return write_images(tmp_path)


def decisions(victim: Victim) -> Found[float]:
    return by_decisions(victim, steps=13, nodes=5)


Attack = Callable[[Victim], Found[float]]
ATTACKS: list[tuple[str, RunConfig, str, Attack]] = [
    ("MaxFL's weight, of a model of zeros", MAXFL, "", by_weight),
    ("MaxFL's weight, of a model of zeros", MAXFL, "--no-report-loss", by_weight),
    ("MaxFL-ADA-GD's margin, of a model of zeros", COMBINED, "--no-report-loss", lambda v: by_margin(v, SLACK)),
    (
        "a loss and a bit of each model, of a run without weights",
        FEDAVG,
        "--no-report-weight",
        lambda v: by_appeal(v, keys.TRAIN_SPLIT, steps=12),
    ),
    ("decisions and gradients", FEDAVG, SILENT, decisions),
    ("decisions and gradients", FEDAVG, f"{SILENT} {NOISY}", decisions),
]


@pytest.mark.parametrize(("name", "config", "options", "attack"), ATTACKS, ids=[attack[0] for attack in ATTACKS])
def test_what_an_attack_finds_is_what_is_committed(
    name: str, config: RunConfig, options: str, attack: Attack, images: Path
) -> None:
    victim = Victim(config, images, options)
    found = attack(victim)
    check(name, options, found.models, requirement_figure(found.value, victim.rho))


def test_rounding_the_weight_would_only_cost_the_server_a_few_models_more(images: Path) -> None:
    """Why there is no such switch: the first answer is far off, the ninth is not."""
    victim = Victim(MAXFL, images)
    found = by_rounded_weight(victim, digits=2, trains=9)
    assert abs(found[0].value / victim.rho - 1) > 0.5
    last = found[-1]
    check("MaxFL's weight, rounded to 0.01", "", last.models, requirement_figure(last.value, victim.rho))


@pytest.mark.parametrize("config", [MAXFL, COMBINED])
def test_a_strategy_that_needs_the_weight_gets_no_answer_without(config: RunConfig, images: Path) -> None:
    victim = Victim(config, images, "--no-report-weight")
    with pytest.raises(ConfigError, match="report-weight = False is not allowed in this run"):
        victim.train(victim.zero())


def test_with_all_switches_and_a_policy_that_always_joins_no_reply_depends_on_the_requirement(images: Path) -> None:
    """The attacks' own messages, to clients that differ in nothing but rho_k."""
    told: list[list[object]] = []
    for rho in (0.05, 0.5, 5.0):
        victim = Victim(FEDAVG, images, f"{SILENT} --participation always --fixed-requirement {rho}")
        assert victim.rho == rho
        replies: list[object] = [victim.node("query")]
        by_decisions(victim, steps=6, nodes=2)
        models = [victim.zero(), victim.node.initial]
        replies += [victim.train(model, mandatory=asked) for model in models for asked in (False, True)]
        replies += [victim.evaluate(model) for model in models]
        told.append(replies)
    assert told[0] == told[1] == told[2]
    assert len(told[0]) == 7


def test_each_of_these_switches_is_needed_for_that(images: Path) -> None:
    def told(options: str, rho: float) -> list[object]:
        victim = Victim(FEDAVG, images, f"{options} --fixed-requirement {rho}")
        return [victim.train(victim.zero(), mandatory=False), victim.evaluate(victim.zero())]

    for missing in ("--participation always", "--no-report-appeal"):
        options = "--no-report-weight --no-report-appeal --participation always".replace(missing, "")
        assert told(options, 0.05) != told(options, 5.0)
    kept = "--no-report-weight --no-report-appeal --participation always"
    assert told(kept, 0.05) == told(kept, 5.0), "losses and figures of the model alone do not depend on rho_k"


def test_a_requirement_of_the_owners_own_lets_no_useless_model_be_trained(images: Path) -> None:
    """A run may call every round mandatory and give every client a requirement that all models meet."""
    generous = changed(FEDAVG, requirement="fixed", fixed__loss=1e9, participation="always")
    owner = "--refuse-mandatory --participation appeal --fixed-requirement 0.05"
    for options, arrays in (("", True), (owner, False)):
        victim = Victim(generous, images, options)
        assert (keys.ARRAYS in victim.train(victim.zero())) is arrays
