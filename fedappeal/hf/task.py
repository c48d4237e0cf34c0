"""What the tasks on texts share: a model of a folder, and texts that are dealt out to clients."""

import hashlib
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import Field

from fedappeal.core.plugins import PluginSettings
from fedappeal.hf.folder import ModelFolder, inside, require
from fedappeal.hf.texts import Table, read_table
from fedappeal.settings.config import ConfigError, Count, CountOrZero, TaskSettings
from fedappeal.tasks.arrays import Labels, Rows
from fedappeal.tasks.examples import ClientData, Split, Structure
from fedappeal.tasks.partitions.assign import assign, kept_rows
from fedappeal.tasks.partitions.checks import check_client, draw_users, flipped, split
from fedappeal.tasks.task import Task

if TYPE_CHECKING:
    from torch import Tensor, nn


class TextSettings(PluginSettings):
    """Settings that all tasks on texts share.

    Paths are relative to each machine's own ``data-dir``, and stay inside it: a run names files of a client's machine
    only where its owner keeps what is for such runs.
    """

    model_dir: str = Field(
        "", description="folder under data-dir with a model and its tokenizer, as transformers saves"
    )
    random_weights: bool = Field(
        False, description="draw all weights from the seed: of the folder, config.json and tokenizer alone are read"
    )
    data: str = Field(
        "", description="texts under data-dir: .csv, .jsonl, .parquet, or a folder that datasets saved (one split)"
    )
    text_column: str = Field("text", min_length=1, description="column of the texts")
    client_column: str = Field(
        "", description="column that says whose row it is, for partition = natural; empty: the rows are shared out"
    )
    max_length: Count = Field(128, description="tokens of each text: longer texts are cut, shorter ones padded")
    lora_rank: CountOrZero = Field(
        8, description="rank of the LoRA adapters; 0: none, all weights are trained and sent"
    )
    lora_alpha: Count = Field(16, description="scale of the adapters: they count alpha / rank times")
    lora_targets: str = Field(
        "",
        description="layers with adapters, names by commas; empty: PEFT's for the model; all-linear: each linear one",
    )
    evaluation_batch: Count = Field(
        64, description="texts a forward pass of an evaluation: bounds the memory it takes"
    )


