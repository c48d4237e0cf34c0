"""The first thing that runs: folders that the other containers may write to, and the SuperLink's certificates.

    python -m fedappeal.containers.prepare

It starts as root, because Docker makes volumes and missing folders as root, and is an ordinary user from then on.
"""

import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from fedappeal.containers.log import tell
from fedappeal.federation.folder import Addresses
from fedappeal.settings.config import ConfigError
from fedappeal.system.files import replace_file

VOLUMES = Path("/federation")
"""Folder of the volumes `OWNED`: the CA with its key, what the SuperLink and what clients need of it, and so on."""
OWNED = ("authority", "certificates", "ca", "clients", "superlink", "invitations")
OPEN = ("ca",)
"""Volumes that hold nothing secret; the others' folders are for their owner alone."""
RUNS = Path("/runs")
NAMES = ("superlink", "control")


def change_owner(volumes: Iterable[Path], user: int, group: int) -> None:
    """Change the owner of volumes and all their content, where another has them."""
    for volume in volumes:
        owner = volume.stat()
        if (owner.st_uid, owner.st_gid) == (user, group):
            continue
        # The volume itself comes last: where this is interrupted, the next start does all of it again.
        for folder, _, files in os.walk(volume, topdown=False):
            for path in (*(os.path.join(folder, name) for name in files), folder):
                os.chown(path, user, group, follow_symlinks=False)


def change_owner_of_runs(runs: Path, user: int, group: int) -> None:
    """Change the owner of the results' folder, if Docker has just made it.

    Raises:
        ConfigError: if it belongs to another user.
    """
    owner = runs.stat()
    if owner.st_uid == user:
        return
    if owner.st_uid != 0:
        raise ConfigError(
            f"UID = {user} is not allowed: ./runs belongs to user {owner.st_uid}; "
            f"put UID={owner.st_uid} and GID={owner.st_gid} into .env"
        )
    os.chown(runs, user, group)


def close(volumes: Path) -> None:
    """Restrict the volumes of keys and states to their owner."""
    for name in OWNED:
        (volumes / name).chmod(0o755 if name in OPEN else 0o700)


def number(variable: str) -> int:
    """Return the number that a variable of the environment holds.

    Raises:
        ConfigError: if it holds none.
    """
    value = os.environ.get(variable, "")
    if not value.isdecimal():
        raise ConfigError(f"{variable} = '{value}' is not allowed: the number of a user or group, as `id` prints it")
    return int(value)


def hand_out(volumes: Path) -> None:
    """Copy certificate and key to the SuperLink, the CA's certificate to all containers.

    The CA's key stays.
    """
    for volume, name, mode in (
        ("certificates", "ca.crt", 0o644),
        ("certificates", "server.crt", 0o644),
        ("certificates", "server.key", 0o600),
        ("ca", "ca.crt", 0o644),
    ):
        replace_file(volumes / volume / name, (volumes / "authority" / name).read_bytes(), mode=mode)


def addresses(volumes: Path, hosts: Sequence[str]) -> Addresses:
    """Return where the federation is reached: by commands in containers, and by volunteers outside.

    Environment: ``FLEET_PORT`` and ``JOIN_PORT``, which are published.
    """
    fleet, join = (os.environ.get(name) or port for name, port in (("FLEET_PORT", "9092"), ("JOIN_PORT", "9094")))
    host = hosts[0] if hosts else "localhost"
    return Addresses("control:8000", str(volumes / "ca" / "ca.crt"), f"{host}:{fleet}", f"{host}:{join}")


def main(volumes: Path = VOLUMES, runs: Path = RUNS) -> None:
    """Prepare the volumes, then make missing certificates as the user ``UID``.

    Environment: ``UID``, ``GID``, ``HOSTS`` (further names of the SuperLink, separated by spaces or commas).
    """
    from fedappeal.federation.certificates import write_certificates

    hosts = os.environ.get("HOSTS", "").replace(",", " ").split()
    try:
        user, group = number("UID"), number("GID")
        change_owner_of_runs(runs, user, group)
        change_owner((volumes / name for name in OWNED), user, group)
        os.setgroups([])
        os.setgid(group)
        os.setuid(user)
        close(volumes)
        for made in write_certificates(volumes / "authority", [*NAMES, *hosts], [], 825):
            tell(str(made))
        hand_out(volumes)
        addresses(volumes, hosts).write(volumes / "invitations")
    except ConfigError as error:
        sys.exit(f"fedappeal: {error}")


if __name__ == "__main__":
    main()
