"""`fedappeal simulate`: one run, or several at once, in this process or in a few beside it."""

import contextlib
import difflib
import itertools
import re
import sys
from dataclasses import asdict, replace
from functools import partial
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from fedappeal.cli.checks import check_device, check_initial_model, check_out, check_share
from fedappeal.cli.mend import mended_folder
from fedappeal.cli.observers import NONE, Observers
from fedappeal.cli.page import page_of_local
from fedappeal.cli.unused import report_unused, without_others
from fedappeal.record.files import CONFIG
from fedappeal.record.folder import RunFolder, Usable, check_new, new_path
from fedappeal.record.reader import Record
from fedappeal.record.resumption import rounds_done
from fedappeal.settings.config import ConfigError, RunConfig, scalar
from fedappeal.simulation.jobs import SimulationJob, check_at_once, run_in_parallel, run_job
from fedappeal.simulation.workers.cluster import NO_CLUSTER, RayOptions, check_workers, ray_cluster
from fedappeal.simulation.workers.jobs import check_on_ray, run_on_ray, threads_of_each
from fedappeal.tasks import check_task
from fedappeal.views.terminal.progress import described, one_run, several_runs
from fedappeal.views.terminal.shown import as_json, complain, say
from fedappeal.views.terminal.view import RunView
from fedappeal.views.tracking.sweep import all_tracked
from server.build import check_settings, chosen, resume_command
from server.new_run import new_run

if TYPE_CHECKING:
    from fedappeal.web.serving import PagePlace

MOST_RUNS = 10_000
"""Runs of one sweep; more are a slip of the pen."""
_WHOLE = re.compile("[0-9]{1,18}")


def plan(settings: dict[str, Any], sweep: list[str], out: str) -> list[SimulationJob]:
    """Return a run for each combination of swept values; report settings without use.

    Args:
        settings: settings that all runs share; those of plug-ins under ``NAME.KEY``.
        sweep: ``KEY=VALUE,VALUE,...`` or ``NAME.KEY=VALUE,...``; a range of whole numbers is written ``0..4``. A run
            whose plug-ins do not know a key leaves it alone.
        out: folder of the run, or of all runs; empty: a new one under ``runs``.

    Raises:
        ConfigError: for a setting that is not allowed, before anything is started.
    """
    varied: dict[str, list[Any]] = {}
    for text in sweep:
        key, values = _swept(text)
        if key in varied:
            raise ConfigError(f"sweep = '{text}' is not allowed: {key} is swept twice; give all its values at once")
        varied[key] = values
    if (runs := prod(map(len, varied.values()))) > MOST_RUNS:
        raise ConfigError(f"sweep = '{' '.join(sweep)}' is not allowed: {runs} runs, at most {MOST_RUNS}")
    shared = RunConfig.parse({k: v for k, v in settings.items() if k not in varied})
    root = Path(out or new_path(shared)).absolute()
    combinations = [dict(zip(varied, values, strict=True)) for values in itertools.product(*varied.values())]
    configs = [RunConfig.parse(settings | swept) for swept in combinations]
    labels = [
        "-".join(f"{key}-{value}" for key, value in swept.items()).replace(":", ".").replace("/", "_")
        for swept in combinations
    ]
    _check_distinct(configs, labels, sweep)
    jobs = [
        SimulationJob(config, root / label if label else root, label or "run")
        for config, label in zip(without_others(configs), labels, strict=True)
    ]
    for job in jobs:
        check_settings(job.config)
        check_new(job.path)
    report_unused(configs)
    return jobs


def _swept(text: str) -> tuple[str, list[Any]]:
    key, equals, values = text.partition("=")
    key = key.strip().replace("_", "-")
    general = RunConfig.keys()
    of_plugin = all(key.partition("."))
    if not equals or not values or not (of_plugin or key in general):
        near = [] if of_plugin else difflib.get_close_matches(key, general, n=1)
        hint = f"; did you mean '{near[0]}'?" if near and near[0] != key else ""
        raise ConfigError(
            f"sweep = '{text}' is not allowed: KEY=VALUE,VALUE,... with a key of the run's settings, "
            f"or NAME.KEY of a plug-in{hint}"
        )
    found: list[Any] = []
    for value in values.split(","):
        first, dots, last = value.partition("..")
        whole = dots and all(_WHOLE.fullmatch(each) for each in (first, last))
        if whole and int(first) > int(last):
            raise ConfigError(f"sweep = '{text}' is not allowed: the range {value} is empty; {last}..{first}?")
        if whole and int(last) - int(first) >= MOST_RUNS:
            raise ConfigError(f"sweep = '{text}' is not allowed: at most {MOST_RUNS} runs")
        found += range(int(first), int(last) + 1) if whole else [scalar(value) if of_plugin else value]
    return key, found


