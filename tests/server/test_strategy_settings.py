"""Which settings go with which strategy: each refusal is one line, and nothing else is refused."""

from pathlib import Path

import pytest

from fedappeal.protocol.config import ConfigError, RunConfig, Scalar
from server.strategies import STRATEGIES, build_strategy, check_settings, check_strategy

FOLDER = Path(__file__).parents[2] / "strategies"
EXISTING = [name for name in STRATEGIES if (FOLDER / f"{name.replace('-', '_')}.py").exists()]

# By the papers: whose server needs F_k, whose clients follow a rule of their own, whose reply is not one model.
NEED_LOSSES = {"fedalign", "adagd", "qfedavg"}
OWN_RULES = {"adagd", "maxfl-adagd", "fedprox", "scaffold", "perfedavg", "pfedme"}
NOT_ONE_MODEL = {"adagd", "maxfl-adagd", "scaffold"}
ALL_CLIENTS = {"adagd", "maxfl-adagd"}


def refusal(strategy: str, **settings: Scalar) -> str:
    """Return the line with which settings are refused, or nothing."""
    try:
        check_settings(RunConfig.model_validate({"strategy": strategy, **settings}))
    except ConfigError as error:
        return str(error)
    return ""


def test_every_strategy_goes_with_its_defaults() -> None:
    assert [refusal(name) for name in STRATEGIES] == [""] * 11


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
            OWN_RULES,
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
            {"personal_learning_rate": 0.25, "moreau_lambda": 10.0},
            {"pfedme"},
            "personal-learning-rate = 0.25 is not allowed with moreau-lambda = 10: less than 0.2 (2 / lambda)",
        ),
        (
            {"loss_mode": "training"},
            {"adagd", "maxfl-adagd"},
            "loss-mode = 'training' is not allowed with strategy = '{}': "
            "its gradients are those of the loss in evaluation mode",
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
    elif "dp_epsilon" in settings:
        assert found == "clipping-norm = 0 is not allowed with dp-epsilon = 3: more than 0"
    else:
        assert found == ""


@pytest.mark.parametrize("strategy", sorted(STRATEGIES.keys() - NOT_ONE_MODEL))
def test_privacy_goes_with_every_strategy_whose_reply_is_one_model(strategy: str) -> None:
    assert refusal(strategy, dp_epsilon=3.0, clipping_norm=1.0) == ""


@pytest.mark.parametrize(
    ("name", "hint"),
    [("fedalin", " (did you mean 'fedalign'?)"), ("scafold", " (did you mean 'scaffold'?)"), ("zzz", "")],
)
def test_an_unknown_strategy_is_one_line_that_names_all(name: str, hint: str) -> None:
    line = f"strategy = '{name}' is not allowed: {', '.join(STRATEGIES)}{hint}"
    assert refusal(name) == line
    with pytest.raises(ConfigError) as error:
        check_strategy(name)
    assert str(error.value) == line
    with pytest.raises(ConfigError) as error:
        build_strategy(RunConfig(strategy=name))
    assert str(error.value) == line


@pytest.mark.parametrize("name", EXISTING)
def test_every_strategy_is_built_with_what_all_share(name: str) -> None:
    some = {} if name in ALL_CLIENTS else {"clients_per_round": 3}
    built = build_strategy(
        RunConfig(
            strategy=name,
            clients=5,
            unseen_clients=2,
            seed=8,
            evaluate_every=4,
            start_timeout=20.0,
            round_timeout=7.0,
            measure_leavers=False,
            empty_pool="keep",
            mandatory_rounds=2,
            **some,
        )
    )
    assert built.clients_per_round == some.get("clients_per_round")
    mandatory = 0 if name in ("fedalign", "adagd", "maxfl-adagd") else 2  # whose clients do not read it
    assert (built.min_available_nodes, built.mandatory_rounds, built.evaluate_every) == (7, mandatory, 4)
    assert (built.start_timeout, built.round_timeout, built.seed) == (20.0, 7.0, 8)
    assert (built.measure_leavers, built.empty_pool, built.finished) == (False, "keep", "")


def test_mandatory_rounds_are_asked_for_only_where_clients_heed_them() -> None:
    """`mandatory` in the history would else say what nobody was bound by."""
    for strategy, participation, heeded in (
        ("maxfl", "auto", True),
        ("maxfl", "always", False),
        ("fedalign", "auto", False),
        ("fedalign", "appeal", True),
        ("adagd", "auto", False),
        ("maxfl-adagd", "auto", False),
    ):
        config = RunConfig(strategy=strategy, participation=participation, rounds=20, mandatory_rounds=2)  # type: ignore[arg-type]
        built = build_strategy(config)
        assert (built.mandatory_rounds, built.empty_pool) == ((2, "ask-all") if heeded else (0, "keep"))
    assert build_strategy(RunConfig(strategy="maxfl")).mandatory_rounds is None
    assert build_strategy(RunConfig(strategy="fedalign")).mandatory_rounds == 0
