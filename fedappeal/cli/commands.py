"""The commands of `fedappeal`: thin, each parses its options and calls what does the work."""

from pathlib import Path
from typing import Annotated, Any

import typer

from fedappeal.cli.certs import certs, key
from fedappeal.cli.client import client_app
from fedappeal.cli.client_ids import ids, release
from fedappeal.cli.federation import RootCertificates, SuperLinkAddress, federation_app
from fedappeal.cli.option_groups import BenchOptions, CompareOptions, MachineOptions, ReproduceOptions
from fedappeal.cli.options import with_groups, with_run_options

cli = typer.Typer(
    help="Federated learning for volunteers: clients decide whether to join, and the server trains so that they do.",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
cli.add_typer(client_app, name="client")
cli.add_typer(federation_app, name="federation")
federation_app.command("ids")(ids)
federation_app.command("release")(release)
cli.command("certs")(certs)
cli.command("key")(key)


def _print_versions(wanted: bool) -> None:
    if not wanted:
        return
    from fedappeal.system.versions import recorded_versions

    found = recorded_versions()
    others = ", ".join(f"{name} {found[name]}" for name in ("flwr", "torch", "python"))
    typer.echo(f"fedappeal {found['fedappeal']} ({others})")
    raise typer.Exit


@cli.callback()
def command(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_versions, is_eager=True, help="print the versions and end"),
    ] = False,
) -> None:
    """Take the options that stand before a command."""


def _use_format(log_format: str) -> str:
    from fedappeal.views.terminal.shown import use_format

    return use_format(log_format)


Track = Annotated[
    list[str] | None,
    typer.Option(help="record the run: tensorboard | mlflow | wandb | package.module:Name; repeatable"),
]
Port = Annotated[int, typer.Option("--metrics-port", help="serve metrics for Prometheus at this port; 0: no")]
Address = Annotated[str, typer.Option("--metrics-address", help="address of this machine to serve metrics at")]
LogFormat = Annotated[
    str, typer.Option("--log-format", callback=_use_format, help="what is printed: text | json (an event a line)")
]
WantsReport = Annotated[bool, typer.Option(help="write report.html into the run's folder at its end")]
Page = Annotated[str, typer.Option(help="serve a live page: PORT or HOST:PORT of this machine; 0: any free port")]
PagePublished = Annotated[
    str, typer.Option(help="HOST:PORT under which browsers visit it, where that is another one")
]

Against = Annotated[
    str, typer.Option(help="a strategy: simulate the same clients under it afterwards, and show who stayed")
]


def _local(
    *,
    settings: dict[str, Any],
    port: Annotated[int, typer.Option(help="port of the SuperLink's Fleet API; 0: the system picks one")] = 0,
    data_dir: Annotated[str, typer.Option(help="folder with the data sets (torchvision's layout)")] = "",
    device: Annotated[str, typer.Option(help="where the clients train: auto, cpu, cuda, cuda:N")] = "auto",
    track: Track = None,
    log_format: LogFormat = "text",
    metrics_port: Port = 0,
    metrics_address: Address = "127.0.0.1",
    report: WantsReport = True,
    page: Page = "",
    page_published: PagePublished = "",
    against: Against = "",
) -> None:
    """Run a federation on this machine: a SuperLink and one real process per client, over gRPC."""
    from fedappeal.cli.local import start_local
    from fedappeal.cli.onlookers import CommandOnlookers
    from fedappeal.cli.page import PageOptions
    from fedappeal.cli.report import report_run
    from fedappeal.runs.launch.local import LocalProcesses
    from fedappeal.views.metrics.serving import MetricsPort

    onlookers = CommandOnlookers((), MetricsPort(metrics_port, metrics_address), PageOptions(page, page_published))
    path = start_local(settings, LocalProcesses(port, device), data_dir, track or [], onlookers, against)
    report_run(path, report)


cli.command("local")(with_run_options(_local))


@cli.command(
    "superlink",
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False},
)
def superlink(context: typer.Context, log_format: LogFormat = "text") -> None:
    """Start a long-running SuperLink (options: of `flower-superlink`); its Control port is this user's alone."""
    from fedappeal.cli.superlink import start_superlink

    start_superlink(context.args, log_format)


AllowedPackages = Annotated[
    list[str] | None,
    typer.Option(
        help="a package whose code may run because the folder or file names it; '.': looked for in this folder "
        "too; repeatable"
    ),
]


