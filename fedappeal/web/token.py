"""The secret of a page."""

import secrets

_BYTES = 32


def new_token() -> str:
    """Return a secret of 256 random bits, fit for an address."""
    return secrets.token_urlsafe(_BYTES)
