"""`fedappeal resume`: continue a run in the runtime in which it was started."""

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedappeal.cli.local import launch_local
from fedappeal.cli.onlookers import CommandOnlookers, ends
from fedappeal.cli.submit import launch_submission
from fedappeal.core.plugins import HERE, current_folder_unsearched
from fedappeal.record.files import CONFIG
from fedappeal.record.folder import (
    COMMAND_LOCK,
    GIVEN,
    KIND,
    LOCAL,
    SIMULATION,
    SUBMITTED,
    RunFolder,
    Usable,
    runtime_of,
    without_memory,
)
from fedappeal.record.reader import Record
from fedappeal.runs.allowed import check_allowed
from fedappeal.runs.checks import check_trains_here
from fedappeal.runs.launch.in_process import InProcess, memory_of
from fedappeal.runs.launch.local import LocalProcesses
from fedappeal.runs.launch.remote import Submission, remote_superlink
from fedappeal.runs.plan import RunPlan
from fedappeal.settings.config import ConfigError, RunConfig
from fedappeal.simulation.options import Simulation
from server.continuation import settings_to_resume

_FITTING = {
    LOCAL: ("port", "data-dir", "device"),
    SIMULATION: ("data-dir", "device"),
    SUBMITTED: ("superlink", "root-certificates", "detach"),
}
"""Options by the runtimes that know them."""


@dataclass(frozen=True)
class ResumeOptions:
    """What the command line says besides the folder; None: not given.

    Attributes:
        rounds: the new total of rounds.
        superlink: ``HOST:PORT`` of the SuperLink's Control API.
        root_certificates: file of its CA certificate.
        detach: whether to print the run's id and not wait.
        port: port of a local SuperLink's Fleet API.
        data_dir: folder with the data sets.
        device: where the clients train.
        allow: packages whose code may run because the run names it; ``.``: the current folder is searched for them.
    """

    rounds: int | None = None
    superlink: str | None = None
    root_certificates: str | None = None
    detach: bool | None = None
    port: int | None = None
    data_dir: str | None = None
    device: str | None = None
    allow: tuple[str, ...] = ()

    def check(self, path: Path, kind: str) -> None:
        """Check that the options fit the runtime of a run.

        Raises:
            ConfigError: names one that does not.
        """
        for name in sorted({name for names in _FITTING.values() for name in names}):
            value = getattr(self, name.replace("-", "_"))
            if value is not None and name not in _FITTING[kind]:
                knows = f"--{', --'.join(_FITTING[kind])}"
                raise ConfigError(
                    f"{name} = {value!r} is not allowed: '{path}' holds a run of the runtime '{kind}', which knows "
                    f"--rounds, {knows}"
                )


def resume_run(path: Path, options: ResumeOptions, onlookers: CommandOnlookers | None = None) -> None:
    """Continue the run of a folder.

    Raises:
        ConfigError: before anything is started: no run in the folder, one that cannot continue, an option that does
            not fit it, code that is not allowed.
    """
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
    options.check(path, kind)
    usable = memory_of(path) if kind == SIMULATION else without_memory
    config = settings_to_resume(path, options.rounds, usable)
    check_allowed(config, path, options.allow)
    if kind == SUBMITTED and options.superlink is None:
        raise ConfigError(f"superlink is missing: '{path}' holds a run of a SuperLink (--superlink HOST:PORT)")
    searched = nullcontext() if HERE in options.allow else current_folder_unsearched()
    with RunFolder.open(path).alone(COMMAND_LOCK), searched:
        _continue(config, path, runtime, usable, options, onlookers or CommandOnlookers())


def _continue(
    config: RunConfig,
    path: Path,
    runtime: Mapping[str, Any],
    usable: Usable,
    options: ResumeOptions,
    onlookers: CommandOnlookers,
) -> None:
    """Continue a run whose settings are known; raises as `resume_run`."""
    if runtime[KIND] == SUBMITTED:
        certificates = options.root_certificates or ""
        superlink = remote_superlink(options.superlink or "", certificates)
        plan = RunPlan.of(config.model_copy(update={"out": str(path), "resume": True}), path, resumes=True)
        launch_submission(plan, Submission(superlink, detach=bool(options.detach)), onlookers)
        return
    data_dir = runtime.get("data-dir", "") if options.data_dir is None else options.data_dir
    plan = RunPlan.of(config, path.absolute(), data_dir=data_dir, resumes=True)
    if runtime[KIND] == LOCAL:
        local = LocalProcesses(options.port or 0, options.device or runtime.get("device", "auto"))
        local.check(plan)
        launch_local(plan, local, onlookers)
        return
    simulation = replace(Simulation.of_runtime(runtime), data_dir=data_dir)
    if options.device is not None:
        simulation = replace(simulation, device=options.device)
    check_trains_here(plan, simulation.device)
    with ends():
        InProcess(simulation).resume(plan, onlookers, usable)
