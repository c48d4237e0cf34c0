"""`fedappeal local` and `fedappeal resume`: check everything, then start, watch and end the processes."""

import sys
from pathlib import Path
from typing import Any

from fedappeal.cli.checks import check_device, check_initial_model, check_out
from fedappeal.cli.unused import report_unused
from fedappeal.cli.view import RunView
from fedappeal.federation.local import LocalRunError, check_port, run_local
from fedappeal.protocol.config import ConfigError, RunConfig
from fedappeal.tasks import check_task
from server.build import check_settings
from server.run_folder import RunFolder, how_it_ended, new_path, read_config


def start_local(settings: dict[str, Any], *, port: int, data_dir: str, device: str) -> None:
    """Start a new run.

    Raises:
        ConfigError: before anything is started, for a setting that is not allowed.
    """
    config = RunConfig.parse(settings)
    if config.initial_model:
        config = config.model_copy(update={"initial_model": str(Path(config.initial_model).absolute())})
    path = Path(config.out or new_path(config)).absolute()
    _check(config, port, data_dir, device)
    check_initial_model(config, data_dir)
    check_out(path)
    _run(config, RunFolder.create(path, config), port, data_dir, device)


def resume_local(path: Path, *, port: int, data_dir: str, device: str) -> None:
    """Continue a run.

    Raises:
        ConfigError: before anything is started: no run in the folder, or one that has finished.
    """
    path = path.absolute()
    config = settings_to_resume(path)
    _check(config, port, data_dir, device)
    _run(config, RunFolder.open(path), port, data_dir, device)


def settings_to_resume(path: Path) -> RunConfig:
    """Return the settings of a run that can be continued.

    Raises:
        ConfigError: if the folder holds no run, or one that has finished.
    """
    config = RunConfig.parse(read_config(path)["settings"])
    if end := how_it_ended(path):
        how = f"in round {end['round']}: {end['reason']}" if end.get("reason") else f"all its {config.rounds} rounds"
        raise ConfigError(f"'{path}' holds a run that has finished {how}")
    return config


def _check(config: RunConfig, port: int, data_dir: str, device: str) -> None:
    """Check all that can be wrong before a process is started.

    Raises:
        ConfigError: for the first that is.
    """
    check_settings(config)
    check_device(device)
    check_port(port)
    check_task(config.task_settings(), Path(data_dir) if data_dir else None)


def _run(config: RunConfig, folder: RunFolder, port: int, data_dir: str, device: str) -> None:
    report_unused([config])
    view = RunView(config, folder.path)
    view.start()
    try:
        run_local(config, folder, view.watch, port=port, data_dir=data_dir, device=device)
    except KeyboardInterrupt:
        view.stop()
        folder.event("interrupted")
        print(
            f"interrupted; all processes have ended; continue with: fedappeal resume {folder.path}", file=sys.stderr
        )
        sys.exit(130)
    except LocalRunError as error:
        view.stop()
        print(f"fedappeal: {error}", file=sys.stderr)
        sys.exit(1)
    view.stop()
    view.summary()
