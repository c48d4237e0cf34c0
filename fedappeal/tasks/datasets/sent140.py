"""Sent140: is a tweet positive (label 0) or negative (1)? Clients are users (MaxFL).

Two files, neither of which is downloaded (each has terms of its own), in ``data_dir/sent140``:

- ``training.1600000.processed.noemoticon.csv``, from Sentiment140 (Go, Bhayani and Huang 2009): 1.6 million tweets;
- ``glove.6B.200d.txt`` or else ``glove.twitter.27B.200d.txt``, word vectors from GloVe (Pennington et al. 2014).

A tweet is the mean of its words' 200-dimensional vectors. ``min-examples`` is the fewest tweets of a user that can
be a client (the paper: 50); clients are drawn among those users from the data seed.
"""

import csv
import gzip
import html
import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

from fedappeal.settings.config import TaskSettings
from fedappeal.tasks.examples import Features, Labels
from fedappeal.tasks.files.data_files import DataFiles, faults_of
from fedappeal.tasks.labelled import NaturalTask
from fedappeal.tasks.partitions.assign import draw_users

_NEGATIVE, _POSITIVE = "0", "4"
_COLUMNS = 6
"""polarity, tweet id, date, query, user, text"""

_NO_WORDS = re.compile(r"https?://\S+|www\.\S+|@\w+")
_WORD = re.compile(r"\w+|[^\w\s]")


class Tweet(NamedTuple):
    """A tweet and its sentiment."""

    text: str
    positive: bool


def read_tweets(path: Path) -> dict[str, list[Tweet]]:
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


DIMENSION = 200
"""MaxFL, appendix D.1."""

_NAME = "sent140"
_LAYOUT = Path("sent140")
TWEETS = DataFiles(
    task=_NAME,
    layout=_LAYOUT,
    names=("training.1600000.processed.noemoticon.csv",),
    remedy="put training.1600000.processed.noemoticon.csv of Sentiment140 into the folder sent140 of {data_dir}",
)
VECTORS = tuple(
    DataFiles(
        task=_NAME,
        layout=_LAYOUT,
        names=(name,),
        remedy=f"put GloVe's {name} (or glove.twitter.27B.{DIMENSION}d.txt) into the folder sent140 of {{data_dir}}",
    )
    for name in (f"glove.6B.{DIMENSION}d.txt", f"glove.twitter.27B.{DIMENSION}d.txt")
)


class Sent140(NaturalTask):
    """Is a tweet positive or negative? 1,600,000 tweets by user, as means of word vectors."""

    input_shape = (DIMENSION,)
    num_classes = 2
    default_model = "mlp"
    hidden = (128, 86, 30)
    dropout = None

    def check(self) -> None:
        """Find the tweets and the word vectors."""
        TWEETS.find_or_download(self.data_dir)
        _vectors(self.data_dir)

    def read(self) -> list[tuple[Features, Labels]]:
        """Return each client's mean vectors and labels; the process keeps the latest two results."""
        fields = self.settings.model_dump(include={"clients", "unseen_clients", "min_examples", "seed", "data_seed"})
        return _read(TaskSettings.model_validate(fields), self.data_dir)


def _vectors(data_dir: Path | None) -> Path:
    """Return the file of word vectors: the first of `VECTORS` that is found.

    Raises:
        ConfigError: none is found.
    """
    for files in VECTORS:
        if (folder := files.find(data_dir)) is not None:
            return files.path(folder, files.names[0])
    return VECTORS[0].find_or_download(data_dir)


@lru_cache(maxsize=2)
def _read(settings: TaskSettings, data_dir: Path | None) -> list[tuple[Features, Labels]]:
    """Return the vectors and labels of the users that settings draw."""
    with faults_of(f"task = {_NAME!r} cannot read its data"):
        by_user = read_tweets(TWEETS.path(TWEETS.find_or_download(data_dir), TWEETS.names[0]))
        counts = {user: len(tweets) for user, tweets in by_user.items()}
        chosen = [by_user[user] for user in draw_users(settings, counts, "tweets")]
        spoken = [words(tweet.text) for tweets in chosen for tweet in tweets]
        vectors = embed(spoken, _vectors(data_dir), DIMENSION)
    ends = np.cumsum([len(tweets) for tweets in chosen])[:-1]
    labels = [np.array([int(not tweet.positive) for tweet in tweets], dtype=np.int64) for tweets in chosen]
    return list(zip(np.split(vectors, ends), labels, strict=True))
