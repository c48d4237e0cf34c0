"""One replica of the service ``client``: claims a slot, makes its key the first time, serves as that client.

python -m fedappeal.containers.replica [options of `fedappeal client`]
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from fedappeal.containers.slots import ReplicaSlot, claimed
from fedappeal.containers.told import tell
from fedappeal.settings.config import ConfigError

CLIENTS = Path("/federation/clients")
"""Folder of all clients, on a volume of its own."""
CA = Path("/federation/ca/ca.crt")
SUPERLINK = "superlink:9092"
OPTIONS = {
    "DATA_DIR": "--data-dir",
    "DEVICE": "--device",
    "ALLOW": "--allow",
    "PARTICIPATION": "--participation",
    "SET": "--set",
    "LIMITS": "--limits",
    "METRICS_PORT": "--metrics-port",
    "METRICS_ADDRESS": "--metrics-address",
    "HEARTBEAT": "--heartbeat",
    "LOG_FORMAT": "--log-format",
}
"""Variables of the environment that are options of `fedappeal client`; an empty one is none."""


def environment_options(environment: Mapping[str, str]) -> list[str]:
    """Return the options that the environment holds."""
    return [part for name, option in OPTIONS.items() if (value := environment.get(name)) for part in (option, value)]


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

    Environment: ``SUPERLINK`` (HOST:PORT), ``DATA_DIR`` (folder with the data sets), ``DEVICE``, ``TASK`` (where it
    is one of the owner's own, package.module:name, this client allows that package).
    """
    from fedappeal.federation.certificates import make_key

    os.umask(0o077)
    superlink = os.environ.get("SUPERLINK") or SUPERLINK
    extra = environment_options(os.environ)
    with claimed(clients) as slot:
        try:
            tell(f"this replica is client {slot.number}")
            make_key(slot.key, f"client-{slot.number:02d}")
        except ConfigError as error:
            sys.exit(f"fedappeal: {error}")
        from fedappeal.cli.main import main as fedappeal

        sys.argv = ["fedappeal", *client_arguments(slot, superlink, ca, extra + sys.argv[1:])]
        try:
            fedappeal()
        except SystemExit as ended:
            # Python takes seconds to take PyTorch apart, and Docker kills what has not ended after ten.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(ended.code if isinstance(ended.code, int) else 1)


if __name__ == "__main__":
    main()
