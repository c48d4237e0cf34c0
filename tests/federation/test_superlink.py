"""A SuperLink's addresses before its process answers."""

import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from client.fleet.probe import probe
from client.settings import GRPC, HTTP, Connection
from fedappeal.federation import superlink
from fedappeal.federation.superlink import SuperLink, SuperLinkError
from fedappeal.flower.versions import FLEET_OVER_GRPC
from tests.warm import warm_superlinks


@pytest.mark.e2e
def test_its_fleet_port_speaks_the_transport_that_flower_has(tmp_path: Path) -> None:
    with warm_superlinks(), SuperLink(tmp_path / "superlink", http=True) as served:
        spoken = {
            address: probe(Connection.parse({"superlink": address, "insecure": True}))
            for address in (served.fleet_address, served.http_address)
        }
    assert list(spoken.values()) == [GRPC if FLEET_OVER_GRPC else HTTP, HTTP]


def test_where_stock_supernodes_speak_http_a_superlink_without_it_has_no_address_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(superlink, "SUPERNODE_SPEAKS_HTTP", True)
    with pytest.raises(SuperLinkError, match="speak HTTP, which this SuperLink does not serve"):
        _ = SuperLink(tmp_path).stock_address


def test_one_that_is_started_again_keeps_its_http_port_also_where_the_first_try_finds_it_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that was killed may hold the port for a moment more; its clients try that port alone."""
    given: list[str] = []
    trouble: list[Exception] = []

    def begin(command: list[str], **_: object) -> SimpleNamespace:
        given.append(command[command.index("--fleet-http-address") + 1])
        return SimpleNamespace(pid=0, poll=lambda: 0)

    def ready(_: SuperLink, control: int) -> None:
        if trouble:
            raise trouble.pop()

    pipes = SimpleNamespace(DEVNULL=subprocess.DEVNULL, STDOUT=subprocess.STDOUT, Popen=begin)
    monkeypatch.setattr(superlink, "subprocess", pipes)
    monkeypatch.setattr(SuperLink, "_wait_until_ready", ready)
    monkeypatch.setattr(SuperLink, "_check_listeners", lambda _: None)
    monkeypatch.setattr(SuperLink, "stop", lambda _: None)
    started = SuperLink(tmp_path, http=True)
    trouble.append(superlink._PortTaken("taken"))
    started.start()  # the first time any port will do
    address = started.http_address
    trouble.append(superlink._PortTaken("taken"))
    started.start()
    assert given[0] != address
    assert given[1:] == [address] * 3
