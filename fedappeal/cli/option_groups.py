"""Options of the commands that take many, as classes: a field is an option, the docstring below it the help."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from fedappeal.settings.config import ConfigError

if TYPE_CHECKING:
    from fedappeal.federation.folder import FederationFolder
    from fedappeal.federation.remote import RemoteSuperLink
    from fedappeal.runs.launch.in_process import Machine
    from fedappeal.web.serving import PagePlace


def _use_format(log_format: str) -> str:
    from fedappeal.views.terminal.printing import use_format

    return use_format(log_format)


LogFormat = Annotated[str, typer.Option(callback=_use_format)]
Transport = Literal["grpc", "http"]
AllowedPackages = Annotated[
    list[str] | None,
    typer.Option(
        help="a package whose code may run because the folder or file names it; '.': looked for in this folder "
        "too; repeatable"
    ),
]


def check_trust(root_certificates: str | None, insecure: bool | None) -> None:
    """Check that a command trusts a SuperLink in one way.

    Raises:
        ConfigError: it has a CA certificate, and is told to do without.
    """
    if root_certificates and insecure:
        raise ConfigError(f"root-certificates = '{root_certificates}' is not allowed together with insecure")


@dataclass(frozen=True)
class ControlOptions:
    """The SuperLink whose Control API a command calls, and how it is trusted."""

    federation: Path | None = None
    """folder of `fedappeal federation open`, whose SuperLink it is; if not given: this folder"""
    superlink: str = ""
    """HOST:PORT of the SuperLink's Control API (8000), where it was started otherwise"""
    root_certificates: str = ""
    """with --superlink: its CA certificate (PEM); empty: plaintext"""
    insecure: bool = False
    """plaintext; for loopback and tests"""

    def __post_init__(self) -> None:
        check_trust(self.root_certificates, self.insecure)
        if self.superlink and self.federation:
            raise ConfigError(f"federation = '{self.federation}' is not allowed together with superlink")
        if self.folder:
            object.__setattr__(self, "superlink", self.folder.addresses.control)
            object.__setattr__(self, "root_certificates", self.folder.ca_file)

    @cached_property
    def folder(self) -> "FederationFolder | None":
        """The federation's folder; None where the SuperLink was named."""
        from fedappeal.federation.folder import FederationFolder

        return None if self.superlink else FederationFolder.find(self.federation)

    def remote(self) -> "RemoteSuperLink":
        """Return the SuperLink.

        Raises:
            ConfigError: none is named, or one that is not allowed.
        """
        if not self.superlink:
            raise ConfigError(
                "superlink is missing: HOST:PORT of its Control API (--superlink), or the folder of `fedappeal "
                "federation open` (--federation)"
            )
        from fedappeal.federation.remote import RemoteSuperLink

        return RemoteSuperLink.checked(self.superlink, self.root_certificates)


@dataclass(frozen=True)
class PageOptions:
    """The place of a command's live page."""

    page: str = ""
    """serve a live page: PORT or HOST:PORT of this machine; 0: any free port"""
    page_published: str = ""
    """HOST:PORT under which browsers visit it, where that is another one"""

    @cached_property
    def place(self) -> "PagePlace | None":
        """The address of the page; None if no page was asked for.

        Raises:
            ConfigError: no page can stand there.
        """
        if self.page:
            from fedappeal.web.serving import PagePlace

            return PagePlace.parse(self.page, self.page_published)
        if self.page_published:
            raise ConfigError(f"page-published = '{self.page_published}' is not allowed without --page")
        return None


NO_PAGE = PageOptions()


@dataclass(frozen=True)
class AnyPage(PageOptions):
    """The place of `fedappeal watch`'s page, at any port unless one is named."""

    page: Annotated[str, typer.Option("--page", "--port")] = "0"


@dataclass(frozen=True)
class MetricsOptions:
    """The place of a command's metrics."""

    metrics_port: int = 0
    """serve metrics for Prometheus at this port; 0: no"""
    metrics_address: str = "127.0.0.1"
    """address of this machine to serve metrics at"""


@dataclass(frozen=True)
class WatchOptions(PageOptions, MetricsOptions):
    """Options of a command that follows a run: its output, live page and metrics."""

    track: list[str] | None = None
    """record the run: tensorboard | mlflow | wandb | package.module:Name; repeatable"""
    log_format: LogFormat = "text"
    """what is printed: text | json (an event a line)"""


@dataclass(frozen=True)
class ResidentOptions(MetricsOptions):
    """The powers of a page and metrics that outlive runs, beside a SuperLink."""

    runs: Path | None = None
    """folder of settings files (.toml) with which the page may start runs, and of these runs"""
    allow: AllowedPackages = None


