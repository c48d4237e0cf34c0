"""Tiny random models with a tokenizer, saved as transformers saves them, and texts for them."""

import csv
from pathlib import Path
from typing import Any

import torch

WORDS = [f"word{number}" for number in range(40)]
GOOD, BAD = WORDS[:10], WORDS[10:20]


def save_tokenizer(folder: Path, words: list[str] = WORDS) -> int:
    """Save a tokenizer that knows whole words, and return the size of its vocabulary."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: number for number, word in enumerate(["[PAD]", "[UNK]", *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]").save_pretrained(folder)
    return len(vocabulary)


def config_of(kind: str, vocabulary: int, width: int = 32, **more: Any) -> Any:
    """Return the configuration of a model of two layers."""
    from transformers import BertConfig, GPT2Config, LlamaConfig

    sizes = {"hidden_size": width, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 2 * width}
    if kind == "gpt2":
        return GPT2Config(
            vocab_size=vocabulary,
            n_embd=width,
            n_layer=2,
            n_head=2,
            n_positions=64,
            bos_token_id=0,
            eos_token_id=0,
            **more,
        )
    if kind == "llama":
        return LlamaConfig(vocab_size=vocabulary, max_position_embeddings=64, **sizes, **more)
    return BertConfig(vocab_size=vocabulary, max_position_embeddings=64, **sizes, **more)


def save_model(folder: Path, family: str, width: int = 32, **more: Any) -> Path:
    """Save a random model of a class of transformers, ``BertForMaskedLM``, and a tokenizer."""
    import transformers

    vocabulary = save_tokenizer(folder)
    kind = next(kind for kind in ("bert", "gpt2", "llama") if family.lower().startswith(kind))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        getattr(transformers, family)(config_of(kind, vocabulary, width, **more)).save_pretrained(folder)
    return folder


def sentences(count: int, seed: int = 0) -> list[tuple[str, int]]:
    """Return texts with a label that their words tell."""
    draw = torch.Generator().manual_seed(seed)
    found = []
    for number in range(count):
        label = number % 2
        words = (GOOD if label else BAD) + WORDS[20:]
        length = int(torch.randint(4, 12, (1,), generator=draw))
        picked = torch.randint(0, len(words), (length,), generator=draw).tolist()
        telling = [(GOOD if label else BAD)[k % 10] for k in picked[:2]]
        found.append((" ".join([*telling, *(words[k] for k in picked)]), label))
    return found


def save_texts(path: Path, count: int = 90, clients: int = 0) -> Path:
    """Save texts as a CSV with ``text``, ``label`` and, where there are clients, ``user``."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label", *(["user"] if clients else [])])
        for number, (text, label) in enumerate(sentences(count)):
            writer.writerow([text, label, *([f"user{number % clients}"] if clients else [])])
    return path
