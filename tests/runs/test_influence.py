"""Bounds on influence in runs of real processes: the default of `local` and `submit`, and its heading."""

import pytest

from fedappeal.core.registry import STRATEGIES
from fedappeal.runs.plan import check_bounded, deployed_plan, influence_line
from fedappeal.settings.config import ConfigError, RunConfig, Scalar
from server.build import run_plugins
from tests.views.terminal.test_view import printed


def test_submit_bounds_influence_unless_told_otherwise() -> None:
    plan = deployed_plan({"strategy": "maxfl"})
    assert plan.config.influence == "bounded"
    assert plan.note == ""
    assert influence_line(plan.plugins) == (
        "influence: bounded. An update longer than the median is shortened to it; a weight above 3 medians counts as "
        "one. An update above 4 medians, or against the common direction, is left out."
    )
    assert deployed_plan({"influence": "off"}).config.influence == "off"
    assert influence_line(run_plugins(RunConfig())) == ""


def test_what_cannot_be_bounded_is_said_and_refused_only_where_it_was_asked_for() -> None:
    strategy, reason = "fedalign", "fedalign.priority-ids = ''"
    plan = deployed_plan({"strategy": strategy})
    assert plan.config.influence == "off"
    assert plan.note.startswith("influence: off: one client can replace the model (")
    assert reason in plan.note
    with pytest.raises(ConfigError, match="is not allowed with") as refused:
        deployed_plan({"strategy": strategy, "influence": "bounded"})
    assert reason in str(refused.value)
    assert "\n" not in str(refused.value)


def test_priority_that_the_operator_grants_can_be_bounded() -> None:
    granted: dict[str, Scalar] = {"strategy": "fedalign", "fedalign.priority-ids": "alice"}
    plan = deployed_plan(granted)
    assert plan.config.influence == "bounded"
    assert plan.note == ""
    assert "Not bounded: which losses a client tells" in influence_line(plan.plugins)
    check_bounded(plan.plugins)


def test_every_other_strategy_can_be_bounded() -> None:
    off = [name for name in STRATEGIES.names() if deployed_plan({"strategy": name}).config.influence == "off"]
    assert off == ["fedalign"]


def test_a_column_says_how_many_were_cut() -> None:
    lines = printed(columns=200, influence="bounded", strategy="fedavg")
    assert lines[1].startswith("influence: bounded. ")
    assert " left bounded GM-Appeal" in lines[4]
    assert "bounded" not in "".join(printed(strategy="fedavg"))


def test_a_heading_says_where_there_are_too_few_clients_to_compare() -> None:
    for unseen in (0, 1):
        config = RunConfig(influence="bounded", clients=2, unseen_clients=unseen)
        assert "no effect on fewer than 3 clients" in influence_line(run_plugins(config))
