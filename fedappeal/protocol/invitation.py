"""An invitation to a federation: one line, by which a client finds it, knows it, and is admitted once.

``fedappeal://HOST:PORT/...``: behind the address stand, in base64, the SHA-256 of the CA's certificate, a secret and
a check by which a line that was cut or changed is noticed.
"""

import re
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256

from fedappeal.settings.config import ConfigError

SECRET_BYTES = 16
_FINGERPRINT, _CHECK = 32, 3
_LENGTH = (_FINGERPRINT + SECRET_BYTES + _CHECK) // 3 * 4
_ADDRESS = r"(?:\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}"
_LINE = re.compile(rf"fedappeal://({_ADDRESS})/([A-Za-z0-9_-]*)")
LONGEST = 1000
"""Characters of a line that is read at all."""


class JoinPath(StrEnum):
    """What a client asks for where invitations are redeemed."""

    CA = "/ca"
    LOOK = "/look"
    REDEEM = "/redeem"


@dataclass(frozen=True)
class Invitation:
    """An invitation.

    Attributes:
        address: ``HOST:PORT`` where it is redeemed.
        fingerprint: SHA-256 of the CA's certificate (DER).
        secret: `SECRET_BYTES` random bytes.
    """

    address: str
    fingerprint: bytes
    secret: bytes

    @classmethod
    def new(cls, address: str, fingerprint: bytes) -> "Invitation":
        """Return an invitation with a fresh secret."""
        return cls(address, fingerprint, secrets.token_bytes(SECRET_BYTES))

    @classmethod
    def parse(cls, text: str) -> "Invitation":
        """Read a line; ConfigError, without the secret, for one that is none or not whole."""
        matched = _LINE.fullmatch("".join(text[:LONGEST].split()))
        if not matched or not is_address(matched[1]):
            raise ConfigError("invitation is not allowed: one begins with fedappeal://HOST:PORT/; or name its file")
        address, code = matched[1], matched[2]
        content = urlsafe_b64decode(code) if len(code) == _LENGTH else b""
        body = content[:-_CHECK]
        if not content or content[-_CHECK:] != _check(address, body):
            raise ConfigError(
                f"the invitation to {address} was cut or changed on its way ({len(code)} of {_LENGTH} characters "
                "after the address): copy the whole line, or ask for its file"
            )
        return cls(address, body[:_FINGERPRINT], body[_FINGERPRINT:])

    def __str__(self) -> str:
        body = self.fingerprint + self.secret
        return f"fedappeal://{self.address}/{urlsafe_b64encode(body + _check(self.address, body)).decode()}"

    @property
    def digest(self) -> bytes:
        """The secret's SHA-256: it tells which invitation is meant, and redeems none."""
        return digest_of(self.secret)


def is_address(text: str) -> bool:
    """Whether a text is the ``HOST:PORT`` of one host, as an invitation can hold it."""
    return bool(re.fullmatch(_ADDRESS, text)) and 0 < int(text.rpartition(":")[2]) < 65536


def digest_of(secret: bytes) -> bytes:
    """Return what a server keeps of a secret."""
    return sha256(secret).digest()


def _check(address: str, body: bytes) -> bytes:
    return sha256(address.lower().encode() + body).digest()[:_CHECK]
