"""Sent140: tweets by user and averaged word vectors, on small files in the formats of the real ones."""

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch

from fedappeal.settings.config import ConfigError, TaskSettings
from fedappeal.tasks import load_task
from fedappeal.tasks.datasets import sent140
from fedappeal.tasks.task import Task
from tests.tasks.small_data import TWEETS, vector, write_tweets, write_vectors


def task_of(root: Path, **values: object) -> Task:
    settings = TaskSettings.model_validate({"task": "sent140", "clients": 2, "min_examples": 5, **values})
    load_task(settings, root).check()
    return load_task(settings, root)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("GOOD day!", ["good", "day", "!"]),
        ("@some_one look: http://t.co/a?b=1 www.x.y ok", ["look", ":", "ok"]),
        ("you &amp; me&lt;3", ["you", "&", "me", "<", "3"]),
        ("", []),
    ],
)
def test_words(text: str, expected: list[str]) -> None:
    assert sent140.words(text) == expected


def test_a_tweet_is_the_mean_of_the_words_that_have_a_vector(tmp_path: Path) -> None:
    path = write_vectors(tmp_path, dimension=3)
    spoken = [["good", "day", "day", "unheard"], ["unheard"], [], ["bad"]]
    found = sent140.embed(spoken, path, 3)
    # good: 0, 0.5, 1; day: 2, 2.5, 3; (good + 2 day) / 3
    assert found == pytest.approx(np.array([[4 / 3, 5.5 / 3, 7 / 3], [0, 0, 0], [0, 0, 0], [1, 1.5, 2]]))
    assert found.dtype == np.float32


def test_clients_are_users_with_enough_tweets(tmp_path: Path) -> None:
    write_tweets(tmp_path, {"ann": 10, "bob": 4, "cyd": 7, "dan": 5})
    write_vectors(tmp_path)
    task = task_of(tmp_path, clients=2, unseen_clients=1)
    data = [task.load(k) for k in range(3)]
    assert sorted(len(d.train) + len(d.test) for d in data) == [5, 7, 10]
    ten = next(d for d in data if len(d.train) + len(d.test) == 10)
    assert (len(ten.train), len(ten.test)) == (6, 4)
    x, y = torch.cat([ten.train.x, ten.test.x]), torch.cat([ten.train.y, ten.test.y])
    assert sorted(y.tolist()) == [0] * 5 + [1] * 5
    good = torch.from_numpy((vector("good") + vector("day") + vector("!")) / 3).float()
    bad = torch.from_numpy((vector("bad") + vector("day")) / 2).float()
    torch.testing.assert_close(x, torch.stack([bad if label else good for label in y]), rtol=0, atol=1e-4)


def test_users_are_drawn_by_the_seed_alone(tmp_path: Path) -> None:
    write_tweets(tmp_path, {f"user{k}": 5 + k for k in range(20)})
    write_vectors(tmp_path)

    def sizes(seed: int) -> list[int]:
        task = task_of(tmp_path, clients=6, seed=seed)
        return [len(task.load(k).train) + len(task.load(k).test) for k in range(6)]

    assert sizes(1) == sizes(1)
    assert len({tuple(sizes(seed)) for seed in range(5)}) == 5


def test_flipped_users_call_good_bad(tmp_path: Path) -> None:
    write_tweets(tmp_path, {"ann": 8, "bob": 8})
    write_vectors(tmp_path)
    plain, flipped = task_of(tmp_path), task_of(tmp_path, flip_share=0.5)
    differ = [not torch.equal(plain.load(k).train.y, flipped.load(k).train.y) for k in range(2)]
    assert sorted(differ) == [False, True]
    k = differ.index(True)
    assert torch.equal(plain.load(k).train.y, 1 - flipped.load(k).train.y)
    assert torch.equal(plain.load(k).train.x, flipped.load(k).train.x)


def test_the_papers_model(tmp_path: Path) -> None:
    model = load_task(TaskSettings(task="sent140")).initial_model(3)
    shapes = [tuple(p.shape) for name, p in model.named_parameters() if name.endswith("weight")]
    assert shapes == [(128, 200), (86, 128), (30, 86), (2, 30)]
    assert not any(isinstance(layer, torch.nn.Dropout) for layer in model.children())
    logistic = load_task(TaskSettings(task="sent140", model="logistic")).initial_model(3)
    assert [tuple(p.shape) for p in logistic.parameters()] == [(2, 200), (2,)]


def test_vectors_of_wikipedia_come_before_twitters(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"glove\.6B\.200d\.txt \(or glove\.twitter"):
        sent140._vectors(tmp_path)
    twitter = write_vectors(tmp_path, "glove.twitter.27B.200d.txt")
    assert sent140._vectors(tmp_path) == twitter
    wikipedia = write_vectors(tmp_path)
    assert sent140._vectors(tmp_path) == wikipedia


def test_files_may_be_gzipped(tmp_path: Path) -> None:
    write_tweets(tmp_path, {"ann": 8, "bob": 8})
    write_vectors(tmp_path)
    expected = task_of(tmp_path).load(0).fingerprint
    for path in list((tmp_path / "sent140").iterdir()):
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    sent140._read.cache_clear()
    assert task_of(tmp_path).load(0).fingerprint == expected


@pytest.mark.parametrize("missing", [TWEETS, "glove.6B.200d.txt"])
def test_a_missing_file_is_one_line(tmp_path: Path, missing: str) -> None:
    write_tweets(tmp_path, {"ann": 8, "bob": 8})
    write_vectors(tmp_path)
    (tmp_path / "sent140" / missing).unlink()
    with pytest.raises(ConfigError) as caught:
        task_of(tmp_path)
    assert str(caught.value).startswith("task = 'sent140' finds no data: put ")
    assert missing in str(caught.value)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("file", "content", "expected"),
    [
        (TWEETS, '"4","1","d","q","ann"\n', "line 1: expected 6 columns"),
        (
            TWEETS,
            '"4","1","d","q","ann","x"\n"2","1","d","q","ann","x"\n',
            "line 2: expected 6 columns, the first of them 0",
        ),
        (TWEETS, "", "is empty"),
        ("glove.6B.200d.txt", "the 1 2 3\ngood 1 2 3\n", "line 2: expected a word and 200 numbers"),
        ("glove.6B.200d.txt", "good " + "1 " * 199 + "x\n", "line 1: expected a word and 200 numbers"),
        ("glove.6B.200d.txt", "nothing 1 2\n", "holds none of the tweets'"),
    ],
)
def test_a_damaged_file_is_one_line(tmp_path: Path, file: str, content: str, expected: str) -> None:
    write_tweets(tmp_path, {"ann": 8, "bob": 8})
    write_vectors(tmp_path)
    (tmp_path / "sent140" / file).write_text(content)
    with pytest.raises(ConfigError) as caught:
        task_of(tmp_path).load(0)
    assert str(caught.value).startswith("task = 'sent140' cannot read its data: ")
    assert file in str(caught.value)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_too_few_users(tmp_path: Path) -> None:
    write_tweets(tmp_path, {"ann": 8, "bob": 8})
    write_vectors(tmp_path)
    with pytest.raises(
        ConfigError, match=r"clients = 2 is not allowed: 0 users have min-examples = 9 tweets or more"
    ):
        task_of(tmp_path, min_examples=9).load(0)
