"""`fedappeal federation`, `certs` and `key`: a long-running SuperLink's clients, runs, certificates and keys."""

import json
import re
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedappeal.cli.option_groups import ControlOptions
from fedappeal.cli.options import FURTHER_OPTIONS, Commands
from fedappeal.protocol.foreign_text import printable
from fedappeal.settings.config import ConfigError
from fedappeal.settings.model import Failure, local_path
from fedappeal.views.terminal.printing import Part, complain, print_fitting, print_lines

if TYPE_CHECKING:
    from fedappeal.federation.folder import FederationFolder
    from server.identities import IdentityFile


federation_app = Commands(
    help="A federation: open it, register its clients' keys, list them, strike them off; list its runs, stop one."
)

AsJson = Annotated[bool, typer.Option("--json")]

_UNCUT = 10_000
"""Columns of a line where the output is a file or a pipe."""
_SHOWN = 120
"""Characters of a name that another user of the SuperLink chose."""
_CUT = ("name", "status", "strategy", "task")
"""Columns whose texts are cut where a terminal is too narrow; ids and folders are shown whole, to be copied."""


@federation_app.add("open", context_settings=FURTHER_OPTIONS)
def open_(
    context: typer.Context,
    folder: Path,
    *,
    host: list[str] | None = None,
    join_address: str | None = None,
    fleet_published: str | None = None,
    join_published: str | None = None,
    service: bool = False,
) -> None:
    """Open a federation, new or as it was; it takes the options of `fedappeal superlink`, too.

    Args:
        context: has the options of `fedappeal superlink`.
        folder: its folder, which gets all that is missing; the first word.
        host: name or IP address under which clients reach this machine; repeatable.
        join_address: HOST:PORT of this machine where invitations are redeemed (0.0.0.0:9094).
        fleet_published: HOST:PORT by which clients reach the Fleet API, where a router has another one.
        join_published: HOST:PORT in invitations, where a router has another one.
        service: write files for systemd and Docker Compose there, and start nothing.
    """
    from fedappeal.cli.open_federation import open_federation

    commands: Any = context.find_root().command
    texts = {"join_address": join_address, "fleet_published": fleet_published, "join_published": join_published}
    open_federation(commands.commands["superlink"], folder, host or [], texts, service, context.args)


@federation_app.add("invite")
def invite(name: str, *, uses: int = 1, expires: str = "7d", federation: Path | None = None) -> None:
    """Print an invitation, one line for `fedappeal join`; the federation's folder gets it as NAME.invite, too.

    Args:
        name: what the client is called.
        uses: how many clients may use it: NAME-1, NAME-2, ....
        expires: for how long: 30m, 12h, 7d.
        federation: folder of `fedappeal federation open`; if not given: this folder.
    """
    from fedappeal.federation import invitations
    from fedappeal.system.files import replace_file

    opened = _federation_folder(federation)
    line = str(invitations.invite(opened, name, uses, expires))
    replace_file(invitations.invitation_file(opened, name), f"{line}\n".encode(), mode=0o600)
    typer.echo(line)


@federation_app.add("invites")
def invites(*, withdraw: str = "", federation: Path | None = None, as_json: AsJson = False) -> None:
    """List invitations, with who used which, or withdraw one; who has joined stays (`unregister`).

    Args:
        withdraw: take the open invitation of this name back.
        federation: folder of `fedappeal federation open`; if not given: this folder.
        as_json: for machines: a JSON list.
    """
    from fedappeal.federation import invitations

    opened = _federation_folder(federation)
    if withdraw:
        invitations.withdraw(opened, withdraw)
        print_lines([f"withdrawn: {withdraw}"])
        return
    rows, described = [], []
    for one in invitations.Invitations(opened.path).all():
        until = datetime.fromtimestamp(one.expires, UTC).isoformat()
        used = ", ".join(f"{client} ({member})" for client, member in one.members)
        described.append({"name": one.name, "status": one.status, "uses": one.uses, "expires": until,
                          "used-by": [client for client, _ in one.members]})  # fmt: skip
        rows.append([one.name, one.status, f"{len(one.members)} of {one.uses}", _minute(until), used or "-"])
    _print(as_json, described, ["name", "status", "used", "expires (UTC)", "by"], rows, ["expires (UTC)", "by"])


