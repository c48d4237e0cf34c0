"""The folder of a federation that `fedappeal federation open` has started, and where later commands reach it."""

import json
import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from fedappeal.protocol.foreign_text import parse_json, printable
from fedappeal.settings.config import ConfigError
from fedappeal.system.files import replace_file

SETTINGS = "federation.toml"
_ADDRESSES = "addresses.json"


@dataclass(frozen=True)
class Addresses:
    """Where a federation is reached.

    Attributes:
        control: ``HOST:PORT`` of the Control API, for the operator.
        ca: file of the CA certificate; a relative path begins at the folder.
        fleet: ``HOST:PORT`` of the Fleet API, as volunteers have it.
        join: ``HOST:PORT`` where they redeem invitations; empty: nowhere.
    """

    control: str
    ca: str
    fleet: str
    join: str = ""

    @classmethod
    def read(cls, file: Path) -> "Addresses":
        """Return those that a file keeps; OSError or ValueError for any other file."""
        values = parse_json(file.read_text("utf-8"))
        if not isinstance(values, dict) or not all(isinstance(value, str) for value in values.values()):
            raise ValueError("it is no table of texts")
        if values.keys() != {field.name for field in fields(cls)}:
            raise ValueError(f"it has {printable(', '.join(values)) or 'nothing'}")
        return cls(**values)

    def write(self, folder: Path) -> None:
        """Keep them for later commands."""
        replace_file(folder / _ADDRESSES, (json.dumps(asdict(self), indent=1) + "\n").encode())


@dataclass(frozen=True)
class FederationFolder:
    """A federation's folder, with its addresses when it was last started."""

    path: Path
    addresses: Addresses

    @property
    def ca_file(self) -> str:
        """File of the CA certificate; empty: plaintext."""
        return str(self.path / self.addresses.ca) if self.addresses.ca else ""

    @classmethod
    def find(cls, folder: Path | None, near: Path | None = None) -> "FederationFolder | None":
        """Return the folder that a command is about; None if there is none.

        Args:
            folder: as the user names it; None: this folder, or one that is above ``near``.
            near: a run's folder.

        Raises:
            ConfigError: the named folder is none, or its addresses cannot be read.
        """
        places = [folder] if folder else [Path(), *(near.absolute().parents if near else ())]
        place = next((place for place in places if (place / _ADDRESSES).is_file()), None)
        if place is None:
            if folder is None:
                return None
            raise ConfigError(
                f"federation = '{folder}' is not allowed: no federation was opened there (fedappeal federation open)"
            )
        if folder is None and (place / _ADDRESSES).stat().st_uid not in (os.geteuid(), 0):
            raise ConfigError(
                f"federation = '{place.absolute()}' is another user's, and is taken only where it is named "
                "(--federation, or --superlink)"
            )
        try:
            return cls(place.absolute(), Addresses.read(place / _ADDRESSES))
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"file '{place / _ADDRESSES}' cannot be read ({error}): open the federation again"
            ) from None
