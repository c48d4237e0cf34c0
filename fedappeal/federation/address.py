"""Certificates and ports of this machine that a user names; checked."""

import contextlib
import socket
import ssl
from codecs import BOM_UTF8

from fedappeal.settings.config import ConfigError
from fedappeal.settings.model import NotHere, local_path


def read_root_certificates(path: str) -> bytes | None:
    """Return the content of a CA certificate file; None if no file is named.

    None means plaintext.

    Raises:
        ConfigError: if it cannot be read or is no certificate.
    """
    if not path:
        return None
    file = local_path(path, "root-certificates")
    try:
        content = file.read_bytes().removeprefix(BOM_UTF8)
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=content.decode("ascii"))
    except (ssl.SSLError, ValueError):  # the first is an OSError too
        raise ConfigError(f"root-certificates = '{path}' is not allowed: it holds no certificate in PEM") from None
    except OSError as error:
        raise ConfigError(f"root-certificates = '{path}' is not allowed: {error.strerror or error}") from None
    return content


def check_port(port: int, setting: str = "port", address: str = "127.0.0.1") -> None:
    """Check that a port is free.

    Args:
        port: the port.
        setting: what the user calls it.
        address: of this machine, as a number.

    Raises:
        ConfigError: if it is in use, or not a port.
    """
    if not 0 <= port < 65536:
        raise ConfigError(f"{setting} = {port} is not allowed: 0 (the system picks one) to 65535")
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with contextlib.closing(socket.socket(family)) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError as error:
            raise NotHere(f"{setting} = {port} is not allowed: {error.strerror}") from None
