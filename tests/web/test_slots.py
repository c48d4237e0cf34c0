"""Whose the connections to a page may be."""

import os

import pytest

from fedappeal.system.socket_owner import NotTold
from fedappeal.web import serving as slots
from fedappeal.web.serving import has_slot, visitor

OWNER = os.geteuid()
ONE, OTHER = OWNER + 1, OWNER + 2


@pytest.mark.parametrize(
    ("who", "connected", "has"),
    [
        (OWNER, [ONE] * 32 + [OTHER] * 32, True),
        (OWNER, [OWNER] * 63, True),
        (OWNER, [OWNER] * 64, False),
        (ONE, [OWNER] * 64, True),
        (ONE, [ONE] * 31, True),
        (ONE, [ONE] * 32, False),
        (OTHER, [ONE] * 32, True),
        ("10.0.0.1", [ONE] * 32 + [OTHER] * 31, True),
        ("10.0.0.1", [ONE] * 32 + [OTHER] * 32, False),
        ("10.0.0.1", ["10.0.0.1"] * 32, False),
    ],
)
def test_the_owner_has_slots_of_its_own_and_no_other_has_all_of_the_rest(
    who: int | str, connected: list[int | str], has: bool
) -> None:
    assert has_slot(who, connected) is has


def test_a_visitor_of_no_process_here_counts_by_its_host(monkeypatch: pytest.MonkeyPatch) -> None:
    local = ("127.0.0.1", 80)
    assert visitor(("10.0.0.1", 5), local) == "10.0.0.1"
    assert visitor(("10.0.0.1", 5), None) == "10.0.0.1"
    assert visitor(None, local) == ""

    def silent(remote: object, local: object) -> int:
        raise NotTold("the kernel does not say")

    monkeypatch.setattr(slots, "peer_of", silent)
    assert visitor(("127.0.0.1", 5), local) == "127.0.0.1"
