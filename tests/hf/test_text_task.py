"""Tasks on texts: token ids, clients, loss and metric, and settings that do not fit."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from fedappeal.hf.text_task import IGNORED
from fedappeal.settings.config import ConfigError, RunConfig
from fedappeal.system import packages
from fedappeal.system.files import write_safetensors
from server.build import run_plugins
from server.server_run import run
from tests.grid import MemoryGrid
from tests.hf.test_models import task_of
from tests.hf.tiny import BAD, GOOD, WORDS, save_texts, save_tokenizer, sentences
from tests.without_float64 import WithoutFloat64


def number(word: str) -> int:
    return 2 + WORDS.index(word)


# -- texts and clients -----------------------------------------------------------------------------------


def test_token_ids_by_hand(data: Path) -> None:
    found = task_of(data, max_length=4).encoded(["word3 word0", "word1 nothing word2 word5 word6"])
    assert found["input_ids"].tolist() == [[5, 2, 0, 0], [3, 1, 4, 7]]
    assert found["attention_mask"].tolist() == [[1, 1, 0, 0], [1, 1, 1, 1]]
    assert {t.dtype for t in found.values()} == {torch.int64}


def rows_of(task: Any, client: int) -> set[tuple[tuple[int, ...], int]]:
    made = task.load(client)
    return {
        (tuple(ids), label)
        for part in (made.train, made.test)
        for ids, label in zip(part.x["input_ids"].tolist(), part.y.tolist(), strict=True)
    }


def test_every_text_has_one_client_and_its_label(data: Path) -> None:
    task = task_of(data)
    found = [rows_of(task, k) for k in range(3)]
    expected = {
        (tuple([number(word) for word in text.split()] + [0] * (12 - len(text.split()))), int(label == "good"))
        for text, label in sentences(90)
    }
    assert set().union(*found) == expected
    assert task.class_names == ("bad", "good")
    telling = {tuple(map(number, words)): label for words, label in ((BAD, 0), (GOOD, 1))}
    assert all(label == next(y for words, y in telling.items() if ids[0] in words) for ids, label in expected)


def test_a_column_says_whose_a_text_is(data: Path) -> None:
    task = task_of(data, client_column="user", partition="auto")
    assert task.partition == "natural"
    assert len(task.rows) == 3
    for rows in task.rows:
        assert len(rows) == 15
        assert len({row % 6 for row in rows.tolist()}) == 1  # user u4 has rows 4, 10, 16, ...
    assert len({int(rows[0]) % 6 for rows in task.rows}) == 3


def test_flipped_labels(data: Path) -> None:
    usual, flipped = task_of(data), task_of(data, **{"flip-share": 1.0})
    assert rows_of(flipped, 1) == {(ids, 1 - label) for ids, label in rows_of(usual, 1)}


def test_a_volunteers_own_table(data: Path, tmp_path: Path) -> None:
    task = task_of(data, data="")  # a volunteer needs no data set
    (tmp_path / "own.csv").write_text("label,text\ngood,word1 word2\n0,word3\n")
    found = task.own_examples(tmp_path / "own.csv")
    assert found.x["input_ids"][:, :3].tolist() == [[3, 4, 0], [5, 0, 0]]  # type: ignore[index, call-overload]
    assert found.y.tolist() == [1, 0]  # type: ignore[union-attr]


# -- language models -------------------------------------------------------------------------------------


def test_the_loss_of_texts_of_equal_length_is_that_of_transformers(data: Path) -> None:
    task = task_of(data, "hf-lm", model_dir="gpt2", max_length=5)
    model = task.initial_model(0).eval()
    split = task.examples([" ".join(WORDS[k : k + 5]) for k in range(6)], torch.zeros(6).numpy())
    theirs = model(**split.x, labels=split.y).loss  # type: ignore[arg-type]
    assert task.loss(task.forward(model, split.x), split.y).item() == pytest.approx(theirs.item(), rel=1e-5)


def test_each_text_counts_alike_by_hand(data: Path) -> None:
    task = task_of(data, "hf-lm", model_dir="gpt2")
    y = torch.tensor([[0, 1, 1, 0], [1, 0, IGNORED, IGNORED]])
    logits = torch.zeros(2, 4, 2)
    logits[0, :3] = torch.tensor([[0.0, math.log(3)], [0.0, math.log(3)], [0.0, math.log(3)]])  # 1 with p = 3/4
    logits[1, 0] = torch.tensor([math.log(9), 0.0])  # 0 with p = 9/10
    first, second = (2 * math.log(4 / 3) + math.log(4)) / 3, math.log(10 / 9)
    assert task.loss(logits, y, "none").tolist() == pytest.approx([first, second], rel=1e-5)
    assert task.loss(logits, y).item() == pytest.approx((first + second) / 2, rel=1e-5)
    assert task.loss(logits, y, "sum").item() == pytest.approx(first + second, rel=1e-5)
    with WithoutFloat64():
        assert task.metrics(logits, y) == {"token-accuracy": pytest.approx((2 / 3 + 1) / 2)}


def test_padding_is_not_predicted(data: Path) -> None:
    task = task_of(data, "hf-lm", model_dir="gpt2", max_length=4)
    assert task.examples(["word0 word1"], torch.zeros(1).numpy()).y.tolist() == [[2, 3, IGNORED, IGNORED]]  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="fewer than two tokens: 'word0'"):
        task.examples(["word0"], torch.zeros(1).numpy())


# -- what is agreed on, and what is refused --------------------------------------------------------------


def test_the_fingerprint_follows_the_folders_content_and_not_its_place(data: Path, tmp_path: Path) -> None:
    shutil.copytree(data / "bert", tmp_path / "bert")
    assert task_of(tmp_path).fingerprint == task_of(data).fingerprint
    (tmp_path / "bert" / "README.md").write_text("read by no program")
    assert task_of(tmp_path).fingerprint == task_of(data).fingerprint
    write_safetensors(tmp_path / "bert" / "model.safetensors", {"w": torch.zeros(2).numpy()}, {})
    assert task_of(tmp_path).fingerprint != task_of(data).fingerprint


def test_labels_in_another_order_than_the_models_are_refused(data: Path, tmp_path: Path) -> None:
    shutil.copytree(data / "empty", tmp_path / "bert")
    (tmp_path / "bert" / "config.json").write_text(
        json.dumps(
            {**json.loads((data / "empty" / "config.json").read_text()), "id2label": {"0": "good", "1": "bad"}}
        )
    )
    assert task_of(tmp_path, labels="good,bad", random_weights=True).initial_model(0)
    with pytest.raises(ConfigError, match=r"^hf-text.labels = 'bad,good' is not allowed: .* the order good,bad$"):
        task_of(tmp_path, random_weights=True).initial_model(0)


def test_a_family_by_name_needs_a_tokenizer_alone_and_is_drawn(tmp_path: Path) -> None:
    save_tokenizer(tmp_path / "bert")
    save_texts(tmp_path / "texts.csv")
    task = task_of(tmp_path, model="transformers:electra", lora_rank=0)
    task.check()
    net, again = task.initial_model(1), task.initial_model(1)
    assert net.config.vocab_size == len(WORDS) + 2  # type: ignore[union-attr]
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), again.parameters(), strict=True))
    with pytest.raises(ConfigError, match=r"^model = 'transformers:elektra' is not allowed: .* no such family$"):
        task_of(tmp_path, model="transformers:elektra").initial_model(0)


def test_settings_alone_make_a_task(tmp_path: Path) -> None:
    found = task_of(tmp_path / "nothing")  # as where a run is submitted: neither model nor data are there
    assert (found.num_classes, found.class_names, found.share) == (2, ("bad", "good"), "trainable")
    assert task_of(tmp_path / "nothing", lora_rank=0).share == "all"


@pytest.mark.parametrize(
    ("name", "own", "expected"),
    [
        ("hf-text", {"model_dir": ""}, r"hf-text.model-dir is missing"),
        ("hf-text", {"model_dir": "/etc"}, r"hf-text.model-dir = '/etc' is not allowed: a path under data-dir"),
        ("hf-text", {"data": "../texts.csv"}, r"hf-text.data = '../texts.csv' is not allowed: a path under data-dir"),
        ("hf-text", {"data": "other.csv"}, r"hf-text.data = 'other.csv' is not allowed: it is not in data-dir"),
        (
            "hf-text",
            {"text_column": "said"},
            r"hf-text.data = 'texts.csv' .* no column said \(its header: text, label",
        ),
        (
            "hf-text",
            {"labels": "a,b"},
            r"hf-text.data = .* row 1 \(line 2\), column label: label 'bad': 0 to 1, or a, b are allowed",
        ),
        ("hf-text", {"labels": "good"}, r"hf-text.labels = 'good' is not allowed: two or more"),
        ("hf-text", {"max_length": 65}, r"hf-text.max-length = 65 is not allowed: its model takes 64"),
        ("hf-text", {"model": "mlp"}, r"model = 'mlp' is not allowed for task"),
        (
            "hf-text",
            {"partition": "natural"},
            r"partition = 'natural' is not allowed with hf-text.client-column = ''",
        ),
        (
            "hf-text",
            {"client_column": "user"},
            r"partition = 'iid' is not allowed with hf-text.client-column = 'user'",
        ),
        ("hf-lm", {"partition": "dirichlet"}, r"partition = 'dirichlet' is not allowed for task .* no labels"),
        ("hf-lm", {"flip-share": 0.5}, r"flip-share = 0.5 is not allowed for task .* no labels"),
    ],
)
def test_what_does_not_fit_is_one_line(data: Path, name: str, own: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected) as caught:
        task_of(data, name, **own).check()
    assert "\n" not in str(caught.value)


def test_a_folder_of_pickles_is_refused(data: Path, tmp_path: Path) -> None:
    shutil.copytree(data / "empty", tmp_path / "bert")
    (tmp_path / "bert" / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(
        ConfigError, match=r"^hf-text.model-dir = 'bert' .* a pickle, which can hold a program: [^\n]*$"
    ):
        task_of(tmp_path).check()


def test_without_the_extra_one_line_says_how_to_install_it(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "find_spec", lambda name: None if name == "peft" else object())
    with pytest.raises(ConfigError, match=r"^Hugging Face models need peft: pip install 'fedappeal\[hf\]'$"):
        task_of(data).check()
    task_of(data, lora_rank=0).check()


def test_a_server_looks_in_its_own_data_folder(tmp_path: Path) -> None:
    config = RunConfig.parse(
        {
            "task": "fedappeal.hf:TextClassification",
            "hf-text.model-dir": "m",
            "hf-text.labels": "a,b",
            "out": str(tmp_path / "r"),
        }
    )
    with pytest.raises(ConfigError, match=f"it is not in data-dir = '{tmp_path / 'here'}'"):
        run(MemoryGrid({}), run_plugins(config), data_dir=tmp_path / "here")
