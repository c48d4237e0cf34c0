"""Clients and runs of other versions: the protocol has to be the same, the package need not be."""

import pytest

from fedappeal.protocol import keys
from fedappeal.settings.config import ConfigError, RunConfig, Scalar
from fedappeal.system import versions
from tests.node import Node, run_config

CONFIG = run_config(clients=4, strategy="fedavg", requirement="fixed", local_steps=1, model="logistic")


def node(**more: Scalar) -> Node:
    """A client of a run whose settings hold more than this version knows."""
    one = Node(CONFIG)
    one.context.run_config.update(more)
    return one


@pytest.mark.parametrize("protocol", [keys.PROTOCOL - 1, keys.PROTOCOL + 1])
def test_another_protocol_is_refused_in_one_line(protocol: int) -> None:
    with pytest.raises(ConfigError) as error:
        node()("query", told={keys.PROTOCOL_VERSION: protocol})
    assert str(error.value) == (
        f"this client speaks protocol {keys.PROTOCOL} (fedappeal {versions.FEDAPPEAL}), the run {protocol}"
    )


def test_the_protocol_is_checked_before_anything_else_of_the_run() -> None:
    """Settings of another protocol may mean nothing here: the line is about the protocol, not about them."""
    one = node(**{"batch-size": "of another kind"})
    with pytest.raises(ConfigError, match="this client speaks protocol"):
        one("query", told={keys.PROTOCOL_VERSION: keys.PROTOCOL + 1})


def test_another_package_version_of_the_same_protocol_joins(monkeypatch: pytest.MonkeyPatch) -> None:
    told: dict[str, Scalar | None] = {keys.PROTOCOL_VERSION: keys.PROTOCOL, keys.VERSION: "99.0"}
    monkeypatch.setattr(versions, "FEDAPPEAL", "0.0.1")
    info = node()("query", told=told).config_records[keys.INFO]
    assert (info[keys.PROTOCOL_VERSION], info[keys.VERSION]) == (keys.PROTOCOL, "0.0.1")


def test_a_roll_call_that_names_no_protocol_is_answered() -> None:
    assert keys.INFO in node()("query")


def test_general_settings_of_a_newer_version_are_left_out() -> None:
    newer = node(**{"sampling-temperature": 0.5, "compression": "zstd"})
    for kind in ("query", "train", "evaluate"):
        assert newer(kind, mandatory=1) == node()(kind, mandatory=1)
    participant = newer.participants.of(newer.context)
    assert participant.config == RunConfig.parse(CONFIG.as_config())


def test_they_are_a_mistake_where_a_run_is_started() -> None:
    with pytest.raises(ConfigError, match="unknown setting 'sampling-temperature'"):
        RunConfig.parse({**CONFIG.as_config(), "sampling-temperature": 0.5})


def test_a_value_that_is_not_allowed_is_still_refused() -> None:
    with pytest.raises(ConfigError, match="batch-size = 0 is not allowed"):
        node(**{"batch-size": 0, "sampling-temperature": 0.5})("query")
