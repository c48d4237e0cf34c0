"""Addresses of a SuperLink and of this machine: what is taken, and the line that refuses the rest."""

import socket

import pytest

from client.settings import Connection
from fedappeal.federation.remote import RemoteSuperLink
from fedappeal.flower.superlink.superlink_process import listener as fleet_listener
from fedappeal.settings.address import listener
from fedappeal.settings.config import ConfigError


@pytest.mark.parametrize("address", ["a.example:1", "127.0.0.1:65535", "[::1]:8000"])
def test_a_host_and_a_port_are_taken(address: str) -> None:
    RemoteSuperLink.checked(address, "")
    assert Connection.parse({"superlink": address}).superlink == address


@pytest.mark.parametrize(
    ("address", "leave"),
    [
        ("https://a.example:1", ", without https://"),
        ("grpc://a.example:1", ", without grpc://"),
        ("http://a.example:1/", ", without http://"),
        ("a.example:1/x", ""),
        ("a.example", ""),
        ("a.example:0", ""),
        ("a.example:65536", ""),
        (":1", ""),
    ],
)
def test_another_address_is_refused_and_a_scheme_is_named(address: str, leave: str) -> None:
    text = f"superlink = '{address}' is not allowed: HOST:PORT of"
    with pytest.raises(ConfigError) as refused:
        RemoteSuperLink.checked(address, "")
    assert str(refused.value) == f"{text} the SuperLink's Control API{leave}"
    with pytest.raises(ConfigError) as refused:
        Connection.parse({"superlink": address})
    assert str(refused.value) == f"{text} the Fleet API{leave}"


@pytest.mark.parametrize(
    ("host", "reason"),
    [
        ("a..b", "Name or service not known"),
        ("\u00fc..b", "encoding of hostname failed"),
        ("192.0.2.1", "Cannot assign requested address"),
        ("127.0.0.1", "Address already in use"),
    ],
)
def test_an_address_that_cannot_be_listened_at_is_said_once(host: str, reason: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError) as refused:
            fleet_listener(f"{host}:{port}", "fleet-http-address")
        assert str(refused.value) == f"fleet-http-address = '{host}:{port}' is not allowed: {reason}"
        with pytest.raises(ConfigError) as refused:
            listener(host, port, "page")
        assert str(refused.value) == f"page = {port} is not allowed: {reason} ({host}:{port})"
