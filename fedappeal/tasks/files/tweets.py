"""Read Sentiment140's tweets and GloVe's word vectors."""

import csv
import gzip
import html
import re
from collections.abc import Sequence
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

from fedappeal.tasks.arrays import Features

_NEGATIVE, _POSITIVE = "0", "4"
_COLUMNS = 6
"""polarity, tweet id, date, query, user, text"""

_NO_WORDS = re.compile(r"https?://\S+|www\.\S+|@\w+")
_WORD = re.compile(r"\w+|[^\w\s]")


class Tweet(NamedTuple):
    """A tweet and its sentiment."""

    text: str
    positive: bool


def read(path: Path) -> dict[str, list[Tweet]]:
    """Return the tweets of each user, in the file's order.

    Raises:
        ValueError: not such a file; one line that names it and the line.
        OSError: it cannot be read.
    """
    by_user: dict[str, list[Tweet]] = {}
    with _text(path, "latin-1") as file:
        lines = csv.reader(file)
        try:
            for row in lines:
                if len(row) != _COLUMNS or row[0] not in (_NEGATIVE, _POSITIVE):
                    raise ValueError(
                        f"{path}, line {lines.line_num}: expected {_COLUMNS} columns, the first of them "
                        f"{_NEGATIVE} or {_POSITIVE}"
                    )
                by_user.setdefault(row[4], []).append(Tweet(row[5], row[0] == _POSITIVE))
        except (csv.Error, EOFError, gzip.BadGzipFile) as error:
            raise ValueError(f"{path}, line {lines.line_num}: {error}") from None
    if not by_user:
        raise ValueError(f"{path} is empty")
    return by_user


def words(text: str) -> list[str]:
    """Return a tweet's lower-case words and marks, without addresses and user names."""
    return _WORD.findall(_NO_WORDS.sub(" ", html.unescape(text)).lower())


def embed(spoken: Sequence[Sequence[str]], path: Path, dimension: int) -> Features:
    """Return the mean vector of each tweet's words, shape ``(tweets, dimension)``.

    Words without a vector do not count; a tweet without any other is all zeros.

    Args:
        spoken: each tweet's words.
        path: GloVe's text file: a word and its numbers a line, by spaces.
        dimension: numbers a word.

    Raises:
        ValueError: not such a file; one line that names it and the line.
        OSError: it cannot be read.
    """
    row_of = {word: row for row, word in enumerate(dict.fromkeys(word for tweet in spoken for word in tweet))}
    vectors = np.zeros((len(row_of), dimension), dtype=np.float32)
    has_vector = np.zeros(len(row_of), dtype=bool)
    with _text(path, "utf-8") as file:
        for number, line in enumerate(file, start=1):
            word, _, numbers = line.rstrip("\n").partition(" ")
            if (row := row_of.get(word)) is None:
                continue
            try:
                vectors[row] = np.array(numbers.split(" "), dtype=np.float32)
            except ValueError:
                raise ValueError(f"{path}, line {number}: expected a word and {dimension} numbers") from None
            has_vector[row] = True
    if row_of and not has_vector.any():
        raise ValueError(f"{path} holds none of the tweets' {len(row_of)} words")
    means = np.zeros((len(spoken), dimension), dtype=np.float32)
    for k, tweet in enumerate(spoken):
        if rows := [row for word in tweet if has_vector[row := row_of[word]]]:
            means[k] = vectors[rows].mean(axis=0)
    return means


def _text(path: Path, encoding: str) -> IO[str]:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding=encoding, errors="replace", newline="")
    return path.open(encoding=encoding, errors="replace", newline="")
