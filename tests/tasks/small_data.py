"""Small data sets in the layouts of the real ones, and tasks that read them."""

import csv
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedappeal.tasks.datasets.cifar10 import BATCHES, CIFAR10
from fedappeal.tasks.datasets.idx_images import EMNIST, parts_of
from fedappeal.tasks.labelled import ImagePart
from tests.tasks.image_files import batch_bytes, write_idx


class SmallEMNIST(EMNIST):
    """EMNIST by class in three images a label."""

    parts = parts_of("byclass", 124, 62)
    num_examples = 186


class SmallCIFAR10(CIFAR10):
    """CIFAR-10 in six batches of ten images."""

    num_examples = 60
    parts = tuple(ImagePart(name, 10) for name in BATCHES)


TWEETS = "training.1600000.processed.noemoticon.csv"
WORDS = ("good", "bad", "day", "!", "n't")


def write_emnist(root: Path, split: str = "byclass", labels: int = 62) -> None:
    """Write images whose every pixel is their number; labels 0..C-1, twice to train and once to test."""
    pixels = np.repeat(np.arange(3 * labels), 28 * 28).reshape(-1, 28, 28)
    folder = root / "EMNIST" / "raw"
    write_idx(folder, f"emnist-{split}-train", pixels[: 2 * labels], [*range(labels)] * 2)
    write_idx(folder, f"emnist-{split}-test", pixels[2 * labels :], range(labels))


def write_cifar10(root: Path) -> NDArray[np.uint8]:
    """Write six batches of ten images of random pixels, one a label; return the pixels, a row an image."""
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    pixels = np.random.default_rng(0).integers(0, 256, (60, 3072), dtype=np.uint8)
    for k, name in enumerate(BATCHES):
        (folder / name).write_bytes(batch_bytes(pixels[10 * k : 10 * k + 10], range(10)))
    return pixels


def vector(word: str, dimension: int = 200) -> NDArray[np.float64]:
    """Return a word's vector: its place in `WORDS` plus a rising part."""
    return np.linspace(WORDS.index(word), WORDS.index(word) + 1, dimension).round(4)


def write_tweets(root: Path, held: dict[str, int]) -> None:
    """Write a number of tweets for each user; the even ones are positive and say so."""
    (root / "sent140").mkdir(parents=True, exist_ok=True)
    with (root / "sent140" / TWEETS).open("w", encoding="latin-1", newline="") as file:
        lines = csv.writer(file, quoting=csv.QUOTE_ALL)
        for k in range(max(held.values())):
            for user, count in held.items():
                if k < count:
                    text = "a caf\xe9, GOOD day!" if k % 2 == 0 else "@you bad\tday http://bad.example/bad"
                    date = "Mon Apr 06 22:19:45 PDT 2009"
                    lines.writerow([4 if k % 2 == 0 else 0, 1000 + k, date, "NO_QUERY", user, text])


def write_vectors(root: Path, name: str = "glove.6B.200d.txt", dimension: int = 200) -> Path:
    """Write a vector for each of `WORDS`, and for a word that is in no tweet."""
    (root / "sent140").mkdir(parents=True, exist_ok=True)
    path = root / "sent140" / name
    lines = [f"{word} {' '.join(f'{v:g}' for v in vector(word, dimension))}\n" for word in WORDS]
    path.write_text("the 0.1 odd line of a word in no tweet\n" + "".join(lines))
    return path
