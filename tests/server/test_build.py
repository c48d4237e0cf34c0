"""Which settings go with which strategy: each refusal is one line, and nothing else is refused."""

import sys
from pathlib import Path

import pytest
from pydantic import Field

from client.requirement import Solo
from fedappeal.core.plugins import PluginSettings
from fedappeal.core.policy import Policy, Situation
from fedappeal.core.registry import REQUIREMENTS
from fedappeal.core.registry import STRATEGIES as REGISTRY
from fedappeal.protocol.keys import Decision
from fedappeal.settings.config import ConfigError, RunConfig, Scalar
from server.build import (
    check_names,
    check_settings,
    run_plugins,
)
from strategies import FedAvg
from strategies.rounds.strategy import shared_of
from tests.node import changed, run_config

STRATEGIES = list(REGISTRY.built_in)

# By the papers: whose server needs F_k, whose clients follow a rule of their own, whose reply is not one model.
NEED_LOSSES = {"fedalign", "adagd", "qfedavg", "afl", "term"}
OWN_RULES = {"adagd", "maxfl-adagd", "fedprox", "scaffold", "ditto", "perfedavg", "pfedme"}
NOT_ONE_MODEL = {"adagd", "maxfl-adagd", "scaffold"}
ALL_CLIENTS = {"adagd", "maxfl-adagd"}


def refusal(strategy: str, **settings: Scalar) -> str:
    """Return the line with which settings are refused, or nothing."""
    try:
        check_settings(run_config(strategy=strategy, **settings))
    except ConfigError as error:
        return str(error)
    return ""


def test_every_strategy_goes_with_its_defaults() -> None:
    assert [refusal(name) for name in STRATEGIES] == [""] * len(STRATEGIES)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    ("settings", "by", "line"),
    [
        (
            {"report_loss": False},
            NEED_LOSSES,
            "report-loss = False is not allowed with strategy = '{}': it needs the clients' losses",
        ),
        (
            {"local_rule": "prox"},
            OWN_RULES - {"fedprox"},  # whose own it is
            "local-rule = 'prox' is not allowed with strategy = '{}': it has a rule of its own",
        ),
        (
            {"local_rule": "sgd"},
            OWN_RULES,
            "local-rule = 'sgd' is not allowed with strategy = '{}': it has a rule of its own",
        ),
        (
            {"clients_per_round": 3},
            ALL_CLIENTS,
            "clients-per-round = 3 is not allowed with strategy = '{}': every round needs all clients (0)",
        ),
        (
            {"clipping_norm": 0.5},
            NOT_ONE_MODEL,
            "clipping-norm = 0.5 is not allowed with strategy = '{}': a reply is not one trained model (0)",
        ),
        (
            {"pfedme__personal_learning_rate": 0.25, "pfedme__moreau_lambda": 10.0},
            {"pfedme"},
            "pfedme.personal-learning-rate = 0.25 is not allowed with pfedme.moreau-lambda = 10: less than 0.2 "
            "(2 / lambda)",
        ),
        (
            {"loss_mode": "training"},
            {"adagd", "maxfl-adagd"},
            "loss-mode = 'training' is not allowed with strategy = '{}': evaluation",
        ),
        (
            {"dp_epsilon": 3.0},
            NOT_ONE_MODEL,
            "dp-epsilon = 3 is not allowed with strategy = '{}': a reply is not one trained model (0)",
        ),
    ],
)
def test_a_setting_that_does_not_go_with_the_strategy(
    strategy: str, settings: dict[str, Scalar], by: set[str], line: str
) -> None:
    found = refusal(strategy, **settings)
    if strategy in by:
        assert found == line.format(strategy)
    elif strategy == "fednova" and "prox" in settings.values():
        assert found.endswith(": the steps that it counts are SGD's (auto, sgd)")
    elif "dp_epsilon" in settings:
        assert found == "clipping-norm = 0 is not allowed with dp-epsilon = 3: more than 0"
    else:
        assert found == ""


@pytest.mark.parametrize("strategy", sorted(set(STRATEGIES) - NOT_ONE_MODEL))
def test_privacy_goes_with_every_strategy_whose_reply_is_one_model(strategy: str) -> None:
    assert refusal(strategy, dp_epsilon=3.0, clipping_norm=1.0) == ""