class TextTask(Task):
    """Texts in a table, and a model of transformers in a folder.

    The table's rows are dealt out by the run's partition, or by the column that says whose row it is. A client's
    texts are tokenised when its data is asked for.
    """

    own: TextSettings
    Settings = TextSettings
    share = "trainable"

    def __init__(self, settings: TaskSettings, data_dir: Path | None = None) -> None:
        """Take the settings; neither the model's folder nor any data is read.

        Raises:
            ConfigError: an own setting that is not allowed, or another model or partition than the task has.
        """
        super().__init__(settings, data_dir)
        if settings.model != "auto":
            raise ConfigError(
                f"model = '{settings.model}' is not allowed for task = '{settings.task}': "
                f"{self.name}.model-dir names its model (auto)"
            )
        if (self.partition == "natural") != bool(self.own.client_column):
            raise ConfigError(
                f"partition = '{settings.partition}' is not allowed with {self.name}.client-column = "
                f"'{self.own.client_column}': the column makes the partition natural, and natural needs it"
            )
        if not self.own.lora_rank:
            self.share = "all"
        self.evaluation_batch = self.own.evaluation_batch

    @property
    def partition(self) -> str:
        """How the texts are spread over clients: natural where a column says whose they are."""
        usual = "natural" if self.own.client_column else self.auto_partition
        return usual if self.settings.partition == "auto" else self.settings.partition

    @cached_property
    def folder(self) -> ModelFolder:
        """The model's folder.

        Raises:
            ConfigError: the extra is not installed, there is no such folder, or its model takes fewer tokens.
        """
        require("transformers", *(["peft"] if self.own.lora_rank else []))
        setting = f"{self.name}.model-dir"
        found = ModelFolder(inside(self.data_dir, setting, self.own.model_dir), setting, self.own.random_weights)
        if self.own.max_length > (most := found.max_tokens or self.own.max_length):
            raise ConfigError(
                f"{self.name}.max-length = {self.own.max_length} is not allowed: its model takes {most} at most"
            )
        return found

    @property
    def fingerprint(self) -> str:
        """What server and client must agree on: as for each task, and the content of the model's folder."""
        agreed = [super().fingerprint, self.folder.content_hash]
        if self.own.random_weights and self.own.lora_rank:
            # Frozen weights that are drawn do not travel, and another version may draw others.
            agreed += [version("transformers"), version("torch").partition("+")[0]]
        return hashlib.blake2b(" ".join(agreed).encode(), digest_size=8).hexdigest()

    def check(self) -> None:
        """Check the model's folder, the table of texts and the partition, without torch.

        Raises:
            ConfigError: one line: what is missing, or does not fit.
        """
        self.folder.check()
        _ = self.rows

    @cached_property
    def table(self) -> Table:
        """The data set's texts.

        Raises:
            ConfigError: it cannot be read; says why.
        """
        path = inside(self.data_dir, f"{self.name}.data", self.own.data)
        with self._named():
            return self._read(path, owners=bool(self.own.client_column))

    @cached_property
    def rows(self) -> list[Rows]:
        """The data set's rows that each client holds, seen clients first.

        Raises:
            ConfigError: the data set does not fit the partition.
        """
        if self.own.client_column:
            held: dict[str, list[int]] = {}
            for row, owner in enumerate(self.table.owners):
                held.setdefault(owner, []).append(row)
            chosen = draw_users(self.settings, {owner: len(rows) for owner, rows in held.items()}, "texts")
            return [np.array(held[owner], dtype=np.int64) for owner in chosen]
        settings = self.settings.model_copy(update={"partition": self.partition})
        labels = self.table.labels
        return kept_rows(self.fingerprint, labels, lambda: assign(settings, labels, max(self.num_classes, 1)))

    def load(self, client: int) -> ClientData:
        """Return one client's texts as token ids, on the CPU.

        Raises:
            ConfigError: there is no such client, or the data set cannot be read.
        """
        check_client(self.settings, client)
        flip = client in flipped(self.settings)
        made = []
        for part, rows in zip(("train", "test"), split(self.settings, client, self.rows[client]), strict=True):
            labels = self.table.labels[rows]
            if flip and (part == "train" or self.settings.flip_on == "both"):
                labels = self.num_classes - 1 - labels
            with self._named():
                made.append(self.examples([self.table.texts[row] for row in rows], labels))
        return ClientData(*made)

    def own_examples(self, path: str | Path) -> Split:
        """Return a table of a volunteer's own as examples: for its function, ``data = package.module:load``.

        Args:
            path: a table as `TextSettings.data`, anywhere; the run says what its columns are called.

        Raises:
            ValueError: it cannot be read, or does not fit; says why.
        """
        table = self._read(Path(path), owners=False)
        return self.examples(table.texts, table.labels)

    @abstractmethod
    def examples(self, texts: Sequence[str], labels: Labels) -> Split:
        """Return texts as examples.

        Raises:
            ValueError: a text that none can be made of.
        """

    def encoded(self, texts: Sequence[str]) -> "dict[str, Tensor]":
        """Return ``input_ids`` and ``attention_mask`` of texts, int64, shape ``(n, max_length)``."""
        import torch

        length = self.own.max_length
        encoded = self.folder.tokenizer(list(texts), truncation=True, max_length=length, padding="max_length")
        return {key: torch.tensor(encoded[key], dtype=torch.int64) for key in ("input_ids", "attention_mask")}

    def _read(self, path: Path, owners: bool) -> Table:
        return read_table(path, self.own.text_column, owner_column=self.own.client_column if owners else "")

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Say of what is wrong with the data set that it is the data set."""
        try:
            yield
        except ConfigError:
            raise
        except (OSError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise ConfigError(f"{self.name}.data = '{self.own.data}' is not allowed: {reason}") from None

    def forward(self, model: "nn.Module", x: Structure) -> Any:
        """Return the logits."""
        return super().forward(model, x).logits
