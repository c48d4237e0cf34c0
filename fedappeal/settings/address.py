"""Addresses of a SuperLink as a user gives them."""


def refuse_address(address: str, port_of: str) -> str:
    """Return why a SuperLink's address is not allowed, in one line; empty: it is.

    Args:
        address: ``HOST:PORT``.
        port_of: what listens there, in words.
    """
    scheme, found, _ = address.partition("://")
    host, _, port = address.rpartition(":")
    if host and "/" not in address and port.isdecimal() and 0 < int(port) < 65536:
        return ""
    leave = f", without {scheme}://" if found else ""
    return f"superlink = '{address}' is not allowed: HOST:PORT of {port_of}{leave}"
