"""Addresses of a SuperLink as a user gives them."""

from fedappeal.settings.config import ConfigError


def check_address(address: str, port_of: str) -> None:
    """Check a SuperLink's address.

    Args:
        address: ``HOST:PORT``.
        port_of: what listens there, in words.

    Raises:
        ConfigError: if it is none; one line.
    """
    scheme, found, _ = address.partition("://")
    host, _, port = address.rpartition(":")
    if not host or "/" in address or not port.isdecimal() or not 0 < int(port) < 65536:
        leave = f", without {scheme}://" if found else ""
        raise ConfigError(f"superlink = '{address}' is not allowed: HOST:PORT of {port_of}{leave}")