@cli.command("resume")
def resume(
    folder: Annotated[Path, typer.Argument(help="folder of a run; it continues in its own runtime")],
    rounds: Annotated[
        int | None, typer.Option(help="new total of rounds, also of a run that has finished; not given: as it is")
    ] = None,
    superlink: Annotated[
        str | None, typer.Option(help="HOST:PORT of the SuperLink that runs it, where it was submitted")
    ] = None,
    root_certificates: Annotated[
        str | None, typer.Option(help="with --superlink: file of the CA certificate; not given: plaintext")
    ] = None,
    detach: Annotated[
        bool | None, typer.Option("--detach", help="with --superlink: print the run's id and do not wait")
    ] = None,
    port: Annotated[
        int | None, typer.Option(help="of a local run: port of the SuperLink's Fleet API; 0: the system picks one")
    ] = None,
    data_dir: Annotated[
        str | None, typer.Option(help="folder with the data sets, where this machine trains; not given: as before")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="where the clients train (auto, cpu, cuda, cuda:N); not given: as before")
    ] = None,
    track: Track = None,
    log_format: LogFormat = "text",
    metrics_port: Port = 0,
    metrics_address: Address = "127.0.0.1",
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="a setting of a tracker: NAME.KEY=VALUE, repeatable")
    ] = None,
    allow: AllowedPackages = None,
) -> None:
    """Continue a run from its last finished round, in the runtime that it was started in."""
    from fedappeal.cli.onlookers import onlookers_to_resume
    from fedappeal.cli.resume import ResumeOptions, resume_run
    from fedappeal.views.metrics.serving import MetricsPort

    options = ResumeOptions(rounds, superlink, root_certificates, detach, port, data_dir, device, tuple(allow or ()))
    metrics = MetricsPort(metrics_port, metrics_address)
    resume_run(folder, options, onlookers_to_resume(track or [], set_ or [], metrics))


def _submit(
    *,
    settings: dict[str, Any],
    superlink: SuperLinkAddress,
    root_certificates: RootCertificates = "",
    detach: Annotated[bool, typer.Option(help="print the run's id and do not wait")] = False,
    clientapp: Annotated[
        str, typer.Option(help="module:attribute of the ClientApp that stock SuperNodes run; empty: fedappeal's own")
    ] = "",
    track: Track = None,
    log_format: LogFormat = "text",
    metrics_port: Port = 0,
    metrics_address: Address = "127.0.0.1",
    heartbeat: Annotated[
        str, typer.Option(help="a file that says until when this process counts as alive, for health checks")
    ] = "",
    report: WantsReport = True,
    page: Page = "",
    page_published: PagePublished = "",
) -> None:
    """Start a run on a long-running SuperLink and wait for it; --out is a folder as the SuperLink sees it."""
    from client.process.heartbeat import Heartbeat
    from fedappeal.cli.onlookers import CommandOnlookers
    from fedappeal.cli.page import PageOptions
    from fedappeal.cli.report import report_run
    from fedappeal.cli.submit import submit_run
    from fedappeal.flower.bundle import CLIENT_APP
    from fedappeal.runs.launch.remote import Submission, remote_superlink
    from fedappeal.views.metrics.serving import MetricsPort

    launcher = Submission(remote_superlink(superlink, root_certificates), clientapp or CLIENT_APP, detach)
    onlookers = CommandOnlookers(
        metrics=MetricsPort(metrics_port, metrics_address),
        page=PageOptions(page, page_published),
        root_certificates=root_certificates,
        heartbeat=Heartbeat(Path(heartbeat).expanduser().absolute()) if heartbeat else None,
    )
    path = submit_run(settings, launcher, track or [], onlookers)
    report_run(path, report and not detach)


cli.command("submit")(with_run_options(_submit))


RayAddress = Annotated[
    str, typer.Option(help="a Ray cluster (host:port, or auto): its nodes have one run's clients, or several runs")
]
RayCpus = Annotated[float, typer.Option(help="CPUs that each worker, or each of several runs, asks of Ray")]
RayGpus = Annotated[float, typer.Option(help="GPUs that each worker, or each of several runs, asks of Ray")]


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
    evaluation_precision: Annotated[
        str, typer.Option(help="of the evaluation of models that clients are sent (float32 | bfloat16)")
    ] = "float32",
    workers: Annotated[int, typer.Option(help="processes that share the clients out; 0 with --ray: one a node")] = 0,
    ray: RayAddress = "",
    ray_cpus: RayCpus = 1.0,
    ray_gpus: RayGpus = 0.0,
    track: Track = None,
    log_format: LogFormat = "text",
    metrics_port: Port = 0,
    metrics_address: Address = "127.0.0.1",
    page: Page = "",
    page_published: PagePublished = "",
    against: Against = "",
) -> None:
    """Run a federation inside this process: the same apps, many virtual clients."""
    from fedappeal.cli.against import plan_against, show_against
    from fedappeal.cli.onlookers import CommandOnlookers, chosen_onlookers, report_unused
    from fedappeal.cli.page import PageOptions
    from fedappeal.cli.simulate import start_simulations
    from fedappeal.runs.launch.in_process import InProcess, Machine
    from fedappeal.runs.sweep import swept_plans
    from fedappeal.simulation.options import Simulation
    from fedappeal.simulation.workers.cluster import RayOptions
    from fedappeal.views.metrics.serving import MetricsPort

    onlookers = CommandOnlookers((), MetricsPort(metrics_port, metrics_address), PageOptions(page, page_published))
    onlookers, settings = chosen_onlookers(track or [], settings, onlookers)
    plans = swept_plans(settings, sweep or [], str(settings.get("out", "")), data_dir)
    report_unused(plans)
    other = plan_against(plans, against) if against else None
    simulation = Simulation(mode, device, data_dir, threads, evaluation_precision=evaluation_precision)
    machine = Machine(jobs, ray=RayOptions(ray, ray_cpus, ray_gpus))
    start_simulations(plans, InProcess(simulation, machine, workers), onlookers)
    if other is not None:
        show_against(plans[0].path, other, device, threads)


