"""The policy is the owner's; the run's setting is what clients do whose owner says nothing."""

import pytest
from flwr.common.config import parse_config_args

from client.settings import NodeSettings
from fedappeal.core.policy import Policy
from fedappeal.protocol import keys
from fedappeal.settings.config import ConfigError, RunConfig, Scalar
from tests.node import Node, changed, run_config

# Ten classes: the loss of a model that has learned nothing is near ln 10 = 2.3, above what the client requires.
CONFIG = run_config(clients=4, requirement="fixed", fixed__loss=1.0, local_steps=1)


def policy(config: RunConfig = CONFIG, **node: Scalar) -> Policy:
    one = Node(config, **node)
    return one.participants.of(one.context).policy


def decision(config: RunConfig = CONFIG, mandatory: int = 0, **node: Scalar) -> object:
    return Node(config, **node).metrics("train", mandatory=mandatory)[keys.DECISION]


@pytest.mark.parametrize("run", ["auto", "appeal", "always", "defect", "appeal=0.5,always=0.5"])
@pytest.mark.parametrize("own", ["appeal", "always", "defect", "match"])
def test_the_owners_policy_goes_before_the_runs(run: str, own: str) -> None:
    assert policy(changed(CONFIG, participation=run), participation=own).name == own


@pytest.mark.parametrize(
    ("strategy", "name"),
    [
        ("maxfl", "appeal"),
        ("fedavg", "appeal"),
        ("fedalign", "match"),
        ("adagd", "defect"),
        ("maxfl-adagd", "defect"),
    ],
)
def test_where_neither_says_anything_it_is_the_one_that_the_strategys_paper_assumes(strategy: str, name: str) -> None:
    assert policy(changed(CONFIG, strategy=strategy)).name == name
    assert policy(changed(CONFIG, strategy=strategy, participation="always")).name == "always"


def test_what_the_owner_chose_is_what_the_client_does() -> None:
    assert decision() == 0
    assert decision(participation="always") == 1
    assert decision(changed(CONFIG, participation="always"), participation="appeal") == 0
    assert decision(participation="defect", set="defect.leave-below=9") == -1
    # Mandatory rounds mean nothing to a policy that does not know them.
    assert decision(mandatory=1) == 1
    assert decision(mandatory=1, participation="defect", set="defect.leave-below=9") == -1


def test_the_owners_settings_go_before_the_runs() -> None:
    run = changed(CONFIG, participation="defect", defect__leave_below=9.0)
    assert policy(run).settings.leave_below == 9.0
    assert decision(run) == -1
    assert decision(run, set="defect.leave-below=0.1") == 1
    assert decision(run, set="other.key=1") == -1, "settings of another policy say nothing of this one"
    # A policy that the owner has chosen has the owner's settings alone.
    assert policy(run, participation="defect").settings.leave_below is None
    assert decision(run, participation="defect") == 1


def test_the_owners_settings_are_checked_in_one_line() -> None:
    with pytest.raises(ConfigError, match=r"^defect\.leave-below = -1 is not allowed") as error:
        policy(participation="defect", set="defect.leave-below=-1")
    assert "\n" not in str(error.value)
    with pytest.raises(
        ConfigError, match=r"unknown setting 'defect\.leave-bellow'; did you mean 'defect\.leave-below'"
    ):
        policy(participation="defect", set="defect.leave-bellow=1")
    with pytest.raises(ConfigError, match=r"participation = 'defekt' is not allowed: .*\(did you mean 'defect'\?\)"):
        policy(participation="defekt")


def test_flowers_node_config_carries_it() -> None:
    given = parse_config_args(["partition-id=1 participation='defect' set='defect.leave-below=0.3 mine.word=yes'"])
    node = NodeSettings.parse(given)
    assert (node.participation, node.own_section("defect")) == ("defect", {"leave-below": 0.3})
    assert node.own_section("mine") == {"word": "yes"}


@pytest.mark.parametrize("kind", ["query", "train", "evaluate"])
@pytest.mark.parametrize("strategy", ["maxfl", "adagd"])
def test_the_server_never_gets_an_owners_own_settings(kind: str, strategy: str) -> None:
    """Every number and every word of a reply is the same as where the owner has said nothing, but the decision."""
    own = {"participation": "defect", "set": "defect.leave-below=0.123456", "client-id": "anna"}
    run = changed(CONFIG, strategy=strategy)
    told = Node(run, **own)(kind, mandatory=1, server_round=1)
    plain = Node(run, **{"client-id": "anna"})(kind, mandatory=1, server_round=1)
    assert told == plain
    assert "0.123456" not in str(told)
    assert "defect" not in str(told)