@pytest.mark.parametrize(
    ("name", "hint"),
    [("fedalin", " (did you mean 'fedalign'?)"), ("scafold", " (did you mean 'scaffold'?)"), ("zzz", "")],
)
def test_an_unknown_strategy_is_one_line_that_names_all(name: str, hint: str) -> None:
    line = f"strategy = '{name}' is not allowed: {', '.join(STRATEGIES)}, or package.module:Name of your own{hint}"
    assert refusal(name) == line
    with pytest.raises(ConfigError) as error:
        run_plugins(RunConfig(strategy=name))
    assert str(error.value) == line
    with pytest.raises(ConfigError) as error:
        check_settings(RunConfig(strategy=name)).build()
    assert str(error.value) == line


@pytest.mark.parametrize(
    ("strategy", "settings", "line"),
    [
        ("perfedavg", {"momentum": 0.9}, "momentum = 0.9 is not allowed with local-rule = 'maml': 0"),
        ("pfedme", {"weight_decay": 0.1}, "weight-decay = 0.1 is not allowed with local-rule = 'moreau': 0"),
        ("scaffold", {"momentum": 0.9}, "momentum = 0.9 is not allowed with local-rule = 'scaffold': 0"),
        ("scaffold", {"weight_decay": 0.1}, ""),
        (
            "adagd",
            {"momentum": 0.9, "adagd.form": "one-gradient"},
            "momentum = 0.9 is not allowed with local-rule = 'gradient': 0",
        ),
        ("fedprox", {"momentum": 0.9}, ""),
        (
            "mwfed",
            {"local_steps": 0, "local_epochs": 1},
            "local-steps = 0 is not allowed with strategy = 'mwfed': it shares out steps, not epochs (at least 1)",
        ),
        (
            "fedalign",
            {"clients": 3, "fedalign__priority_clients": 4},
            "fedalign.priority-clients = 4 is not allowed: at most clients = 3",
        ),
    ],
)
def test_what_a_strategys_own_rule_or_rounds_do_not_take(
    strategy: str, settings: dict[str, Scalar], line: str
) -> None:
    assert refusal(strategy, **settings) == line


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_is_built_with_what_all_share(name: str) -> None:
    some = {} if name in ALL_CLIENTS else {"clients_per_round": 3}
    built = check_settings(
        RunConfig(
            strategy=name,
            clients=5,
            unseen_clients=2,
            seed=8,
            evaluate_every=4,
            start_timeout=20.0,
            start_after=3.0,
            round_timeout=7.0,
            measure_leavers=False,
            on_empty_round="keep",
            ask_on=False,
            mandatory_rounds=2,
            **some,
        )
    ).build()
    shared = shared_of(built)
    assert shared.clients_per_round == some.get("clients_per_round")
    mandatory = 0 if name in ("fedalign", "adagd", "maxfl-adagd") else 2  # whose clients do not read it
    assert (shared.min_clients, shared.expected_clients, shared.mandatory_rounds) == (1, 7, mandatory)
    assert (shared.evaluate_every, shared.start_after) == (4, 3.0)
    assert (shared.start_timeout, shared.round_timeout, shared.seed) == (20.0, 7.0, 8)
    assert (shared.measure_leavers, shared.ask_on, shared.on_empty_round) == (False, False, "keep")
    assert built.name == name


# -- mandatory rounds, by what the run's policies say of themselves --------------------------------------


class Heeds(Policy):
    """A policy of one's own that knows mandatory rounds."""

    mandatory = True

    class Settings(PluginSettings):
        """The policy's settings."""

        patience: int = Field(3, description="rounds")

    def decide(self, situation: Situation) -> Decision:
        return Decision.JOINED


class Ignores(Heeds):
    """One that does not."""

    mandatory = False


HEEDS, IGNORES = f"{__name__}:Heeds", f"{__name__}:Ignores"


