"""The port at which Prometheus asks for metrics: checked before anything is started, served while a block runs."""

import ipaddress
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedappeal.settings.address import listener
from fedappeal.settings.config import ConfigError
from fedappeal.system.packages import require

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from fedappeal.federation.remote import RemoteSuperLink

CountConnected = Callable[[], int | None]
"""Returns how many clients are connected now; None: that is not known."""
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class MetricsPort:
    """The address at which metrics are served.

    Attributes:
        port: 1 to 65535; 0: nowhere.
        address: of this machine.
    """

    port: int = 0
    address: str = LOOPBACK

    def __post_init__(self) -> None:
        """Check the address, without listening at it.

        Raises:
            ConfigError: the port or the address is not allowed, or the extra is not installed.
        """
        try:
            ipaddress.ip_address(self.address)
        except ValueError:
            raise ConfigError(
                f"metrics-address = '{self.address}' is not allowed: an address of this machine, as a number"
            ) from None
        if not self.port:
            return
        if not 0 < self.port < 65536:
            raise ConfigError(f"metrics-port = {self.port} is not allowed: 1 to 65535; 0: none")
        listener(self.address, self.port, "metrics-port").close()
        asked = f"metrics-port = {self.port} is not allowed: it needs 'prometheus-client', which is not installed"
        require(asked, "metrics", "prometheus_client")

    @contextmanager
    def served(self, registry: "Callable[[], CollectorRegistry]") -> Iterator[None]:
        """Serve a registry's metrics during the block.

        Raises:
            ConfigError: the port has been taken meanwhile.
        """
        if not self.port:
            yield
            return
        from prometheus_client import start_http_server

        try:
            server, thread = start_http_server(self.port, self.address, registry())
        except OSError as error:
            raise ConfigError(f"metrics-port = {self.port} is not allowed: {error.strerror}") from None
        try:
            yield
        finally:
            server.shutdown()
            server.server_close()
            thread.join(5)


NOWHERE = MetricsPort()


_KEPT = 5.0
"""Seconds for which an answer counts."""


class ConnectedClients:
    """Counts a SuperLink's nodes that are online.

    Attributes:
        superlink: the SuperLink; None: not known yet.
    """

    def __init__(self, superlink: "RemoteSuperLink | None" = None) -> None:
        self.superlink = superlink
        self._asked = float("-inf")
        self._count: int | None = None
        self._alone = threading.Lock()

    def count(self) -> int | None:
        """Return the number of online nodes; None if the SuperLink does not say."""
        with self._alone:
            if self.superlink and time.monotonic() - self._asked > _KEPT:
                from fedappeal.flower.control import ControlError

                try:
                    self._count = sum(node.status == "online" for node in self.superlink.nodes())
                except ControlError:
                    self._count = None
                self._asked = time.monotonic()
            return self._count
