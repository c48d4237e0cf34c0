"""Options of a simulation, and their record in the run's folder; no torch."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from fedappeal.protocol.foreign_text import printable
from fedappeal.record.folder import KIND, SIMULATION
from fedappeal.settings.config import ConfigError, Scalar
from fedappeal.system.files import path_of

LAYERS, VMAP, SEQUENTIAL = "layers", "vmap", "sequential"
AUTO, BATCHED = "auto", "batched"
MODES = (AUTO, BATCHED, LAYERS, VMAP, SEQUENTIAL)
FLOAT32 = "float32"
PRECISIONS = (FLOAT32, "bfloat16")
"""Of the evaluation of models that clients are sent."""
_ANY_CLUSTER, _RAY_ADDRESS = "auto", "RAY_ADDRESS"
"""The cluster that Ray finds itself, and Ray's variable that says where."""
_OF_WORKERS = ("workers", "ray", "ray_cpus", "ray_gpus")
"""What a run's folder records only where workers had its clients."""
_PRECISION = "evaluation-precision"
"""Missing in the folders of runs that began before there was a choice."""


@dataclass(frozen=True)
class Simulation:
    """The options of a simulation.

    Attributes:
        mode: ``layers`` or ``vmap`` (clients train as one batch, in this form), ``batched`` (in either),
            ``sequential`` (one after another), or ``auto``.
        device: where data and models are.
        data_dir: folder with the data sets.
        threads: PyTorch threads; 0: as PyTorch has it.
        resumable: whether what the clients remember is kept in the run's folder, so that the run can be continued.
        why: what made `choose_mode` take the mode, where it did; for the run's folder.
        workers: processes that have the clients; 0: this one, or one a node of a Ray cluster.
        ray: address of a Ray cluster that has the workers; empty: this machine.
        ray_cpus: CPUs that a worker asks of Ray; ``ray_gpus`` in the same way.
        evaluation_precision: in which clients evaluate the models that they are sent, ``float32`` or ``bfloat16``.
    """

    mode: str = AUTO
    device: str = "cpu"
    data_dir: str = ""
    threads: int = 0
    resumable: bool = True
    why: str = ""
    workers: int = 0
    ray: str = ""
    ray_cpus: float = 1.0
    ray_gpus: float = 0.0
    evaluation_precision: str = FLOAT32

    def __post_init__(self) -> None:
        precision = self.evaluation_precision
        for name, value, allowed in (("mode", self.mode, MODES), (_PRECISION, precision, PRECISIONS)):
            if value not in allowed:
                raise ConfigError(f"{name} = '{value}' is not allowed: {', '.join(allowed)}")
        if type(self.threads) is not int or not 0 <= self.threads < 2**31:
            raise ConfigError(f"threads = {self.threads!r} is not allowed: 0 (as PyTorch has it) or more")
        path_of("data_dir", self.data_dir)
        if precision != FLOAT32 and self.shared_out:
            raise ConfigError(f"{_PRECISION} = '{precision}' is not allowed with workers: {FLOAT32}")

    def notes(self) -> list[str]:
        """Return a user's notes on how the run is simulated."""
        if self.evaluation_precision == FLOAT32:
            return []
        from client.training.devices import pick_device
        from fedappeal.simulation.evaluation import missing_bfloat16

        note = missing_bfloat16(str(pick_device(self.device)))
        return [note] if note else []

    @property
    def shared_out(self) -> bool:
        """Whether workers have the clients."""
        return bool(self.workers or self.ray)

    @classmethod
    def of_runtime(cls, runtime: Mapping[str, Any]) -> "Simulation":
        """Return a simulation's options from the runtime in its run's folder.

        Raises:
            ConfigError: it lacks something, holds something of another type, or names a Ray cluster that the owner's
                environment does not: a cluster runs code here, and another person may have written the folder.
        """
        recorded: dict[str, Any] = {}
        for field in fields(cls):
            if field.name in _OF_WORKERS and not runtime.get("workers") and not runtime.get("ray"):
                continue
            key, kind = field.name.replace("_", "-"), type(field.default)
            if key == _PRECISION and key not in runtime:
                continue
            if type(recorded.setdefault(field.name, runtime.get(key))) is not kind:
                raise ConfigError(f"runtime: {key} = {runtime.get(key)!r} is not allowed: a value of {kind.__name__}")
        how = cls(**recorded)
        if how.ray not in ("", _ANY_CLUSTER, os.environ.get(_RAY_ADDRESS)):
            address = printable(how.ray, 100)
            raise ConfigError(
                f"ray = '{address}' of the run's folder is not allowed: a cluster may run code here; "
                f"{_RAY_ADDRESS}={address} in the environment allows it"
            )
        return how

    def runtime(self) -> dict[str, Scalar]:
        """Return the runtime's entry in the run's folder."""
        shown = [field.name for field in fields(self) if self.shared_out or field.name not in _OF_WORKERS]
        data_dir = str(Path(self.data_dir).absolute()) if self.data_dir else ""
        values = {name.replace("_", "-"): getattr(self, name) for name in shown}
        return {KIND: SIMULATION} | values | {"data-dir": data_dir}