@pytest.mark.parametrize(
    ("strategy", "participation", "heeded"),
    [
        ("maxfl", "auto", True),
        ("maxfl", "always", False),
        ("fedalign", "auto", False),
        ("fedalign", "appeal", True),
        ("adagd", "auto", False),
        ("maxfl-adagd", "auto", False),
        ("maxfl", HEEDS, True),
        ("maxfl", IGNORES, False),
        # any policy of a mixture
        ("adagd", "defect=0.9,appeal=0.1", True),
        ("adagd", f"defect=0.9,{HEEDS}=0.1", True),
        ("maxfl", f"always=0.5,{IGNORES}=0.5", False),
    ],
)
def test_mandatory_rounds_are_asked_for_only_where_clients_heed_them(
    strategy: str, participation: str, heeded: bool
) -> None:
    """`mandatory` in the history would else say what bound no client."""
    config = RunConfig(strategy=strategy, participation=participation, rounds=20, mandatory_rounds=2)
    assert run_plugins(config).knows_mandatory is heeded
    shared = check_settings(config).shared_settings()
    assert (shared.mandatory_rounds, shared.on_empty_round) == ((2, "ask-all") if heeded else (0, "keep"))


def test_how_many_rounds_are_mandatory_where_the_run_does_not_say() -> None:
    assert check_settings(RunConfig(strategy="maxfl")).shared_settings().mandatory_rounds == "auto"
    assert check_settings(RunConfig(strategy="maxfl", mandatory_rounds=-1)).shared_settings().mandatory_rounds is None
    assert check_settings(RunConfig(strategy="fedalign")).shared_settings().mandatory_rounds == 0


# -- settings of plug-ins --------------------------------------------------------------------------------


@pytest.mark.parametrize("requirement", REQUIREMENTS.built_in)
@pytest.mark.parametrize("participation", ["auto", "appeal=0.5,defect=0.3,always=0.2", HEEDS])
def test_every_kind_of_requirement_goes_with_every_policy(requirement: str, participation: str) -> None:
    assert refusal("fedavg", requirement=requirement, participation=participation) == ""


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"maxfl.server-lr": 0.0}, "maxfl.server-lr = 0.0 is not allowed: input should be greater than 0"),
        ({"maxfl.server-lr": True}, "maxfl.server-lr = True is not allowed: a number"),
        ({"solo.steps": 2**63}, f"solo.steps = {2**63} is not allowed: a whole number of at most 64 bits"),
        ({"maxfl.server-rl": 1.0}, "unknown setting 'maxfl.server-rl'; did you mean 'maxfl.server-lr'?"),
        ({"maxf.server-lr": 1.0}, "unknown plug-in 'maxf' in the settings; did you mean 'maxfl'?"),
        ({"solo.steps": 0}, "solo.steps = 0 is not allowed: input should be greater than or equal to 1"),
        # of plug-ins that the run does not use
        ({"pfedme.moreau-steps": 0}, "pfedme.moreau-steps = 0 is not allowed: input should be greater than"),
        ({"defect.leave-bellow": 1}, "unknown setting 'defect.leave-bellow'; did you mean 'defect.leave-below'?"),
        ({"synth.alpha": -1.0}, "synth.alpha = -1.0 is not allowed: "),
        ({"heeds.patience": 1}, "unknown plug-in 'heeds' in the settings"),
    ],
)
def test_a_plug_ins_setting_that_is_not_allowed_is_one_line(settings: dict[str, Scalar], line: str) -> None:
    with pytest.raises(ConfigError) as error:
        check_settings(RunConfig.parse(settings))
    assert str(error.value).startswith(line)
    assert "\n" not in str(error.value)


def test_settings_that_the_run_does_not_use_are_accepted_and_named() -> None:
    config = RunConfig.parse(
        {"maxfl.server-lr": 0.5, "fixed.loss": 2.0, "defect.leave-below": 0.1, "synth.alpha": 1.0}
    )
    check_settings(config)
    assert run_plugins(config).unused_settings() == [
        f"{key} is not used by this run" for key in ("defect.leave-below", "fixed.loss", "synth.alpha")
    ]
    assert (
        run_plugins(changed(config, requirement="fixed", participation="defect", task="synth")).unused_settings()
        == []
    )
    own = RunConfig.parse({"participation": HEEDS, "heeds.patience": 5})
    check_settings(own)
    assert run_plugins(own).unused_settings() == []


