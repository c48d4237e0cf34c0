"""`fedappeal federation ids` and `release`: whose the client-ids of a federation are, and passing one on."""

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedappeal.settings.config import ConfigError

if TYPE_CHECKING:
    from server.identities import IdentityFile

Runs = Annotated[Path, typer.Option(help="folder in which the federation's runs lie; of a local run: its own")]


def ids(
    runs: Runs,
    as_json: Annotated[bool, typer.Option("--json", help="for machines: a JSON list")] = False,
) -> None:
    """List which key each client-id belongs to."""
    from fedappeal.protocol.proof import key_id

    book = _file(runs).read()
    owned = [(client, owner, "") for client, owner in book.clients.items()]
    owned += [(client, owner, run) for run, held in book.runs.items() for client, owner in held.items()]
    named = sorted((client, key_id(owner) if owner else "", run) for client, owner, run in owned)
    if as_json:
        lines = [{"client-id": client, "key": key, "run-key": run} for client, key, run in named]
        typer.echo(json.dumps(lines, indent=2))
        return
    width = max([len("client-id"), *(len(client) for client, _, _ in named)])
    typer.echo(f"{'client-id':{width}}  {'key':20}  run-key")
    for client, key, run in named:
        typer.echo(f"{client:{width}}  {key or '(the next to use it)':20}  {run or '(all runs)'}")


def release(
    client: Annotated[str, typer.Argument(help="the client-id")],
    runs: Runs,
    to: Annotated[
        str, typer.Option(help="the key that gets it, key-...; empty: the next key with which a client uses the id")
    ] = "",
) -> None:
    """Let a client-id pass to another key: of a client whose key was lost, or which is to have another name."""
    from fedappeal.protocol.keys import CLIENT_IDS, is_client_id
    from fedappeal.protocol.proof import KEY_ID

    if not is_client_id(client):
        raise ConfigError(f"client = '{client}' is not allowed: {CLIENT_IDS}")
    if to and not re.fullmatch(f"{KEY_ID}[0-9a-f]{{16}}", to):
        raise ConfigError(f"to = '{to}' is not allowed: {KEY_ID} and 16 hex digits, as a refusal of the run names it")
    if client.startswith(KEY_ID) and not to:
        raise ConfigError(
            f"to is missing: client-id '{client}' is a key's fingerprint, and passes to a named key alone"
        )
    _file(runs).release(client, to.removeprefix(KEY_ID))
    typer.echo(f"client-id '{client}' passes to {to or 'the next key with which a client uses it'}")


def _file(runs: Path) -> "IdentityFile":
    from server.identities import FILE, IdentityFile

    if not (runs / FILE).is_file():
        raise ConfigError(f"runs = '{runs}' is not allowed: no run has kept there whose its client-ids are ({FILE})")
    return IdentityFile(runs)
