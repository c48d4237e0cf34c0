"""Sent140: is a tweet positive (label 0) or negative (1)? Clients are users (MaxFL).

Two files, neither of which is downloaded (each has terms of its own), in ``data_dir/sent140``:

- ``training.1600000.processed.noemoticon.csv``, from Sentiment140 (Go, Bhayani and Huang 2009): 1.6 million tweets;
- ``glove.6B.200d.txt`` or else ``glove.twitter.27B.200d.txt``, word vectors from GloVe (Pennington et al. 2014).

A tweet is the mean of its words' 200-dimensional vectors. ``min-examples`` is the fewest tweets of a user that can
be a client (the paper: 50); clients are drawn among those users from the run's seed.
"""

from functools import lru_cache
from pathlib import Path

import numpy as np

from fedappeal.settings.config import ConfigError, TaskSettings
from fedappeal.tasks.arrays import Features, Labels
from fedappeal.tasks.files import tweets
from fedappeal.tasks.files.data_files import DataFiles
from fedappeal.tasks.natural import NaturalTask
from fedappeal.tasks.partitions.users import draw_users

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
        deciding = self.settings.model_dump(include={"clients", "unseen_clients", "min_examples", "seed"})
        return _read(TaskSettings.model_validate(deciding), self.data_dir)


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
    try:
        by_user = tweets.read(TWEETS.path(TWEETS.find_or_download(data_dir), TWEETS.names[0]))
        chosen = [
            by_user[user]
            for user in draw_users(settings, {user: len(said) for user, said in by_user.items()}, "tweets")
        ]
        spoken = [tweets.words(tweet.text) for said in chosen for tweet in said]
        vectors = tweets.embed(spoken, _vectors(data_dir), DIMENSION)
    except (OSError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"task = {_NAME!r} cannot read its data: {error}") from None
    ends = np.cumsum([len(said) for said in chosen])[:-1]
    labels = [np.array([int(not tweet.positive) for tweet in said], dtype=np.int64) for said in chosen]
    return list(zip(np.split(vectors, ends), labels, strict=True))
