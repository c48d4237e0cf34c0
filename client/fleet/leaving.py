"""How a device leaves its federation: its key is struck off, by a call that the key signs, and deleted."""

from pathlib import Path

from client.fleet.connection import unregister
from client.settings import Connection
from client.state.membership import Membership
from client.state.store import DiskStore
from fedappeal.flower.node.fleet import NodeForgotten, NotActivated, NotAdmitted, NotConnected
from fedappeal.settings.config import ConfigError
from fedappeal.system.locks import InUse, only_process


def leave_federation(folder: Path) -> list[str]:
    """Have a device's key struck off, and delete it; return lines that say what stays where.

    Raises:
        ConfigError: the device is no member, its client runs, or it does not answer: nothing is changed.
    """
    if (member := Membership.read(folder)) is None:
        raise ConfigError(f"state-dir = '{folder}' is not allowed: this device is no member of a federation")
    names = ("superlink", "root-certificates", "key", "transport")
    connection = Connection.parse({key: member.options[key] for key in names if key in member.options})
    struck = "is unregistered for good"
    try:
        with only_process(folder):
            unregister(connection, DiskStore(folder))
            Membership.forget(folder)
    except InUse as error:
        raise ConfigError(f"a client runs here (process {error.process}): end it first (Ctrl-C)") from None
    except (NotConnected, ValueError) as error:
        if isinstance(error, NodeForgotten | NotAdmitted) and not isinstance(error, NotActivated):
            struck = "was unregistered before"
            Membership.forget(folder)
        else:
            raise ConfigError(
                f"{error}; nothing was changed: try again, or ask the operator (fedappeal federation unregister)"
            ) from None
    return [
        f"left {connection.superlink}: this device's key {struck}, and deleted here; to join again makes a new key, "
        "and a new client-id",
        f"{folder} keeps the models that it preferred, its receipts and limits; delete the folder to remove them",
        "models that the server has made keep what this device's updates gave them",
    ]
