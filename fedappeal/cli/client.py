"""`fedappeal client`: one volunteer; its owner looks (`status`), rests (`pause`) and comes back (`reset`)."""

import difflib
import re
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedappeal.cli.limit_options import with_limit_options
from fedappeal.core.plugins import parse_section
from fedappeal.protocol.foreign_text import printable
from fedappeal.settings.config import ConfigError, Scalar, plugin_settings, section

if TYPE_CHECKING:
    from client.settings import NodeSettings

client_app = typer.Typer(help="One volunteer, on any machine.", invoke_without_command=True)

DEFAULT_STATE = Path("~/.fedappeal/client")

StateDir = Annotated[Path, typer.Option(help="folder of this client's durable state")]


@client_app.callback()
def client(
    context: typer.Context,
    superlink: Annotated[str, typer.Option(help="HOST:PORT of the SuperLink's Fleet API (gRPC)")] = "",
    data: Annotated[
        str,
        typer.Option(
            help="your own data: a table (.csv, .parquet), an .npz with x and y, a folder of images, one folder a "
            "class, or a function of yours, package.module:load"
        ),
    ] = "",
    features: Annotated[
        str, typer.Option(help="with a table: its columns of features, by commas; empty: the task's, else all others")
    ] = "",
    label: Annotated[str, typer.Option(help="with a table: its column of labels")] = "",
    role: Annotated[str, typer.Option(help="with --data: seen, or unseen (evaluate only, never train)")] = "seen",
    partition_id: Annotated[
        int, typer.Option(help="in place of --data: which client of the task this one plays, from 0")
    ] = -1,
    allow: Annotated[
        list[str] | None,
        typer.Option(
            help="a package whose code may run here because a run names it (own strategies, tasks, ...); repeatable; "
            "none: fedappeal's own code alone"
        ),
    ] = None,
    participation: Annotated[
        str,
        typer.Option(
            help="the policy by which this client decides: a name, or package.module:Name; empty: the run's"
        ),
    ] = "",
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="a setting of that policy: NAME.KEY=VALUE, several by spaces, repeatable"),
    ] = None,
    limits: Annotated[
        str,
        typer.Option(
            help="limits that go before those of the state folder (`fedappeal client limits` lists them): KEY=VALUE, "
            "several by spaces; off: none"
        ),
    ] = "",
    state_dir: StateDir = DEFAULT_STATE,
    data_dir: Annotated[str, typer.Option(help="folder with the data sets (torchvision's layout)")] = "",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:N")] = "auto",
    root_certificates: Annotated[str, typer.Option(help="CA certificate (PEM) of the SuperLink")] = "",
    key: Annotated[str, typer.Option(help="private key of this node (OpenSSH, NIST curve)")] = "",
    client_id: Annotated[
        str, typer.Option(help="remain this client after a new key; empty: the key's fingerprint, or the state's")
    ] = "",
    insecure: Annotated[bool, typer.Option(help="plaintext; for loopback and tests")] = False,
    priority: Annotated[bool, typer.Option(help="ask to be served with priority")] = False,
    goodwill: Annotated[
        int | None,
        typer.Option(
            help="rounds of a run that this client joins on request although the model does not meet its "
            "requirement; without it: as the run says"
        ),
    ] = None,
    refuse_mandatory: Annotated[bool, typer.Option(help="decide freely in mandatory rounds too: goodwill 0")] = False,
    report_loss: Annotated[bool, typer.Option(help="whether replies may carry losses")] = True,
    report_weight: Annotated[
        bool, typer.Option(help="whether a joined reply may carry what its strategy asks for besides the model")
    ] = True,
    report_appeal: Annotated[
        bool, typer.Option(help="whether replies may say that the model meets the requirement")
    ] = True,
    answer_evaluate: Annotated[
        bool, typer.Option(help="whether to tell how a model does; no: the number of examples alone")
    ] = True,
    answer_train_split: Annotated[
        bool, typer.Option(help="whether to tell how a model does on the training examples")
    ] = True,
    clipping_norm: Annotated[
        float, typer.Option(help="most l2 norm of an update, whatever the run allows; 0: as the run says")
    ] = 0.0,
    dp_epsilon: Annotated[
        float,
        typer.Option(help="noise on every update of at least this epsilon's, with --clipping-norm; 0: the run's"),
    ] = 0.0,
    fixed_requirement: Annotated[
        float | None, typer.Option(help="training loss the global model must beat, in place of the run's requirement")
    ] = None,
    page: Annotated[bool, typer.Option("--page", help="serve a page about this client on loopback")] = False,
    page_port: Annotated[int, typer.Option(help="its port; 0: the system picks one")] = 0,
    connect_timeout: Annotated[float, typer.Option(help="seconds to try for a first connection; 0: for ever")] = 10.0,
    metrics_port: Annotated[int, typer.Option(help="serve metrics for Prometheus at this port; 0: no")] = 0,
    metrics_address: Annotated[str, typer.Option(help="address of this machine to serve metrics at")] = "127.0.0.1",
    heartbeat: Annotated[
        str, typer.Option(help="a file that says until when this process counts as alive, for health checks")
    ] = "",
    log_format: Annotated[str, typer.Option(help="how it logs: text | json (an event a line)")] = "text",
) -> None:
    """Join a federation as one volunteer, until SIGTERM or Ctrl-C."""
    if context.invoked_subcommand is not None:
        return
    if not superlink:
        raise ConfigError("superlink = '' is not allowed: HOST:PORT of the SuperLink's Fleet API (--superlink)")
    from client.data.columns import is_function
    from client.limits.limits import read_limits
    from client.limits.rest import Surroundings, check_surroundings
    from client.process.heartbeat import Heartbeat
    from client.process.serve import Alive, OnEvent, run_client
    from client.settings import Connection, NodeSettings
    from fedappeal.system.json_log import is_json
    from fedappeal.views.metrics.serving import MetricsPort

    connection = Connection.parse(
        {"superlink": superlink, "root-certificates": root_certificates, "key": key, "insecure": insecure}
    )
    node = NodeSettings.parse(
        {
            "data": data if not data or is_function(data) else str(Path(data).expanduser().absolute()),
            "features": features.strip(),
            "label": label.strip(),
            "role": role,
            "partition-id": partition_id,
            "client-id": client_id,
            "allow": ",".join(_packages(allow or [])),
            "participation": participation.strip(),
            "set": " ".join(set_ or []).strip(),
            "limits": limits.strip(),
            "state-dir": str(state_dir.expanduser().absolute()),
            "data-dir": data_dir,
            "device": device,
            "priority": priority,
            "goodwill": goodwill,
            "refuse-mandatory": refuse_mandatory,
            "report-loss": report_loss,
            "report-weight": report_weight,
            "report-appeal": report_appeal,
            "answer-evaluate": answer_evaluate,
            "answer-train-split": answer_train_split,
            "clipping-norm": clipping_norm,
            "dp-epsilon": dp_epsilon,
            "fixed-requirement": fixed_requirement,
        }
    )
    node.check_data_source()
    check_surroundings(read_limits(Path(node.state_dir)).with_text(node.limits), Surroundings())
    _check_policy(node)
    if node.data:
        from client.data.own_data import check_own_data

        check_own_data(node.data, node.columns)
    as_json = is_json(log_format)
    metrics = MetricsPort(metrics_port, metrics_address)
    beats = Heartbeat(Path(heartbeat).expanduser().absolute()) if heartbeat else None
    from client.app import app

    def serve(watch: OnEvent | None, alive: Alive) -> int:
        timeout = connect_timeout or None
        return run_client(
            node, connection, app, connect_timeout=timeout, watch=watch, alive=alive, log_as_json=as_json
        )

    beat = beats.beat if beats else lambda seconds: None
    beside = _page(Path(node.state_dir), page_port, node.limits) if page else nullcontext()
    if not metrics.port:
        with beside:
            code = serve(None, beat)
        sys.exit(code)
    from fedappeal.views.metrics.client_metrics import ClientMetrics

    measured = ClientMetrics(Path(node.state_dir))

    def alive(seconds: float) -> None:
        beat(seconds)
        measured.alive(seconds)

    with beside, metrics.served(lambda: measured):
        code = serve(measured.event, alive)
    sys.exit(code)


