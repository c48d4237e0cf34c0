"""Certificates of a SuperLink and keys of its clients, made once and kept.

A federation has a CA of its own. Clients get its certificate (``ca.crt``) and trust nothing else, so the name in the
server's certificate is all that has to fit. Clients prove who they are with a key (ECDSA in OpenSSH format, the one
that Flower's node authentication takes); its public half goes to the operator, its private half nowhere.
"""

import datetime
import fcntl
import ipaddress
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_ssh_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedappeal.settings.config import ConfigError
from fedappeal.system.files import replace_file
from fedappeal.system.plain_files import descriptor
from fedappeal.system.validity import RENEW_BEFORE, Validity

ALWAYS = ("localhost", "127.0.0.1", "::1")
"""Names that every server certificate holds: the SuperLink starts its ServerApp against 127.0.0.1."""
_CA_DAYS = 3650
# A machine whose clock is behind is told so by the SuperLink, with how far; it should get that far.
_BACKDATED = datetime.timedelta(days=1)
_PRIVATE = 0o600
_HOST = re.compile(r"(\*\.)?([A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?\.)*[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?")
CLIENT_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class Made:
    """A requested file, and whether it was made.

    Attributes:
        path: the file.
        kept: whether it was there already and stays as it was.
        about: what it is good for, in a few words.
    """

    path: Path
    kept: bool
    about: str

    def __str__(self) -> str:
        return f"{'kept' if self.kept else 'made'}  {self.path}  ({self.about})"


