"""The one-shot service ``federation``: registers the replicas' keys, submits a run and ends with its status.

    python -m fedappeal.containers.federation_service [options of `fedappeal submit`]
    python -m fedappeal.containers.federation_service COMMAND ...  a `fedappeal` command, told where the SuperLink is

It is in the network ``control``, the only one in which the SuperLink listens for such commands, and in that of the
clients, where Docker's name server counts them.
"""

import os
import shlex
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from fedappeal.containers.log import tell
from fedappeal.containers.replica import CA, CLIENTS, ReplicaSlot, taken_slots
from fedappeal.record.folder import dated_name
from fedappeal.settings.config import ConfigError

SUPERLINK = "control:8000"
RUNS = Path("/runs")
INVITATIONS = Path("/federation/invitations")
"""The federation's folder as commands know it: addresses and invitations."""
SERVICE = "client"
SETTINGS = ("STRATEGY", "TASK", "ROUNDS", "SEED")
"""Variables that are options of the same name."""
METRICS = ("METRICS_PORT", "METRICS_ADDRESS")
"""Those of the page, in the same way."""
OF_SERVICE = ("HEARTBEAT", "LOG_FORMAT")
"""Such variables that are no setting of the run; an empty one is none."""
_POLL = 0.5


def count_replicas(service: str = SERVICE) -> int:
    """Return the number of a service's replicas: Docker's name server knows an address for each."""
    try:
        addresses = socket.getaddrinfo(service, None, family=socket.AF_INET, type=socket.SOCK_STREAM)
    except socket.gaierror:
        return 0
    return len({address[4][0] for address in addresses})


def wait_for_replicas(
    folder: Path, count: Callable[[], int] = count_replicas, *, timeout: float = 60.0, poll: float = _POLL
) -> list[ReplicaSlot]:
    """Wait until each replica holds a slot with a key; return the slots.

    Args:
        folder: the folder of all clients.
        count: how many replicas run.
        timeout: seconds to wait.
        poll: seconds between two looks; two in a row must agree, because replicas start one by one.

    Raises:
        ConfigError: not in time, or the slots are not the first ones.
    """
    deadline, before = time.monotonic() + timeout, None
    while True:
        running = count()
        slots = taken_slots(folder)
        ready = [slot for slot in slots if slot.public_key.exists()]
        if len(slots) == running and ready == slots == before:
            break
        if time.monotonic() >= deadline:
            raise ConfigError(
                f"{running} replicas of '{SERVICE}' run, and {len(ready)} of them are ready: "
                f"see `docker compose logs {SERVICE}`"
            )
        before = slots
        time.sleep(poll)
    numbers = [slot.number for slot in slots]
    if numbers != list(range(len(numbers))):
        raise ConfigError(
            f"the {len(numbers)} replicas are the clients {', '.join(map(str, numbers))}, not the first ones: "
            f"`docker compose restart {SERVICE}` numbers them anew"
        )
    return slots


def submit_arguments(environment: Mapping[str, str], given: Sequence[str], replicas: int, runs: Path) -> list[str]:
    """Return the options of `fedappeal submit`: the environment's, overridden by those given.

    Args:
        environment: holds `SETTINGS`, `OF_SERVICE` and ``OPTIONS``.
        given: further options.
        replicas: how many clients there are, unless the options say it.
        runs: folder of all runs' folders.

    Raises:
        ConfigError: if the options name no number of clients, and there is no replica.
    """
    options = _options_of(environment, (*SETTINGS, *OF_SERVICE))
    try:
        options += shlex.split(environment.get("OPTIONS", ""))
    except ValueError as error:
        raise ConfigError(f"OPTIONS = '{environment['OPTIONS']}' is not allowed: {error}") from None
    options += given
    if option(options, "--clients") is None:
        unseen = option(options, "--unseen-clients") or "0"
        clients = replicas - (int(unseen) if unseen.isdigit() else 0)
        if clients < 1:
            raise ConfigError(f"{replicas} replicas of '{SERVICE}' run: too few for a run (clients, unseen-clients)")
        options += ["--clients", str(clients)]
    out = option(options, "--out")
    if out is None:
        strategy, task = option(options, "--strategy") or "run", option(options, "--task") or ""
        out = dated_name("-".join(filter(None, (strategy, task))))
    return [*options, "--out", str(run_folder(out, runs))]