def _page(folder: Path, port: int, limits: str) -> AbstractContextManager[None]:
    """Serve the volunteer's page beside the client.

    Raises:
        ConfigError: the port is taken, or no port.
    """
    from client.page.beside import page_beside
    from fedappeal.web.serving import check_page

    check_page(port, setting="page-port")
    return page_beside(folder, port, limits)


def _packages(given: list[str]) -> list[str]:
    """Return the packages that an owner allows.

    Raises:
        ConfigError: for what is no name of a package or distribution.
    """
    packages = [name.strip() for text in given for name in text.split(",") if name.strip()]
    for name in packages:
        if not re.fullmatch(r"[A-Za-z0-9_]([A-Za-z0-9._-]*[A-Za-z0-9_])?", name):
            raise ConfigError(f"allow = '{name}' is not allowed: the name of a package, as in `--allow mine`")
    return packages


def _check_policy(node: "NodeSettings") -> None:
    """Check the owner's policy and its settings before the client starts.

    Raises:
        ConfigError: for an unknown policy, or a setting that no policy here has.
    """
    from client.participation.behaviour import check_parts, parts_of
    from fedappeal.core.registry import POLICIES

    kinds = {name: POLICIES.load(name) for name in POLICIES.built_in}
    if node.participation:
        own = [POLICIES.load(part) for part in parts_of(node.participation)]
        check_parts(node.participation, own)
        kinds |= {kind.name: kind for kind in own}
    given = plugin_settings(node.set)
    for name in dict.fromkeys(key.partition(".")[0] for key in given):
        if name in kinds:
            parse_section(kinds[name], section(given, name))
        elif not node.allow:  # else it may be a policy's that the owner allows and a run names
            near = difflib.get_close_matches(name, kinds, n=1)
            hint = f"; did you mean '{near[0]}'?" if near else ""
            raise ConfigError(
                f"set = '{node.set}' is not allowed: '{name}' is no policy, and a client's owner sets its policy's "
                f"settings alone ({', '.join(kinds)}){hint}"
            )


