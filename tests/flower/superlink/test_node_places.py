"""What `node_places` relies on: where Flower keeps nodes, in memory and in a database, and what it says of them."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from flwr.server.superlink.linkstate import LinkStateFactory
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.superlink.federation import NoOpFederationManager

from fedappeal.flower.node.fleet import NotConnected
from fedappeal.flower.superlink import node_places
from fedappeal.flower.superlink.node_places import LOOKED_EVERY, NodePlaces, forget
from tests.flower.conftest import Server
from tests.flower.superlink.test_fleet_limits import bounded  # noqa: F401  # a fixture

MOST = 6


@pytest.fixture(params=["memory", "database"])
def state(request: pytest.FixtureRequest, empty_database: Path, tmp_path: Path) -> Any:
    database = FLWR_IN_MEMORY_DB_NAME
    if request.param == "database":
        database = str(shutil.copy(empty_database, tmp_path))
    return LinkStateFactory(database, NoOpFederationManager(), ObjectStoreFactory()).state()


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_places, "MOST_REGISTERED", MOST)
    monkeypatch.setattr(node_places, "COMES_WITHIN", 0.0)


def node(state: Any, key: bytes, name: str | None = None) -> int:
    return int(state.create_node("owner", "someone", key, 0.0, name=name))


def ids(state: Any) -> set[int]:
    return {int(info.node_id) for info in state.get_node_info()}


def test_a_flood_takes_the_places_of_nodes_that_are_offline_and_no_others(state: Any) -> None:
    now = [0.0]
    places = NodePlaces(state, lambda: now[0])
    registered = node(state, b"operator's", name="alice")
    online = node(state, b"online")
    assert state.activate_node(online, 30.0)
    gone = node(state, b"gone")
    state.delete_node("owner", gone)  # Flower keeps it
    for number in range(100):
        now[0] += LOOKED_EVERY
        assert places.take()
        latest = node(state, b"flood %d" % number)
        assert len(ids(state)) <= 1 + MOST
        assert {registered, online, latest} <= ids(state)
    assert gone not in ids(state)
    assert state.get_node_id_by_public_key(b"flood 0") is None
    assert node(state, b"flood 0"), "one that comes back is registered anew"


def test_where_all_are_online_new_ones_are_refused_until_one_goes(state: Any) -> None:
    now = [0.0]
    places = NodePlaces(state, lambda: now[0])
    taken = []
    while places.take():
        taken.append(node(state, b"%d" % len(taken)))
        assert state.activate_node(taken[-1], 30.0)
    assert len(taken) == MOST
    state.deactivate_node(taken[0])
    assert not places.take(), "it looks once a second"
    now[0] += LOOKED_EVERY
    assert places.take()
    assert ids(state) == set(taken[1:])


def test_one_that_registered_just_now_is_not_forgotten(state: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_places, "COMES_WITHIN", 60.0)
    for number in range(MOST):
        node(state, b"%d" % number)
    assert not NodePlaces(state).take()
    assert len(ids(state)) == MOST


def test_to_forget_none_is_nothing(state: Any) -> None:
    kept = node(state, b"kept")
    forget(state, [])
    assert ids(state) == {kept}


def test_who_finds_no_place_is_told_to_try_later_and_members_are_served(bounded: Server) -> None:  # noqa: F811
    members = [bounded.node() for _ in range(MOST)]
    with pytest.raises(NotConnected, match="has no place for another node now"):
        bounded.fleet().register()
    assert all(fleet.heartbeat(node_id, 10.0) for fleet, node_id in members)
