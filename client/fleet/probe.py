"""A probe of a SuperLink: the reason why it cannot be reached, in one line.

Flower's transport retries for ever and hides the reason, so the reason is looked for first, with a plain socket.
"""

import socket
import ssl
import time
from codecs import BOM_UTF8
from pathlib import Path

from cryptography import x509

from client.settings import GRPC, HTTP, Connection
from fedappeal.flower.node.fleet import NotConnected
from fedappeal.flower.node.fleet_grpc import GREETING, answers_greeting
from fedappeal.flower.node.proxy import Proxy, open_connection, proxy_of
from fedappeal.flower.node.tls import ALPN, speaks_tls, split_address, trusting, unverified_context

_WRONG_NAME = {62, 64}  # OpenSSL: X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH
_WRONG_TIME = {9, 10}  # not yet valid, expired


def probe(connection: Connection, timeout: float = 3.0) -> str:
    """Return the protocol that a SuperLink speaks, `GRPC` or `HTTP`; gRPC if both.

    Args:
        connection: where it is and how to speak to it.
        timeout: seconds to wait for each answer.

    Raises:
        NotConnected: if it cannot be reached as the settings say; the reason, one line for a person to read.
    """
    address, proxy = connection.superlink, None
    host, port = split_address(address)
    try:
        proxy = proxy_of(host, tls=not connection.insecure)
        with open_connection((host, port), timeout, tls=not connection.insecure) as raw:
            spoken = _in_plaintext(raw, address) if connection.insecure else _over_tls(raw, host, connection)
    except NotConnected:
        raise
    except OSError as error:
        raise NotConnected(_unreachable(error, address, host, proxy)) from None
    if connection.transport not in ("auto", spoken):
        raise NotConnected(f"what listens at {address} speaks {spoken}, and transport = '{connection.transport}'")
    return spoken


def _unreachable(error: OSError, address: str, host: str, proxy: Proxy | None) -> str:
    reason = str(error.strerror or error)
    if proxy is not None:
        return f"{address} is not reachable by {proxy}: {reason}; no_proxy names what is reached without it"
    if isinstance(error, socket.gaierror):
        return f"the host name '{host}' is not known"
    if isinstance(error, ConnectionRefusedError):
        return f"nothing listens at {address}: is the SuperLink running?"
    if isinstance(error, TimeoutError):
        return f"{address} does not answer (a firewall, or the wrong host?)"
    return f"{address} is not reachable: {reason}"


def _answered(raw: socket.socket) -> str:
    """Return the protocol in which a server answers gRPC's greeting; empty: in none."""
    try:
        raw.sendall(GREETING)
        answer = raw.recv(9)
    except ConnectionError:
        return ""
    if answers_greeting(answer):
        return GRPC
    return HTTP if answer.startswith(b"HTTP/1") else ""


def _in_plaintext(raw: socket.socket, address: str) -> str:
    if spoken := _answered(raw):
        return spoken
    if speaks_tls(split_address(address), raw.gettimeout()):
        raise NotConnected(f"the SuperLink at {address} speaks TLS: give root-certificates instead of insecure")
    raise NotConnected(f"what listens at {address} is no Fleet API in plaintext: is the port the right one?")


def _over_tls(raw: socket.socket, host: str, connection: Connection) -> str:
    address, ca = connection.superlink, connection.root_certificates
    try:
        context = trusting(Path(ca).read_bytes().removeprefix(BOM_UTF8) if ca else None)
    except (ssl.SSLError, ValueError):
        raise NotConnected(f"root-certificates = '{ca}' holds no certificate in PEM format") from None
    except OSError as error:
        raise NotConnected(f"root-certificates = '{ca}' cannot be read: {error.strerror or error}") from None
    context.set_alpn_protocols(["http/1.1"] if connection.transport == HTTP else [ALPN, "http/1.1"])
    try:
        with context.wrap_socket(raw, server_hostname=host) as secure:
            spoken = GRPC if secure.selected_alpn_protocol() == ALPN else _answered(secure)
    except ssl.SSLCertVerificationError as error:
        if error.verify_code in _WRONG_NAME:
            names = _names(split_address(address), raw.gettimeout())
            hosts = f"; it is for {', '.join(names)}" if names else ""
            reason = f"the certificate of {address} is not for the name '{host}'{hosts}"
        elif error.verify_code in _WRONG_TIME:
            clock = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
            reason = f"the certificate of {address} is not valid now: {error.verify_message}; this clock says {clock}"
        else:
            trusted = (
                f"root-certificates = '{ca}'" if ca else "this system's certificates (no root-certificates given)"
            )
            reason = (
                f"the certificate of {address} is not trusted by {trusted}: {error.verify_message}; "
                f"the operator has the ca.crt that fits"
            )
        raise NotConnected(reason) from None
    except (ssl.SSLError, ConnectionError):
        raise NotConnected(f"what listens at {address} does not speak TLS (plaintext needs insecure)") from None
    if not spoken:
        raise NotConnected(f"what listens at {address} is no Fleet API: is the port the right one?")
    return spoken


def _names(peer: tuple[str, int], timeout: float | None) -> list[str]:
    """Return the names that a server's certificate holds; none where it cannot be had."""
    try:
        with open_connection(peer, timeout, tls=True) as raw, unverified_context().wrap_socket(raw) as secure:
            content = secure.getpeercert(binary_form=True)
        certificate = x509.load_der_x509_certificate(content or b"")
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (OSError, ValueError, x509.ExtensionNotFound):
        return []
    return [str(name.value) for name in names]
