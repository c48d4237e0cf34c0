"""Causal language models: each token from those before it."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from fedappeal.hf.task import TextTask
from fedappeal.protocol.metric import Metric
from fedappeal.settings.config import ConfigError, TaskSettings
from fedappeal.tasks.arrays import Labels
from fedappeal.tasks.examples import Split, Structure

if TYPE_CHECKING:
    from torch import Tensor, nn

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

    def examples(self, texts: Sequence[str], labels: Labels) -> Split:
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
        return {"token-accuracy": right.double().mean().item()}