@dataclass(frozen=True)
class Authority:
    """A CA: its certificate and its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def write_certificates(folder: Path, hosts: Iterable[str], clients: Iterable[str], days: int) -> list[Made]:
    """Write the missing files: CA, server certificate, clients' keys.

    What is there already stays.

    Args:
        folder: gets ``ca.crt``, ``ca.key``, ``server.crt``, ``server.key`` and ``clients/NAME.key``, ``.pub``.
        hosts: host names and IP addresses under which clients reach the server, besides `ALWAYS`. One that the
            present certificate does not hold makes a new one, for the old names and the new.
        clients: names of clients to make a key for.
        days: how long a new server certificate is valid. One that ends within 30 days is replaced.

    Returns:
        What there is now, a file each.

    Raises:
        ConfigError: for a name that is not allowed, or a file that is there and is not what it should be.
    """
    wanted, clients = [general_name(host) for host in hosts], list(clients)
    for name in clients:
        if not CLIENT_NAME.fullmatch(name):
            raise ConfigError(f"client = '{name}' is not allowed: letters, digits and . _ - (it becomes a file name)")
    if days < 1:
        raise ConfigError(f"days = {days} is not allowed: at least 1")
    with _own_folder(folder):
        authority, ca = _authority(folder, days)
        made = [ca, _server(folder, authority, wanted, days)]
    return made + [make_key(folder / "clients" / f"{name}.key", name) for name in clients]


def check_names(certificate: Path, hosts: Iterable[str]) -> None:
    """Check that a server's certificate, to which no name can be added, holds all of these.

    Raises:
        ConfigError: it lacks one.
    """
    present = _names_in(_read_certificate(certificate))
    for host in hosts:
        if general_name(host) not in present:
            raise ConfigError(
                f"host = '{host}' is not allowed: '{certificate}' does not hold it; a new one needs "
                f"'{certificate.with_name('ca.key')}', which is kept elsewhere: put it back for this start"
            )


def make_key(path: Path, name: str = "") -> Made:
    """Write a client's key, and its public half under the same name plus ``.pub``.

    Args:
        path: the private key's file; a key that is there already is kept.
        name: what the key is called in the operator's list; empty: the file's name without its ending.

    Raises:
        ConfigError: if there is a file and it holds no such key.
    """
    if (public := path.with_suffix(".pub")) == path:
        raise ConfigError(f"'{path}' is not allowed: .pub is the ending of its public half")
    with _own_folder(path.parent):
        return _key_pair(path, public, name)


def _key_pair(path: Path, public: Path, name: str) -> Made:
    if present := path.exists():
        there = "is there and is not overwritten, but"
        key = _read_key(path, load_ssh_private_key, f"{there} is no client's key", f"{there} holds no ECDSA key")
    else:
        key = ec.generate_private_key(ec.SECP384R1())
        replace_file(path, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()), mode=_PRIVATE)
    line = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    if not public.exists() or public.read_bytes().split()[:2] != line.split():
        replace_file(public, line + f" {name or path.stem}\n".encode())
    return Made(path, present, f"a client's key; {public.name} is for the operator")


def fingerprint_of(path: Path) -> bytes:
    """Return the SHA-256 of a certificate (DER); ConfigError if the file holds none."""
    return _read_certificate(path).fingerprint(hashes.SHA256())


def new_authority(
    name: str, begin: datetime.datetime, end: datetime.datetime, key: ec.EllipticCurvePrivateKey | None = None
) -> Authority:
    """Make a CA (EC P-256), or a new certificate for its key."""
    key = key or ec.generate_private_key(ec.SECP256R1())
    usage = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    builder = (
        _builder(name, None, key.public_key(), begin, end)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(identifier, critical=False)
    )
    return Authority(builder.sign(key, hashes.SHA256()), key)


def issue(
    authority: Authority,
    key: ec.EllipticCurvePrivateKey,
    names: Sequence[x509.GeneralName],
    begin: datetime.datetime,
    end: datetime.datetime,
) -> x509.Certificate:
    """Issue a server certificate for the given names."""
    issuer = authority.key.public_key()
    builder = (
        _builder("SuperLink", authority.certificate.subject, key.public_key(), begin, end)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer), critical=False)
    )
    return builder.sign(authority.key, hashes.SHA256())


def private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return a private key as an unencrypted PEM file."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _authority(folder: Path, days: int) -> tuple[Authority, Made]:
    certificate, key = folder / "ca.crt", folder / "ca.key"
    about = "the CA: every client gets a copy"
    if certificate.exists() or (key.exists() and (folder / "server.crt").exists()):
        authority = Authority(_read_certificate(certificate), _read_pem_key(key))
        if authority.certificate.public_key() != authority.key.public_key():
            raise ConfigError(f"'{key}' is not the key of '{certificate}': put back the one that is")
        if fault := Validity.of(authority.certificate).fault(f"'{certificate}'"):
            raise ConfigError(f"{fault}: set the clock right, or make new ones in another folder, for all clients")
        return authority, Made(certificate, True, about)
    now = _now()
    end = now + datetime.timedelta(days=max(days, _CA_DAYS))
    # A key without certificates is of a start that was cut short.
    authority = new_authority(
        f"fedappeal CA {now:%Y-%m-%d}", now - _BACKDATED, end, _read_pem_key(key) if key.exists() else None
    )
    if not key.exists():
        replace_file(key, private_pem(authority.key), mode=_PRIVATE)
    replace_file(certificate, authority.certificate.public_bytes(Encoding.PEM))
    return authority, Made(certificate, False, about)


def _server(folder: Path, authority: Authority, wanted: list[x509.GeneralName], days: int) -> Made:
    path, key_path = folder / "server.crt", folder / "server.key"
    present: list[x509.GeneralName] = []
    fits = False
    key = _read_pem_key(key_path) if key_path.exists() else None
    if path.exists():
        old = _read_certificate(path)
        present = _names_in(old)
        with suppress(Exception):  # cryptography raises what its back end does, where another has signed it
            old.verify_directly_issued_by(authority.certificate)
            same_key = key is not None and old.public_key() == key.public_key()
            fits = same_key and old.not_valid_after_utc - RENEW_BEFORE > _now()
    names = list(dict.fromkeys([*present, *map(general_name, ALWAYS), *wanted]))
    unchanged = fits and len(names) == len(present)
    end = min(_now() + datetime.timedelta(days=days), authority.certificate.not_valid_after_utc)
    if unchanged:
        end = old.not_valid_after_utc
    else:
        if key is None:
            key = ec.generate_private_key(ec.SECP256R1())
            replace_file(key_path, private_pem(key), mode=_PRIVATE)
        certificate = issue(authority, key, names, _now() - _BACKDATED, end)
        replace_file(path, certificate.public_bytes(Encoding.PEM))
    return Made(path, unchanged, f"for {', '.join(str(name.value) for name in names)}; until {end:%Y-%m-%d}")


def _names_in(certificate: x509.Certificate) -> list[x509.GeneralName]:
    """Return the names that a server's certificate is for."""
    with suppress(x509.ExtensionNotFound):
        return list(certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    return []


def general_name(host: str) -> x509.GeneralName:
    """Return a host's name as a certificate has it; ConfigError for what is none."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        pass
    if not _HOST.fullmatch(host) or len(host) > 253:
        raise ConfigError(f"host = {host!r} is not allowed: a host name or an IP address, without port")
    return x509.DNSName(host.lower())


def _builder(
    name: str,
    issuer: x509.Name | None,
    key: ec.EllipticCurvePublicKey,
    begin: datetime.datetime,
    end: datetime.datetime,
) -> x509.CertificateBuilder:
    """Return a certificate without extensions, self-issued without an issuer."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    empty = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer or subject).public_key(key)
    return empty.serial_number(x509.random_serial_number()).not_valid_before(begin).not_valid_after(end)


def _read_certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"'{path}' cannot be read as a certificate: {_first_line(error)}") from None


def _read_pem_key(path: Path) -> ec.EllipticCurvePrivateKey:
    return _read_key(path, load_pem_private_key, "cannot be read as a private key", "holds no EC key")


def _read_key(path: Path, load: Callable[..., object], unreadable: str, another: str) -> ec.EllipticCurvePrivateKey:
    """Return a file's EC key.

    ``unreadable`` and ``another`` are what is said of a key that ``load`` cannot read, and of another kind.
    """
    try:
        key = load(path.read_bytes(), None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"'{path}' {unreadable}: {_first_line(error)}") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError(f"'{path}' {another}")
    return key


@contextmanager
def _own_folder(folder: Path) -> Iterator[None]:
    """Make a folder if missing, and hold it during the block: a second command keeps what the first has made."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"folder '{folder}' is not allowed: {error.strerror}") from None
    with descriptor(folder) as number:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(number, fcntl.LOCK_EX)
        yield


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
