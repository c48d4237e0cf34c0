"""Addresses of a SuperLink: what is taken, and the line that refuses the rest."""

import pytest

from client.settings import Connection
from fedappeal.federation.remote import RemoteSuperLink
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
