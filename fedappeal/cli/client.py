"""`fedappeal client`: one volunteer; its owner looks (`status`), rests (`pause`) and comes back (`reset`)."""

import os
import re
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
import typer
from click.core import ParameterSource
from typer.core import TyperGroup

from client.settings import AppSettings, Connection, NodeSettings, ProcessSettings
from fedappeal.cli.brief_help import BriefHelp
from fedappeal.cli.options import Commands, LimitValues, OwnerValues, part, with_options
from fedappeal.core.plugins import parse_section
from fedappeal.settings.config import ConfigError, plugin_settings, section
from fedappeal.settings.model import Failure, did_you_mean, kebab, local_path
from fedappeal.views.terminal.printing import print_lines

if TYPE_CHECKING:
    from flwr.app import Context, Message

    from client.outcome import Outcome


class _ClientGroup(BriefHelp, TyperGroup):
    """The command, whose ``--page`` may stand alone."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the options; without a port ``--page`` is ``--page 0``."""
        pairs = zip(args, [*args[1:], "-"], strict=False)  # without arguments: none
        alone = (("--page=0" if arg == "--page" and after.startswith("-") else arg) for arg, after in pairs)
        return super().parse_args(ctx, list(alone))


client_app = Commands(help="One volunteer, on any machine.", invoke_without_command=True, cls=_ClientGroup)

DEFAULT_STATE = Path("~/.fedappeal/client")


def state_folder(path: Path) -> Path:
    """Return a state folder, which may still have to be made.

    Raises:
        ConfigError: something else is there, or a link that leads nowhere.
    """
    folder = local_path(path, "state-dir")
    if os.path.lexists(folder) and not folder.is_dir():
        raise ConfigError(f"state-dir = '{path}' is not allowed: it is no folder")
    return folder


@client_app.callback()
@with_options
def client(context: typer.Context, *, state_dir: Path = DEFAULT_STATE, given: OwnerValues) -> None:
    """Join a federation as one volunteer, until SIGTERM or Ctrl-C.

    Args:
        context: says which options were written.
        state_dir: folder of this client's durable state.
        given: the owner's settings.
    """
    if context.invoked_subcommand is not None:
        return
    folder = state_folder(state_dir).absolute()
    if not given["superlink"]:
        from client.state.membership import Membership

        if (member := Membership.read(folder)) is None:
            raise ConfigError(
                "superlink = '' is not allowed: HOST:PORT of the SuperLink's Fleet API (--superlink), or join a "
                "federation first (fedappeal join INVITATION)"
            )
        given |= {key: value for key, value in member.options.items() if key not in chosen_options(context)}
    from fedappeal.flower.processes import import_without_server
    from fedappeal.system.tuning import quick_imports

    with quick_imports():
        import_without_server()
        from client.limits.limits import read_limits
        from client.process.heartbeat import beat_of
        from client.process.serve import Alive, Begin, OnEvent, run_client
        from fedappeal.system.json_log import is_json
        from fedappeal.views.metrics.serving import MetricsPort

    connection = Connection.parse(part(Connection, given))
    node, of_app, process = checked_owner(given, folder)
    as_json = is_json(process.log_format)
    metrics = MetricsPort(process.metrics_port, process.metrics_address)
    beat = beat_of(process.heartbeat)
    answer: Callable[[Message, Context], Outcome]
    begin: Begin | None = None
    with quick_imports():
        if of_app.app:
            from client.process.owners_app import clients_of

            answer, app = clients_of(of_app, node, connection, read_limits(folder).with_text(node.limits))
            begin = app.begin
        else:
            from client.app import clients as answer

    def serve(watch: OnEvent, alive: Alive) -> int:
        timeout = process.connect_timeout or None
        return run_client(
            *(node, connection, answer),
            connect_timeout=timeout,
            watch=watch,
            alive=alive,
            begin=begin,
            log_as_json=as_json,
        )

    beside = nullcontext() if process.page is None else _page(folder, process.page or process.page_port, node.limits)
    if not metrics.port:
        with beside:
            code = serve(lambda event: None, beat)
        sys.exit(code)
    from fedappeal.views.metrics.client_metrics import ClientMetrics

    measured = ClientMetrics(folder)

    def alive(seconds: float) -> None:
        beat(seconds)
        measured.alive(seconds)

    with beside, metrics.served(lambda: measured):
        code = serve(measured.event, alive)
    sys.exit(code)


