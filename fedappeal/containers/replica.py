"""One replica of the service ``client``: claims a slot, makes its key the first time, serves as that client.

python -m fedappeal.containers.replica [options of `fedappeal client`]
"""

import os
import sys
from pathlib import Path

from fedappeal.containers.slots import ReplicaSlot, claimed
from fedappeal.containers.told import tell
from fedappeal.settings.config import ConfigError

CLIENTS = Path("/federation/clients")
"""Folder of all clients, on a volume of its own."""
CA = Path("/federation/ca/ca.crt")
SUPERLINK = "superlink:9092"


def client_arguments(slot: ReplicaSlot, superlink: str, ca: Path, extra: list[str]) -> list[str]:
    """Return the arguments of `fedappeal` for the client of a slot; of an option given twice the last counts."""
    return [
        *("client", "--superlink", superlink, "--root-certificates", str(ca)),
        *("--key", str(slot.key), "--partition-id", str(slot.number), "--state-dir", str(slot.state)),
        *("--connect-timeout", "0"),  # the SuperLink may be down for any time
        *extra,
    ]


def main(clients: Path = CLIENTS, ca: Path = CA) -> None:
    """Claim a slot and serve; ends as `fedappeal client` does.

    Environment: ``SUPERLINK`` (HOST:PORT), and any other option of `fedappeal client` by its name, as ``DATA_DIR``;
    an empty variable is none.
    """
    from fedappeal.federation.certificates import make_key

    os.umask(0o077)
    superlink = os.environ.get("SUPERLINK") or SUPERLINK
    with claimed(clients) as slot:
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
