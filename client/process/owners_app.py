"""The clients of an owner's own Flower app: `client.volunteer`, with the app in a process of its own."""

from client.app_learner import Names, Offers
from client.limits.limits import MEGABYTE, Limits
from client.process.app_process import AppProcess
from client.settings import AppSettings, Connection, NodeSettings
from client.volunteer import AppClients
from fedappeal.settings.config import ConfigError, Scalar
from fedappeal.settings.model import scalar


def clients_of(app: AppSettings, node: NodeSettings, connection: Connection, limits: Limits) -> AppClients:
    """Return the clients of an app, checked.

    Args:
        app: the owner's settings of it.
        node: the owner's other settings; the app sees ``data`` of them.
        connection: its key is what the app must not read.
        limits: the owner's.

    Raises:
        ConfigError: it cannot be confined, or a setting is not allowed.
    """
    config: dict[str, Scalar] = {}
    for pair in app.app_config.split():
        key, given, value = pair.partition("=")
        if not key or not given:
            raise ConfigError(f"app-config = '{pair}' is not allowed: KEY=VALUE")
        config[key] = scalar(value)
    if node.data:
        config["data"] = node.data
    process = AppProcess(
        app.app,
        readable=(node.data,) if node.data else (),
        private=(node.state_dir, connection.key),
        confined=not app.no_sandbox,
        memory=int(limits.max_memory * MEGABYTE),
    )
    process.check()
    tells = frozenset(filter(None, map(str.strip, app.tell.split(","))))
    offers = Offers(tells=tells)
    return AppClients(process, Names(loss=app.app_loss), offers, node_config=config)