@client_app.command("status")
def status(state_dir: StateDir = DEFAULT_STATE) -> None:
    """Show what this client remembers: who it is, what it requires, which runs it left, what it prefers."""
    from client.process.owner import describe

    for line in describe(state_dir.expanduser()):
        typer.echo(printable(line))


@client_app.command("pause")
def pause(state_dir: StateDir = DEFAULT_STATE) -> None:
    """Rest: stay connected, but answer nothing until `fedappeal client reset`."""
    from client.process.owner import pause as pause_client

    typer.echo(pause_client(state_dir.expanduser()))


@client_app.command("resume")
def resume(state_dir: StateDir = DEFAULT_STATE) -> None:
    """End a pause, and nothing else: runs that were left stay left."""
    from client.process.owner import resume as resume_client

    typer.echo(resume_client(state_dir.expanduser()))


@client_app.command("reset")
def reset(
    state_dir: StateDir = DEFAULT_STATE,
    forget: Annotated[bool, typer.Option(help="forget requirements and models too")] = False,
) -> None:
    """Come back: end a pause and forget having left; the requirement stays, unless --forget."""
    from client.process.owner import reset as reset_client

    typer.echo(reset_client(state_dir.expanduser(), forget))


@client_app.command("leave")
def leave(
    run: Annotated[str, typer.Argument(help="the run, as `fedappeal client status` names it")] = "",
    all_runs: Annotated[bool, typer.Option("--all", help="all runs that this client takes part in")] = False,
    state_dir: StateDir = DEFAULT_STATE,
) -> None:
    """Leave a run for good: the client says so when it is next asked to train. `reset` takes it back."""
    from client.process.owner import leave as leave_run

    if bool(run) == all_runs:
        raise ConfigError(f"run = '{run}' is not allowed{' with --all' if run else ''}: a run, or --all")
    typer.echo(leave_run(state_dir.expanduser(), None if all_runs else run))


@client_app.command("limits")
@with_limit_options
def limits(
    given: dict[str, Scalar],
    reset: Annotated[bool, typer.Option("--reset", help="back to the defaults, before what is set")] = False,
    state_dir: StateDir = DEFAULT_STATE,
) -> None:
    """Show what a server may ask of this client, and change it; 0: no limit. A running client takes it up."""
    from client.limits.limits import Limits, describe_limits, read_limits, reset_limits, write_limits

    folder = state_dir.expanduser()
    if given:
        changed = (Limits() if reset else read_limits(folder)).with_values(given)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_limits(folder, changed)
    elif reset:
        reset_limits(folder)
    for line in describe_limits(read_limits(folder)):
        typer.echo(line)
