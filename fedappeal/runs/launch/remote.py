"""The launcher of runs on a long-running SuperLink: submit, follow, end."""

from dataclasses import dataclass
from pathlib import Path

from fedappeal.federation.address import check_control_address, read_root_certificates
from fedappeal.federation.nodes import list_nodes
from fedappeal.federation.remote import RemoteSuperLink
from fedappeal.flower.bundle import CLIENT_APP
from fedappeal.flower.control import ControlError
from fedappeal.record.folder import check_new
from fedappeal.record.follower import WatchedRun
from fedappeal.runs.checks import check_initial_model, resume_command
from fedappeal.runs.launch.onlookers import INTERRUPTED, Onlookers, RunEnded
from fedappeal.runs.plan import RunPlan
from fedappeal.settings.config import ConfigError
from fedappeal.system.process_end import end_as_interrupt


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
        module, _, attribute = self.clientapp.partition(":")
        if not (attribute.isidentifier() and all(part.isidentifier() for part in module.split("."))):
            raise ConfigError(
                f"clientapp = '{self.clientapp}' is not allowed: package.module:attribute of a ClientApp"
            )

    def check(self, plan: RunPlan) -> None:
        """Check what this machine can: data and foreign tasks may be elsewhere; another ClientApp has its own model.

        Raises:
            ConfigError: for the first thing that is wrong.
        """
        if ":" not in plan.config.task:
            _ = plan.task.fingerprint
            # A path is the SuperLink's; where it leads to a file here too, it is nearly always the same one.
            initial = Path(plan.config.initial_model)
            if self.clientapp == CLIENT_APP and initial.is_absolute() and initial.is_file():
                check_initial_model(plan)
        if not plan.resumes:
            check_new(plan.path)

    def launch(self, plan: RunPlan, onlookers: Onlookers) -> None:
        """Submit a checked run, and show it until it has ended, unless told not to.

        Raises:
            RunEnded: it was refused, it failed, or this command does not wait for it any more.
        """
        path, superlink = plan.path, self.superlink
        if plan.resumes:
            with plan.mended(onlookers.complain):
                pass  # the ServerApp takes it
        # Some clients play a partition, others bring their own data.
        screen = onlookers.screen(plan, data="", name_of=self._name_of)
        # A relative path starts at the SuperLink's working folder, wherever that is.
        follower = WatchedRun(path, screen.watch) if path.is_absolute() else None
        run_id = 0
        where = ["--superlink", superlink.address]
        where += ["--root-certificates", "CA"] if superlink.root_certificates else []
        try:
            with onlookers.watch(path, superlink, connects=True):
                run_id = superlink.submit(plan.config, self.clientapp)
                if self.detach:
                    print(run_id)
                    return
                screen.start(f"run {run_id} was submitted")
                with end_as_interrupt():
                    ended = superlink.follow(
                        run_id,
                        lambda status: onlookers.say(f"run {run_id}: {status}"),
                        follower,
                        on_answer=onlookers.alive,
                    )
                screen.stop()
        except KeyboardInterrupt:
            screen.stop()
            if not run_id:
                raise
            stop = f"fedappeal federation stop {run_id} {' '.join(where)}"
            raise RunEnded(f"run {run_id} continues; to stop it: {stop}", code=INTERRUPTED) from None
        except ControlError as error:
            screen.stop()
            raise RunEnded(f"{error}; run {run_id} may continue" if run_id else str(error)) from None
        if not ended.completed:
            again = f"; continue with: {resume_command(plan.config, path, *where)}" if path.is_absolute() else ""
            raise RunEnded(f"run {run_id}: {ended.reason} (its folder: {path}){again}")
        if screen.rounds:
            screen.summary()
        else:
            onlookers.say(f"run {run_id} has completed; its folder on the SuperLink's machine: {path}")

    def _name_of(self, client: str) -> str:
        """Return a client's registered name and its id; without a name the id alone."""
        try:
            nodes = list_nodes(self.superlink.address, self.superlink.root_certificates)
        except ControlError:
            return client
        name = next((node.name for node in nodes if node.client_id == client), "")
        return f"{name} ({client})" if name else client


def remote_superlink(address: str, root_certificates: str) -> RemoteSuperLink:
    """Return the SuperLink that a user names.

    Args:
        address: ``HOST:PORT`` of its Control API.
        root_certificates: file of its CA certificate; empty: plaintext.

    Raises:
        ConfigError: if they are not allowed.
    """
    check_control_address(address)
    return RemoteSuperLink(address, read_root_certificates(root_certificates))