def _options_of(environment: Mapping[str, str], names: Sequence[str]) -> list[str]:
    """Return the options named like variables that are not empty."""
    options = [(f"--{name.lower().replace('_', '-')}", environment.get(name)) for name in names]
    return [part for option, value in options if value for part in (option, value)]


def option(options: Sequence[str], name: str) -> str | None:
    """Return an option's last value; None if it is not given.

    Both forms count, ``--name VALUE`` and ``--name=VALUE``.
    """
    value = None
    for i, part in enumerate(options):
        if part == name and i + 1 < len(options):
            value = options[i + 1]
        elif part.startswith(f"{name}="):
            value = part.partition("=")[2]
    return value


def run_folder(name: str, runs: Path) -> Path:
    """Return a run's folder in the container, from its name outside.

    That may be ``runs/NAME``, ``./runs/NAME`` or ``NAME``.
    """
    path = Path(name)
    if path.is_absolute():
        return path
    return runs / (Path(*path.parts[1:]) if path.parts[:1] == ("runs",) else path)


def arguments(
    given: Sequence[str], environment: Mapping[str, str], replicas: Callable[[], int], ca: Path, runs: Path
) -> list[str]:
    """Return the arguments of `fedappeal`.

    Args:
        given: options of `fedappeal submit`, or a command with its arguments.
        environment: as in `submit_arguments`.
        replicas: registers the replicas' keys and counts them; called for commands that need them.
        ca: the CA certificate.
        runs: folder of all runs' folders.
    """
    where = ["--superlink", SUPERLINK, "--root-certificates", str(ca)]
    if not given or given[0].startswith("-"):
        return ["submit", *where, *submit_arguments(environment, given, replicas(), runs)]
    command, *rest = given
    if command == "submit":
        return ["submit", *where, *submit_arguments(environment, rest, replicas(), runs)]
    if command == "resume":
        replicas()
        return ["resume", *(str(run_folder(part, runs)) if i == 0 else part for i, part in enumerate(rest)), *where]
    if command in ("invite", "invites"):
        return ["federation", command, *rest, "--federation", str(INVITATIONS)]
    if command == "watch":  # the page invites, too
        return [command, *rest, *_options_of(environment, METRICS), "--federation", str(INVITATIONS)]
    return [command, *rest, *where] if command == "federation" else list(given)


def main() -> None:
    """Carry out the arguments; the exit code is the run's."""
    from fedappeal.cli.main import main as fedappeal

    os.umask(0o077)
    try:
        sys.argv = ["fedappeal", *arguments(sys.argv[1:], os.environ, _register, CA, RUNS)]
    except ConfigError as error:
        print(f"fedappeal: {error}", file=sys.stderr)
        sys.exit(2)
    fedappeal()


def _register() -> int:
    """Register the replicas' keys and return how many replicas there are."""
    from fedappeal.federation.nodes import UNREGISTERED, PublicKey, register
    from fedappeal.federation.remote import RemoteSuperLink
    from fedappeal.flower.control import ControlError
    from fedappeal.protocol.foreign_text import printable

    keys = [PublicKey.read(slot.public_key) for slot in wait_for_replicas(CLIENTS)]
    superlink = RemoteSuperLink.checked(SUPERLINK, str(CA))
    try:
        statuses = {node.client_id: node.status for node in superlink.nodes()}
        fresh = [key for key in keys if key.client_id not in statuses]
        for key in fresh:
            register(superlink, key)
        others = [run for run in superlink.runs() if not run.ended]
    except ControlError as error:
        sys.exit(f"fedappeal: {error}")
    tell(f"{len(keys)} clients, {len(fresh)} of them new")
    for run in others:
        end = f"docker compose run --rm --no-deps federation federation stop {run.run_id}"
        tell(f"run {run.run_id} ({printable(run.folder, 200)}) goes on beside this one: {end}")
    for key in keys:
        if statuses.get(key.client_id) == UNREGISTERED:
            tell(f"{key.name} was struck off and is not admitted any more", client=key.client_id)
    return len(keys)


if __name__ == "__main__":
    main()
