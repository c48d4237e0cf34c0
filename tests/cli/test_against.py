"""`--against STRATEGY`: the same clients under another strategy."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedappeal.cli.commands import cli
from fedappeal.cli.start import plan_against
from fedappeal.record.lines import MODEL
from fedappeal.record.reader import Record
from fedappeal.runs.plan import swept_plans
from fedappeal.settings.config import ConfigError, RunConfig

SMALL = ["--model", "logistic", "--clients", "3", "--rounds", "3", "--local-steps", "2", "--set", "solo.steps=4"]


def test_the_other_run_is_what_the_same_command_with_that_strategy_is(tmp_path: Path) -> None:
    ours, plain = tmp_path / "ours", tmp_path / "plain"
    done = CliRunner().invoke(
        cli, ["simulate", *SMALL, "--against", "fedavg", "--out", str(ours)], catch_exceptions=False
    )
    assert done.exit_code == 0, done.output
    assert "who stayed: the same clients" in done.output
    assert (ours / "stayed.png").exists()
    CliRunner().invoke(cli, ["simulate", *SMALL, "--strategy", "fedavg", "--out", str(plain)], catch_exceptions=False)
    other = ours / "against-fedavg"
    untimed = [[{**line, "seconds": 0} for line in Record(path).history] for path in (other, plain)]
    assert untimed[0] == untimed[1]
    assert (other / MODEL).read_bytes() != (ours / MODEL).read_bytes()
    assert Record(other).config["settings"]["seed"] == Record(ours).config["settings"]["seed"]


def test_clients_keep_the_policy_of_the_first_strategy() -> None:
    (plan,), (always,) = swept_plans({"strategy": "adagd"}), swept_plans({"participation": "always"})
    assert plan_against([plan], "fedavg").config.participation == "defect"
    assert plan_against([always], "fedavg").config.participation == "always"


def test_a_strategys_settings_stay_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert CliRunner().invoke(cli, ["new", "strategy", "leaning.py"]).exit_code == 0
    (own,) = swept_plans({"strategy": "leaning:Leaning", "leaning.momentum": 0.5, "solo.steps": 4})
    assert plan_against([own], "fedavg").config.plugins == (("solo.steps", 4),)
    assert not plan_against(swept_plans({"maxfl.server-lr": 0.5}), "fedavg").config.section("maxfl")


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (["maxfl"], "it is the run's own strategy; name another"),
        (["maxfl", "fedavg"], "with several runs: `fedappeal compare` shows them"),
    ],
)
def test_what_is_not_allowed_is_one_line(settings: list[str], line: str) -> None:
    plans = [plan for name in settings for plan in swept_plans({"strategy": name})]
    with pytest.raises(ConfigError, match=line):
        plan_against(plans, "maxfl")
    with pytest.raises(ConfigError, match="clients-per-round = 2 is not allowed"):
        plan_against(swept_plans({"clients-per-round": 2}), "adagd")


@pytest.mark.parametrize(("given", "settled"), [("auto", "auto"), ("-1", -1), ("2", 2)])
def test_mandatory_rounds_are_a_number_or_auto(given: str, settled: object, tmp_path: Path) -> None:
    options = [*SMALL, "--mandatory-rounds", given, "--out", str(tmp_path / "run")]
    done = CliRunner().invoke(cli, ["simulate", *options], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert Record(tmp_path / "run").config["settings"]["mandatory-rounds"] == settled
    with pytest.raises(ConfigError, match=r"^mandatory-rounds = 'soon' is not allowed: auto, or a whole number"):
        RunConfig.parse({"mandatory-rounds": "soon"})