@federation_app.add("redeem", hidden=True)
def redeem(*, address: str, certificate: str, key: str, heartbeat: str = "", control: ControlOptions) -> None:
    """Redeem invitations while any is open, until SIGTERM; `fedappeal federation open` runs it.

    Args:
        address: HOST:PORT of this machine.
        certificate: the server's certificate (PEM).
        key: its private key.
        heartbeat: a file that says until when this process counts as alive.
        control: the SuperLink.
    """
    from client.process.heartbeat import beat_of
    from fedappeal.federation.invitations import Invitations
    from fedappeal.federation.join_server import JoinApp, serve_invitations
    from fedappeal.settings.address import bind_problem
    from fedappeal.system.process_end import end_as_interrupt

    opened = _federation_folder(control.federation)
    superlink = control.remote()
    invitations = Invitations(opened.path)
    app = JoinApp(invitations, superlink, opened.addresses.fleet, superlink.root_certificates or b"")
    beat = beat_of(heartbeat)
    try:
        with end_as_interrupt():
            serve_invitations(invitations, app, address, (certificate, key), beat)
    except KeyboardInterrupt:
        return
    except OSError as error:
        raise Failure(f"address = '{address}' is not allowed: {bind_problem(error)}") from None


def _federation_folder(folder: Path | None) -> "FederationFolder":
    from fedappeal.federation.folder import FederationFolder

    opened = FederationFolder.find(folder)
    if opened is None:
        raise ConfigError("federation is missing: the folder of `fedappeal federation open` (--federation)")
    return opened


@federation_app.add("register")
def register(keys: list[Path], control: ControlOptions) -> None:
    """Register clients' keys, so that the SuperLink admits them; a key that is registered already stays so.

    Args:
        keys: public halves of clients' keys (.pub).
        control: the SuperLink.
    """
    from fedappeal.federation import nodes

    superlink = control.remote()
    public_keys = [nodes.PublicKey.read(path) for path in keys]
    outcomes = [nodes.register(superlink, public_key) for public_key in public_keys]
    for public_key, outcome in zip(public_keys, outcomes, strict=True):
        if outcome == nodes.UNREGISTERED:
            complain(
                f"{public_key.client_id} ({public_key.name}) was unregistered once, and this SuperLink never "
                "takes a key back: make a new one (fedappeal key)"
            )
        else:
            print_lines([f"{public_key.client_id}  {outcome}  ({public_key.name})"])
    if nodes.UNREGISTERED in outcomes:
        sys.exit(1)


@federation_app.add("list")
def list_nodes(*, run: str = "", as_json: AsJson = False, control: ControlOptions) -> None:
    """List the clients that the SuperLink knows.

    Args:
        run: folder of a run: show each client's number of training examples, or that it waits for approval.
        as_json: for machines: a JSON list.
        control: the SuperLink.
    """
    from fedappeal.flower.control import UNREGISTERED

    superlink = control.remote()
    examples_of, waiting = _in_run(Path(run)) if run else ({}, set())
    nodes = superlink.nodes()
    columns = ["name", "client-id", "status", "since (UTC)", "last seen (UTC)", *(["examples"] if run else [])]
    left_out = ("node id", "since (UTC)", "last seen (UTC)", "examples", "status")  # the commands take client-ids
    colours = {"online": "green", UNREGISTERED: "red"}
    described: list[Mapping[str, object]] = []
    rows: list[list[Part]] = []
    for node in nodes:
        examples = examples_of.get(node.client_id)
        word = "waiting" if node.status == "online" and node.client_id in waiting else node.status
        described.append(node.as_dict() | {"status": word} | ({} if examples is None else {"examples": examples}))
        status = printable(word, _SHOWN), colours.get(word, "")
        moments = _minute(node.since), _minute(node.last_seen)
        counted = ["-" if examples is None else str(examples)] if run else []
        rows.append([printable(node.name, _SHOWN), node.client_id, status, *moments, *counted, str(node.node_id)])
    _print(as_json, described, [*columns, "node id"], rows, left_out)


@federation_app.add("runs")
def list_runs(*, as_json: AsJson = False, control: ControlOptions) -> None:
    """List the runs that the SuperLink knows: `federation stop` takes a run's id.

    Args:
        as_json: for machines: a JSON list.
        control: the SuperLink.
    """
    runs = control.remote().runs()
    columns = ["run id", "status", "strategy", "task", "started (UTC)", "folder"]
    colours = {"running": "green", "failed": "red"}
    rows: list[list[Part]] = []
    for run in runs:
        status = printable(run.status, _SHOWN), colours.get(run.status, "")
        words = [printable(value, _SHOWN) or "-" for value in (run.strategy, run.task)]
        rows.append([str(run.run_id), status, *words, _minute(run.started), run.folder or "-"])
    left_out = ("started (UTC)", "folder", "task", "strategy", "status")
    _print(as_json, [run.as_dict() for run in runs], columns, rows, left_out)


def _in_run(folder: Path) -> tuple[dict[str, int], set[str]]:
    """Return a run's training examples by client, and the clients that wait for approval.

    Raises:
        ConfigError: if the folder holds no run.
    """
    from fedappeal.record.reader import Record

    record = Record(folder)
    record.check()
    lines = [line for line in record.events if line.get("event") in ("enrolled", "awaits-approval")]
    latest = {str(line.get("client")): line["event"] for line in lines}
    examples = {str(line.get("client")): line["examples"] for line in lines if isinstance(line.get("examples"), int)}
    return examples, {client for client, event in latest.items() if event == "awaits-approval"}


