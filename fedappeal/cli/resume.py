"""`fedappeal resume`: continue a run in the runtime in which it was started."""

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedappeal.cli.observers import NONE, Observers
from fedappeal.core.plugins import HERE, current_folder_unsearched
from fedappeal.record.files import CONFIG
from fedappeal.record.folder import COMMAND_LOCK, GIVEN, RunFolder, Usable, without_memory
from fedappeal.record.reader import Record
from fedappeal.record.resumption import KIND, LOCAL, SIMULATION, SUBMITTED, runtime_of
from fedappeal.settings.config import ConfigError, RunConfig
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


def resume_run(path: Path, options: ResumeOptions, observers: Observers = NONE) -> None:
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
    config = settings_to_resume(path, options.rounds, usable := _usable(path, kind))
    from server.build import check_allowed

    check_allowed(config, path, options.allow)
    if kind == SUBMITTED and options.superlink is None:
        raise ConfigError(f"superlink is missing: '{path}' holds a run of a SuperLink (--superlink HOST:PORT)")
    searched = nullcontext() if HERE in options.allow else current_folder_unsearched()
    with RunFolder.open(path).alone(COMMAND_LOCK), searched:
        _continue(config, path, runtime, usable, options, observers)


def _continue(
    config: RunConfig,
    path: Path,
    runtime: Mapping[str, Any],
    usable: Usable,
    options: ResumeOptions,
    observers: Observers,
) -> None:
    """Continue a run whose settings are checked; raises as `resume_run`."""
    kind = runtime[KIND]
    if kind == SUBMITTED:
        from fedappeal.cli.submit import resume_submitted

        resume_submitted(
            config, path, options.superlink or "", options.root_certificates or "", bool(options.detach), observers
        )
    elif kind == LOCAL:
        from fedappeal.cli.local import resume_local

        data_dir = runtime.get("data-dir", "") if options.data_dir is None else options.data_dir
        device = options.device or runtime.get("device", "auto")
        resume_local(
            config, path.absolute(), port=options.port or 0, data_dir=data_dir, device=device, observers=observers
        )
    else:
        from fedappeal.cli.simulate import resume_simulation
        from fedappeal.simulation.engine import Simulation

        simulation = Simulation.of_runtime(runtime)
        if options.data_dir is not None:
            simulation = replace(simulation, data_dir=options.data_dir)
        if options.device is not None:
            simulation = replace(simulation, device=options.device)
        resume_simulation(config, path.absolute(), simulation, usable, observers)


def _usable(path: Path, kind: str) -> Usable:
    """Return the check of what belongs to a checkpoint besides itself."""
    if kind != SIMULATION:
        return without_memory
    from fedappeal.simulation.memory import read_memory

    def usable(server_round: int) -> None:
        read_memory(path, server_round)

    return usable
