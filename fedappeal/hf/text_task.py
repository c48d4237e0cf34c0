"""Tasks on texts: a model of a folder, and texts that are dealt out to clients."""

import hashlib
from collections.abc import Iterator, Sequence
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedappeal.hf.folder import ModelFolder, inside, require_hf
from fedappeal.hf.texts import Texts, TextSettings, read_table
from fedappeal.protocol.metric import Metric
from fedappeal.settings.config import ConfigError, TaskSettings
from fedappeal.tasks.files.data_files import faults_of
from fedappeal.tasks.labelled import TaskOfRows
from fedappeal.tasks.partitions import assign
from fedappeal.tasks.task import ClientData, Labels, Rows, Split, Structure

if TYPE_CHECKING:
    from torch import Tensor, nn


_A_TOKEN = 100
"""Bytes for each place of a text while it is tokenised: of Python's lists, then ids, mask and labels, thrice."""


class TextTask(TaskOfRows):
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
        library, _, self.family = settings.model.partition(":")
        if library not in ("auto", "transformers"):
            raise ConfigError(
                f"model = '{settings.model}' is not allowed for task = '{settings.task}': "
                f"{self.name}.model-dir names its model (auto), or its tokenizer alone (transformers:NAME)"
            )
        if self.own.client_column:
            self.auto_partition = "natural"
        if (self.partition == "natural") != bool(self.own.client_column):
            raise ConfigError(
                f"partition = '{settings.partition}' is not allowed with {self.name}.client-column = "
                f"'{self.own.client_column}': the column makes the partition natural, and natural needs it"
            )
        if not self.own.lora_rank:
            self.share = "all"
        self.evaluation_batch = self.own.evaluation_batch

    @cached_property
    def folder(self) -> ModelFolder:
        """The model's folder.

        Raises:
            ConfigError: the extra is not installed, there is no such folder, or its model takes fewer tokens.
        """
        require_hf("transformers", *(["peft"] if self.own.lora_rank else []))
        setting = f"{self.name}.model-dir"
        path = inside(self.data_dir, setting, self.own.model_dir)
        folder = ModelFolder(path, setting, self.own.random_weights, self.family)
        if self.own.max_length > (most := folder.max_tokens or self.own.max_length):
            raise ConfigError(
                f"{self.name}.max-length = {self.own.max_length} is not allowed: its model takes {most} at most"
            )
        return folder

    @property
    def tokenizer(self) -> Any:
        """The folder's tokenizer."""
        return self.folder.tokenizer

    @property
    def fingerprint(self) -> str:
        """A hash of what server and client must agree on.

        As for each task, and the content of the model's folder.
        """
        agreed = [super().fingerprint, self.folder.content_hash]
        if self.folder.random_weights and self.own.lora_rank:
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

    @property
    def _data(self) -> str:
        return f"{self.name}.data = '{self.own.data}' is not allowed"

    @cached_property
    def table(self) -> Texts:
        """The data set's texts.

        Raises:
            ConfigError: it cannot be read; says why.
        """
        path = inside(self.data_dir, f"{self.name}.data", self.own.data)
        with faults_of(self._data):
            return self._read(path, self.own.client_column)

    @cached_property
    def rows(self) -> list[Rows]:
        """The data set's rows that each client holds, seen clients first.

        Raises:
            ConfigError: the data set does not fit the partition.
        """
        if self.own.client_column:
            rows_of: dict[str, list[int]] = {}
            for row, owner in enumerate(self.table.owners):
                rows_of.setdefault(owner, []).append(row)
            chosen = assign.draw_users(self.settings, {owner: len(rows) for owner, rows in rows_of.items()}, "texts")
            return [np.array(rows_of[owner], dtype=np.int64) for owner in chosen]
        settings = self.settings.model_copy(update={"partition": self.partition})
        labels = self.table.labels
        return assign.kept_rows(
            self.fingerprint, labels, lambda: assign.assign(settings, labels, max(self.num_classes, 1))
        )

    def data_bytes(self, client: int) -> int:
        """Return the estimated bytes of a client's texts as token ids.

        Reads the table, whose size is bounded.
        """
        assign.check_client(self.settings, client)
        return _A_TOKEN * self.own.max_length * len(self.rows[client])

    def load(self, client: int) -> ClientData:
        """Return one client's texts as token ids, on the CPU.

        Raises:
            ConfigError: there is no such client, or the data set cannot be read.
        """
        with faults_of(self._data):
            return super().load(client)

    def held_by(self, client: int) -> tuple[NDArray[Any], Labels, Rows]:
        """Return all texts and labels, and which of their rows a client holds."""
        return self.table.texts, self.table.labels, self.rows[client]

    def batches_in(
        self, path: Path, features: Sequence[str], label: str, size: int
    ) -> "Iterator[tuple[Structure, Structure | None]]":
        """Yield a table's texts as token ids, with labels if a column is named.

        Raises:
            ValueError: it cannot be read, or does not fit; says why.
        """
        if len(features) > 1 or (label and not self.num_classes):
            raise ValueError("features name one column of texts" if len(features) > 1 else "its texts have no labels")
        table = read_table(path, features[0] if features else self.own.text_column, label, self.class_names)
        for start in range(0, len(table.texts), size):
            rows = slice(start, start + size)
            batch = self.examples(table.texts[rows], table.labels[rows])
            yield batch.x, batch.y if label or not self.num_classes else None

    def own_examples(self, path: str | Path) -> Split:
        """Return a volunteer's own table as examples.

        For its function, ``data = package.module:load``.

        Args:
            path: a table as `TextSettings.data`, anywhere; the run says what its columns are called.

        Raises:
            ValueError: it cannot be read, or does not fit; says why.
        """
        table = self._read(Path(path))
        return self.examples(table.texts, table.labels)

    def encoded(self, texts: Sequence[str] | NDArray[Any]) -> "dict[str, Tensor]":
        """Return ``input_ids`` and ``attention_mask`` of texts, int64, shape ``(n, max_length)``."""
        import torch

        length = self.own.max_length
        encoded = self.tokenizer(list(texts), truncation=True, max_length=length, padding="max_length")
        return {key: torch.tensor(encoded[key], dtype=torch.int64) for key in ("input_ids", "attention_mask")}

    def _read(self, path: Path, owner_column: str = "") -> Texts:
        label_column = getattr(self.own, "label_column", "")
        return read_table(path, self.own.text_column, label_column, self.class_names, owner_column)

    def forward(self, model: "nn.Module", x: Structure) -> Any:
        """Return the logits."""
        return super().forward(model, x).logits