def _minute(moment: str) -> str:
    """Return a moment (ISO 8601) to the minute; ``-`` for none."""
    return moment[:16].replace("T", " ") or "-"


def _print(
    as_json: bool,
    described: Sequence[Mapping[str, object]],
    columns: Sequence[str],
    rows: Sequence[Sequence[Part]],
    left_out: Sequence[str],
) -> None:
    """Print a list as JSON or as a table.

    A table is whole in a file or a pipe, else a line a row.

    Args:
        as_json: which of the two.
        described: the list for machines.
        columns: headings.
        rows: the table's cells.
        left_out: columns that a narrow terminal lacks, in this order.
    """
    from rich.console import Console

    if as_json:
        typer.echo(json.dumps(described, indent=2))
        return
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _UNCUT
    cells = zip(*rows, strict=True) if rows else [()] * len(columns)
    print_fitting(console, dict(zip(columns, cells, strict=True)), left_out, cut=_CUT)


@federation_app.add("unregister")
def unregister(clients: list[str], control: ControlOptions) -> None:
    """Strike clients off: they are not admitted any more, and their keys can never come back.

    Args:
        clients: client-id, name or node id, as in the list.
        control: the SuperLink.
    """
    from fedappeal.federation import nodes

    superlink = control.remote()
    for who in clients:
        node = nodes.unregister(superlink, who)
        print_lines([f"{node.client_id}  unregistered for good  ({node.name})"])


@federation_app.add("stop")
def stop(run_id: Annotated[int, typer.Argument(min=0, max=2**64 - 1)], control: ControlOptions) -> None:
    """Stop a run; its folder stays, and `fedappeal resume --superlink` continues it.

    Args:
        run_id: the run's id, as `fedappeal federation runs` lists it.
        control: the SuperLink.
    """
    stopped = control.remote().stop_run(run_id)
    print_lines([f"run {run_id} {'was stopped' if stopped else 'had already ended'}"])


@federation_app.add("ids")
def ids(*, runs: Path | None = None, as_json: AsJson = False) -> None:
    """List which key each client-id belongs to.

    Args:
        runs: folder in which the federation's runs lie; of a local run: its own; if not given: runs, here.
        as_json: for machines: a JSON list.
    """
    from fedappeal.protocol.proof import key_id

    book = _file(runs).read()
    owners = {"": book.clients, **book.runs}
    clients = sorted(
        (client, key_id(owner) if owner else "", run)
        for run, of_run in owners.items()
        for client, owner in of_run.items()
    )
    described = [{"client-id": client, "key": key, "run-key": run} for client, key, run in clients]
    rows = [(client, key or "(the next to use it)", run or "(all runs)") for client, key, run in clients]
    _print(as_json, described, ["client-id", "key", "run-key"], rows, ["run-key"])


@federation_app.add("release")
def release(client: str, *, runs: Path | None = None, to: str = "") -> None:
    """Let a client-id pass to another key: of a client whose key was lost, or which is to have another name.

    Args:
        client: the client-id.
        runs: folder in which the federation's runs lie; of a local run: its own; if not given: runs, here.
        to: the key that gets it, key-...; empty: the next key with which a client uses the id.
    """
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
    print_lines([f"client-id '{client}' passes to {to or 'the next key with which a client uses it'}"])


def _file(runs: Path | None) -> "IdentityFile":
    from server.identities import FILE, IdentityFile

    runs = runs or _federation_folder(None).path / "runs"
    if not (runs / FILE).is_file():
        raise ConfigError(f"runs = '{runs}' is not allowed: no run has kept there whose its client-ids are ({FILE})")
    return IdentityFile(runs)


def certs(folder: Path, *, host: list[str] | None = None, client: list[str] | None = None, days: int = 825) -> None:
    """Make a CA, the SuperLink's certificate and clients' keys; what is there already is kept.

    Args:
        folder: folder for ca.crt, ca.key, server.crt, server.key.
        host: host name or IP address of the SuperLink; localhost is always in.
        client: make a client's key too: clients/NAME.key and NAME.pub.
        days: how long the server's certificate is valid.
    """
    from fedappeal.federation.certificates import write_certificates

    for made in write_certificates(folder, host or [], client or [], days):
        typer.echo(str(made))


def key(path: Path, *, name: str = "") -> None:
    """Make a client's key; one that is there already is kept.

    Args:
        path: file of the private key; PATH with the ending .pub is the public half.
        name: what the operator's list calls it; empty: the file's name.
    """
    from fedappeal.federation.certificates import make_key

    typer.echo(str(make_key(local_path(path, "path"), name)))