def _check_distinct(configs: list[RunConfig], labels: list[str], sweep: list[str]) -> None:
    """Check that no two runs of a sweep are the same.

    Raises:
        ConfigError: names the two.
    """
    known: dict[tuple[tuple[str, Any], ...], str] = {}
    for config, label in zip(configs, labels, strict=True):
        settings = tuple(sorted(config.as_config().items()))
        if settings in known:
            raise ConfigError(
                f"sweep = '{' '.join(sweep)}' is not allowed: {known[settings]} and {label} are the same run"
            )
        known[settings] = label


def start_simulations(
    jobs: list[SimulationJob],
    at_once: int,
    mode: str,
    device: str,
    data_dir: str,
    threads: int,
    workers: int = 0,
    ray: RayOptions = NO_CLUSTER,
    evaluation_precision: str = "float32",
    observers: Observers = NONE,
    place: "PagePlace | None" = None,
) -> None:
    """Run all jobs, show how far they are, and print a table of each.

    A Ray cluster has the clients of a lone run, and else the runs.

    Raises:
        ConfigError: before anything is started, for a setting that is not allowed.
    """
    from fedappeal.simulation.engine import Simulation

    check_at_once(at_once)
    if observers.metrics.port and len(jobs) > 1:
        raise ConfigError(f"metrics-port = {observers.metrics.port} is not allowed with several runs (0)")
    if place is not None and len(jobs) > 1:
        raise ConfigError("page is not allowed with several runs: `fedappeal watch RUN` shows one of them")
    at_once = min(at_once, len(jobs))
    if len(jobs) == 1 and (workers or ray.address):
        check_workers(workers, jobs[0].config)
        simulation = Simulation(
            *(mode, device, data_dir, threads),
            evaluation_precision=evaluation_precision,
            workers=workers,
            ray=ray.address,
            ray_cpus=ray.cpus,
            ray_gpus=ray.gpus,
        )
    else:
        if workers:
            raise ConfigError(f"workers = {workers} is not allowed with several runs: --jobs, or --ray ADDRESS")
        check_on_ray(ray, at_once)
        each = threads_of_each(threads, at_once, ray)
        simulation = Simulation(mode, device, data_dir, each, evaluation_precision=evaluation_precision)
    check_device(device)
    check_out(_root(jobs))
    for job in jobs:
        check_task(job.config.task_settings(), Path(data_dir) if data_dir else None)
        check_initial_model(job.config, data_dir)
        check_share(job.config, data_dir)
    # Before anything is shown or written: a cluster that cannot be reached is found here.
    with ray_cluster(ray, max(workers, 1)) if workers or ray.address else contextlib.nullcontext():
        _start(jobs, at_once, simulation, ray, observers, place)


def _start(
    jobs: list[SimulationJob],
    at_once: int,
    simulation: Any,
    ray: RayOptions,
    observers: Observers,
    place: "PagePlace | None",
) -> None:
    from fedappeal.simulation.engine import choose_mode

    console = Console(highlight=False)
    choices = {}
    for config in {_training(job.config): job.config for job in jobs}.values():
        choices[_training(config)] = choose_mode(config, simulation)
    for line in dict.fromkeys(f"{key[0]}: clients train {choice}" for key, choice in choices.items()):
        say(console, line)
    for line in simulation.notes():
        say(console, line)
    # Each run keeps to what was said of it: another measurement could come out otherwise.
    found = [choices[_training(job.config)] for job in jobs]
    simulations = [replace(simulation, mode=choice.mode, why=choice.why) for choice in found]
    try:
        if len(jobs) == 1:
            _one(jobs[0], simulations[0], console, observers, place)
        else:
            _several(jobs, at_once, simulations, console, ray, observers)
    except KeyboardInterrupt:
        _interrupted(jobs[0].config, "FOLDER" if len(jobs) > 1 else jobs[0].path)