def chosen_options(context: click.Context) -> frozenset[str]:
    """Return the keys of options set on the command line or in the environment."""
    unchosen = (ParameterSource.DEFAULT, ParameterSource.DEFAULT_MAP)
    return frozenset(kebab(name) for name in context.params if context.get_parameter_source(name) not in unchosen)


def checked_owner(given: dict[str, Any], folder: Path) -> tuple[NodeSettings, AppSettings, ProcessSettings]:
    """Return an owner's settings, checked with the data, but without a run.

    Args:
        given: all settings, by key.
        folder: the state folder.

    Raises:
        ConfigError: for what is not allowed.
    """
    from client.data.refused import is_function
    from client.limits.limits import read_limits
    from client.limits.rest import Surroundings, check_surroundings

    process, data = ProcessSettings.parse(part(ProcessSettings, given)), given["data"]
    if data and not is_function(data):
        data = str(local_path(data, "data").absolute())
    _check_packages(given["allow"])
    of_app = AppSettings.parse(part(AppSettings, given))
    own = {"data": data, "state-dir": str(folder), "approve": of_app.approval(given["approve"])}
    node = NodeSettings.parse({**part(NodeSettings, given), **own})
    if not of_app.app:
        node.check_data_source()
    check_surroundings(read_limits(folder).with_text(node.limits), Surroundings())
    _check_policy(node)
    if node.data and not of_app.app:
        from client.data.own_data import check_own_data

        check_own_data(node.data, node.columns)
    return node, of_app, process


def _page(folder: Path, port: int, limits: str) -> AbstractContextManager[None]:
    """Serve the volunteer's page beside the client.

    Raises:
        ConfigError: the port is taken, or no port.
    """
    from client.page.beside import page_beside
    from fedappeal.web.serving import PagePlace

    PagePlace(port).check()
    return page_beside(folder, port, limits)


def _check_packages(allow: str) -> None:
    """Check an owner's allowed packages, separated by commas.

    Raises:
        ConfigError: for what is no name of a package or distribution.
    """
    for name in filter(None, map(str.strip, allow.split(","))):
        if not re.fullmatch(r"[A-Za-z0-9_]([A-Za-z0-9._-]*[A-Za-z0-9_])?", name):
            raise ConfigError(f"allow = '{name}' is not allowed: the name of a package, as in `--allow mine`")


def _check_policy(node: NodeSettings) -> None:
    """Check the owner's policy and its settings before the client starts.

    Raises:
        ConfigError: for an unknown policy, or a setting that no policy here has.
    """
    from client.participation.behaviour import check_parts, parts_of
    from fedappeal.core.registry import POLICIES

    kinds = {name: POLICIES.load(name) for name in POLICIES.built_in}
    if node.participation:
        parts = [POLICIES.load(part) for part in parts_of(node.participation)]
        check_parts(node.participation, parts)
        kinds |= {kind.name: kind for kind in parts}
    sections = plugin_settings(node.set)
    for name in dict.fromkeys(key.partition(".")[0] for key in sections):
        if name in kinds:
            parse_section(kinds[name], section(sections, name))
        elif not node.allow:  # else it may be a policy's that the owner allows and a run names
            hint = did_you_mean(name, kinds)
            raise ConfigError(
                f"set = '{node.set}' is not allowed: '{name}' is no policy, and a client's owner sets its policy's "
                f"settings alone ({', '.join(kinds)}){hint}"
            )


@client_app.add("status")
def status(*, state_dir: Path = DEFAULT_STATE) -> None:
    """Show what this client remembers: id, requirement, runs, model.

    Args:
        state_dir: folder of this client's durable state.
    """
    from client.process.status import describe

    print_lines(describe(state_folder(state_dir)))


