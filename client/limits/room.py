"""Room in memory for what a run brings.

It is known before anything is built, and given back where the run is refused. Sizes follow from a run's settings: of
the model by building it without memory, of a task's data by its own formula. A model of foreign code, whose package
the owner allowed, is measured once it is built.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import psutil

from client.limits.guard import Guard
from client.limits.limits import MEGABYTE, LimitReached
from fedappeal.settings.config import RunConfig
from fedappeal.system.tuning import give_back_memory
from fedappeal.tasks.share import share_of
from fedappeal.tasks.task import Task

if TYPE_CHECKING:
    from fedappeal.tasks.size import ModelSize

COPIES = 6
"""Copies of a model that a client holds: w_0, one to work on, what was sent, gradients, steps, its answer."""
_A_CLIENT = 64
"""Bytes for each client of a run, where those whose labels are flipped are drawn among all."""


class Room:
    """The memory that one client's runs may take together.

    Args:
        guard: has the owner's limits.
        forget: lets go of what other runs hold.
    """

    def __init__(self, guard: Guard, forget: Callable[[], None]) -> None:
        self._guard = guard
        self._forget = forget

    def check_clients(self, config: RunConfig) -> None:
        """Check the draws among all clients of a run.

        Raises:
            LimitReached: there is no room for them.
        """
        if config.flip_share:
            total = config.clients + config.unseen_clients
            self._make(_A_CLIENT * total, f"clients = {total}")

    def check_model(self, task: Task, seed: int) -> None:
        """Check a model before it is built; one of foreign code is not known yet.

        Raises:
            LimitReached: a message with it would be too large, or there is no room for it.
        """
        from fedappeal.tasks.size import size_before  # torch, which other learners do without

        if self._is_limited and (size := size_before(task, seed)) is not None:
            self._check(task, size)

    def check_built(self, task: Task, model: object) -> None:
        """Check a model that was built; errors as `check_model`."""
        from fedappeal.tasks.size import ModelSize

        if self._is_limited:
            self._check(task, ModelSize.of(model, share_of(task)))  # type: ignore[arg-type]

    def check_data(self, task: Task, client: int) -> None:
        """Check a task's data of one client before they are read or drawn.

        Raises:
            LimitReached: there is no room for them.
        """
        if self._is_limited and (size := task.data_bytes(client)) is not None:
            self._make(size, f"the data of task = '{task.settings.task}'")

    @property
    def _is_limited(self) -> bool:
        return bool(self._guard.limits.max_memory or self._guard.limits.max_model)

    def _check(self, task: Task, size: "ModelSize") -> None:
        name, most = f"model = '{task.settings.model}'", self._guard.limits.max_model
        if most and size.shared > most * MEGABYTE:
            sent = f"{size.shared / MEGABYTE:,.0f} MB of it travel"
            raise LimitReached(f"{name} is not allowed: {sent}, and this client's max-model = {most:g} MB")
        self._make(COPIES * size.whole, name)

    def _make(self, needed: int, what: str) -> None:
        """Make room, if need be by forgetting other runs."""
        most = self._guard.limits.max_memory
        if not most:
            return
        if needed > most * MEGABYTE:
            refused = f"{what} is not allowed: it takes about {needed / MEGABYTE:,.0f} MB"
            raise LimitReached(f"{refused}, and this client's max-memory = {most:g} MB")
        if needed + self._guard.memory_added() > most * MEGABYTE or needed > _free():
            self._forget()
            give_back_memory()
        if needed > (free := _free()):
            takes, has = needed / MEGABYTE, free / MEGABYTE
            raise LimitReached(
                f"{what} is not allowed: it takes about {takes:,.0f} MB, and this device has {has:,.0f} MB"
            )


def _free() -> int:
    """Return the bytes of memory that this machine can give."""
    return int(psutil.virtual_memory().available)
