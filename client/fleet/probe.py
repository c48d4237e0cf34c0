"""A probe of a SuperLink: the reason why it cannot be reached, in one line.

Flower's transport retries for ever and hides the reason, so the reason is looked for first, with a plain socket.
"""

import socket
import ssl
import time
from pathlib import Path

from cryptography import x509

from client.settings import Connection
from fedappeal.flower.node.fleet_grpc import ALPN, GREETING, answers_greeting, speaks_tls, split_address, unchecked

_WRONG_NAME = {62, 64}  # OpenSSL: X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH
_WRONG_TIME = {9, 10}  # not yet valid, expired


def probe(connection: Connection, timeout: float = 3.0) -> str | None:
    """Find out whether a SuperLink can be spoken to as the settings say.

    Args:
        connection: where it is and how to speak to it.
        timeout: seconds to wait for each answer.

    Returns:
        None if it can; otherwise the reason, one line for a person to read.
    """
    address = connection.superlink
    host, port = split_address(address)
    try:
        with socket.create_connection((host, port), timeout) as raw:
            if connection.insecure:
                return _probe_plaintext(raw, address)
            return _probe_tls(raw, host, connection)
    except socket.gaierror:
        return f"the host name '{host}' is not known"
    except ConnectionRefusedError:
        return f"nothing listens at {address}: is the SuperLink running?"
    except TimeoutError:
        return f"{address} does not answer (a firewall, or the wrong host?)"
    except OSError as error:
        return f"{address} is not reachable: {error.strerror or error}"


def _probe_plaintext(raw: socket.socket, address: str) -> str | None:
    peer = raw.getpeername()[:2]
    try:
        raw.sendall(GREETING)
        answer = raw.recv(9)
    except ConnectionError:
        answer = b""
    if answers_greeting(answer):
        return None
    if speaks_tls(peer, raw.gettimeout()):
        return f"the SuperLink at {address} speaks TLS: give root-certificates instead of insecure"
    return f"what listens at {address} is no Fleet API in plaintext: is the port the right one?"


def _probe_tls(raw: socket.socket, host: str, connection: Connection) -> str | None:
    address, ca = connection.superlink, connection.root_certificates
    try:
        context = ssl.create_default_context(cafile=str(Path(ca).expanduser()) if ca else None)
    except ssl.SSLError:
        return f"root-certificates = '{ca}' holds no certificate in PEM format"
    except OSError as error:
        return f"root-certificates = '{ca}' cannot be read: {error.strerror or error}"
    # gRPC is not as strict about a CA's optional extensions as newer Pythons are.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.set_alpn_protocols([ALPN])
    peer = raw.getpeername()[:2]
    try:
        with context.wrap_socket(raw, server_hostname=host) as secure:
            fits = secure.selected_alpn_protocol() == ALPN
    except ssl.SSLCertVerificationError as error:
        if error.verify_code in _WRONG_NAME:
            names = _names(peer, raw.gettimeout())
            held = f"; it is for {', '.join(names)}" if names else ""
            return f"the certificate of {address} is not for the name '{host}'{held}"
        if error.verify_code in _WRONG_TIME:
            clock = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
            return f"the certificate of {address} is not valid now: {error.verify_message}; this clock says {clock}"
        trusted = f"root-certificates = '{ca}'" if ca else "this system's certificates (no root-certificates given)"
        return (
            f"the certificate of {address} is not trusted by {trusted}: {error.verify_message}; "
            f"the operator has the ca.crt that fits"
        )
    except (ssl.SSLError, ConnectionError):
        return f"what listens at {address} does not speak TLS (plaintext needs insecure)"
    return None if fits else f"what listens at {address} is no Fleet API: is the port the right one?"


def _names(peer: tuple[str, int], timeout: float | None) -> list[str]:
    """Return the names that a server's certificate holds; none where it cannot be had."""
    try:
        with socket.create_connection(peer, timeout) as raw, unchecked().wrap_socket(raw) as secure:
            content = secure.getpeercert(binary_form=True)
        certificate = x509.load_der_x509_certificate(content or b"")
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (OSError, ValueError, x509.ExtensionNotFound):
        return []
    return [str(name.value) for name in names]
