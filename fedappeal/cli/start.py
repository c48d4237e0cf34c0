"""Runs that a command starts (`simulate`, `local`, `submit`), or continues in their runtime (`resume`)."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from fedappeal.cli.command_observers import CommandObservers, observers_of
from fedappeal.cli.option_groups import ResumeOptions, WatchOptions
from fedappeal.cli.options import plugin_options
from fedappeal.core.plugins import HERE, current_folder_unsearched
from fedappeal.core.registry import STRATEGIES
from fedappeal.record.folder import (
    COMMAND_LOCK,
    GIVEN,
    KIND,
    LOCAL,
    SIMULATION,
    SUBMITTED,
    RunFolder,
    Usable,
    new_path,
    runtime_of,
    without_memory,
)
from fedappeal.record.lines import CONFIG
from fedappeal.record.reader import Record
from fedappeal.runs.checks import check_allowed, check_trains_here
from fedappeal.runs.launch.in_process import InProcess, memory_of
from fedappeal.runs.plan import RunPlan, deployed_plan, simulate_plan, unused_lines
from fedappeal.settings.config import ConfigError, RunConfig
from fedappeal.settings.rounds import AUTO
from fedappeal.simulation.options import Simulation
from fedappeal.views.comparison.measures import save
from fedappeal.views.comparison.stayed import NOTE, WhoStayed, draw, headings
from fedappeal.views.terminal.fitting import PHRASE
from fedappeal.views.terminal.printing import as_json, complain, print_fitting, say, say_where

if TYPE_CHECKING:  # they load Flower's Control API, which no simulation needs
    from fedappeal.federation.remote import RemoteSuperLink
    from fedappeal.runs.launch.superlink import LocalProcesses, Submission

_FITTING = {
    LOCAL: ("port", "data-dir", "device", "transport"),
    SIMULATION: ("data-dir", "device"),
    SUBMITTED: ("superlink", "root-certificates", "insecure", "detach", "federation"),
}
"""Options by the runtimes that know them."""


def _check_fits(options: ResumeOptions, path: Path, kind: str) -> None:
    """Check that the options fit the runtime of a run.

    Raises:
        ConfigError: names one that does not.
    """
    for name in sorted({name for names in _FITTING.values() for name in names}):
        value = getattr(options, name.replace("-", "_"))
        if value is not None and name not in _FITTING[kind]:
            knows = f"--{', --'.join(_FITTING[kind])}"
            raise ConfigError(
                f"{name} = {value!r} is not allowed: '{path}' holds a run of the runtime '{kind}', which knows "
                f"--rounds, {knows}"
            )


def _at_its_superlink(options: ResumeOptions, path: Path) -> ResumeOptions:
    """Return the options with the SuperLink of the federation in whose folder a run is."""
    from fedappeal.federation.folder import FederationFolder

    if not (folder := FederationFolder.find(options.federation, near=path)):
        raise ConfigError(f"superlink is missing: '{path}' holds a run of a SuperLink (--superlink HOST:PORT)")
    return replace(options, superlink=folder.addresses.control, root_certificates=folder.ca_file or None)


def observers_to_resume(following: WatchOptions, written: Sequence[str]) -> CommandObservers:
    """Return the observers of a run that continues.

    Args:
        following: how the command follows it.
        written: settings of trackers, ``NAME.KEY=VALUE``.

    Raises:
        ConfigError: a name or setting that is not allowed, or a setting of something else.
    """
    observers, others = observers_of(following, plugin_options(written))
    if others:
        raise ConfigError(
            f"set = '{next(iter(others))}' is not allowed: a run continues with its settings; those of trackers "
            "that --track names can be given"
        )
    return observers


def report_unused(plans: Sequence[RunPlan]) -> None:
    """Print a line on standard error for each unused plug-in setting."""
    for line in unused_lines(plans):
        complain(line)


def resume_run(
    path: Path, options: ResumeOptions, observers: CommandObservers | None = None
) -> "RemoteSuperLink | None":
    """Continue a folder's run; return its long-running SuperLink, None if on this machine.

    Raises:
        ConfigError: before anything is started: no run in the folder, one that cannot continue, an option that does
            not fit it, code that is not allowed.
    """
    from server.checkpoints import settings_to_resume  # Flower, which takes a second

    if options.superlink is not None and not (path / CONFIG).exists():
        raise ConfigError(
            f"'{path}' is not the folder of a run: it has no readable {CONFIG}; give the path that the SuperLink "
            f"knows, on a machine that sees it too"
        )
    if Record(path).config.get(GIVEN):
        raise ConfigError(
            f"'{path}' holds a run of a program's own objects: in Python, fedappeal.load('{path}', ...) takes them "
            "again, and its resume continues the run"
        )
    runtime = runtime_of(path)
    kind = str(runtime[KIND])
    _check_fits(options, path, kind)
    usable = memory_of(path) if kind == SIMULATION else without_memory
    config = settings_to_resume(path, options.rounds, usable)
    if kind == SUBMITTED and options.superlink is None:
        options = _at_its_superlink(options, path)
    allowed = options.allow or ()
    check_allowed(config, path, allowed)
    searched = nullcontext() if HERE in allowed else current_folder_unsearched()
    with RunFolder.open(path).alone(COMMAND_LOCK), searched:
        return _continue(config, path, runtime, usable, options, observers or CommandObservers())


def _continue(
    config: RunConfig,
    path: Path,
    runtime: Mapping[str, Any],
    usable: Usable,
    options: ResumeOptions,
    observers: CommandObservers,
) -> "RemoteSuperLink | None":
    """Continue a run whose settings are known; returns and raises as `resume_run`."""
    absolute = path.absolute()  # the folder is open here, whatever the SuperLink's working folder is
    if runtime[KIND] == SUBMITTED:
        config = config.model_copy(update={"out": str(absolute), "resume": True})
    data_dir = runtime.get("data-dir", "") if options.data_dir is None else options.data_dir
    plan = replace(RunPlan.of(config, absolute, data_dir=data_dir, resumes=True), written=path)
    if runtime[KIND] == SUBMITTED:
        from fedappeal.federation.remote import RemoteSuperLink
        from fedappeal.runs.launch.superlink import Submission

        superlink = RemoteSuperLink.checked(options.superlink or "", options.root_certificates or "")
        launch(plan, Submission(superlink, detach=bool(options.detach)), observers)
        return superlink
    if runtime[KIND] == LOCAL:
        from fedappeal.runs.launch.superlink import LocalProcesses

        device, transport = options.device or runtime.get("device", "auto"), options.transport
        local = LocalProcesses(options.port or 0, device, transport or runtime.get("transport", "grpc"))
        launch(plan, local, observers)
        return None
    simulation = replace(Simulation.of_runtime(runtime), data_dir=data_dir)
    if options.device is not None:
        simulation = replace(simulation, device=options.device)
    check_trains_here(plan, simulation.device)
    InProcess(simulation).resume(plan, observers, usable)
    return None


def start_simulations(
    plans: Sequence[RunPlan], launcher: InProcess, observers: CommandObservers | None = None
) -> None:
    """Run all plans, and show their progress.

    Raises:
        ConfigError: before anything is started, for a setting that is not allowed.
    """
    observers = observers or CommandObservers()
    if observers.metrics.port and len(plans) > 1:
        raise ConfigError(f"metrics-port = {observers.metrics.port} is not allowed with several runs (0)")
    if observers.page.page and len(plans) > 1:
        raise ConfigError("page is not allowed with several runs: `fedappeal watch RUN` shows one of them")
    launcher.check(plans).launch(plans, observers)


def start_local(
    settings: dict[str, Any],
    launcher: "LocalProcesses",
    data_dir: str = "",
    observers: CommandObservers | None = None,
    against: str = "",
) -> Path:
    """Run a new federation; return the run's folder.

    With ``against`` the same clients are simulated under that strategy afterwards, and both are shown.

    Raises:
        ConfigError: before anything is started, for a setting that is not allowed.
    """
    plan = deployed_plan(settings, data_dir, here=True)
    other = launch(plan, launcher, observers or CommandObservers(), against)
    if other is not None:
        show_against(plan.given_path, other, device=launcher.device)
    return plan.given_path


def submit_run(
    settings: dict[str, Any],
    launcher: "Submission",
    observers: CommandObservers | None = None,
    base: Path | None = None,
) -> Path:
    """Submit a run and wait for it, unless detached; return its folder.

    The folder is as the SuperLink sees it; a relative path begins at ``base``, if there is one.

    Raises:
        ConfigError: before anything is submitted, for a setting that is not allowed.
    """
    if base:
        settings = {**settings, "out": str(base / (settings.get("out") or new_path(RunConfig.parse(settings))))}
    plan = deployed_plan(settings)
    launch(plan, launcher, observers or CommandObservers())
    return plan.path


def launch(
    plan: RunPlan, launcher: "LocalProcesses | Submission", observers: CommandObservers, against: str = ""
) -> RunPlan | None:
    """Check and launch a run, which this command waits for unless it is detached.

    Returns the plan of the same run under the strategy ``against``, checked before the launch; None without one.

    Raises:
        ConfigError: before anything is started, for what is not allowed.
        RunUnfinished: it did not finish.
    """
    launcher.check(plan)
    _check_observed(observers, plan.path, launcher.detach)
    other = plan_against([plan], against) if against else None
    report_unused([plan])
    launcher.launch(plan, observers)
    return other


def _check_observed(observers: CommandObservers, path: Path, detach: bool) -> None:
    """Check that the run's folder can be followed while this command waits.

    Raises:
        ConfigError: this command does not wait for the run, or does not see its folder.
    """
    if detach and (page := observers.page.page):
        raise ConfigError(f"page = '{page}' is not allowed with --detach: `fedappeal watch --superlink` serves it")
    for option, asked in (("track", observers.trackers), ("metrics-port", observers.metrics.port)):
        if asked and detach:
            raise ConfigError(f"{option} is not allowed with --detach: it needs a command that follows the run")
        if asked and not path.is_absolute():
            raise ConfigError(
                f"{option} is not allowed with out = '{path}': the run's folder is read here, so give its "
                "absolute path, which this machine sees too (--out)"
            )


PICTURE = "stayed"
"""The picture's files in the run's folder, without their endings."""


def plan_against(plans: Sequence[RunPlan], strategy: str) -> RunPlan:
    """Return the same run under another strategy; clients keep their policies.

    Args:
        plans: the runs, of which there may be one.
        strategy: the other one.

    Raises:
        ConfigError: for several runs, the run's own strategy, or one that does not go with the settings.
    """
    if len(plans) > 1:
        raise ConfigError(f"against = '{strategy}' is not allowed with several runs: `fedappeal compare` shows them")
    plan, config = plans[0], plans[0].config
    if strategy == config.strategy:
        raise ConfigError(f"against = '{strategy}' is not allowed: it is the run's own strategy; name another")
    first = plan.plugins.strategy
    policy, prefix = first.policy if config.participation == AUTO else config.participation, first.settings_name()
    other = config.model_copy(update={"strategy": strategy, "participation": policy, "out": ""})
    if STRATEGIES.load(strategy).settings_name() != prefix:
        # Nothing of the other run could say whose the settings of a strategy of one's own are.
        others = tuple((key, value) for key, value in config.plugins if key.partition(".")[0] != prefix)
        other = other.model_copy(update={"plugins": others})
    return RunPlan.of(other, plan.path / f"against-{strategy.replace(':', '.')}", data_dir=plan.data_dir)


def show_against(path: Path, other: RunPlan, device: str, threads: int = 0) -> None:
    """Simulate the other strategy; show who stayed, as table and picture.

    Args:
        path: the run's folder.
        other: the other run.
        device: where it trains.
        threads: its PyTorch threads; 0: as PyTorch has it.
    """
    console = Console(highlight=False)
    with console.status(f"the same clients under {other.config.strategy}"):
        simulate_plan(other, Simulation(device=device, data_dir=other.data_dir, threads=threads, resumable=False))
    runs = [WhoStayed.of(folder) for folder in (path, other.path)]
    names = headings(runs[0].metric)
    if as_json():
        for run, place in zip(runs, (path, other.path), strict=True):
            cells = " ".join(f"{name.replace(' ', '_')}={cell}" for name, cell in zip(names, run.row(), strict=True))
            say(console, cells, facts={"event": "stayed", "run": place.name})
    else:
        say(console, "who stayed: the same clients, the same data, the same draws", style="italic")
        columns = dict(zip(names, zip(*(run.row() for run in runs), strict=True), strict=True))
        print_fitting(console, columns, left_out=names[:1:-1], boxed=True)
        say(console, NOTE, style="dim", unit=PHRASE)
    if not all(run.rounds.size for run in runs):
        return
    try:
        save(draw(runs), path / PICTURE)
    except ConfigError as error:  # without matplotlib the table has to do
        complain(error)
        return
    say_where(console, "the picture", path / f"{PICTURE}.png")
