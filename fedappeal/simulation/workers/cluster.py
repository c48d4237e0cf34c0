"""Ray: a cluster that is there, or one of this machine alone, on loopback and with a token."""

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from fedappeal.protocol.foreign_text import one_line
from fedappeal.settings.config import ConfigError, RunConfig
from fedappeal.system.packages import require

LOOPBACK = "127.0.0.1"
_TOKENS = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
OWN = {
    "RAY_AUTH_MODE": "token",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # where this is off, all of Ray's ports are on loopback
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_agent_register_timeout_ms": "300000",  # Ray's 30 s are short on a busy machine
    "RAY_worker_register_timeout_seconds": "300",
}
"""Ray's environment where this program starts it."""


@dataclass(frozen=True)
class RayOptions:
    """The options for Ray.

    Attributes:
        address: of a cluster; ``auto``: as Ray finds it; empty: none, this machine alone.
        cpus: that each worker, or each run of several, asks for.
        gpus: the same of GPUs.
    """

    address: str = ""
    cpus: float = 1.0
    gpus: float = 0.0

    def __post_init__(self) -> None:
        for name, value in (("ray-cpus", self.cpus), ("ray-gpus", self.gpus)):
            if not 0 <= value < float("inf"):
                raise ConfigError(f"{name} = {value} is not allowed: 0 or more")
        if not self.cpus and not self.gpus:
            raise ConfigError("ray-cpus = 0 is not allowed without ray-gpus: Ray could not tell where there is room")


NO_CLUSTER = RayOptions()


def check_ray() -> None:
    """Check that Ray is installed.

    Raises:
        ConfigError: names the extra.
    """
    require("workers need Ray", "sim", "ray")


def check_workers(workers: int, config: RunConfig) -> None:
    """Check that a run's clients can be shared out.

    Raises:
        ConfigError: Ray is not installed, or there are more workers than clients.
    """
    check_ray()
    clients = config.clients + config.unseen_clients
    if not 0 <= workers <= clients:
        raise ConfigError(
            f"workers = {workers} is not allowed: 0 (no workers; with ray one a node) to {clients}, the clients"
        )


@contextmanager
def ray_cluster(options: RayOptions, at_once: int) -> Iterator[Any]:
    """Connect to a Ray cluster for the block.

    One that this program has connected before is used as it is.

    Args:
        options: the cluster, and what is asked of it.
        at_once: how many workers, or runs, are to find room.

    Yields:
        The module.

    Raises:
        ConfigError: the cluster cannot be reached, or started, or has less.
    """
    check_ray()
    address, cpus, gpus = options.address, at_once * options.cpus, at_once * options.gpus
    if not address:
        os.environ.update(OWN)
        if not any(os.environ.get(key) for key in _TOKENS):
            os.environ[_TOKENS[0]] = secrets.token_hex(32)  # the processes that Ray starts inherit it
    import ray

    ours = not ray.is_initialized()
    if ours:
        _connect(ray, address, cpus)
    try:
        if ours and not address:
            _check_loopback(ray)
        _check_room(ray, cpus, gpus)
        yield ray
    finally:
        if ours:
            ray.shutdown()


def _connect(ray: Any, address: str, cpus: float) -> None:
    """Connect to a cluster, or start one; retry once.

    A node gives its own processes fixed seconds to start, which a busy machine may not have the first time.
    """
    here: dict[str, Any] = {} if address else {"num_cpus": -int(-cpus // 1), "include_dashboard": False}
    what = f"ray = '{address}' is not allowed" if address else "Ray cannot be started on this machine"
    for last in (True,) if address else (False, True):
        try:
            ray.init(address or "local", log_to_driver=False, configure_logging=False, **here)
        except Exception as error:  # Ray raises RuntimeError, ConnectionError, ValueError, Exception
            if last:
                raise ConfigError(f"{what}: {one_line(error)}") from None
        else:
            return


def _check_loopback(ray: Any) -> None:
    if (addresses := {str(node["NodeManagerAddress"]) for node in ray.nodes()}) != {LOOPBACK}:
        raise ConfigError(
            f"Ray listens at {', '.join(sorted(addresses))}, not at {LOOPBACK} alone: this program had imported ray "
            "before; set RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0 before that"
        )


def _check_room(ray: Any, cpus: float, gpus: float) -> None:
    there = ray.cluster_resources()
    for kind, asked in (("CPU", cpus), ("GPU", gpus)):
        if asked > (most := there.get(kind, 0.0)):
            raise ConfigError(f"ray has {most:g} {kind}s, {asked:g} are asked for: fewer workers, or less for each")


PLACED_WITHIN = 120.0
"""Seconds until all workers have room; other jobs of the cluster may have it."""


@contextmanager
def room_for(ray: Any, workers: int, options: RayOptions) -> Iterator[list[Any]]:
    """Reserve room for workers, on as many nodes as possible, during the block.

    Ray's SPREAD for single actors may give two of them one node while another is empty.

    Yields:
        A scheduling strategy for each worker.

    Raises:
        ConfigError: other jobs have the room, or no node has as much as one worker asks for.
    """
    from ray.util.placement_group import placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    bundle = {kind: asked for kind, asked in (("CPU", options.cpus), ("GPU", options.gpus)) if asked}
    group = placement_group([bundle] * workers, strategy="SPREAD")
    try:
        if not group.wait(PLACED_WITHIN):
            asked = " and ".join(f"{count:g} {kind}s" for kind, count in bundle.items())
            raise ConfigError(
                f"ray has no room for {workers} workers with {asked} each (waited {PLACED_WITHIN:g} s): "
                "fewer workers, or less for each"
            )
        yield [PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=k) for k in range(workers)]
    finally:
        remove_placement_group(group)


class WorkerLost(Exception):
    """A worker does not answer any more; the message says why."""


@dataclass
class RayWorker:
    """A worker that is a Ray actor."""

    ray: Any
    actor: Any

    def begin(self, method: str, *arguments: Any) -> Callable[[], Any]:
        """Begin a call."""
        exceptions = self.ray.exceptions
        reference = getattr(self.actor, method).remote(*arguments)

        def wait() -> Any:
            try:
                return self.ray.get(reference)
            except exceptions.RayTaskError as error:
                raise error.cause from None
            except exceptions.RayError as error:  # the actor, its node or its memory is gone
                raise WorkerLost(one_line(error)[:300]) from None

        return wait

    def end(self) -> None:
        """End the actor, if it is still there."""
        self.ray.kill(self.actor)
