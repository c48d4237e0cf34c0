"""The launchers of runs on a SuperLink.

One is started here with its clients, for one run; or it is a long-running one.
"""

import shlex
import time
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from client.settings import GRPC, HTTP
from fedappeal.federation.own_superlink import NOT_GUARDED
from fedappeal.federation.remote import RemoteSuperLink
from fedappeal.federation.superlink import SuperLink, SuperLinkError
from fedappeal.flower.bundle import CLIENT_APP
from fedappeal.flower.control import ONLINE, ControlError
from fedappeal.record.folder import COMMAND_LOCK, KIND, LOCAL, RunFolder, check_new
from fedappeal.record.follower import WatchedRun
from fedappeal.record.lines import INITIAL
from fedappeal.runs.checks import (
    check_clients_take,
    check_guarded,
    check_initial_model,
    check_trains_here,
    resume_command,
)
from fedappeal.runs.launch.clients import ClientProcesses, ClientsEnded
from fedappeal.runs.launch.observers import INTERRUPTED, Observers, RunUnfinished, Screen, resumable
from fedappeal.runs.plan import RunPlan, check_bounded
from fedappeal.settings.address import listener
from fedappeal.settings.config import ConfigError
from fedappeal.settings.model import is_reference
from fedappeal.system.process_end import end_as_interrupt
from fedappeal.system.socket_owner import is_told
from fedappeal.tasks.files.data_files import DATA_DIR, DEFAULT_DATA_DIR

_POLL = 0.1
_STATUS_EVERY = 2.0


class _RunFailed(RuntimeError):
    """The run did not finish; the message is one line."""


@dataclass(frozen=True)
class LocalProcesses:
    """Launches a SuperLink and a process a client on this machine.

    Attributes:
        port: port of the SuperLink's Fleet API; 0: the system picks one.
        device: where the clients train.
        transport: what they speak to the SuperLink, ``grpc`` or ``http``.
    """

    port: int = 0
    device: str = "auto"
    transport: str = GRPC
    detach: ClassVar[bool] = False
    """This command waits for its own processes."""

    def check(self, plan: RunPlan) -> None:
        """Check all that can be wrong before a process is started.

        Raises:
            ConfigError: for the first that is.
        """
        check_bounded(plan.plugins)
        listener("127.0.0.1", self.port, "port").close()
        if self.transport not in (GRPC, HTTP):  # a run's folder may say anything
            raise ConfigError(f"transport = {self.transport!r} is not allowed: {GRPC}, {HTTP}")
        check_guarded()
        check_clients_take(plan)
        check_trains_here(plan, self.device)

    def launch(self, plan: RunPlan, observers: Observers) -> None:
        """Run, or continue, a checked run until it has finished, and show it.

        Raises:
            RunUnfinished: it did not finish; all processes that were started have ended.
        """
        if not is_told():
            observers.complain(NOT_GUARDED)
        data_dir = str(Path(plan.data_dir).absolute()) if plan.data_dir else ""
        runtime = {KIND: LOCAL, "data-dir": data_dir, "device": self.device, "transport": self.transport}
        failures = _RunFailed, ClientsEnded, SuperLinkError, ControlError
        with resumable([plan], "all processes have ended", *failures):
            folder = plan.folder(runtime)
            if plan.resumes:
                plan.mend(observers.complain, runtime=runtime)
            # Who continues a run has its folder for this command already.
            with nullcontext() if plan.resumes else folder.alone(COMMAND_LOCK):
                self._run_shown(plan, folder, observers)

    def _run_shown(self, plan: RunPlan, folder: RunFolder, observers: Observers) -> None:
        screen = observers.screen(plan)
        with observers.watch(plan.path, connects=True) as begun:
            try:
                screen.start()
                self._run(plan, screen, begun)
            except KeyboardInterrupt:
                folder.event("interrupted")  # while the page stands that shows it
                raise
            finally:
                screen.stop()
        screen.summary()

    def _run(self, plan: RunPlan, screen: Screen, begun: Callable[[RemoteSuperLink], None]) -> None:
        """Run client processes until the run ends; all have ended when this returns.

        Args:
            plan: the run; it continues from a checkpoint in its folder, which is there.
            screen: shows what is waited for, and what the folder says.
            begun: told the SuperLink, once the run is submitted.
        """
        follower = WatchedRun(plan.path, screen.watch)
        environment = {DATA_DIR: str(Path(plan.data_dir or DEFAULT_DATA_DIR).absolute())}
        superlink = SuperLink(
            plan.path / "logs", fleet_port=self.port, environment=environment, http=self.transport == HTTP
        )
        clients = ClientProcesses(plan, self.device)
        # The folder was made before: the ServerApp opens it, and continues from a checkpoint.
        initial = str((plan.path / INITIAL).absolute())
        settings = plan.config.model_copy(update={"out": str(plan.path), "resume": True, "initial_model": initial})
        with ExitStack() as stack:
            stack.enter_context(end_as_interrupt())
            # Ended in the opposite order: the clients say goodbye to a SuperLink that still runs.
            stack.callback(superlink.stop)
            stack.callback(clients.end)
            try:
                clients.start()
                superlink.start()
                screen.doing("the SuperLink answers; waiting for the clients' process to load")
                clients.connect(superlink.http_address or superlink.fleet_address)
                clients.wait_until_loaded()
                remote = RemoteSuperLink(superlink.control_address)
                run_id = remote.submit(settings)
                screen.doing("the run is submitted; waiting for its server process, which calls the clients")
                begun(remote)
                _follow(run_id, remote, superlink, clients, follower)
            except KeyboardInterrupt:
                superlink.kill()  # first here: its ServerApp would record a round whose clients have just been ended
                raise


