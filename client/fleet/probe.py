"""A probe of a SuperLink: the reason why it cannot be reached, in one line.

Flower's transport retries for ever and hides the reason, so the reason is looked for first, with a plain socket.
"""

import socket
import ssl
from codecs import BOM_UTF8
from pathlib import Path

from cryptography import x509

from client.settings import GRPC, HTTP, Connection
from fedappeal.flower.node.fleet import NotConnected
from fedappeal.flower.node.fleet_grpc import GREETING, answers_greeting
from fedappeal.flower.node.proxy import Proxy, open_connection, proxy_of
from fedappeal.flower.node.tls import ALPN, served_certificate, speaks_tls, split_address, trusting
from fedappeal.system.validity import Validity

WRONG_NAME = {62, 64}  # OpenSSL: X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH
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
        raise NotConnected(unreachable(error, address, host, proxy)) from None
    if connection.transport not in ("auto", spoken):
        raise NotConnected(f"what listens at {address} speaks {spoken}, and transport = '{connection.transport}'")
    return spoken


def unreachable(error: OSError, address: str, host: str, proxy: Proxy | None) -> str:
    """Return why an address cannot be reached, in one line."""
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


def _spoken_protocol(raw: socket.socket) -> str:
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
    if spoken := _spoken_protocol(raw):
        return spoken
    if speaks_tls(split_address(address), raw.gettimeout()):
        raise NotConnected(f"the SuperLink at {address} speaks TLS: give root-certificates instead of insecure")
    raise NotConnected(f"what listens at {address} is no Fleet API in plaintext: is the port the right one?")


def _over_tls(raw: socket.socket, host: str, connection: Connection) -> str:
    address, ca = connection.superlink, connection.root_certificates
    try:
        content = Path(ca).read_bytes().removeprefix(BOM_UTF8) if ca else None
        context = trusting(content)
        old = Validity.of_ca(content).fault(f"the certificate of root-certificates = '{ca}'") if content else ""
    except (ssl.SSLError, ValueError):
        raise NotConnected(f"root-certificates = '{ca}' holds no certificate in PEM format") from None
    except OSError as error:
        raise NotConnected(f"root-certificates = '{ca}' cannot be read: {error.strerror or error}") from None
    if old:
        raise NotConnected(f"{old}: set the clock right, or ask the operator for a new one")
    context.set_alpn_protocols(["http/1.1"] if connection.transport == HTTP else [ALPN, "http/1.1"])
    try:
        with context.wrap_socket(raw, server_hostname=host) as secure:
            spoken = GRPC if secure.selected_alpn_protocol() == ALPN else _spoken_protocol(secure)
    except ssl.SSLCertVerificationError as error:
        served = served_certificate(split_address(address), raw.gettimeout())
        if error.verify_code in WRONG_NAME:
            names = _names(served)
            hosts = f"; it is for {', '.join(names)}" if names else ""
            reason = f"the certificate of {address} is not for the name '{host}'{hosts}"
        elif error.verify_code in _WRONG_TIME:
            name = f"the certificate of {address}"
            reason = (Validity.of(served).fault(name) if served else "") or f"{name}: {error.verify_message}"
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


def _names(certificate: x509.Certificate | None) -> list[str]:
    """Return the names that a certificate holds; none where there is no certificate."""
    try:
        kind = x509.SubjectAlternativeName
        names = certificate.extensions.get_extension_for_class(kind).value if certificate else ()
    except (ValueError, x509.ExtensionNotFound):
        return []
    return [str(name.value) for name in names]
