"""Which policy a client of a run has: shares by a seeded draw."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.participation.behaviour import Mixture
from fedappeal.protocol.draws import generator
from fedappeal.settings.config import ConfigError
from tests.node import Node, run_config

MIXED = "appeal=0.5,defect=0.3,always=0.2"


def test_one_policy_is_every_clients() -> None:
    mixture = Mixture.parse(" appeal ")
    assert mixture.names == ("appeal",)
    assert {mixture.of(seed, f"client-{k}") for seed in range(3) for k in range(20)} == {"appeal"}
    assert Mixture.parse("mine.rules:Stubborn").names == ("mine.rules:Stubborn",)


def test_the_shares_are_those_of_the_clients() -> None:
    mixture = Mixture.parse(MIXED)
    assert mixture.names == ("appeal", "defect", "always")
    found = Counter(mixture.of(0, f"client-{k:04d}") for k in range(4000))
    for name, share in mixture.shares:
        assert found[name] / 4000 == pytest.approx(share, abs=0.03)  # four standard deviations


@given(st.integers(0, 100), st.text(min_size=1, max_size=8))
def test_the_draw_is_of_seed_and_client_alone(seed: int, client: str) -> None:
    draw = generator(seed, "participation", client=client).random()
    expected = "appeal" if draw < 0.5 else "defect" if draw < 0.8 else "always"
    assert Mixture.parse(MIXED).of(seed, client) == Mixture.parse(MIXED).of(seed, client) == expected


def test_the_seed_and_the_client_both_count() -> None:
    mixture = Mixture.parse("appeal=0.5,always=0.5")
    by_client = [[mixture.of(seed, f"c{k}") for k in range(40)] for seed in (0, 1)]
    assert by_client[0] != by_client[1]
    assert len(set(by_client[0])) == 2


def test_a_share_of_zero_is_of_no_client_and_spaces_do_not_count() -> None:
    mixture = Mixture.parse(" appeal = 1 , defect = 0 ")
    assert {mixture.of(0, f"c{k}") for k in range(100)} == {"appeal"}
    assert Mixture.parse("defect=0,appeal=1.0").of(0, "c") == "appeal"


def test_ten_tenths_are_one() -> None:
    assert len(Mixture.parse(",".join(f"p{k}=0.1" for k in range(10))).names) == 10


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("appeal=0.5,always=0.4", "its shares add up to 0.9, not to 1"),
        ("appeal=0.5,appeal=0.5", "NAME=SHARE,NAME=SHARE,... with shares in [0, 1], each name once"),
        ("appeal=1.5,always=-0.5", "NAME=SHARE,NAME=SHARE,..."),
        ("appeal=half,always=0.5", "NAME=SHARE,NAME=SHARE,..."),
        ("appeal=nan,always=0.5", "NAME=SHARE,NAME=SHARE,..."),
        ("appeal,always=1", "NAME=SHARE,NAME=SHARE,..."),
        ("=1", "NAME=SHARE,NAME=SHARE,..."),
        ("appeal=1,", "NAME=SHARE,NAME=SHARE,..."),
    ],
)
def test_what_is_no_mixture_is_one_line(text: str, reason: str) -> None:
    with pytest.raises(ConfigError) as error:
        Mixture.parse(text)
    assert str(error.value).startswith(f"participation = '{text}' is not allowed: {reason}")
    assert "\n" not in str(error.value)


def test_each_client_of_a_run_has_the_policy_that_it_draws() -> None:
    config = run_config(clients=10, seed=3, participation=MIXED)
    mixture = Mixture.parse(MIXED)
    found = []
    for number in range(10):
        node = Node(config, partition_id=number)
        participant = node.participants.of(node.context)
        found.append(participant.policy.name)
        assert found[-1] == mixture.of(3, participant.client_id)
    assert len(set(found)) > 1
    # The same client under another name draws again.
    renamed = [Node(config, partition_id=0, client_id=f"anna-{k}") for k in range(20)]
    assert len({node.participants.of(node.context).policy.name for node in renamed}) > 1