def _follow(
    run_id: int, remote: RemoteSuperLink, superlink: SuperLink, clients: ClientProcesses, follower: WatchedRun
) -> None:
    next_status = time.monotonic() + _STATUS_EVERY
    while not follower.finished:
        status = None
        if time.monotonic() >= next_status:
            status = remote.run_status(run_id)
            next_status = time.monotonic() + _STATUS_EVERY
        # Lines are read after the status: what a finished run wrote is all there.
        follower.read(over=bool(status and status.finished))
        if follower.failed or (status and status.finished and not follower.finished):
            reason = follower.failed or (status and (status.details or status.status))
            raise _RunFailed(f"the run failed: {reason} (logs: {superlink.log_file.parent})")
        clients.check()
        if not superlink.alive:
            raise _RunFailed(f"the SuperLink ended; see {superlink.log_file}")
        time.sleep(_POLL)


@dataclass(frozen=True)
class Submission:
    """Launches a run on a long-running SuperLink.

    Attributes:
        superlink: the SuperLink.
        clientapp: ``module:attribute`` of the ClientApp that stock SuperNodes run.
        detach: whether to print the run's id and not wait.
    """

    superlink: RemoteSuperLink
    clientapp: str = CLIENT_APP
    detach: bool = False

    def __post_init__(self) -> None:
        if not is_reference(self.clientapp):
            raise ConfigError(
                f"clientapp = '{self.clientapp}' is not allowed: package.module:attribute of a ClientApp"
            )

    def check(self, plan: RunPlan) -> None:
        """Check what this machine can.

        Data and foreign tasks may be elsewhere; another ClientApp has its own model.

        Raises:
            ConfigError: for the first thing that is wrong.
        """
        if ":" not in plan.config.task:
            _ = plan.task.fingerprint
            if ":" in plan.config.model:
                plan.task.initial_model(plan.config.seed)
            # A path is the SuperLink's; where it leads to a file here too, it is nearly always the same one.
            initial = Path(plan.config.initial_model)
            if self.clientapp == CLIENT_APP and initial.is_absolute() and initial.is_file():
                check_initial_model(plan)
        if not plan.resumes:
            check_new(plan.path)
        if self.clientapp == CLIENT_APP and plan.plugins.foreign():
            from fedappeal.runs.dry_round import check_plugins, for_submission  # the engine, and with it torch

            check_clients_take(plan)
            check_plugins(for_submission(plan), "cpu")

    def launch(self, plan: RunPlan, observers: Observers) -> None:
        """Submit a checked run, and show it until it has ended, unless told not to.

        Raises:
            RunUnfinished: it was refused, it failed, or this command does not wait for it any more.
        """
        path, superlink = plan.path, self.superlink
        if plan.resumes:
            plan.mend(observers.complain)
        # Some clients play a partition, others bring their own data.
        screen = observers.screen(plan, data="", name_of=self._name_of)
        # A relative path starts at the SuperLink's working folder, wherever that is.
        follower = WatchedRun(path, screen.watch) if path.is_absolute() else None
        run_id = 0
        where = ["--superlink", superlink.address]
        where += ["--root-certificates", superlink.ca_file] if superlink.root_certificates else []
        try:
            with observers.watch(path, superlink, connects=True):
                run_id = superlink.submit(plan.config, self.clientapp)
                if self.detach:
                    print(run_id)
                    return
                screen.start(f"run {run_id} was submitted")
                if not any(node.status == ONLINE for node in superlink.nodes()):
                    observers.say(f"nobody is online at {superlink.address}: the run waits for clients")
                with end_as_interrupt():
                    failure = superlink.follow(
                        run_id,
                        lambda status: observers.say(f"run {run_id}: {status}"),
                        follower,
                        on_answer=observers.alive,
                    )
                screen.stop()
        except KeyboardInterrupt:
            screen.stop()
            if not run_id:
                raise
            stop = f"fedappeal federation stop {run_id} {shlex.join(where)}"
            raise RunUnfinished(f"run {run_id} continues; to stop it: {stop}", code=INTERRUPTED) from None
        except ControlError as error:
            screen.stop()
            raise RunUnfinished(f"{error}; run {run_id} may continue" if run_id else str(error)) from None
        if failure:
            resume = resume_command(plan.config, plan.given_path, *where)
            again = f"; continue with: {resume}" if path.is_absolute() else ""
            raise RunUnfinished(f"run {run_id}: {failure} (its folder: {plan.given_path}){again}")
        if screen.rounds:
            screen.summary()
        else:
            observers.say(f"run {run_id} has completed; its folder on the SuperLink's machine: {path}")

    def _name_of(self, client: str) -> str:
        """Return a client's registered name and its id; without a name the id alone."""
        try:
            nodes = self.superlink.nodes()
        except ControlError:
            return client
        name = next((node.name for node in nodes if node.client_id == client), "")
        return f"{name} ({client})" if name else client