@client_app.add("sent")
def sent(*, state_dir: Path = DEFAULT_STATE) -> None:
    """List the receipts of all that was sent, and check them.

    Args:
        state_dir: folder of this client's durable state.
    """
    from client.process.owner import store_of
    from client.process.status import receipt_lines
    from client.state.receipts import read_receipts

    kept = read_receipts(store_of(state_folder(state_dir)).folder)
    print_lines(receipt_lines(kept))
    if kept.problem:
        raise Failure(kept.problem)


@client_app.add("approve")
def approve(run: str, *, state_dir: Path = DEFAULT_STATE) -> None:
    """Approve a run that waits for it (`--approve asked`).

    Args:
        run: the run, as `fedappeal client status` names it.
        state_dir: folder of this client's durable state.
    """
    from client.approval import approve as approve_run

    print_lines([approve_run(state_folder(state_dir), run)])


@client_app.add("pause")
def pause(*, state_dir: Path = DEFAULT_STATE) -> None:
    """Rest: stay connected, but answer nothing until `fedappeal client resume`.

    Args:
        state_dir: folder of this client's durable state.
    """
    from client.process.owner import pause as pause_client

    print_lines([pause_client(state_folder(state_dir))])


@client_app.add("resume")
def resume(*, state_dir: Path = DEFAULT_STATE) -> None:
    """End a pause, and nothing else: runs that were left stay left.

    Args:
        state_dir: folder of this client's durable state.
    """
    from client.process.owner import resume as resume_client

    print_lines([resume_client(state_folder(state_dir))])


@client_app.add("reset")
def reset(
    *, state_dir: Path = DEFAULT_STATE, forget: Annotated[bool, typer.Option("--forget/--no-forget")] = False
) -> None:
    """Come back: end a pause and forget having left; the requirement stays, unless --forget.

    Args:
        state_dir: folder of this client's durable state.
        forget: forget requirements and models too.
    """
    from client.process.owner import reset as reset_client

    print_lines([reset_client(state_folder(state_dir), forget)])


@client_app.add("leave")
def leave(
    run: str = "",
    *,
    all_runs: Annotated[bool, typer.Option("--all")] = False,
    federation: bool = False,
    state_dir: Path = DEFAULT_STATE,
) -> None:
    """Leave a run for good: the client says so when it is next asked to train. `reset` takes it back.

    Args:
        run: the run, as `fedappeal client status` names it.
        all_runs: all runs that this client takes part in.
        federation: the federation: its key is unregistered for good, and deleted.
        state_dir: folder of this client's durable state.
    """
    if federation and (run or all_runs):
        raise ConfigError(
            f"federation is not allowed with {'run' if run else 'all'}: it ends all that this device does"
        )
    if federation:
        from client.fleet.leaving import leave_federation

        print_lines(leave_federation(state_folder(state_dir).absolute()))
        return
    from client.process.owner import leave as leave_run

    if bool(run) == all_runs:
        raise ConfigError(f"run = '{run}' is not allowed{' with --all' if run else ''}: a run, or --all")
    print_lines([leave_run(state_folder(state_dir), None if all_runs else run)])


@client_app.add("limits")
def limits(*, reset: bool = False, state_dir: Path = DEFAULT_STATE, given: LimitValues) -> None:
    """Show what a server may ask of this client, and change it; 0: no limit. A running client takes it up.

    Args:
        reset: back to the defaults, before what is set.
        state_dir: folder of this client's durable state.
        given: limits to set.
    """
    from client.limits.limits import Limits, describe_limits, read_limits, reset_limits, write_limits
    from fedappeal.system.locks import changing

    folder = state_folder(state_dir)
    if given:
        if not folder.exists():
            Limits().with_values(given)  # what is not allowed makes no folder
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with changing(folder):
            write_limits(folder, (Limits() if reset else read_limits(folder)).with_values(given))
    elif reset:
        reset_limits(folder)
    print_lines(describe_limits(read_limits(folder)))
