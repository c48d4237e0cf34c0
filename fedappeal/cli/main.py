"""The `fedappeal` command: thin, each command parses its options and calls what does the work."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from fedappeal.cli.client import client_app
from fedappeal.cli.options import with_run_options
from fedappeal.protocol.config import ConfigError

cli = typer.Typer(
    help="Federated learning for volunteers: clients decide whether to join, and the server trains so that they do.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
cli.add_typer(client_app, name="client")


def _local(
    *,
    settings: dict[str, Any],
    port: Annotated[int, typer.Option(help="port of the SuperLink's Fleet API; 0: the system picks one")] = 0,
    data_dir: Annotated[str, typer.Option(help="folder with the data sets (torchvision's layout)")] = "",
    device: Annotated[str, typer.Option(help="where the clients train: auto, cpu, cuda, cuda:N")] = "auto",
) -> None:
    """Run a federation on this machine: a SuperLink and one real process per client, over gRPC."""
    from fedappeal.cli.local import start_local

    start_local(settings, port=port, data_dir=data_dir, device=device)


cli.command("local")(with_run_options(_local))


@cli.command("resume")
def resume(
    folder: Annotated[Path, typer.Argument(help="folder of a run that was started with `fedappeal local`")],
    port: Annotated[int, typer.Option(help="port of the SuperLink's Fleet API; 0: the system picks one")] = 0,
    data_dir: Annotated[str, typer.Option(help="folder with the data sets (torchvision's layout)")] = "",
    device: Annotated[str, typer.Option(help="where the clients train: auto, cpu, cuda, cuda:N")] = "auto",
) -> None:
    """Go on with a local run from its last finished round."""
    from fedappeal.cli.local import resume_local

    resume_local(folder, port=port, data_dir=data_dir, device=device)


def _simulate(
    *,
    settings: dict[str, Any],
    mode: Annotated[
        str, typer.Option(help="clients side by side or one after another (auto | stacked | clients)")
    ] = "auto",
    sweep: Annotated[
        list[str] | None, typer.Option(help="a run for each value: KEY=VALUE,VALUE or seed=0..4")
    ] = None,
    jobs: Annotated[int, typer.Option(help="runs at once, each in a process of its own")] = 1,
    threads: Annotated[int, typer.Option(help="PyTorch threads a run; 0: the cores shared out")] = 0,
    data_dir: Annotated[str, typer.Option(help="folder with the data sets (torchvision's layout)")] = "",
    device: Annotated[str, typer.Option(help="where data and models are: auto, cpu, cuda, cuda:N")] = "auto",
) -> None:
    """Run a federation inside this process: the same apps, many virtual clients."""
    from fedappeal.cli.simulate import plan, start_simulations

    runs = plan(settings, sweep or [], str(settings.get("out", "")))
    start_simulations(runs, jobs, mode, device, data_dir, threads)


cli.command("simulate")(with_run_options(_simulate))


@cli.command("list")
def list_names() -> None:
    """List the strategies and tasks that a run can name."""
    from fedappeal.tasks import task_names
    from server.strategies import STRATEGIES

    typer.echo("strategies: " + ", ".join(sorted(STRATEGIES)))
    typer.echo("tasks:      " + ", ".join(task_names()) + "  (or package.module:name of your own)")


def main() -> None:
    """Run the command; what a user got wrong is one line and exit code 2."""
    try:
        cli()
    except ConfigError as error:
        for line in str(error).splitlines():
            print(f"fedappeal: {line}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
