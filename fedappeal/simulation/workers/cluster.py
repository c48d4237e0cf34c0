"""Ray: a cluster that is there, and workers that are its actors."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from fedappeal.protocol.foreign_text import one_line
from fedappeal.settings.config import ConfigError, RunConfig
from fedappeal.system.packages import require


@dataclass(frozen=True)
class RayOptions:
    """The options for Ray.

    Attributes:
        address: of a cluster; ``auto``: as Ray finds it; empty: none.
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
    require("a cluster needs Ray", "sim", "ray")


def check_workers(workers: int, config: RunConfig, options: RayOptions) -> None:
    """Check that a run's clients can be shared out.

    Raises:
        ConfigError: there are more workers than clients, or Ray is to have them and is not installed.
    """
    if options.address:
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
        ConfigError: the cluster cannot be reached, or has less.
    """
    check_ray()
    import ray

    ours = not ray.is_initialized()
    if ours:
        try:
            ray.init(options.address, log_to_driver=False, configure_logging=False)
        except Exception as error:  # Ray raises RuntimeError, ConnectionError, ValueError, Exception
            raise ConfigError(f"ray = '{options.address}' is not allowed: {one_line(error)}") from None
    try:
        _check_room(ray, at_once * options.cpus, at_once * options.gpus)
        yield ray
    finally:
        if ours:
            ray.shutdown()


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

    def __init__(self, why: str) -> None:
        super().__init__(f"a worker is lost: {why}")


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
