"""The clients of an owner's own Flower app: `client.volunteer`, with the app in a process of its own."""

import hashlib

from client.app_learner import Interface
from client.limits.limits import MEGABYTE, Limits
from client.process.app_process import AppProcess
from client.settings import BUNDLE, AppSettings, Connection, NodeSettings
from client.volunteer import AppClients
from fedappeal.flower.bundle import LARGEST, RunSettings, check_app, read_bundle
from fedappeal.settings.config import ConfigError
from fedappeal.settings.model import key_and_value, local_path


class OwnersApp:
    """The app that an owner names: installed, or a bundle's, which is checked here and unpacked in its process alone.

    Args:
        named: an installed app, a bundle's file or hash, or `BUNDLE`.
        process: calls it.

    Raises:
        ConfigError: the bundle's file cannot be read, or is not allowed.
    """

    def __init__(self, named: AppSettings, process: AppProcess) -> None:
        self._named, self._process = named, process
        self.code = f"{named.app}, which is installed"
        self._of_run = named.of_bundle
        if named.app.endswith(".fab"):
            self._of_run = False
            bundle = local_path(named.app, "app")
            try:
                with bundle.open("rb") as file:
                    self._take(read_bundle(file.read(LARGEST + 1), {}))
            except (OSError, ValueError) as error:
                raise ConfigError(f"app = '{named.app}' is not allowed: {error}") from None

    def begin(self, settings: RunSettings) -> None:
        """Take up the bundle of the run whose message is answered next, where that may name the code.

        Raises:
            ConfigError: it is another than its owner named, or not allowed.
        """
        if not self._of_run:
            return
        try:
            self._take(settings)
        except ValueError as error:
            raise ConfigError(f"this run's bundle is not allowed here: {error}") from None

    def _take(self, settings: RunSettings) -> None:
        if not settings.bundle:
            raise ValueError(f"it has more than {LARGEST} bytes")
        code = hashlib.sha256(settings.bundle).hexdigest()
        if self._of_run and self._named.app not in (BUNDLE, code):
            raise ValueError(f"its SHA-256 is {code}, and its owner named another")
        said = f"{settings.client_app} of the bundle {code}"
        if said != self.code:
            check_app(settings.bundle, settings.client_app)
            self._process.end()
            self._process.app, self._process.bundle, self.code = settings.client_app, settings.bundle, said


def clients_of(
    app: AppSettings, node: NodeSettings, connection: Connection, limits: Limits
) -> tuple[AppClients, OwnersApp]:
    """Return the clients of an app, checked, and the app.

    Args:
        app: the owner's settings of it.
        node: the owner's other settings; the app sees ``data`` of them.
        connection: its key is what the app must not read.
        limits: the owner's.

    Raises:
        ConfigError: it cannot be confined, or a setting is not allowed.
    """
    config = dict(key_and_value(pair, "app-config") for pair in app.app_config.split())
    if node.data:
        config["data"] = node.data
    process = AppProcess(
        app.app,
        readable=(node.data,) if node.data else (),
        private=(node.state_dir, connection.key),
        confined=not app.no_sandbox,
        memory=int(limits.max_memory * MEGABYTE),
    )
    owners = OwnersApp(app, process)
    process.check()
    tells = frozenset(filter(None, map(str.strip, app.tell.split(","))))
    interface = Interface(loss=app.app_loss, tells=tells)
    return AppClients(process, interface, node_config=config, code=lambda: owners.code), owners