class TextClassification(TextTask):
    """One label a text, by a model of Hugging Face's transformers; LoRA unless told otherwise."""

    name = "hf-text"
    auto_partition = assign.AUTO_PARTITION

    class Settings(TextSettings):
        """The texts, labels and model of the task."""

        label_column: str = Field("label", min_length=1)
        """column of the labels: names, or 0 to C-1"""
        labels: str = ""
        """the labels' names by commas, in their order; empty: as config.json has them"""

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

    def examples(self, texts: Sequence[str] | NDArray[Any], labels: Labels, /) -> Split:
        """Return texts as token ids, with their labels."""
        import torch

        return Split(self.encoded(texts), torch.from_numpy(labels))


IGNORED = -100
"""The label of padding, which neither loss nor metric counts."""


class CausalLM(TextTask):
    """The next token of a text, by a language model of Hugging Face's transformers; LoRA unless told otherwise.

    An example is a text. Its loss is the mean over its tokens but the first, which nothing predicts, and so is its
    share of right tokens: each text counts alike, however long it is, in whatever batch it stands. Where all texts
    have ``max-length`` tokens, the mean over texts is the mean over tokens.
    """

    name = "hf-lm"
    auto_partition = "iid"
    metric = Metric("token-accuracy")
    loss_is_mean = metrics_are_means = True

    def __init__(self, settings: TaskSettings, data_dir: Path | None = None) -> None:
        """Take the settings.

        Raises:
            ConfigError: as `TextTask`, or what needs labels.
        """
        super().__init__(settings, data_dir)
        if self.partition not in ("iid", "natural"):
            raise ConfigError(
                f"partition = '{settings.partition}' is not allowed for task = '{settings.task}': "
                f"its texts have no labels (iid, natural, auto)"
            )
        if settings.flip_share:
            raise ConfigError(
                f"flip-share = {settings.flip_share} is not allowed for task = '{settings.task}': "
                f"its texts have no labels (0)"
            )
        if self.own.max_length < 2:
            raise ConfigError(f"{self.name}.max-length = 1 is not allowed: 2 tokens or more, to predict the second")

    def initial_model(self, seed: int) -> "nn.Module":
        """Return the folder's model."""
        from fedappeal.hf import models

        return models.build(self.folder, self.own, models.CAUSAL_LM, seed, self.name)

    def examples(self, texts: Sequence[str] | NDArray[Any], labels: Labels, /) -> Split:
        """Return texts as token ids; the labels are the same ids, with padding ignored.

        Raises:
            ValueError: a text with fewer than two tokens.
        """
        x = self.encoded(texts)
        y = x["input_ids"].masked_fill(x["attention_mask"] == 0, IGNORED)
        short = ((y[:, 1:] != IGNORED).sum(1) == 0).nonzero().flatten()
        if len(short):
            raise ValueError(f"a text has fewer than two tokens: {texts[int(short[0])]!r}")
        return Split(x, y)

    def answers(self, outputs: Any, x: Structure) -> list[tuple[str, float]]:
        """Return the likeliest token behind each text, with its probability."""
        last = cast("dict[str, Tensor]", x)["attention_mask"].sum(1) - 1
        shares, tokens = outputs[range(len(last)), last].cpu().double().softmax(-1).max(-1)
        names = [self.tokenizer.decode([token]) for token in tokens.tolist()]
        return list(zip(names, shares.tolist(), strict=True))

    def loss(self, outputs: Any, y: Structure, reduction: str = "mean") -> "Tensor":
        """Return the cross-entropy in nats, each text's a mean over its tokens.

        Args:
            outputs: logits, shape ``(n, length, vocabulary)``; those at a token predict the next one.
            y: the tokens, shape ``(n, length)``; `IGNORED` where padded.
            reduction: ``"mean"`` over the texts, ``"sum"``, or ``"none"``: shape ``(n,)``.
        """
        from torch.nn import functional

        following = cast("Tensor", y)[:, 1:]
        of_each = functional.cross_entropy(
            outputs[:, :-1].transpose(1, 2), following, ignore_index=IGNORED, reduction="none"
        )
        of_text = of_each.sum(1) / (following != IGNORED).sum(1)
        if reduction == "none":
            return of_text
        return of_text.mean() if reduction == "mean" else of_text.sum()

    def metrics(self, outputs: Any, y: Structure) -> dict[str, float]:
        """Return ``token-accuracy``: the mean over texts of the share of their tokens that are predicted."""
        following = cast("Tensor", y)[:, 1:]
        right = (outputs[:, :-1].argmax(-1) == following).sum(1) / (following != IGNORED).sum(1)
        return {"token-accuracy": right.cpu().double().mean().item()}
