"""The commands of `fedappeal`: thin, each parses its options and calls what does the work."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from fedappeal.cli import option_groups as groups
from fedappeal.cli.client import client_app
from fedappeal.cli.federation import certs, federation_app, key
from fedappeal.cli.join import join
from fedappeal.cli.options import FURTHER_OPTIONS, Commands, RunValues, naming
from fedappeal.settings.config import ConfigError

cli = Commands(
    help="Federated learning for volunteers: clients decide whether to join, and the server trains so that they do.",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
cli.add_typer(client_app, name="client")
cli.add_typer(federation_app, name="federation")
cli.add("join")(join)
cli.add("certs")(certs)
cli.add("key")(key)


def _print_versions(wanted: bool) -> None:
    if not wanted:
        return
    from fedappeal.system.versions import recorded_versions

    versions = recorded_versions()
    others = ", ".join(f"{name} {versions[name]}" for name in ("flwr", "torch", "python"))
    typer.echo(f"fedappeal {versions['fedappeal']} ({others})")
    raise typer.Exit


@cli.callback()
def command(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_versions, is_eager=True, help="print the versions and end"),
    ] = False,
) -> None:
    """Take the options that stand before a command."""


@cli.add("local")
def local(
    *,
    port: int = 0,
    transport: groups.Transport = "grpc",
    data_dir: str = "",
    device: str = "auto",
    report: bool = True,
    against: str = "",
    watching: groups.WatchOptions,
    settings: RunValues,
) -> None:
    """Run a federation on this machine: a SuperLink and one real process per client.

    Args:
        port: port of the SuperLink's Fleet API (gRPC); 0: the system picks one.
        transport: what clients speak to the SuperLink.
        data_dir: folder with the data sets (torchvision's layout).
        device: where the clients train: auto, cpu, cuda, cuda:N.
        report: write report.html into the run's folder at its end.
        against: a strategy: simulate the same clients under it afterwards, and show who stayed.
        watching: how the command follows the run.
        settings: the run's.
    """
    from fedappeal.flower.processes import import_without_server
    from fedappeal.system.tuning import quick_imports

    with quick_imports():
        import_without_server()
        from fedappeal.cli.command_observers import observers_of
        from fedappeal.cli.compare import report_run
        from fedappeal.cli.start import start_local
        from fedappeal.runs.launch.superlink import LocalProcesses

    observers, settings = observers_of(watching, settings)
    path = start_local(settings, LocalProcesses(port, device, transport), data_dir, observers, against)
    report_run(path, report)


@cli.add("superlink", add_help_option=False, context_settings=FURTHER_OPTIONS)
def superlink(
    context: typer.Context,
    *,
    log_format: groups.LogFormat = "text",
    resume: bool = False,
    page: groups.PageOptions,
    resident: groups.ResidentOptions,
) -> None:
    """Start a long-running SuperLink (options: of `flower-superlink`); its Control port is this user's alone.

    Args:
        context: has the options of `flower-superlink`.
        log_format: what is printed: text | json (an event a line).
        resume: continue what was under way when a SuperLink on this --database ended.
        page: where its page stands.
        resident: what the page can do besides.
    """
    import shlex

    from rich.console import Console

    from fedappeal.views.terminal.printing import complain, say

    if {"-h", "--help"}.intersection(context.args):
        typer.echo(f"{context.get_help()}\nOptions of flower-superlink, which are taken too:\n")
    else:
        options = shlex.join(context.args) or "Flower's default options"
        say(Console(highlight=False), f"starting the SuperLink with {options}; its log follows")
    from fedappeal.cli.live_page import resident_page
    from fedappeal.federation.own_superlink import NOT_GUARDED, run_own_superlink
    from fedappeal.system.json_log import LOG_FORMAT, TEXT
    from fedappeal.system.socket_owner import is_told

    if log_format != TEXT:
        os.environ[LOG_FORMAT] = log_format
    if not is_told():
        complain(NOT_GUARDED)
    with resident_page(context.args, page, resident, resumes=resume, federation=context.obj):
        run_own_superlink(context.args, resumes=resume, allow=resident.allow or ())


@cli.add("resume")
def resume(
    folder: Path,
    *,
    set_: Annotated[list[str] | None, typer.Option("--set")] = None,
    options: groups.ResumeOptions,
    following: groups.WatchOptions,
) -> None:
    """Continue a run from its last finished round, in the runtime that it was started in.

    Args:
        folder: folder of a run; it continues in its own runtime.
        set_: a setting of a tracker: NAME.KEY=VALUE, repeatable.
        options: what changes.
        following: how the command follows the run.
    """
    from fedappeal.cli.compare import report_run
    from fedappeal.cli.start import observers_to_resume, resume_run
    from fedappeal.views.report.report import REPORT

    superlink = resume_run(folder, options, observers_to_resume(following, set_ or []))
    report_run(folder, (folder / REPORT).is_file() and not options.detach, superlink)  # it lacks the later rounds


@cli.add("submit")
def submit(
    *,
    detach: Annotated[bool, typer.Option("--detach/--no-detach")] = False,
    clientapp: str = "",
    heartbeat: str = "",
    report: bool = True,
    control: groups.ControlOptions,
    watching: groups.WatchOptions,
    settings: RunValues,
) -> None:
    """Start a run on a long-running SuperLink and wait for it; --out is a folder as the SuperLink sees it.

    Args:
        detach: print the run's id and do not wait.
        clientapp: module:attribute of the ClientApp that stock SuperNodes run; empty: fedappeal's own.
        heartbeat: a file that says until when this process counts as alive, for health checks.
        report: write report.html into the run's folder at its end.
        control: the SuperLink.
        watching: how the command follows the run.
        settings: the run's.
    """
    from client.process.heartbeat import beat_of
    from fedappeal.cli.command_observers import observers_of
    from fedappeal.cli.compare import report_run
    from fedappeal.cli.start import submit_run
    from fedappeal.flower.bundle import CLIENT_APP
    from fedappeal.runs.launch.superlink import Submission

    launcher = Submission(control.remote(), clientapp or CLIENT_APP, detach)
    observers, settings = observers_of(watching, settings, alive=beat_of(heartbeat))
    path = submit_run(settings, launcher, observers, control.folder.path if control.folder else None)
    report_run(path, report and not detach, launcher.superlink)


@cli.add("simulate")
def simulate(
    *,
    mode: str = "auto",
    sweep: list[str] | None = None,
    evaluation_precision: str = "float32",
    workers: int = 0,
    app: str = "",
    arrays: str = "",
    against: str = "",
    options: groups.MachineOptions,
    watching: groups.WatchOptions,
    settings: RunValues,
) -> None:
    """Run a federation inside this process: the same apps, many virtual clients; or a Flower app's with --app.

    Args:
        mode: clients side by side or one after another (auto | batched | layers | vmap | sequential).
        sweep: a run for each value: KEY=VALUE,VALUE, NAME.KEY=VALUE,VALUE or seed=0..4.
        evaluation_precision: of the evaluation of models that clients are sent (float32 | bfloat16).
        workers: processes that share the clients out; 0 with --ray: one a node.
        app: a Flower app's ClientApp, package.module:app, in place of a task.
        arrays: with --app: what returns its w_0, package.module:initial.
        against: a strategy: simulate the same clients under it afterwards, and show who stayed.
        options: the machine's.
        watching: how the command follows the runs.
        settings: those that all runs share.
    """
    from fedappeal.cli.command_observers import observers_of
    from fedappeal.cli.start import plan_against, report_unused, show_against, start_simulations
    from fedappeal.runs.launch.in_process import InProcess
    from fedappeal.runs.plan import swept_plans
    from fedappeal.simulation.options import Simulation

    if bool(app) != bool(arrays):
        raise ConfigError(f"{'arrays' if app else 'app'} = '' is not allowed with {'app' if app else 'arrays'}")
    settings |= {"task": app, "model": arrays} if app else {}
    observers, settings = observers_of(watching, settings)
    machine = options.machine()
    with naming({"task": "app", "model": "arrays"} if app else {}):
        plans = swept_plans(settings, sweep or [], str(settings.get("out", "")), machine.data_dir)
        report_unused(plans)
        other = plan_against(plans, against) if against else None
        simulation = Simulation(
            mode, machine.device, machine.data_dir, machine.threads, evaluation_precision=evaluation_precision
        )
        start_simulations(plans, InProcess(simulation, machine, workers), observers)
    if other is not None:
        show_against(plans[0].given_path, other, machine.device, machine.threads)


@cli.add("new")
def new(kind: str, file: Path) -> None:
    """Write a plug-in of your own to start from, or a Flower app of volunteers: short, and it runs at once.

    Args:
        kind: strategy | policy | rule | task | model | app.
        file: the file, NAME.py in this folder or below; its class is Name. Of an app: a new folder.
    """
    from fedappeal.cli.new import write_new
    from fedappeal.views.terminal.printing import print_lines

    print_lines([write_new(kind, file)])


@cli.add("check")
def check(name: str, *, data_dir: str = "", conformance: bool = False, settings: RunValues) -> None:
    """Check a plug-in of your own in a dry run of three tiny clients; each finding is a line with file and line.

    Args:
        name: package.module:Name of any plug-in, or of a model.
        data_dir: folder with the data sets (torchvision's layout).
        conformance: sampling, leaving, resume, every form: alike to 1e-6.
        settings: those of the run in which it is tried.
    """
    from fedappeal.cli.check_plugin import check_own
    from fedappeal.views.terminal.printing import print_lines

    print_lines([check_own(name, settings, data_dir, conformance)])


@cli.add("reproduce")
def reproduce(options: groups.ReproduceOptions, machine: groups.MachineOptions) -> None:
    """Run a paper's table or figure: ours beside theirs, as a table, a picture and a page."""
    from fedappeal.cli.reproduce import start_reproduction

    start_reproduction(options, machine.machine())


@cli.add("bench")
def bench(options: groups.BenchOptions, machine: groups.MachineOptions) -> None:
    """Run the benchmark of free participation: which strategy keeps which volunteers."""
    from fedappeal.cli.reproduce import start_bench

    start_bench(options, machine.machine())


@cli.add("compare")
def compare(runs: list[Path], options: groups.CompareOptions) -> None:
    """Compare runs, grouped by settings: means and paired differences over seeds, with 95 % intervals.

    Args:
        runs: folders of runs, or of a sweep.
        options: how they are compared and shown.
    """
    from fedappeal.cli.compare import show_comparison

    show_comparison(runs, options)


@cli.add("verify")
def verify(run: Path) -> None:
    """Check a run's folder: which file is damaged, and in which line; exit code 1 where one is.

    Args:
        run: the run's folder.
    """
    from fedappeal.record.reader import damages, unchecked_files
    from fedappeal.views.terminal.printing import complain, print_lines

    damaged = list(damages(run))
    print_lines(unchecked_files(run))
    for line in damaged:
        complain(line, prefix="")
    if damaged:
        sys.exit(1)
    print_lines([f"'{run}' is as it was written"])


@cli.add("show")
def show(run: Path, *, client: str) -> None:
    """Show which rounds a client joined, and which files of a run's folder hold its updates.

    Args:
        run: the run's folder.
        client: client-id of one of its clients.
    """
    from fedappeal.record.traces import traces
    from fedappeal.views.terminal.printing import print_lines

    print_lines(list(traces(run, client)))


@cli.add("report")
def report(runs: list[Path], *, output: Path | None = None, baseline: str = "", single_file: bool = False) -> None:
    """Write a page about runs for a browser: charts, tables, and what came out in a sentence; it works offline.

    Args:
        runs: folders of runs, or of a sweep.
        output: the file; if not given: report.html in the folder.
        baseline: of several, the group the others are compared with; else FedAvg's, else the first.
        single_file: the charts' script in the page itself.
    """
    from fedappeal.cli.compare import show_report
    from fedappeal.views.report.report import ReportOptions

    show_report(runs, ReportOptions(output, baseline, single_file))


@cli.add("watch")
def watch(
    run: Path | None = None,
    *,
    control: groups.ControlOptions,
    page: groups.AnyPage,
    resident: groups.ResidentOptions,
) -> None:
    """Serve a page about a run or a SuperLink's runs, with a token, until Ctrl-C: start, stop, resume, extend.

    Args:
        run: a run's folder; if not given: the SuperLink's latest run.
        control: the SuperLink.
        page: where the page stands.
        resident: what it can do besides.
    """
    from fedappeal.cli.live_page import watch as watch_run

    watch_run(run, control, page, resident)


ModelPath = Annotated[Path, typer.Argument(metavar="RUN|MODEL")]


@cli.add("export")
def export(model: ModelPath, *, to: str, output: Path | None = None, allow: groups.AllowedPackages = None) -> None:
    """Write a trained model for other programs: ONNX, safetensors, or a folder that `from_pretrained` reads.

    Args:
        model: a run's folder, a model.safetensors, a client's preferred-*.
        to: the form: onnx | safetensors | huggingface (adapters merged) | adapter.
        output: the file or new folder; if not given: RUN.onnx, RUN-huggingface, here.
        allow: packages whose code may run.
    """
    from fedappeal.cli.models import start_export

    start_export(model, to, output, allow or [])


@cli.add("predict")
def predict(model: ModelPath, options: groups.PredictOptions) -> None:
    """Predict with a trained model: a label and its probability an example; with labels the accuracy too.

    Args:
        model: a run's folder, a model.safetensors, a client's preferred-*.
        options: the data, and how it is read.
    """
    from fedappeal.cli.models import start_prediction

    start_prediction(model, options)


@cli.add("list")
def list_names(name: str = "") -> None:
    """List what a run can name: strategies, policies, local rules, requirements, tasks; and the experiments.

    Args:
        name: one of them, package.module:Name, or columns (of a history).
    """
    from fedappeal.cli.listing import all_names, description
    from fedappeal.views.terminal.printing import print_lines

    print_lines(description(name) if name else all_names())