def test_a_runs_settings_resolved_hold_every_setting_of_the_plug_ins_used() -> None:
    found = run_plugins(run_config(participation=f"defect=0.5,{HEEDS}=0.5", maxfl__server_lr=0.5)).all_settings()
    own = {key: value for key, value in found.items() if "." in key}
    assert own == {
        "maxfl.server-lr": 0.5,
        "maxfl.stabilizer": 0.001,
        "maxfl.step-sizes": "set",
        "heeds.patience": 3,
        "solo.steps": 100,
        "solo.effort": "set",
        "solo.learning-rate": 0.1,
    }
    assert {key: value for key, value in found.items() if "." not in key} == run_config(
        participation=f"defect=0.5,{HEEDS}=0.5"
    ).as_config()
    # A local rule's stand under its strategy's name, once; a task's under its own.
    prox = run_plugins(run_config(strategy="fedavg", local_rule="prox")).all_settings()
    assert prox["fedprox.proximal-mu"] == 0.01
    synth = run_plugins(run_config(task="synth", synth__alpha=0.5)).all_settings()
    assert {key: value for key, value in synth.items() if key.startswith("synth.")} == {
        "synth.alpha": 0.5,
        "synth.beta": 1.0,
        "synth.examples": 0,
        "synth.noisy": 0,
        "synth.noise": 0.25,
        "synth.noise-form": "uniform",
    }
    # What is recorded is a run's settings again.
    assert run_plugins(RunConfig.parse(found)).all_settings() == found


# -- plug-ins of one's own -------------------------------------------------------------------------------


def test_which_plug_ins_are_not_fedappeals() -> None:
    config = run_config(participation=f"appeal=0.5,{HEEDS}=0.5")
    assert [(kind, found.name) for kind, found in run_plugins(config).foreign()] == [("participation", HEEDS)]
    assert run_plugins(config).packages() == [__name__.partition(".")[0]]
    assert run_plugins(RunConfig()).foreign() == run_plugins(RunConfig()).packages() == []


OWN_RULE = """
from client.training.sgd import SGD
from strategies import FedAvg

class Mine(FedAvg):
    class LocalRule(SGD):
        name = "mine-steps"
"""


def test_a_rule_of_a_strategy_of_ones_own_comes_with_the_strategy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rule_of_its_own.py").write_text(OWN_RULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    config = run_config(strategy="rule_of_its_own:Mine")
    # A client finds it where it finds the strategy: no name of its own is announced.
    assert [(kind, found.name) for kind, found in run_plugins(config).foreign()] == [
        ("strategy", "rule_of_its_own:Mine")
    ]
    assert issubclass(run_plugins(config).strategy, FedAvg)
    sys.modules.pop("rule_of_its_own")


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("momentum", "plug-in Mine is called 'momentum', as a general setting is: rename it"),
        ("set", "plug-in Mine is called 'set', as a general setting is: rename it"),
        ("solo", "plug-ins Mine and Solo are both called 'solo': rename one"),
        ("my_own", "plug-in Mine is called 'my_own': small letters, digits and '-' are allowed"),
        ("my.own", "plug-in Mine is called 'my.own': small letters, digits and '-' are allowed"),
        ("", "plug-in Mine is called '': small letters, digits and '-' are allowed"),
    ],
)
def test_a_plug_ins_name_has_one_meaning(name: str, line: str) -> None:
    class Mine(FedAvg):
        """Mine."""

        class Settings(PluginSettings):
            """Its settings."""

            step: float = 1.0

    check_names([Mine, Solo])
    Mine.name = name
    with pytest.raises(ConfigError) as error:
        check_names([Mine, Solo])
    assert str(error.value) == line


@pytest.mark.parametrize("rule", ["scaffold", "gradient", "weighted-gradient"])
def test_a_rule_whose_replies_only_its_own_strategy_can_use(rule: str) -> None:
    assert refusal("fedavg", local_rule=rule) == (
        f"local-rule = '{rule}' is not allowed with strategy = 'fedavg': its replies are not one trained model, "
        "which only the strategy that it belongs to can use"
    )
    assert not refusal("fedavg", local_rule="prox")
