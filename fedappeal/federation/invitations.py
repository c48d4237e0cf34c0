"""A federation's invitations in a file of SQLite: made, listed, withdrawn, and used at most as often as they say."""

import os
import re
import secrets
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from fedappeal.federation.certificates import CLIENT_NAME, fingerprint_of
from fedappeal.federation.folder import FederationFolder
from fedappeal.protocol.invitation import Invitation, digest_of
from fedappeal.protocol.proof import client_id_of
from fedappeal.settings.config import ConfigError

FILE = "invitations.db"
USED, EXPIRED, WITHDRAWN, UNKNOWN = "used", "expired", "withdrawn", "unknown"
OPEN = "open"
AFTER = 600.0
"""Seconds after its last use in which the same key may still ask for the answer."""
MOST_USES, MOST_KEPT = 1000, 1000
_TABLES = """
CREATE TABLE IF NOT EXISTS invitation (id INTEGER PRIMARY KEY, name TEXT, digest BLOB, uses INTEGER, expires REAL,
    withdrawn INTEGER DEFAULT 0);
CREATE TABLE IF NOT EXISTS member (invitation INTEGER, key BLOB, name TEXT, since REAL, UNIQUE (invitation, key));
"""
_TURNS = threading.Lock()
"""Threads of this process wait for each other here: SQLite lets one that is unlucky wait until its time is over."""
_UNITS = {"m": 60.0, "h": 3600.0, "d": 86400.0}


class NotRedeemed(Exception):
    """An invitation that admits no key; the text is `USED`, `EXPIRED`, `WITHDRAWN` or `UNKNOWN`."""


@dataclass(frozen=True)
class Invited:
    """A kept invitation.

    Attributes:
        number: of its row.
        name: what its client is called.
        uses: how many keys may use it.
        expires: when it ends, seconds since 1970.
        withdrawn: whether it was taken back.
        keys: public key (PEM) and client's name of each key that used it.
        last_use: when that was; 0: never.
    """

    number: int
    name: str
    uses: int
    expires: float
    withdrawn: bool
    keys: tuple[tuple[bytes, str], ...]
    last_use: float

    @property
    def members(self) -> tuple[tuple[str, str], ...]:
        """Client-id and name of each key that used it."""
        return tuple((client_id_of(key), name) for key, name in self.keys)

    @property
    def status(self) -> str:
        """How it stands."""
        if self.withdrawn:
            return WITHDRAWN
        if len(self.keys) >= self.uses:
            return USED
        return EXPIRED if self.expires <= time.time() else OPEN


def seconds_of(text: str) -> float:
    """Return the seconds of a time such as ``30m``, ``12h`` or ``7d``; ConfigError for another form."""
    matched = re.fullmatch(r"([1-9][0-9]{0,4})([mhd])", text)
    if not matched:
        raise ConfigError(f"expires = '{text}' is not allowed: a number with m, h or d, such as 12h or 7d")
    return int(matched[1]) * _UNITS[matched[2]]