@dataclass(frozen=True)
class ResumeOptions:
    """Options of `fedappeal resume` besides the folder; None if not given."""

    rounds: int | None = None
    """new total of rounds, also of a run that has finished; not given: as it is"""
    federation: Path | None = None
    """folder of the federation that runs it; if not given: this folder, or one above the run's"""
    superlink: str | None = None
    """HOST:PORT of the SuperLink that runs it, where it was started otherwise"""
    root_certificates: str | None = None
    """with --superlink: file of the CA certificate; not given: plaintext"""
    insecure: bool | None = None
    """with --superlink: plaintext; for loopback and tests"""
    detach: bool | None = None
    """with --superlink: print the run's id and do not wait"""
    port: int | None = None
    """of a local run: port of the SuperLink's Fleet API; 0: the system picks one"""
    data_dir: str | None = None
    """folder with the data sets, where this machine trains; not given: as before"""
    transport: Transport | None = None
    """of a local run: what clients speak to the SuperLink; not given: as before"""
    device: str | None = None
    """where the clients train (auto, cpu, cuda, cuda:N); not given: as before"""
    allow: AllowedPackages = None

    def __post_init__(self) -> None:
        check_trust(self.root_certificates, self.insecure)


@dataclass(frozen=True)
class MachineOptions:
    """The machine and parallelism of a command's runs."""

    jobs: int = 1
    """runs at once, each in a process of its own"""
    threads: int = 0
    """PyTorch threads a run; 0: the cores shared out"""
    data_dir: str = ""
    """folder with the data sets (torchvision's layout)"""
    device: str = "auto"
    """where data and models are: auto, cpu, cuda, cuda:N"""
    ray: str = ""
    """a Ray cluster (host:port, or auto): its nodes have one run's clients, or several runs"""
    ray_cpus: float = 1.0
    """CPUs that each worker, or each of several runs, asks of Ray"""
    ray_gpus: float = 0.0
    """GPUs that each worker, or each of several runs, asks of Ray"""

    def machine(self) -> "Machine":
        """Return the means that these options name."""
        from fedappeal.runs.launch.in_process import Machine
        from fedappeal.simulation.workers.cluster import RayOptions

        ray = RayOptions(self.ray, self.ray_cpus, self.ray_gpus)
        return Machine(self.jobs, self.threads, self.device, self.data_dir, ray)


@dataclass(frozen=True)
class ReproduceOptions:
    """Options of `fedappeal reproduce`."""

    name: Annotated[str, typer.Argument()] = ""
    """the table or figure, as `fedappeal reproduce --list` names it"""
    seeds: int = 0
    """number of seeds; 0: the experiment's own"""
    quick: bool = False
    """a short form of a few seconds, to see that it works"""
    out: Path = Path("reproductions")
    """folder of the runs, which are kept and not run again"""
    pages: Path | None = None
    """folder of the page and pictures; the runs' own if not given"""
    changed: Annotated[list[str] | None, typer.Option("--set")] = None
    """KEY=VALUE: a setting other than the experiment's"""
    grid: str = ""
    """search the paper's grid over these settings first: KEY,KEY or all"""
    redo: bool = False
    """run those again that were run with other settings"""
    from_numbers: bool = False
    """only write the page again from the NAME.json beside it"""
    missing: bool = False
    """run what the page in --pages lacks, and add it: rows, and seeds up to --seeds"""
    list_all: Annotated[bool, typer.Option("--list")] = False
    """list all experiments"""


@dataclass(frozen=True)
class BenchOptions:
    """Options of `fedappeal bench`."""

    tasks: str = ""
    """names by commas; empty: those of the fixed design"""
    behaviours: str = ""
    """the same: what clients do with their freedom"""
    strategies: str = ""
    """the same; also package.module:Name. All meet FedAvg"""
    seeds: int = 0
    """number of seeds; 0: the design's"""
    quick: bool = False
    """a part of two minutes: digits, three strategies"""
    out: Path = Path("bench")
    """folder of the runs, which are kept and not run again"""
    page: Path | None = None
    """folder of page and results; if not given: --out"""
    redo: bool = False
    """run those again that were run with other settings"""
    known: Path | None = None
    """a results.json: its runs are not done again, and stand on the page too"""
    again: Path | None = None
    """a results.json: two of its rows of --strategies are run again and compared"""
    from_results: Path | None = None
    """a results.json: write its page again, run nothing"""


@dataclass(frozen=True)
class CompareOptions:
    """Options of `fedappeal compare`."""

    baseline: str = ""
    """group the others are compared with; else FedAvg's, else the first"""
    each_run: bool = False
    """no groups: each run by itself"""
    measures: str = ""
    """those that are compared, by commas: accuracy,served,joined; empty: all"""
    to: str = ""
    """csv, json: the numbers; latex, markdown: the tables"""
    output: Path | None = None
    """file for --to; default: standard output"""
    plot: Path | None = None
    """draw them over the rounds: a .png or .svg file"""


@dataclass(frozen=True)
class PredictOptions:
    """Options of `fedappeal predict` besides the model."""

    data: Path
    """a folder of images, a table or texts (.csv, .parquet), or an .npz with x"""
    output: Path | None = None
    """a file .csv or .jsonl; if not given: printed"""
    features: str = ""
    """of a table: the model's columns, by commas; if not given: the task's, else all others"""
    label: str = ""
    """of a table: the column of labels, to measure by"""
    scale_from: str = ""
    """of a table, if clients standardised theirs: a table of training data, or a client's own model"""
    device: str = "auto"
    """where it predicts: auto, cpu, cuda, cuda:N"""
    allow: AllowedPackages = None
