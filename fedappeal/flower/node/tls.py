"""Whether a server speaks TLS: asked without trusting it, and sending it nothing."""

import socket
import ssl

from fedappeal.flower.node.fleet_grpc import ALPN


def split_address(address: str) -> tuple[str, int]:
    """Split ``HOST:PORT``; an IPv6 host may stand in brackets."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def speaks_tls(peer: tuple[str, int], timeout: float | None) -> bool:
    """Whether what listens at a host and port answers by TLS."""
    try:
        with socket.create_connection(peer, timeout) as raw, unchecked().wrap_socket(raw):
            return True
    except OSError:
        return False


def unchecked() -> ssl.SSLContext:
    """Return a context that trusts any server: to look at it, sending nothing."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols([ALPN, "http/1.1"])
    return context
