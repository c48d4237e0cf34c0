"""The commands of `fedappeal`: thin, each parses its options and calls what does the work."""

from pathlib import Path
from typing import Annotated, Any

import typer

from fedappeal.cli.certs import certs, key
from fedappeal.cli.client import client_app
from fedappeal.cli.federation import RootCertificates, SuperLinkAddress, federation_app
from fedappeal.cli.options import with_run_options
from fedappeal.protocol.config import ConfigError

cli = typer.Typer(
    help="Federated learning for volunteers: clients decide whether to join, and the server trains so that they do.",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
cli.add_typer(client_app, name="client")
cli.add_typer(federation_app, name="federation")
cli.command("certs")(certs)
cli.command("key")(key)


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
    folder: Annotated[
        Path, typer.Argument(help="folder of a run that was started with `fedappeal local` or `submit`")
    ],
    superlink: Annotated[str, typer.Option(help="HOST:PORT: continue there; empty: on this machine")] = "",
    root_certificates: RootCertificates = "",
    detach: Annotated[bool, typer.Option(help="with --superlink: print the run's id and do not wait")] = False,
    port: Annotated[int, typer.Option(help="port of the SuperLink's Fleet API; 0: the system picks one")] = 0,
    data_dir: Annotated[str, typer.Option(help="folder with the data sets (torchvision's layout)")] = "",
    device: Annotated[str, typer.Option(help="where the clients train: auto, cpu, cuda, cuda:N")] = "auto",
) -> None:
    """Continue a run from its last finished round: on this machine, or on a long-running SuperLink."""
    if superlink:
        from fedappeal.cli.submit import resume_run

        resume_run(folder, superlink, root_certificates, detach)
        return
    if root_certificates or detach:
        raise ConfigError("root-certificates and detach are not allowed without superlink")
    from fedappeal.cli.local import resume_local

    resume_local(folder, port=port, data_dir=data_dir, device=device)


def _submit(
    *,
    settings: dict[str, Any],
    superlink: SuperLinkAddress,
    root_certificates: RootCertificates = "",
    detach: Annotated[bool, typer.Option(help="print the run's id and do not wait")] = False,
    clientapp: Annotated[
        str, typer.Option(help="module:attribute of the ClientApp that stock SuperNodes run; empty: fedappeal's own")
    ] = "",
) -> None:
    """Start a run on a long-running SuperLink and wait for it; --out is a folder as the SuperLink sees it."""
    from fedappeal.cli.submit import submit_run

    submit_run(settings, superlink, root_certificates, detach, clientapp)


cli.command("submit")(with_run_options(_submit))


def _simulate(
    *,
    settings: dict[str, Any],
    mode: Annotated[
        str,
        typer.Option(help="clients side by side or one after another (auto | batched | layers | vmap | sequential)"),
    ] = "auto",
    sweep: Annotated[
        list[str] | None,
        typer.Option(help="a run for each value: KEY=VALUE,VALUE, NAME.KEY=VALUE,VALUE or seed=0..4"),
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


@cli.command("reproduce")
def reproduce(
    name: Annotated[str, typer.Argument(help="the table or figure, as `fedappeal reproduce --list` names it")] = "",
    seeds: Annotated[int, typer.Option(help="number of seeds; 0: the experiment's own")] = 0,
    quick: Annotated[
        bool, typer.Option("--quick", help="a short form of a few seconds, to see that it works")
    ] = False,
    jobs: Annotated[int, typer.Option(help="runs at once, each in a process of its own")] = 1,
    out: Annotated[Path, typer.Option(help="folder of the runs, which are kept and not run again")] = Path(
        "reproductions"
    ),
    pages: Annotated[
        Path | None, typer.Option(help="folder of the page and pictures; the runs' own if not given")
    ] = None,
    changed: Annotated[
        list[str] | None, typer.Option("--set", help="KEY=VALUE: a setting other than the experiment's")
    ] = None,
    grid: Annotated[str, typer.Option(help="search the paper's grid over these settings first: KEY,KEY or all")] = "",
    redo: Annotated[bool, typer.Option("--redo", help="run those again that were run with other settings")] = False,
    list_all: Annotated[bool, typer.Option("--list", help="list all experiments")] = False,
    threads: Annotated[int, typer.Option(help="PyTorch threads a run; 0: the cores shared out")] = 0,
    data_dir: Annotated[str, typer.Option(help="folder with the data sets (torchvision's layout)")] = "",
    device: Annotated[str, typer.Option(help="where data and models are: auto, cpu, cuda, cuda:N")] = "auto",
) -> None:
    """Run a paper's table or figure: ours beside theirs, as a table, a picture and a page."""
    from fedappeal.cli.reproduce import ReproduceOptions, list_experiments, start_reproduction
    from fedappeal.experiments.framework.harness import Machine

    if list_all:
        list_experiments()
        return
    options = ReproduceOptions(name, seeds, quick, out, pages, tuple(changed or ()), grid, redo)
    start_reproduction(options, Machine(jobs, threads, device, data_dir))


@cli.command("compare")
def compare(
    runs: Annotated[list[Path], typer.Argument(help="folders of runs")],
    plot: Annotated[Path | None, typer.Option(help="draw them over the rounds: a .png or .svg file")] = None,
) -> None:
    """Show runs side by side: results, participation, traffic, and the settings that differ."""
    from fedappeal.cli.compare import compare_runs

    compare_runs(runs, plot)


@cli.command("list")
def list_names(
    name: Annotated[str, typer.Argument(help="one of them, or package.module:Name: show its settings")] = "",
) -> None:
    """List what a run can name: strategies, policies, local rules, requirements, tasks; and the experiments."""
    from fedappeal.cli.listing import all_names, description

    for line in description(name) if name else all_names():
        typer.echo(line)
