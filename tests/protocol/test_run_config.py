"""The run configuration: what is allowed, and how what is not is explained."""

import tomllib
from pathlib import Path

import pytest

from fedappeal.protocol.config import ConfigError, RunConfig, TaskSettings
from fedappeal.protocol.keys import Decision

ROOT = Path(__file__).parents[2]


def test_pyproject_lists_exactly_the_defaults() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    defaults = RunConfig().as_config()
    assert list(config) == list(defaults)
    assert config == defaults
    assert {k: type(v) for k, v in config.items()} == {k: type(v) for k, v in defaults.items()}


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"learning-rate": -0.1}, "learning-rate = -0.1 is not allowed: input should be greater than 0"),
        ({"learning-rate": float("nan")}, "learning-rate = nan is not allowed: input should be a finite number"),
        ({"warmup-learning-rate": 0}, "warmup-learning-rate = 0 is not allowed: input should be greater than 0"),
        (
            {"clients": 10, "clients-per-round": 11},
            "clients-per-round = 11 is not allowed: at most clients = 10 (0: all)",
        ),
        (
            {"clients-per-round": -1},
            "clients-per-round = -1 is not allowed: input should be greater than or equal to 0",
        ),
        (
            {"clients": 4, "unseen-clients": 2, "min-available-nodes": 7},
            "min-available-nodes = 7 is not allowed: at most 6 (clients + unseen-clients)",
        ),
        ({"rounds": 0}, "rounds = 0 is not allowed: input should be greater than or equal to 1"),
        (
            {"rounds": "many"},
            "rounds = 'many' is not allowed: input should be a valid integer, unable to parse string as an integer",
        ),
        (
            {"local-steps": 0},
            "local-steps = 0 is not allowed where local-epochs = 0: one of them must be positive",
        ),
        ({"rounds": 5, "mandatory-rounds": 6}, "mandatory-rounds = 6 is not allowed: at most rounds = 5"),
        ({"train-share": 1.0}, "train-share = 1.0 is not allowed: input should be less than 1"),
        ({"momentum": 1.0}, "momentum = 1.0 is not allowed: input should be less than 1"),
        (
            {"participation": "maybe"},
            "participation = 'maybe' is not allowed: input should be 'auto', 'always', 'appeal', 'match' or 'defect'",
        ),
        ({"empty-pool": "ask"}, "empty-pool = 'ask' is not allowed: input should be 'ask-all' or 'keep'"),
        ({"stabilizer": 0.0}, "stabilizer = 0.0 is not allowed: input should be greater than 0"),
        ({"server-lr": float("inf")}, "server-lr = inf is not allowed: input should be a finite number"),
        ({"learning-rat": 0.1}, "unknown setting 'learning-rat'; did you mean 'learning-rate'?"),
        ({"qqqqqqqq": 1}, "unknown setting 'qqqqqqqq'"),
    ],
)
def test_a_setting_that_is_not_allowed_is_one_line(given: dict[str, object], line: str) -> None:
    with pytest.raises(ConfigError) as error:
        RunConfig.parse(given)
    assert str(error.value) == line


def test_each_wrong_setting_has_a_line_of_its_own() -> None:
    with pytest.raises(ConfigError) as error:
        RunConfig.parse({"rounds": 0, "batch-size": 0, "sede": 1})
    lines = str(error.value).splitlines()
    assert [line.split(" ")[0] for line in lines] == ["rounds", "batch-size", "unknown"]


def test_settings_survive_the_trip_through_a_flower_run_config() -> None:
    config = RunConfig(clients=3, strategy="fedavg", momentum=0.9, measure_leavers=False)
    assert RunConfig.parse(config.as_config()) == config
    assert all(isinstance(v, bool | int | float | str) for v in config.as_config().values())


@pytest.mark.parametrize(
    ("rounds", "mandatory", "expected"),
    [(20, -1, 10), (4, -1, 4), (200, -1, 10), (201, -1, 11), (1000, -1, 50), (20, 0, 0), (20, 3, 3)],
)
def test_mandatory_rounds_default_to_the_larger_of_ten_and_five_per_cent(
    rounds: int, mandatory: int, expected: int
) -> None:
    assert RunConfig(rounds=rounds, mandatory_rounds=mandatory).resolved_mandatory_rounds == expected


def test_waiting_for_all_counts_the_unseen_clients_too() -> None:
    assert RunConfig(clients=4, unseen_clients=3).resolved_min_available_nodes == 7
    assert RunConfig(clients=4, unseen_clients=3, min_available_nodes=2).resolved_min_available_nodes == 2


def test_the_task_settings_are_the_part_that_decides_the_data() -> None:
    config = RunConfig(clients=7, seed=5, rounds=3)
    assert config.task_settings() == TaskSettings(clients=7, seed=5)


def test_decisions_are_the_numbers_on_the_wire() -> None:
    assert {d.name: int(d) for d in Decision} == {"JOINED": 1, "SAT_OUT": 0, "LEFT": -1}


def test_a_missing_setting_is_named_without_the_others_values() -> None:
    from client.settings import Connection

    with pytest.raises(ConfigError) as error:
        Connection.parse({"key": "/secret/place"})
    assert "secret" not in str(error.value)
    assert str(error.value) == "superlink is missing"
