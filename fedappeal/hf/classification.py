"""Text classification: one label a text."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from fedappeal.hf.task import TextSettings, TextTask
from fedappeal.hf.texts import Table, read_table
from fedappeal.settings.config import ConfigError, TaskSettings
from fedappeal.tasks.arrays import Labels
from fedappeal.tasks.examples import Split
from fedappeal.tasks.partitions.checks import AUTO_PARTITION

if TYPE_CHECKING:
    from torch import nn


class TextClassification(TextTask):
    """One label a text, by a model of Hugging Face's transformers; LoRA unless told otherwise."""

    name = "hf-text"
    auto_partition = AUTO_PARTITION

    class Settings(TextSettings):
        """Which texts, labels and model."""

        label_column: str = Field("label", min_length=1, description="column of the labels: names, or 0 to C-1")
        labels: str = Field(
            "", description="the labels' names by commas, in their order; empty: as config.json has them"
        )

    own: Settings

    def __init__(self, settings: TaskSettings, data_dir: Path | None = None) -> None:
        """Take the settings.

        Raises:
            ConfigError: as `TextTask`, or fewer than two labels.
        """
        super().__init__(settings, data_dir)
        self.class_names = tuple(label.strip() for label in self.own.labels.split(","))
        self.num_classes = len(self.class_names)
        if self.num_classes < 2 or len(set(self.class_names)) < self.num_classes or "" in self.class_names:
            raise ConfigError(
                f"{self.name}.labels = '{self.own.labels}' is not allowed: two or more different names, by commas"
            )

    def initial_model(self, seed: int) -> "nn.Module":
        """Return the folder's model with a classifier of the task's labels."""
        from fedappeal.hf import models

        folder_names, names = self.folder.label_names, self.class_names
        if set(folder_names) == set(names) and folder_names != names:
            raise ConfigError(
                f"{self.name}.labels = '{self.own.labels}' is not allowed: the folder's model has them in the order "
                f"{','.join(folder_names)}"
            )
        labels = {
            "num_labels": self.num_classes,
            "id2label": dict(enumerate(names)),
            "label2id": {name: number for number, name in enumerate(names)},
        }
        padding = {"pad_token_id": self.folder.tokenizer.pad_token_id}
        return models.build(self.folder, self.own, models.CLASSIFIER, seed, self.name, **labels, **padding)

    def examples(self, texts: Sequence[str], labels: Labels) -> Split:
        """Return texts as token ids, with their labels."""
        import torch

        return Split(self.encoded(texts), torch.from_numpy(labels))

    def _read(self, path: Path, owners: bool) -> Table:
        settings = self.own
        owner_column = settings.client_column if owners else ""
        return read_table(path, settings.text_column, settings.label_column, self.class_names, owner_column)
