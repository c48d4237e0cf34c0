"""How long a certificate is valid: checked before it is used, and warned of before it ends."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509

RENEW_BEFORE = timedelta(days=30)
"""The time before a certificate's end in which it is renewed, and warned of."""
_MINUTE = "%Y-%m-%d %H:%M UTC"


@dataclass(frozen=True)
class Validity:
    """The time in which a certificate is valid."""

    begin: datetime
    end: datetime

    @classmethod
    def of(cls, certificate: x509.Certificate) -> "Validity":
        """Return a certificate's."""
        return cls(certificate.not_valid_before_utc, certificate.not_valid_after_utc)

    @classmethod
    def of_server(cls, pem: bytes) -> "Validity":
        """Return that of a server's certificate, which stands first in its file; ValueError if there is none."""
        return cls.of(x509.load_pem_x509_certificates(pem)[0])

    @classmethod
    def of_ca(cls, pem: bytes) -> "Validity":
        """Return that of the CA that ends last, of a file of several; ValueError if there is none."""
        return max(map(cls.of, x509.load_pem_x509_certificates(pem)), key=lambda validity: validity.end)

    def fault(self, name: str) -> str:
        """Return why a certificate of this name cannot be used now; empty if it can."""
        now = datetime.now(UTC)
        if now > self.end:
            return f"{name} expired at {self.end:{_MINUTE}}; this clock says {now:{_MINUTE}}"
        if now < self.begin:
            return f"{name} is not valid before {self.begin:{_MINUTE}}; this clock says {now:{_MINUTE}}"
        return ""

    def warning(self, name: str) -> str:
        """Return what is to be said of a certificate that ends within 30 days; empty of others."""
        if datetime.now(UTC) + RENEW_BEFORE <= self.end:
            return ""
        return self.fault(name) or f"{name} ends at {self.end:{_MINUTE}}: renew it and start the SuperLink again"
