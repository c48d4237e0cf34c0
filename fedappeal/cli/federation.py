"""`fedappeal federation`: who may take part in a SuperLink's runs, and stopping one."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

federation_app = typer.Typer(
    help="A long-running SuperLink's clients: register their keys, list them, strike them off."
)

SuperLinkAddress = Annotated[str, typer.Option(help="HOST:PORT of the SuperLink's Control API (8000)")]
RootCertificates = Annotated[str, typer.Option(help="CA certificate (PEM) of the SuperLink; empty: plaintext")]


@federation_app.command("register")
def register(
    keys: Annotated[list[Path], typer.Argument(help="public halves of clients' keys (.pub)")],
    superlink: SuperLinkAddress,
    root_certificates: RootCertificates = "",
) -> None:
    """Register clients' keys, so that the SuperLink admits them; a key that is registered already stays so."""
    from fedappeal.federation import nodes

    read = [nodes.PublicKey.read(path) for path in keys]
    with _control(superlink, root_certificates) as ca:
        done = nodes.register(superlink, read, ca)
    for each in done:
        if each.outcome == nodes.UNREGISTERED:
            print(
                f"fedappeal: {each.client_id} ({each.name}) was unregistered once, and this SuperLink never takes "
                f"a key back: make a new one (fedappeal key)",
                file=sys.stderr,
            )
        else:
            typer.echo(f"{each.client_id}  {each.outcome}  ({each.name})")
    if any(each.outcome == nodes.UNREGISTERED for each in done):
        sys.exit(1)


@federation_app.command("list")
def list_nodes(
    superlink: SuperLinkAddress,
    root_certificates: RootCertificates = "",
    as_json: Annotated[bool, typer.Option("--json", help="for machines: a JSON list")] = False,
) -> None:
    """List the clients that the SuperLink knows."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from fedappeal.federation import nodes

    with _control(superlink, root_certificates) as ca:
        known = nodes.list_nodes(superlink, ca)
    if as_json:
        typer.echo(json.dumps([node.as_dict() for node in known], indent=2))
        return
    table = Table(box=None, pad_edge=False)
    # Where the line is short, the names and the node ids are: the commands take client-ids.
    for column, least in (("name", 4), ("client-id", 20), ("status", 12), ("since (UTC)", 16), ("node id", 4)):
        table.add_column(column, min_width=least, no_wrap=True)
    colours = {"online": "green", nodes.UNREGISTERED: "red"}
    for node in known:
        status, since = Text(node.status, colours.get(node.status, "")), node.since[:16].replace("T", " ")
        table.add_row(Text(node.name), node.client_id, status, since, str(node.node_id))
    Console(highlight=False).print(table)


@federation_app.command("unregister")
def unregister(
    clients: Annotated[list[str], typer.Argument(help="client-id, name or node id, as in the list")],
    superlink: SuperLinkAddress,
    root_certificates: RootCertificates = "",
) -> None:
    """Strike clients off: they are not admitted any more, and their keys can never come back."""
    from fedappeal.federation import nodes

    with _control(superlink, root_certificates) as ca:
        for who in clients:
            node = nodes.unregister(superlink, who, ca)
            typer.echo(f"{node.client_id}  unregistered for good  ({node.name})")


@federation_app.command("stop")
def stop(
    run_id: Annotated[int, typer.Argument(help="the run's id, as `fedappeal submit` said it")],
    superlink: SuperLinkAddress,
    root_certificates: RootCertificates = "",
) -> None:
    """Stop a run; its folder stays, and `fedappeal resume --superlink` continues it."""
    from fedappeal.federation.submit import stop_run

    with _control(superlink, root_certificates) as ca:
        stopped = stop_run(superlink, run_id, root_certificates=ca)
    typer.echo(f"run {run_id} {'was stopped' if stopped else 'had already ended'}")


@contextmanager
def _control(superlink: str, root_certificates: str) -> Iterator[bytes | None]:
    """Check the options, give the CA certificate, and end with one line where the SuperLink refuses."""
    from fedappeal.federation.address import check_control_address, read_root_certificates
    from fedappeal.flower.control import ControlError

    check_control_address(superlink)
    try:
        yield read_root_certificates(root_certificates)
    except ControlError as error:
        print(f"fedappeal: {error}", file=sys.stderr)
        sys.exit(1)