def resume_simulation(
    config: RunConfig, path: Path, simulation: Any, usable: Usable, observers: Observers = NONE
) -> None:
    """Continue a run and show it, as it is shown from its beginning.

    Args:
        config: its settings.
        path: its folder.
        simulation: how it is simulated.
        usable: as in `server.checkpoints.newest_usable`.
        observers: what looks on.

    Raises:
        ConfigError: before anything is started, for a setting that is not allowed.
    """
    check_settings(config)
    check_device(simulation.device)
    check_task(config.task_settings(), Path(simulation.data_dir) if simulation.data_dir else None)
    with mended_folder(path, usable):
        pass  # the run takes it again
    console = Console(highlight=False)
    for line in simulation.notes():
        say(console, line)
    try:
        _one(SimulationJob(config, path, "run"), simulation, console, observers)
    except KeyboardInterrupt:
        _interrupted(config, path)


def _interrupted(config: RunConfig, path: Path | str) -> None:
    complain(f"interrupted; all finished rounds are kept; continue with: {resume_command(config, path)}", prefix="")
    sys.exit(130)


def _root(jobs: list[SimulationJob]) -> Path:
    """Return the folder of the run, or of all runs."""
    return jobs[0].path if len(jobs) == 1 else jobs[0].path.parent


def _training(config: RunConfig) -> tuple[object, ...]:
    """Return what decides how a run's clients train; the strategy comes first."""
    others = {plugin.settings_name() for plugin in chosen(config).plugins()}
    own = tuple((key, value) for key, value in config.plugins if key.partition(".")[0] not in others)
    task = config.task_settings().model_copy(update={"seed": 0, "plugins": own})
    at_once = min(config.clients_per_round or config.clients, config.clients)
    return config.strategy, config.local_rule, task, config.batch_size, at_once


def _one(
    job: SimulationJob, simulation: Any, console: Console, observers: Observers, place: "PagePlace | None" = None
) -> None:
    from fedappeal.simulation.engine import simulate

    view = RunView(job.config, job.path, console)
    view.heading()
    if done := rounds_done(job.path):
        say(console, f"continued after round {done}")
    begun = (job.path / CONFIG).exists()
    folder = RunFolder.open(job.path) if begun else new_run(job.path, job.config, simulation.runtime())
    with page_of_local(place, job.path, console), observers.watch(job.path):
        with one_run(view, job.name, completed=done) as on_round:
            simulate(
                job.config,
                folder,
                simulation,
                lambda record: on_round({**record.as_line(), "decisions": record.decisions}),
            )
        view.stop()
    view.rounds = Record(job.path).history
    view.summary()


def _several(
    jobs: list[SimulationJob],
    at_once: int,
    simulations: list[Any],
    console: Console,
    ray: RayOptions,
    observers: Observers,
) -> None:
    failed: list[str] = []
    with (
        all_tracked([job.path for job in jobs], observers.trackers, complain) as tracking,
        several_runs(jobs, console) as shown,
    ):

        def ended(number: int, reason: str) -> None:
            if reason:
                failed.append(f"{jobs[number].name}: {reason}")
            shown.ended(number, reason)
            tracking.ended(number, reason)

        def update() -> None:
            shown.update()
            tracking.update()

        work = [partial(run_job, job, asdict(how)) for job, how in zip(jobs, simulations, strict=True)]
        if ray.address:
            run_on_ray(work, ray, ended, update)
        else:
            run_in_parallel(work, at_once, ended, update)
    if console.is_terminal and not as_json():  # else each line stands above, where its run ended
        for job in jobs:
            if lines := Record(job.path).history:
                name = f"{job.name}: after round {lines[-1]['round']}:"
                say(console, described(name, lines[-1], Record(job.path).metric))
    say(console, "the runs' folders: ", (str(_root(jobs)), "bold"))
    if failed:
        for line in failed:
            complain(line)
        sys.exit(1)
