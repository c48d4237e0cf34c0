"""Addresses and TLS as a node uses them.

What an address names, what listens there, and whom a client trusts.
"""

import ssl
from collections.abc import Sequence

from cryptography import x509

from fedappeal.flower.node.proxy import open_connection

ALPN = "h2"
"""What TLS calls gRPC's protocol."""


def split_address(address: str) -> tuple[str, int]:
    """Split ``HOST:PORT``; an IPv6 host may stand in brackets."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def speaks_tls(peer: tuple[str, int], timeout: float | None) -> bool:
    """Whether the server at a host and port answers by TLS."""
    try:
        with open_connection(peer, timeout, tls=True) as raw, unverified_context().wrap_socket(raw):
            return True
    except OSError:
        return False


def served_certificate(peer: tuple[str, int], timeout: float | None) -> x509.Certificate | None:
    """Return the certificate that a server shows, unverified; None where it cannot be had."""
    try:
        with open_connection(peer, timeout, tls=True) as raw, unverified_context().wrap_socket(raw) as secure:
            return x509.load_der_x509_certificate(secure.getpeercert(binary_form=True) or b"")
    except (OSError, ValueError):
        return None


def unverified_context(protocols: Sequence[str] = (ALPN, "http/1.1")) -> ssl.SSLContext:
    """Return a TLS context that trusts any server, for a probe that sends nothing secret."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(list(protocols))
    return context


def trusting(root_certificates: bytes | None) -> ssl.SSLContext:
    """Return a context that trusts servers of one CA.

    Args:
        root_certificates: its certificate (PEM); None: the system's CAs.

    Raises:
        ssl.SSLError: if it is no certificate.
    """
    context = ssl.create_default_context(cadata=root_certificates.decode("ascii") if root_certificates else None)
    # gRPC is not as strict about a CA's optional extensions as newer Pythons are.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context