class Invitations:
    """The invitations in a folder's file, which its owner alone may read.

    Several processes may use it at once. Every call raises `ConfigError` where the file cannot be read or written.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        try:
            os.close(os.open(self._path, os.O_CREAT | os.O_RDWR, 0o600))
        except OSError as error:
            raise ConfigError(f"file '{self._path}' is not allowed: {error.strerror}") from None
        with self._open() as database:
            database.executescript(_TABLES)

    def add(self, name: str, secret: bytes, uses: int, seconds: float) -> None:
        """Add an invitation; ConfigError for what is not allowed, or a name that is invited already."""
        if not CLIENT_NAME.fullmatch(name) or len(name) > 64:
            raise ConfigError(f"name = '{name}' is not allowed: up to 64 letters, digits and . _ -")
        if not 1 <= uses <= MOST_USES:
            raise ConfigError(f"uses = {uses} is not allowed: 1 to {MOST_USES}")
        with self._open() as database:
            kept = self._all(database)
            if any(one.name == name and one.status == OPEN for one in kept):
                raise ConfigError(
                    f"name = '{name}' is not allowed: it is invited already (fedappeal federation invites --withdraw)"
                )
            if len(kept) >= MOST_KEPT:
                raise ConfigError(
                    f"a federation keeps {MOST_KEPT} invitations: remove {self._path} once all are used"
                )
            row = (name, digest_of(secret), uses, time.time() + seconds)
            database.execute("INSERT INTO invitation (name, digest, uses, expires) VALUES (?, ?, ?, ?)", row)

    def all(self) -> list[Invited]:
        """Return all, the oldest first."""
        with self._open() as database:
            return self._all(database)

    def withdraw(self, name: str) -> None:
        """Take the open invitation of a name back; ConfigError where there is none."""
        with self._open() as database:
            numbers = [one.number for one in self._all(database) if one.name == name and one.status == OPEN]
            if not numbers:
                raise ConfigError(f"withdraw = '{name}' is not allowed: no open invitation is called so")
            database.execute("UPDATE invitation SET withdrawn = 1 WHERE id = ?", numbers)

    def listens(self) -> bool:
        """Whether a key may come: an invitation is open, or was used a moment ago."""
        now = time.time()
        return any(one.status == OPEN or (one.status == USED and one.last_use > now - AFTER) for one in self.all())

    def look(self, digest: bytes, key: bytes = b"") -> Invited:
        """Return an open invitation, which stays so.

        Args:
            digest: of its secret.
            key: public key (PEM) that may have used it already; empty: none.

        Raises:
            NotRedeemed: there is none.
        """
        with self._open() as database:
            return self._open_one(database, digest, key)

    def redeem(self, secret: bytes, key: bytes) -> str:
        """Use an invitation for a key and return its client's name; the same key gets the same again.

        Args:
            secret: of the invitation.
            key: public key (PEM).

        Raises:
            NotRedeemed: it admits no further key.
        """
        with self._open() as database:
            invited = self._open_one(database, digest_of(secret), key)
            if name := dict(invited.members).get(client_id_of(key)):
                return name
            name = invited.name if invited.uses == 1 else f"{invited.name}-{len(invited.keys) + 1}"
            row = (invited.number, key, name, time.time())
            database.execute("INSERT INTO member VALUES (?, ?, ?, ?)", row)
            return name

    def _open_one(self, database: sqlite3.Connection, digest: bytes, key: bytes) -> Invited:
        """Return the open invitation of a digest, or one that this key has used."""
        rows = database.execute("SELECT id, digest FROM invitation").fetchall()
        # Each is compared, in constant time.
        numbers = [number for number, kept in rows if secrets.compare_digest(kept, digest)]
        invited = next((one for one in self._all(database) if one.number in numbers), None)
        if invited is None:
            raise NotRedeemed(UNKNOWN)
        used_it = bool(key) and client_id_of(key) in dict(invited.members)
        if invited.status != OPEN and (invited.withdrawn or not used_it):
            raise NotRedeemed(invited.status)
        return invited

    def _all(self, database: sqlite3.Connection) -> list[Invited]:
        keys: dict[int, list[tuple[bytes, str]]] = {}
        last: dict[int, float] = {}
        for number, key, name, since in database.execute("SELECT invitation, key, name, since FROM member"):
            keys.setdefault(number, []).append((key, name))
            last[number] = since
        rows = database.execute("SELECT id, name, uses, expires, withdrawn FROM invitation ORDER BY id")
        return [
            Invited(number, name, uses, expires, bool(withdrawn), tuple(keys.get(number, ())), last.get(number, 0.0))
            for number, name, uses, expires, withdrawn in rows
        ]

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """Yield the database in one transaction, in which no other process writes."""
        try:
            with _TURNS, closing(sqlite3.connect(self._path, timeout=10, isolation_level=None)) as database:
                database.execute("BEGIN IMMEDIATE")
                try:
                    yield database
                except BaseException:
                    if database.in_transaction:
                        database.rollback()
                    raise
                if database.in_transaction:
                    database.commit()
        except sqlite3.Error as error:
            raise ConfigError(f"file '{self._path}' cannot be read or written: {error}") from None


def invitation_file(opened: FederationFolder, name: str) -> Path:
    """Return the file in which `fedappeal federation invite` leaves the line for a client of this name."""
    return opened.path / f"{name}.invite"


def invite(opened: FederationFolder, name: str, uses: int, expires: str) -> Invitation:
    """Return a new invitation, of which the federation itself keeps the hash alone.

    Args:
        opened: the federation's folder.
        name: what the client is called.
        uses: how many clients may use it.
        expires: for how long, as `seconds_of` reads it.

    Raises:
        ConfigError: for what is not allowed, or where the federation takes no invitations.
    """
    if not opened.addresses.join:
        raise ConfigError(
            f"'{opened.path}' takes no invitations: join-address is empty there, or keys are not asked for"
        )
    invitation = Invitation.new(opened.addresses.join, fingerprint_of(Path(opened.ca_file)))
    Invitations(opened.path).add(name, invitation.secret, uses, seconds_of(expires))
    invitation_file(opened, name).unlink(missing_ok=True)  # that of an earlier one
    return invitation


def withdraw(opened: FederationFolder, name: str) -> None:
    """Take the open invitation of a name back, with its file; ConfigError where there is none."""
    Invitations(opened.path).withdraw(name)
    invitation_file(opened, name).unlink(missing_ok=True)
