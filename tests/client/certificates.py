"""Certificates for tests: a CA, and a server certificate for 127.0.0.1 only."""

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from fedappeal.federation.certificates import issue, new_authority, private_pem


@dataclass(frozen=True)
class TLS:
    """Files of a SuperLink's certificates."""

    folder: Path

    @property
    def ca(self) -> Path:
        return self.folder / "ca.crt"

    @property
    def certificate(self) -> Path:
        return self.folder / "server.crt"

    @property
    def key(self) -> Path:
        return self.folder / "server.key"

    @property
    def options(self) -> list[str]:
        """Options of `flower-superlink`, which admits registered keys only."""
        files = ["--ssl-ca-certfile", self.ca, "--ssl-certfile", self.certificate, "--ssl-keyfile", self.key]
        return [*map(str, files), "--enable-supernode-auth"]


def make(folder: Path, days: int = 1, ca_days: int = 0, first_day: int = 0) -> TLS:
    """Write ``ca.crt``, ``server.crt`` and ``server.key``; valid for the days that follow, or were before today.

    ``ca_days``: those of the CA; 0: the same. ``first_day``: days from now on which both begin.
    """
    folder.mkdir()
    now = datetime.datetime.now(datetime.UTC) - datetime.timedelta(minutes=1) + datetime.timedelta(days=first_day)
    begin, end = sorted((now, now + datetime.timedelta(days=days)))
    authority = new_authority(f"CA of {folder.name}", *sorted((now, now + datetime.timedelta(days=ca_days or days))))
    key = ec.generate_private_key(ec.SECP256R1())
    server = issue(authority, key, [x509.IPAddress(ipaddress.ip_address("127.0.0.1"))], begin, end)
    tls = TLS(folder)
    tls.ca.write_bytes(authority.certificate.public_bytes(Encoding.PEM))
    tls.certificate.write_bytes(server.public_bytes(Encoding.PEM))
    tls.key.write_bytes(private_pem(key))
    return tls
