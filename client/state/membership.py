"""What a device that has joined a federation keeps in its state folder: where it is, and its owner's options."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import TypeAdapter, ValidationError

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
            options = {"superlink": content["client"]["superlink"], **content["client"]}
            member = cls(str(content["name"]), str(content["fingerprint"]), options)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise ConfigError(f"file '{path}' cannot be read: {error!r}") from None
        fields = owner_fields()
        for key, value in options.items():
            if key not in fields:
                raise ConfigError(f"{key} in '{path}' is not allowed: no option of `fedappeal client`")
            try:
                options[key] = TypeAdapter[Any](fields[key].annotation or str).validate_python(value)
            except ValidationError as error:
                why = error.errors()[0]["msg"].lower()
                raise ConfigError(f"{key} = {value!r} in '{path}' is not allowed: {why}") from None
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
