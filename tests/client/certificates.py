"""Certificates for tests: a CA, and a server certificate for 127.0.0.1 only."""

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedappeal.federation.superlink import TLS


def make(folder: Path, days: int = 1) -> TLS:
    """Write ``ca.crt``, ``server.pem`` and ``server.key``; valid for the days that follow, or were before today."""
    folder.mkdir()
    ca_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"CA of {folder.name}")])
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "SuperLink")])
    today = datetime.datetime.now(datetime.UTC) - datetime.timedelta(minutes=1)
    begin, end = sorted((today, today + datetime.timedelta(days=days)))

    def builder(subject: x509.Name, public_key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        empty = x509.CertificateBuilder().subject_name(subject).issuer_name(ca_name).public_key(public_key)
        return empty.serial_number(x509.random_serial_number()).not_valid_before(begin).not_valid_after(end)

    ca = builder(ca_name, ca_key.public_key()).add_extension(x509.BasicConstraints(True, None), True)
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    server = builder(name, key.public_key()).add_extension(names, False)
    server = server.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False)
    tls = TLS(folder / "ca.crt", folder / "server.pem", folder / "server.key")
    pem = serialization.Encoding.PEM
    tls.ca.write_bytes(ca.sign(ca_key, hashes.SHA256()).public_bytes(pem))
    tls.certificate.write_bytes(server.sign(ca_key, hashes.SHA256()).public_bytes(pem))
    plain = serialization.NoEncryption()
    tls.key.write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
    return tls
