"""Tiny random models with a tokenizer, saved as transformers saves them, and texts for them."""

import csv
from pathlib import Path
from typing import Any

import torch

WORDS = [f"word{number}" for number in range(40)]
GOOD, BAD, REST = WORDS[:10], WORDS[10:20], WORDS[20:]


def save_tokenizer(folder: Path, words: list[str] = WORDS) -> None:
    """Save a tokenizer of whole words: 0 is padding, 1 an unknown word, then the words."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast
    from transformers.utils import logging

    logging.disable_progress_bar()
    vocabulary = {word: number for number, word in enumerate(["[PAD]", "[UNK]", *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]").save_pretrained(folder)


def config_of(kind: str, width: int = 32, **more: Any) -> Any:
    """Return the configuration of a model of two layers that takes 64 tokens."""
    from transformers import BertConfig, GPT2Config

    sizes = {"vocab_size": len(WORDS) + 2, **more}
    if kind == "gpt2":
        ends = {"bos_token_id": 0, "eos_token_id": 0}
        return GPT2Config(n_embd=width, n_layer=2, n_head=2, n_positions=64, **ends, **sizes)
    sizes |= {"num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 64}
    return BertConfig(hidden_size=width, intermediate_size=2 * width, **sizes)


def save_model(folder: Path, family: str = "BertForMaskedLM", **more: Any) -> Path:
    """Save a random model of a class of transformers, and a tokenizer."""
    import transformers

    save_tokenizer(folder)
    kind = "gpt2" if family.startswith("GPT2") else "bert"
    with torch.random.fork_rng():
        torch.manual_seed(0)
        getattr(transformers, family)(config_of(kind, **more)).save_pretrained(folder)
    return folder


def sentences(count: int) -> list[tuple[str, str]]:
    """Return texts of 4 to 11 words with a label that their words tell."""
    draw = torch.Generator().manual_seed(0)
    found = []
    for number in range(count):
        words, label = (GOOD, "good") if number % 2 else (BAD, "bad")
        chosen = torch.randint(0, 20, (4 + number % 8,), generator=draw).tolist()
        found.append((" ".join((words + REST[:10])[k] for k in [number % 10, *chosen[1:]]), label))
    return found


def save_texts(path: Path, count: int = 90, users: int = 6) -> Path:
    """Save texts as a CSV with the columns ``text``, ``label`` and ``user``."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label", "user"])
        writer.writerows([text, label, f"u{row % users}"] for row, (text, label) in enumerate(sentences(count)))
    return path
