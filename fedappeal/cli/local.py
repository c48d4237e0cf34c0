"""`fedappeal local`, and `fedappeal resume` of such a run: check, start, watch, end."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedappeal.cli.against import config_against, show_against
from fedappeal.cli.checks import check_device, check_initial_model, check_out, check_share
from fedappeal.cli.mend import mended_folder
from fedappeal.cli.observers import NONE, Observers, chosen_observers
from fedappeal.cli.page import NO_PAGE, PageOptions, page_of_local
from fedappeal.cli.unused import report_unused
from fedappeal.federation.connected import ConnectedClients
from fedappeal.federation.local import LocalRunError, check_guarded, check_port, run_local
from fedappeal.federation.own_superlink import NOT_GUARDED
from fedappeal.record.folder import COMMAND_LOCK, RunFolder, new_path
from fedappeal.record.resumption import KIND, LOCAL
from fedappeal.settings.config import RunConfig, Scalar
from fedappeal.system.socket_owner import is_told
from fedappeal.tasks import check_task
from fedappeal.views.metrics.serving import NOWHERE, MetricsPort
from fedappeal.views.terminal.shown import complain
from fedappeal.views.terminal.view import RunView
from server.build import check_settings, resume_command
from server.influence import bounded_by_default, check_deployed
from server.new_run import new_run

if TYPE_CHECKING:
    from fedappeal.web.serving import PagePlace


def start_local(
    settings: dict[str, Any],
    *,
    port: int,
    data_dir: str,
    device: str,
    track: Sequence[str] = (),
    metrics: MetricsPort = NOWHERE,
    page: PageOptions = NO_PAGE,
    against: str = "",
) -> Path:
    """Run a new federation; return the run's folder.

    With ``against`` the same clients are simulated under that strategy afterwards, and both are shown.

    Raises:
        ConfigError: before anything is started, for a setting that is not allowed.
    """
    observers, settings = chosen_observers(track, metrics, settings)
    config, note = bounded_by_default(settings)
    if config.initial_model:
        config = config.model_copy(update={"initial_model": str(Path(config.initial_model).absolute())})
    path = Path(config.out or new_path(config)).absolute()
    place = page.place()
    _check(config, port, data_dir, device)
    check_initial_model(config, data_dir)
    check_share(config, data_dir)
    check_out(path)
    other = config_against([config], against) if against else None
    runtime = _runtime(data_dir, device)
    folder = new_run(path, config, runtime)
    with folder.alone(COMMAND_LOCK):
        _run(config, folder, port, data_dir, device, observers, place, note)
    if other is not None:
        show_against(path, other, {"device": device, "data_dir": data_dir})
    return path


def resume_local(
    config: RunConfig,
    path: Path,
    *,
    port: int,
    data_dir: str,
    device: str,
    observers: Observers = NONE,
) -> None:
    """Continue a run.

    Raises:
        ConfigError: before anything is started, for what is not allowed.
    """
    _check(config, port, data_dir, device)
    with mended_folder(path) as folder:
        folder.record(runtime=_runtime(data_dir, device))
    _run(config, folder, port, data_dir, device, observers)


def _runtime(data_dir: str, device: str) -> dict[str, Scalar]:
    return {KIND: LOCAL, "data-dir": str(Path(data_dir).absolute()) if data_dir else "", "device": device}


def _check(config: RunConfig, port: int, data_dir: str, device: str) -> None:
    """Check all that can be wrong before a process is started.

    Raises:
        ConfigError: for the first that is.
    """
    check_settings(config)
    check_deployed(config)
    check_device(device)
    check_port(port)
    check_guarded()
    check_task(config.task_settings(), Path(data_dir) if data_dir else None)


def _run(
    config: RunConfig,
    folder: RunFolder,
    port: int,
    data_dir: str,
    device: str,
    observers: Observers,
    place: "PagePlace | None" = None,
    note: str = "",
) -> None:
    report_unused([config])
    if not is_told():
        complain(NOT_GUARDED)
    view, again = RunView(config, folder.path, note=note), f"continue with: {resume_command(config, folder.path)}"
    try:
        connected = ConnectedClients()
        with page_of_local(place, folder.path, view.console) as begun, observers.watch(folder.path, connected.count):
            view.start()

            def told(control_address: str) -> None:
                begun(control_address)
                connected.at(control_address)

            run_local(config, folder, view.watch, told, port=port, data_dir=data_dir, device=device)
            view.stop()
    except KeyboardInterrupt:
        view.stop()
        folder.event("interrupted")
        complain(f"interrupted; all processes have ended; {again}", prefix="")
        sys.exit(130)
    except LocalRunError as error:
        view.stop()
        complain(f"{error}; {again}")
        sys.exit(1)
    view.summary()
