"""Options of the commands that take many, as classes: `with_groups` makes an option of each field."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from fedappeal.runs.launch.in_process import Machine
    from fedappeal.simulation.workers.cluster import RayOptions


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

    def ray_options(self) -> "RayOptions":
        """Return what is asked of Ray."""
        from fedappeal.simulation.workers.cluster import RayOptions

        return RayOptions(self.ray, self.ray_cpus, self.ray_gpus)

    def machine(self) -> "Machine":
        """Return the means for studies."""
        from fedappeal.runs.launch.in_process import Machine

        return Machine(self.jobs, self.threads, self.device, self.data_dir, self.ray_options())


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
        bool, typer.Option("--missing", help="run the rows alone that the page in --pages lacks, and add them to it")
    ] = False


@dataclass(frozen=True)
class BenchOptions:
    """Options of `fedappeal bench`."""

    tasks: Annotated[str, typer.Option(help="names by commas; empty: those of the fixed design")] = ""
    behaviours: Annotated[str, typer.Option(help="the same: what clients do with their freedom")] = ""
    strategies: Annotated[str, typer.Option(help="the same; also package.module:Name. All meet FedAvg")] = ""
    seeds: Annotated[int, typer.Option(help="number of seeds; 0: the design's")] = 0
    quick: Annotated[bool, typer.Option("--quick", help="a short form of a minute, to see that it works")] = False
    out: Annotated[Path, typer.Option(help="folder of the runs, which are kept and not run again")] = Path("bench")
    page: Annotated[Path | None, typer.Option(help="folder of page and results; if not given: --out")] = None
    redo: Annotated[bool, typer.Option("--redo", help="run those again that were run with other settings")] = False
    known: Annotated[
        Path | None, typer.Option(help="a results.json: its rows are not run again, and stand on the page too")
    ] = None


@dataclass(frozen=True)
class CompareOptions:
    """Options of `fedappeal compare`."""

    baseline: Annotated[str, typer.Option(help="group the others are compared with: fedavg, strategy=fedavg")] = ""
    each_run: Annotated[bool, typer.Option("--each-run", help="no groups: each run by itself")] = False
    to: Annotated[str, typer.Option(help="csv, json: the numbers; latex, markdown: the tables")] = ""
    output: Annotated[Path | None, typer.Option(help="file for --to; default: standard output")] = None
    plot: Annotated[Path | None, typer.Option(help="draw them over the rounds: a .png or .svg file")] = None
