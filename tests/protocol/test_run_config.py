"""The run configuration: what is allowed, and how what is not is explained."""

import tomllib
from pathlib import Path

import pytest
from flwr.common.config import flatten_dict, fuse_dicts, get_project_config, parse_config_args

from fedappeal.cli.listing import config_tables
from fedappeal.core.algorithm import of_run, personal_of
from fedappeal.protocol.keys import Decision
from fedappeal.settings.config import ConfigError, RunConfig, TaskSettings, plugin_settings
from server.build import check_settings, run_plugins

ROOT = Path(__file__).parents[2]


def test_pyproject_lists_exactly_the_defaults() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    defaults = config_tables()
    assert list(config) == list(defaults), "python -m fedappeal.cli.reference writes what belongs there"
    assert config == defaults
    general = {key: value for key, value in defaults.items() if not isinstance(value, dict)}
    assert general == {**RunConfig().as_config(), "set": ""}
    flat = flatten_dict(config)
    assert {k: type(v) for k, v in flat.items()} == {k: type(v) for k, v in flatten_dict(defaults).items()}


def flower_run(*options: str) -> RunConfig:
    """The settings of ``flwr run . -c ...``, by Flower's own reading of pyproject.toml and of the options."""
    defaults = get_project_config(ROOT)["tool"]["flwr"]["app"]["config"]
    return RunConfig.parse(fuse_dicts(flatten_dict(defaults), parse_config_args(list(options))))


def test_flower_overrides_a_plugins_setting_by_its_table() -> None:
    config = flower_run("maxfl.server-lr=0.5 rounds=3")
    assert config.section("maxfl") == {"server-lr": 0.5, "stabilizer": 0.001, "step-sizes": "set"}
    assert config.rounds == 3
    assert of_run(check_settings(config).strategy, config).settings.server_lr == 0.5
    assert check_settings(flower_run("strategy='fedalign' fedalign.epsilon-schedule='step'"))


def test_the_scalar_set_carries_what_flower_knows_no_key_for() -> None:
    config = flower_run("set='maxfl.tuning-steps=3 defect.leave-below=0.5' adaptation-steps=0")
    assert config.section("maxfl")["tuning-steps"] == 3
    assert personal_of(of_run(check_settings(config).strategy, config)).tuning_steps() == 3
    assert "defect.leave-below is not used by this run" in run_plugins(config).unused_settings()
    with pytest.raises(ValueError, match=r"mine\.lr"):
        flower_run("mine.lr=0.1")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("maxfl.server_lr=0.5", {"maxfl.server-lr": 0.5}),
        ("a.x=1 b.y=true c.z='two words'", {"a.x": 1, "b.y": True, "c.z": "two words"}),
        ("a.x=k=v", {"a.x": "k=v"}),
    ],
)
def test_settings_of_plugins_as_a_text(text: str, expected: dict[str, object]) -> None:
    assert plugin_settings(text) == expected


@pytest.mark.parametrize("text", ["lr=1", "a.lr", "a.=1", ".lr=1", "a.lr=1 nonsense", "a.lr='1"])
def test_another_form_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^set = "):
        plugin_settings(text)


def test_settings_of_plugins_survive_the_trip_and_count_as_given() -> None:
    config = RunConfig.parse({"maxfl.server-lr": 0.5, "set": "maxfl.server-lr=0.7 mine.x=1", "rounds": 3})
    assert config.section("maxfl") == {"server-lr": 0.7}
    assert config.sections() == ["maxfl", "mine"]
    assert RunConfig.parse(config.as_config()) == config
    assert config.with_plugins([("mine.x", 2)]).section("mine") == {"x": 2}
    assert config.task_settings().section("mine") == {"x": 1}


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"learning-rate": -0.1}, "learning-rate = -0.1 is not allowed: input should be greater than 0"),
        ({"learning-rate": float("nan")}, "learning-rate = nan is not allowed: input should be a finite number"),
        (
            {"clients": 10, "clients-per-round": 11},
            "clients-per-round = 11 is not allowed: at most clients = 10 (0: all)",
        ),
        (
            {"clients-per-round": -1},
            "clients-per-round = -1 is not allowed: input should be greater than or equal to 0",
        ),
        (
            {"clients": 4, "unseen-clients": 2, "min-clients": 7},
            "min-clients = 7 is not allowed: at most 6 (clients + unseen-clients)",
        ),
        (
            {"clients": 4, "unseen-clients": 2, "max-clients": 5},
            "max-clients = 5 is not allowed: at least min-clients = 6",
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
            "participation = 'maybe' is not allowed: always, appeal, match, defect, anticipate, inertia, costly, "
            "rest, once, bernoulli, markov, diurnal, trace, device, or package.module:Name of your own",
        ),
        ({"on-empty-round": "ask"}, "on-empty-round = 'ask' is not allowed: input should be 'ask-all' or 'keep'"),
        ({"solo.learning-rate": 0}, "solo.learning-rate = 0 is not allowed: input should be greater than 0"),
        ({"maxfl.stabilizer": 0.0}, "maxfl.stabilizer = 0.0 is not allowed: input should be greater than 0"),
        (
            {"maxfl.server-lr": float("inf")},
            "maxfl.server-lr = inf is not allowed: input should be a finite number",
        ),
        ({"learning-rat": 0.1}, "unknown setting 'learning-rat'; did you mean 'learning-rate'?"),
        ({"qqqqqqqq": 1}, "unknown setting 'qqqqqqqq'"),
    ],
)
def test_a_setting_that_is_not_allowed_is_one_line(given: dict[str, object], line: str) -> None:
    with pytest.raises(ConfigError) as error:
        check_settings(RunConfig.parse(given))
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
    assert RunConfig(clients=4, unseen_clients=3).resolved_min_clients == 7
    assert RunConfig(clients=4, unseen_clients=3, min_clients=2).resolved_min_clients == 2


def test_a_run_takes_in_twice_its_clients_unless_it_says_how_many() -> None:
    assert RunConfig(clients=4, unseen_clients=3).resolved_max_clients == 14
    assert RunConfig(clients=4, max_clients=5).resolved_max_clients == 5
    assert RunConfig(clients=4, min_clients=2, max_clients=2).resolved_max_clients == 2


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


@pytest.mark.parametrize("value", [None, [1], {"a": 1}, b"x"])
def test_a_plug_ins_setting_is_a_scalar(value: object) -> None:
    with pytest.raises(ConfigError) as error:
        RunConfig.parse({"maxfl.server-lr": value})
    assert str(error.value) == (f"maxfl.server-lr = {value!r} is not allowed: a number, a text, true or false")


def test_what_follows_from_the_number_of_rounds_stays_as_the_run_began() -> None:
    config = RunConfig.parse({"rounds": 400, "seed": 3, "maxfl.server-lr": 0.5, "mandatory-rounds": -1})
    longer = config.continued(1000).continued(2000)
    assert (longer.rounds, longer.scheduled_rounds, longer.resolved_mandatory_rounds) == (2000, 400, 20)
    assert RunConfig(rounds=2000, mandatory_rounds=-1).resolved_mandatory_rounds == 100
    assert RunConfig(rounds=401).continued(1000).resolved_mandatory_rounds == 201
    same = {"rounds": 400, "schedule-rounds": 0}
    assert RunConfig.parse(longer.as_config() | same) == RunConfig.parse(config.as_config())
    with pytest.raises(ConfigError, match="mandatory-rounds = 12 is not allowed: at most rounds = 5"):
        RunConfig(rounds=20, mandatory_rounds=12).continued(5)