cli.command("simulate")(with_run_options(_simulate))


@cli.command("reproduce")
@with_groups
def reproduce(
    options: ReproduceOptions,
    machine: MachineOptions,
    list_all: Annotated[bool, typer.Option("--list", help="list all experiments")] = False,
) -> None:
    """Run a paper's table or figure: ours beside theirs, as a table, a picture and a page."""
    from fedappeal.cli.reproduce import list_experiments, start_reproduction

    if list_all:
        list_experiments()
        return
    start_reproduction(options, machine.machine())


@cli.command("bench")
@with_groups
def bench(
    options: BenchOptions,
    machine: MachineOptions,
    from_results: Annotated[
        Path | None, typer.Option(help="a results.json: write its page again, run nothing")
    ] = None,
) -> None:
    """Run the benchmark of free participation: which strategy keeps which volunteers."""
    from fedappeal.cli.bench import start_bench, write_again

    if from_results is not None:
        write_again(from_results)
        return
    start_bench(options, machine.machine())


@cli.command("compare")
@with_groups
def compare(
    runs: Annotated[list[Path], typer.Argument(help="folders of runs, or of a sweep")], options: CompareOptions
) -> None:
    """Compare runs, grouped by settings: means and paired differences over seeds, with 95 % intervals."""
    from fedappeal.cli.compare import show_comparison

    show_comparison(runs, options)


@cli.command("verify")
def verify(run: Annotated[Path, typer.Argument(help="the run's folder")]) -> None:
    """Check a run's folder: which file is damaged, and in which line; exit code 1 where one is."""
    from fedappeal.cli.verify import verify_run

    verify_run(run)


@cli.command("report")
def report(
    runs: Annotated[list[Path], typer.Argument(help="folders of runs, or of a sweep")],
    output: Annotated[Path | None, typer.Option(help="the file; if not given: report.html in the folder")] = None,
    baseline: Annotated[str, typer.Option(help="of several, the group the others are compared with")] = "",
    single_file: Annotated[bool, typer.Option("--single-file", help="the charts' script in the page itself")] = False,
) -> None:
    """Write a page about runs for a browser: charts, tables, and what came out in a sentence; it works offline."""
    from fedappeal.cli.report import show_report

    show_report(runs, output, baseline, single_file)


@cli.command("watch")
def watch(
    run: Annotated[
        Path | None, typer.Argument(help="a run's folder; if not given: the SuperLink's latest run")
    ] = None,
    superlink: Annotated[str, typer.Option(help="HOST:PORT of the SuperLink's Control API (8000)")] = "",
    root_certificates: RootCertificates = "",
    page: Page = "0",
    page_published: PagePublished = "",
) -> None:
    """Serve a live page about a run or a SuperLink, with a token, until Ctrl-C: rounds, clients, stop and resume."""
    from fedappeal.cli.page import PageOptions
    from fedappeal.cli.watch import watch as watch_run

    watch_run(run, superlink, root_certificates, PageOptions(page or "0", page_published))


ModelPath = Annotated[
    Path, typer.Argument(metavar="RUN|MODEL", help="a run's folder, a model.safetensors, a client's preferred-*")
]


@cli.command("export")
def export(
    model: ModelPath,
    to: Annotated[str, typer.Option(help="the form: onnx | safetensors")],
    output: Annotated[Path | None, typer.Option(help="the file; if not given: RUN.onnx in this folder")] = None,
    allow: AllowedPackages = None,
) -> None:
    """Write a trained model for other programs: ONNX, or safetensors with readable metadata."""
    from fedappeal.cli.export import start_export

    start_export(model, to, output, allow or [])


@cli.command("predict")
def predict(
    model: ModelPath,
    data: Annotated[Path, typer.Option(help="a folder of images, with or without class folders, or an .npz with x")],
    output: Annotated[Path | None, typer.Option(help="a file .csv or .jsonl; if not given: printed")] = None,
    device: Annotated[str, typer.Option(help="where it predicts: auto, cpu, cuda, cuda:N")] = "auto",
    allow: AllowedPackages = None,
) -> None:
    """Predict with a trained model: a label and its probability an example; with labels the accuracy too."""
    from fedappeal.cli.predict import start_prediction

    start_prediction(model, data, output, device, allow or [])


@cli.command("list")
def list_names(
    name: Annotated[str, typer.Argument(help="one of them, package.module:Name, or columns (of a history)")] = "",
) -> None:
    """List what a run can name: strategies, policies, local rules, requirements, tasks; and the experiments."""
    from fedappeal.cli.listing import all_names, description

    for line in description(name) if name else all_names():
        typer.echo(line)
