"""Texts as tensors of token ids, all of one length."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fedappeal.hf.folder import ModelFolder

if TYPE_CHECKING:
    from torch import Tensor


def tokenizer_of(folder: ModelFolder) -> Any:
    """Return the folder's tokenizer, which pads on the right.

    Raises:
        ConfigError: it cannot be loaded, or has no token to pad with.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder.path, local_files_only=True)  # nosec B615 # no download
    except Exception as error:  # each kind of tokenizer fails in ways of its own
        raise folder.refused(f"transformers cannot load its tokenizer: {error}") from None
    tokenizer.padding_side = tokenizer.truncation_side = "right"
    if tokenizer.pad_token is None:
        if tokenizer.eos_token is None:
            raise folder.refused("its tokenizer has no token to pad with (pad_token, eos_token)")
        tokenizer.pad_token = tokenizer.eos_token
    vocabulary = folder.config.get("vocab_size")
    if vocabulary and len(tokenizer) > vocabulary:
        raise folder.refused(f"its tokenizer has {len(tokenizer)} tokens, its model {vocabulary}")
    return tokenizer


def encode(tokenizer: Any, texts: Sequence[str], max_length: int) -> "dict[str, Tensor]":
    """Return ``input_ids`` and ``attention_mask`` of texts, int64, shape ``(n, max_length)``."""
    import torch

    encoded = tokenizer(list(texts), truncation=True, max_length=max_length, padding="max_length")
    return {key: torch.tensor(encoded[key], dtype=torch.int64) for key in ("input_ids", "attention_mask")}
