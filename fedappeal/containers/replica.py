"""One replica of the service ``client``.

It claims a slot, makes its key the first time, and serves as that client.

Replicas of one service are all alike: the same image, settings and volume. What makes one a client of its own, its
key, its state and its share of the data, is its slot: the first folder ``NN`` whose lock no other replica holds. The
kernel lets go of a claim however the replica ends, so the one that is started in its place is the same client again.

python -m fedappeal.containers.replica [options of `fedappeal client`]
"""

import fcntl
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import count, takewhile
from pathlib import Path

from fedappeal.containers.log import tell
from fedappeal.settings.config import ConfigError
from fedappeal.system.locks import InUse, is_held, only_process

_CLAIM = "claim"
_SEARCH = "search"


@dataclass(frozen=True)
class ReplicaSlot:
    """One client's folder.

    Attributes:
        number: which client of the federation it is, from 0.
        folder: its folder, named after the number.
    """

    number: int
    folder: Path

    @property
    def key(self) -> Path:
        """File of the client's private key."""
        return self.folder / "client.key"

    @property
    def public_key(self) -> Path:
        """File of the client's public key."""
        return self.folder / "client.pub"

    @property
    def state(self) -> Path:
        """Folder of the client's durable state."""
        return self.folder / "state"


def _slots(folder: Path) -> Iterator[ReplicaSlot]:
    return (ReplicaSlot(number, folder / f"{number:02d}") for number in count())


@contextmanager
def claim_slot(folder: Path) -> Iterator[ReplicaSlot]:
    """Hold the first slot that is free, making its folder if it is new.

    Args:
        folder: the folder of all clients, shared by all replicas.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as claim:
        with _searching(folder):
            for slot in _slots(folder):
                with suppress(InUse):
                    claim.enter_context(only_process(slot.folder, _CLAIM))
                    break
        yield slot


def taken_slots(folder: Path) -> list[ReplicaSlot]:
    """Return the slots that replicas hold now, in order.

    Reading the folder is enough for it.
    """
    if not (folder / _SEARCH).exists():
        return []
    with _searching(folder):
        there = takewhile(lambda slot: slot.folder.is_dir(), _slots(folder))
        return [slot for slot in there if is_held(slot.folder, _CLAIM)]


@contextmanager
def _searching(folder: Path) -> Iterator[None]:
    """Hold the lock of the search for a free slot.

    A look takes the lock of a free slot for a moment.
    """
    path = folder / _SEARCH
    search = os.open(path, os.O_RDONLY) if path.exists() else os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(search, fcntl.LOCK_EX)
        yield
    finally:
        os.close(search)


CLIENTS = Path("/federation/clients")
"""Folder of all clients, on a volume of its own."""
CA = Path("/federation/ca/ca.crt")
SUPERLINK = "superlink:9092"


def client_arguments(slot: ReplicaSlot, superlink: str, ca: Path, extra: list[str]) -> list[str]:
    """Return the `fedappeal` arguments of a slot's client.

    Of an option given twice the last counts.
    """
    return [
        *("client", "--superlink", superlink, "--root-certificates", str(ca)),
        *("--key", str(slot.key), "--partition-id", str(slot.number), "--state-dir", str(slot.state)),
        *("--connect-timeout", "0"),  # the SuperLink may be down for any time
        *extra,
    ]


def main(clients: Path = CLIENTS, ca: Path = CA) -> None:
    """Claim a slot, and serve as its client until `fedappeal client` ends.

    Environment: ``SUPERLINK`` (HOST:PORT), and any other option of `fedappeal client` by its name, as ``DATA_DIR``;
    an empty variable is none.
    """
    from fedappeal.federation.certificates import make_key

    os.umask(0o077)
    superlink = os.environ.get("SUPERLINK") or SUPERLINK
    with claim_slot(clients) as slot:
        try:
            tell(f"this replica is client {slot.number}")
            make_key(slot.key, f"client-{slot.number:02d}")
        except ConfigError as error:
            sys.exit(f"fedappeal: {error}")
        from fedappeal.cli.main import main as fedappeal

        sys.argv = ["fedappeal", *client_arguments(slot, superlink, ca, sys.argv[1:])]
        try:
            fedappeal(by_variables="client")
        except SystemExit as ended:
            # Python takes seconds to take PyTorch apart, and Docker kills what has not ended after ten.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(ended.code if isinstance(ended.code, int) else 1)


if __name__ == "__main__":
    main()
