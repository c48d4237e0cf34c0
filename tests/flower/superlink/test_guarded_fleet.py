"""How long polls are held, and how Flower makes a Fleet API; what nodes are handed is in test_held_polls."""

import inspect

import pytest

from fedappeal.flower.node.fleet import HOLD_HEADER, LONGEST_HOLD
from fedappeal.flower.superlink.fleet_interceptor import FleetInterceptor
from fedappeal.flower.superlink.guarded_fleet import flower, guard_fleet_api
from fedappeal.flower.superlink.held_polls import asked_to_hold
from fedappeal.flower.superlink.request_sizes import LARGEST_REQUEST


@pytest.mark.parametrize("said", ["", "soon", "nan", "-1", "0"])
def test_a_header_that_says_no_time_holds_nothing(said: str) -> None:
    assert asked_to_hold([("a", "b"), (HOLD_HEADER, said)]) == 0.0


def test_a_header_is_bounded() -> None:
    assert asked_to_hold([(HOLD_HEADER, "inf")]) == LONGEST_HOLD
    assert asked_to_hold([(HOLD_HEADER, "1.5")]) == 1.5
    assert asked_to_hold(None) == 0.0


def test_no_poll_is_held_for_longer_than_proxies_keep_a_connection() -> None:
    assert asked_to_hold([(HOLD_HEADER, "100")]) == 20.0  # many end one that is quiet for 30 s


@pytest.mark.parametrize("before", [None, ["limits"]])
def test_polls_are_held_before_all_and_calls_are_guarded_behind_all(
    monkeypatch: pytest.MonkeyPatch, before: list[object] | None
) -> None:
    made: list[list[object]] = []
    monkeypatch.setattr(flower, "generic_create_grpc_server", lambda *, interceptors, **_: made.append(interceptors))
    for name in ("FleetServicer", "GRPC_MAX_MESSAGE_LENGTH"):
        monkeypatch.setattr(flower, name, getattr(flower, name))  # put back after the test
    guard_fleet_api(one_user_address="127.0.0.1:9092")
    flower.generic_create_grpc_server(interceptors=before)
    ((outermost, *rest),) = made
    assert isinstance(outermost, FleetInterceptor)
    assert outermost._one_user_address == "127.0.0.1:9092"
    assert rest == (before or []), "and it is asked before Flower's"
    assert flower.GRPC_MAX_MESSAGE_LENGTH == LARGEST_REQUEST
    run = inspect.getsource(flower._run_fleet_api_grpc_rere)
    assert "fleet_servicer = FleetServicer(" in run
    assert "max_message_length=GRPC_MAX_MESSAGE_LENGTH," in run
