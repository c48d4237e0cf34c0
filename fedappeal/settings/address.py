"""Addresses as a user gives them: of a SuperLink, and of this machine, to listen at."""

import socket

from fedappeal.settings.model import ConfigError, NotHere


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


def listener(host: str, port: int, setting: str, written: str = "") -> socket.socket:
    """Return a socket that listens at a host and port of this machine.

    Args:
        host: as a number, or a name.
        port: 0: the system picks one.
        setting: what the user calls it.
        written: what the user wrote; empty: the port.

    Raises:
        ConfigError: it is no port, or in use.
    """
    named = f"{setting} = '{written}'" if written else f"{setting} = {port}"
    if not 0 <= port < 65536:
        raise ConfigError(f"{named} is not allowed: 0 (the system picks one) to 65535")
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except (OSError, TypeError) as error:  # TypeError: a name that no encoding of names allows
        where = "" if written else f" ({host}:{port})"
        raise NotHere(f"{named} is not allowed: {bind_problem(error)}{where}") from None


def bind_problem(error: Exception) -> str:
    """Return why an address cannot be listened at, without the address that Python adds."""
    return str(getattr(error, "strerror", None) or error).partition(" (while")[0]
