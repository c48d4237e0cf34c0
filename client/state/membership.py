"""What a device that has joined a federation keeps in its state folder: where it is, and its owner's options."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from client.settings import owner_fields
from fedappeal.settings.config import ConfigError
from fedappeal.system.files import replace_file

_FILE = "federation.toml"
KEY, CA = "client.key", "ca.crt"


@dataclass(frozen=True)
class Membership:
    """A device's membership.

    Attributes:
        name: what the operator calls it.
        fingerprint: of the federation's CA certificate, in hex.
        options: of `fedappeal client`, by key.
    """

    name: str
    fingerprint: str
    options: Mapping[str, Any]

    @classmethod
    def read(cls, folder: Path) -> "Membership | None":
        """Return a state folder's membership; None if it has none, ConfigError if it cannot be read."""
        path = folder / _FILE
        try:
            content = tomllib.loads(path.read_text("utf-8"))
            member = cls(str(content["name"]), str(content["fingerprint"]), dict(content["client"]))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"file '{path}' cannot be read: {error!r}") from None
        for key in member.options:
            if key not in owner_fields():
                raise ConfigError(f"{key} in '{path}' is not allowed: no option of `fedappeal client`")
        return member

    def write(self, folder: Path) -> None:
        """Keep it, for its owner alone."""
        note = "# Options of `fedappeal client` on this device; those of the command line go before them.\n"
        content = {"name": self.name, "fingerprint": self.fingerprint, "client": dict(self.options)}
        replace_file(folder / _FILE, (note + tomli_w.dumps(content)).encode(), mode=0o600)

    @staticmethod
    def forget(folder: Path) -> None:
        """Delete it, with the key."""
        for name in (_FILE, KEY, Path(KEY).with_suffix(".pub").name, CA):
            (folder / name).unlink(missing_ok=True)
