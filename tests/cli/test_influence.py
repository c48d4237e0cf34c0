"""Bounds on influence in runs of real processes: the default of `local` and `submit`, and its heading."""

import pytest

from fedappeal.core.registry import STRATEGIES
from fedappeal.settings.config import ConfigError, RunConfig, Scalar
from server.influence import bounded_by_default, check_deployed, influence_line
from tests.views.terminal.test_view import printed


def test_submit_bounds_influence_unless_told_otherwise() -> None:
    config, note = bounded_by_default({"strategy": "maxfl"})
    assert config.influence == "bounded"
    assert note == ""
    assert influence_line(config) == (
        "influence: bounded (an update counts as the clients' median at most, as does a weight above 3 medians; "
        "one against the common direction, or above 4 medians, for nothing)"
    )
    assert bounded_by_default({"influence": "off"})[0].influence == "off"
    assert influence_line(RunConfig()) == ""


def test_what_cannot_be_bounded_is_said_and_refused_only_where_it_was_asked_for() -> None:
    strategy, reason = "fedalign", "fedalign.priority-ids = ''"
    config, note = bounded_by_default({"strategy": strategy})
    assert config.influence == "off"
    assert note.startswith("influence: off: one client can replace the model (")
    assert reason in note
    with pytest.raises(ConfigError, match="is not allowed with") as refused:
        bounded_by_default({"strategy": strategy, "influence": "bounded"})
    assert reason in str(refused.value)
    assert "\n" not in str(refused.value)


def test_priority_that_the_operator_grants_can_be_bounded() -> None:
    granted: dict[str, Scalar] = {"strategy": "fedalign", "fedalign.priority-ids": "alice"}
    config, note = bounded_by_default(granted)
    assert config.influence == "bounded"
    assert note == ""
    assert "not bounded: which losses a client tells" in influence_line(config)
    check_deployed(config)


def test_every_other_strategy_can_be_bounded() -> None:
    off = [name for name in STRATEGIES.names() if bounded_by_default({"strategy": name})[0].influence == "off"]
    assert off == ["fedalign"]


def test_a_column_says_how_many_were_cut() -> None:
    lines = printed(influence="bounded", strategy="fedavg")
    assert lines[1].startswith("influence: bounded (")
    assert " left bounded GM-Appeal" in lines[4]
    assert "bounded" not in "".join(printed(strategy="fedavg"))


def test_a_heading_says_where_there_are_too_few_clients_to_compare() -> None:
    for unseen in (0, 1):
        config = RunConfig(influence="bounded", clients=2, unseen_clients=unseen)
        assert "no effect on fewer than 3 clients" in influence_line(config)
