"""The card of a trained model: how to use it, and how it was made.

It is JSON in the metadata of the model's safetensors file, under `fedappeal.system.files.CARD`. Reading one needs no
torch.
"""

import json
import math
import os
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import ConfigDict, Field, field_serializer, field_validator

from fedappeal.data.scaling import Scaling
from fedappeal.protocol.foreign_text import all_printable, parse_json
from fedappeal.protocol.metric import Metric
from fedappeal.settings.config import ConfigError, RunConfig, Scalar, Settings, TaskSettings
from fedappeal.system.files import CARD, path_of, read_values
from fedappeal.system.plain_files import check_plain
from fedappeal.system.versions import version_of
from fedappeal.tasks.task import Normalisation, Task

MODEL = "model.safetensors"
CONFIG = "config.json"
"""Files of a run's folder: the model, and what makes the folder a run's."""


class ModelCard(Settings):
    """The facts needed to use a trained model, and its provenance."""

    model_config = ConfigDict(extra="ignore")

    task: str
    """name of the task, or package.module:Name"""
    settings: dict[str, Scalar]
    """the task's settings, its own under NAME.KEY"""
    fingerprint: str
    """hash of task and settings"""
    model: str
    """name of the model; auto: the task has one of its own"""
    input_shape: tuple[int, ...]
    """shape of one example; empty: no single tensor"""
    input_dtype: str
    """dtype of the inputs, by torch's name"""
    normalisation: Normalisation | None
    """(raw / scale - mean) / std; none: the task's method"""
    num_classes: int
    """number of labels; 0: labels are no classes"""
    class_names: tuple[str, ...]
    """what labels are called; empty: by their numbers"""
    feature_names: tuple[str, ...] = ()
    """columns of a table that are the inputs; empty: not named"""
    categories: dict[str, tuple[str, ...]] = Field({})
    """of columns that are no numbers: their values, each an input of its own, 0 or 1"""
    scale: Literal["none", "standard"] = "none"
    """how clients scaled the columns of their tables"""
    scaling: Scaling | None = None
    """this client's; none: each client has its own, or there is none"""
    metric: Metric
    """the task's primary metric"""

    which: Literal["global", "solo"] = "global"
    """the federation's model, or one that a client trained alone"""
    shared: Literal["all"] | tuple[str, ...] = "all"
    """arrays that the file holds: all of the model's, or these"""
    strategy: str
    """the run's strategy"""
    round: int
    """round after which the run had this model"""
    run_key: str
    """which run"""
    date: str
    """when the model was written, ISO 8601"""
    versions: dict[str, str]
    """of fedappeal and torch"""
    figures: dict[str, float]
    """what was measured of this model; finite numbers"""
    measured_on: str
    """on which data"""
    tuning_steps: int = 0
    """local steps of a client before it measured"""
    requirement_met: bool | None = None
    """of a client's file: whether the global model met its requirement"""

    @field_validator("figures", mode="before")
    @classmethod
    def _finite(cls, figures: Mapping[str, float]) -> dict[str, float]:
        return {name: value for name, value in figures.items() if math.isfinite(value)}

    @field_validator("metric", mode="before")
    @classmethod
    def _metric_of(cls, metric: object) -> object:
        return metric if isinstance(metric, Metric) else Metric.of_record(metric)

    @field_serializer("metric")
    def _record(self, metric: Metric) -> dict[str, object]:
        return metric.as_record()

    @classmethod
    def of(cls, task: Task, config: RunConfig, **this: Any) -> Self:
        """Return the card of a model that a run trained.

        Args:
            task: the run's task.
            config: the run's settings.
            this: the fields of this model: ``round``, ``run_key``, ``figures``, ``measured_on``, ...; and
                ``tables``: whether clients standardised tables of theirs.
        """
        settings = task.settings.as_config()
        general = {key: value for key, value in settings.items() if "." not in key and key != "task"}
        plugin = {f"{task.settings_name()}.{key}": value for key, value in task.own.as_config().items()}
        model = task.settings.model
        return cls(
            task=config.task,
            settings={**general, **plugin},
            fingerprint=task.fingerprint,
            model=getattr(task, "default_model", model) if model == "auto" else model,
            input_shape=task.input_shape,
            input_dtype=task.input_dtype,
            normalisation=task.normalisation,
            num_classes=task.num_classes,
            class_names=task.class_names,
            feature_names=task.feature_names,
            categories={name: tuple(values) for name, values in task.categories.items()},
            metric=task.metric,
            scale="standard" if this.get("scaling") or this.pop("tables", task.standardises_tables) else "none",
            **cls.history(config),
            **this,
        )

    @staticmethod
    def history(config: RunConfig) -> dict[str, Any]:
        """Return a model's provenance: its run, the time and the versions."""
        return {
            "strategy": config.strategy,
            "date": datetime.now().astimezone().isoformat(timespec="seconds"),
            "versions": {package: version_of(package) for package in ("fedappeal", "torch")},
            "tuning_steps": config.tuning_steps,
        }

    def task_settings(self) -> TaskSettings:
        """Return the task's settings that this version has."""
        return TaskSettings.parse({**self.settings, "task": self.task}, ignore_unknown=True)

    def label(self, number: int) -> str:
        """Return the name of a label."""
        return self.class_names[number] if self.class_names else str(number)

    def to_json(self) -> str:
        """Return the card as a JSON text."""
        return json.dumps(self.model_dump(by_alias=True, mode="json"))

    def texts(self) -> dict[str, str]:
        """Return the card as one text a field, for metadata of texts; objects are JSON."""
        fields = self.model_dump(by_alias=True, mode="json")
        return {key: value if isinstance(value, str) else json.dumps(value) for key, value in fields.items()}


def model_file(path: Path) -> Path:
    """Return the model's file: of a run's folder, or the file itself.

    Raises:
        ConfigError: one line: neither is there, it is no file, or the folder holds a link.
    """
    if path.is_dir():
        check_plain(path)
        if not (path / MODEL).is_file():
            reason = "its run is not over" if (path / CONFIG).is_file() else "it is not a run's folder"
            raise ConfigError(f"'{path}' holds no {MODEL}: {reason}")
        return path / MODEL
    if not path.is_file():
        why = "is no file" if os.path.lexists(path) else "is not there"
        raise ConfigError(f"'{path}' {why}: give a run's folder, or a file .safetensors")
    return path


def card_in(values: Mapping[str, Scalar], path: Path) -> ModelCard:
    """Return the card among a file's scalars.

    Args:
        values: as `fedappeal.system.files.read_values` returns them.
        path: the file, for the message.

    Raises:
        ConfigError: one line: there is none, or it cannot be read.
    """
    if CARD not in values:
        raise ConfigError(
            f"file '{path}' has no card, which says of which task its model is: it is not a fedappeal model, or of a "
            f"version before cards"
        )
    try:
        content: object = all_printable(parse_json(str(values[CARD])))
        if not isinstance(content, dict):
            raise ValueError("no JSON object")
        return ModelCard.parse(content)
    except (OverflowError, TypeError, ValueError) as error:
        raise ConfigError(f"the card of file '{path}' cannot be read: {'; '.join(str(error).splitlines())}") from None


def read_card(path: Path | str) -> ModelCard:
    """Return the card of a model; it loads neither the arrays nor torch.

    Args:
        path: a run's folder, or a file of a model.

    Raises:
        ConfigError: one line: no such file, or no card in it.
    """
    file = model_file(path_of("path", path))
    return card_in(read_values(file), file)
