"""Options of the commands that take many, as classes: `with_groups` makes an option of each field."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from fedappeal.runs.launch.in_process import Machine


def _use_format(log_format: str) -> str:
    from fedappeal.views.terminal.shown import use_format

    return use_format(log_format)


LogFormat = Annotated[
    str, typer.Option("--log-format", callback=_use_format, help="what is printed: text | json (an event a line)")
]
PAGE_HELP = "serve a live page: PORT or HOST:PORT of this machine; 0: any free port"
Page = Annotated[str, typer.Option(help=PAGE_HELP)]
PagePublished = Annotated[
    str, typer.Option(help="HOST:PORT under which browsers visit it, where that is another one")
]
MetricsPortOption = Annotated[
    int, typer.Option("--metrics-port", help="serve metrics for Prometheus at this port; 0: no")
]
MetricsAddress = Annotated[str, typer.Option(help="address of this machine to serve metrics at")]
AllowedPackages = Annotated[
    list[str] | None,
    typer.Option(
        help="a package whose code may run because the folder or file names it; '.': looked for in this folder "
        "too; repeatable"
    ),
]


@dataclass(frozen=True)
class WatchOptions:
    """How a command follows a run, what it prints, and where the run's live page and metrics stand."""

    track: Annotated[
        list[str] | None,
        typer.Option(help="record the run: tensorboard | mlflow | wandb | package.module:Name; repeatable"),
    ] = None
    log_format: LogFormat = "text"
    metrics_port: MetricsPortOption = 0
    metrics_address: MetricsAddress = "127.0.0.1"
    page: Page = ""
    page_published: PagePublished = ""


@dataclass(frozen=True)
class ResidentOptions:
    """What a page and metrics that outlive runs can do and show, beside a SuperLink."""

    metrics_port: MetricsPortOption = 0
    metrics_address: MetricsAddress = "127.0.0.1"
    runs: Annotated[
        Path | None,
        typer.Option(help="folder of settings files (.toml) with which the page may start runs, and of these runs"),
    ] = None
    allow: AllowedPackages = None


@dataclass(frozen=True)
class ResumeOptions:
    """Options of `fedappeal resume` besides the folder; None: not given."""

    rounds: Annotated[
        int | None, typer.Option(help="new total of rounds, also of a run that has finished; not given: as it is")
    ] = None
    superlink: Annotated[
        str | None, typer.Option(help="HOST:PORT of the SuperLink that runs it, where it was submitted")
    ] = None
    root_certificates: Annotated[
        str | None, typer.Option(help="with --superlink: file of the CA certificate; not given: plaintext")
    ] = None
    detach: Annotated[
        bool | None, typer.Option("--detach", help="with --superlink: print the run's id and do not wait")
    ] = None
    port: Annotated[
        int | None, typer.Option(help="of a local run: port of the SuperLink's Fleet API; 0: the system picks one")
    ] = None
    data_dir: Annotated[
        str | None, typer.Option(help="folder with the data sets, where this machine trains; not given: as before")
    ] = None
    device: Annotated[
        str | None, typer.Option(help="where the clients train (auto, cpu, cuda, cuda:N); not given: as before")
    ] = None
    allow: AllowedPackages = None


@dataclass(frozen=True)
class MachineOptions:
    """The means by which runs are done."""

    jobs: Annotated[int, typer.Option(help="runs at once, each in a process of its own")] = 1
    threads: Annotated[int, typer.Option(help="PyTorch threads a run; 0: the cores shared out")] = 0
    data_dir: Annotated[str, typer.Option(help="folder with the data sets (torchvision's layout)")] = ""
    device: Annotated[str, typer.Option(help="where data and models are: auto, cpu, cuda, cuda:N")] = "auto"
    ray: Annotated[
        str,
        typer.Option(help="a Ray cluster (host:port, or auto): its nodes have one run's clients, or several runs"),
    ] = ""
    ray_cpus: Annotated[float, typer.Option(help="CPUs that each worker, or each of several runs, asks of Ray")] = 1.0
    ray_gpus: Annotated[float, typer.Option(help="GPUs that each worker, or each of several runs, asks of Ray")] = 0.0

    def machine(self) -> "Machine":
        """Return the means that these options name."""
        from fedappeal.runs.launch.in_process import Machine
        from fedappeal.simulation.workers.cluster import RayOptions

        ray = RayOptions(self.ray, self.ray_cpus, self.ray_gpus)
        return Machine(self.jobs, self.threads, self.device, self.data_dir, ray)


@dataclass(frozen=True)
class ReproduceOptions:
    """Options of `fedappeal reproduce`."""

    name: Annotated[str, typer.Argument(help="the table or figure, as `fedappeal reproduce --list` names it")] = ""
    seeds: Annotated[int, typer.Option(help="number of seeds; 0: the experiment's own")] = 0
    quick: Annotated[bool, typer.Option("--quick", help="a short form of a few seconds, to see that it works")] = (
        False
    )
    out: Annotated[Path, typer.Option(help="folder of the runs, which are kept and not run again")] = Path(
        "reproductions"
    )
    pages: Annotated[
        Path | None, typer.Option(help="folder of the page and pictures; the runs' own if not given")
    ] = None
    changed: Annotated[
        list[str] | None, typer.Option("--set", help="KEY=VALUE: a setting other than the experiment's")
    ] = None
    grid: Annotated[str, typer.Option(help="search the paper's grid over these settings first: KEY,KEY or all")] = ""
    redo: Annotated[bool, typer.Option("--redo", help="run those again that were run with other settings")] = False
    from_numbers: Annotated[
        bool, typer.Option("--from-numbers", help="only write the page again from the NAME.json beside it")
    ] = False
    missing: Annotated[
        bool,
        typer.Option(
            "--missing", help="run what the page in --pages lacks, and add it: rows, and seeds up to --seeds"
        ),
    ] = False


@dataclass(frozen=True)
class BenchOptions:
    """Options of `fedappeal bench`."""

    tasks: Annotated[str, typer.Option(help="names by commas; empty: those of the fixed design")] = ""
    behaviours: Annotated[str, typer.Option(help="the same: what clients do with their freedom")] = ""
    strategies: Annotated[str, typer.Option(help="the same; also package.module:Name. All meet FedAvg")] = ""
    seeds: Annotated[int, typer.Option(help="number of seeds; 0: the design's")] = 0
    quick: Annotated[bool, typer.Option("--quick", help="a part of two minutes: digits, three strategies")] = False
    out: Annotated[Path, typer.Option(help="folder of the runs, which are kept and not run again")] = Path("bench")
    page: Annotated[Path | None, typer.Option(help="folder of page and results; if not given: --out")] = None
    redo: Annotated[bool, typer.Option("--redo", help="run those again that were run with other settings")] = False
    known: Annotated[
        Path | None, typer.Option(help="a results.json: its runs are not done again, and stand on the page too")
    ] = None
    again: Annotated[
        Path | None, typer.Option(help="a results.json: two of its rows of --strategies are run again and compared")
    ] = None


@dataclass(frozen=True)
class CompareOptions:
    """Options of `fedappeal compare`."""

    baseline: Annotated[
        str, typer.Option(help="group the others are compared with; else FedAvg's, else the first")
    ] = ""
    each_run: Annotated[bool, typer.Option("--each-run", help="no groups: each run by itself")] = False
    to: Annotated[str, typer.Option(help="csv, json: the numbers; latex, markdown: the tables")] = ""
    output: Annotated[Path | None, typer.Option(help="file for --to; default: standard output")] = None
    plot: Annotated[Path | None, typer.Option(help="draw them over the rounds: a .png or .svg file")] = None
