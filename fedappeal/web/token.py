"""The secret of a page: made at random, and kept in a file of its owner's alone where it has to last."""

import re
import secrets
from pathlib import Path

from fedappeal.settings.config import ConfigError
from fedappeal.system.private_files import write_private

_BYTES = 32
_TOKEN = re.compile(r"[A-Za-z0-9_-]{32,128}")


def new_token() -> str:
    """Return a secret of 256 random bits, fit for an address."""
    return secrets.token_urlsafe(_BYTES)


def kept_token(path: Path) -> str:
    """Return the secret that a file holds; where there is no file, a new one that is then kept there (0600).

    Raises:
        ConfigError: the file holds something else, or cannot be read or written.
    """
    try:
        if path.exists():
            token = path.read_bytes()[:256].decode("ascii", "replace").strip()
            if not _TOKEN.fullmatch(token):
                raise ConfigError(f"file '{path}' holds no token of a page: remove it, and a new one is made")
            path.chmod(0o600)
            return token
        token = new_token()
        write_private(path, token + "\n")
    except OSError as error:
        raise ConfigError(f"file '{path}' cannot be used: {error.strerror}") from None
    return token
