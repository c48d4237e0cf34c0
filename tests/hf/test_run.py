"""Whole runs: adapters travel alone, and both they and whole models learn."""

import csv
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedappeal.api.trained import predict_table
from fedappeal.cli.main import main
from fedappeal.data.columns import Columns
from fedappeal.record.lines import MODEL
from fedappeal.record.reader import Record
from fedappeal.runs.plan import RunPlan
from fedappeal.settings.config import ConfigError, RunConfig
from fedappeal.simulation.engine import simulate
from fedappeal.simulation.options import Simulation
from fedappeal.system.files import read_safetensors
from fedappeal.tasks.files.data_files import DATA_DIR
from fedappeal.trained import open_model
from tests.hf.tiny import save_model, save_texts, sentences
from tests.without_float64 import WithoutFloat64

ROUNDS = 2


def history(folder: Path, data: Path, **more: object) -> list[dict[str, float]]:
    own = {"model-dir": "bert", "data": "texts.csv", "max-length": 12, "labels": "bad,good", **more}
    settings = {
        **{"task": "fedappeal.hf:TextClassification", "strategy": "fedavg", "participation": "always"},
        **{"clients": 3, "partition": "iid", "rounds": ROUNDS, "batch-size": 16, "local-steps": 10},
        **{"requirement": "fixed", "learning-rate": 0.1},
        **{f"hf-text.{key}": value for key, value in own.items()},
    }
    config = RunConfig.parse(settings)
    simulate(
        config, RunPlan.of(config, folder).folder({}), Simulation(mode="sequential", data_dir=str(data), threads=1)
    )
    return list(Record(folder).history)


def test_adapters_are_under_a_twentieth_of_the_bytes_and_learn(tmp_path: Path) -> None:
    data = tmp_path / "data"
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "initializer_range": 0.1}
    save_model(data / "bert", "BertForSequenceClassification", width=64, vocab_size=1000, **still)
    save_texts(data / "texts.csv", 120)
    full = history(tmp_path / "full", data, **{"lora-rank": 0})
    lora = history(tmp_path / "lora", data, **{"lora-rank": 2})
    for way in ("bytes_up", "bytes_down"):
        ratio = sum(line[way] for line in lora) / sum(line[way] for line in full)
        assert 0.005 < ratio < 0.05, (way, ratio)
    assert [lines[-1]["loss"] < most for lines, most in ((full, 0.2), (lora, 0.5))] == [True, True]
    assert all(lines[-1]["loss"] < lines[0]["loss"] for lines in (full, lora))
    assert all(lines[-1]["accuracy"] > 0.9 for lines in (full, lora))

    adapters, _ = read_safetensors(tmp_path / "lora" / MODEL)
    whole, _ = read_safetensors(tmp_path / "full" / MODEL)
    assert all("lora_" in name or "classifier" in name for name in adapters)
    up = [sum(a.nbytes for a in arrays.values()) for arrays in (adapters, whole)]
    # Besides the arrays, a reply says who it is from, and what was decided and measured.
    assert [lines[-1]["bytes_up"] / 3 for lines in (lora, full)] == pytest.approx(up, abs=2000)


def test_texts_are_predicted_and_the_model_is_exported_merged_or_as_an_adapter(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from peft import PeftModel
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    def command(*words: str) -> list[str]:
        monkeypatch.setattr(sys, "argv", ["fedappeal", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        assert not ended.value.code, printed.err
        return printed.out.splitlines()

    history(tmp_path / "run", data, **{"lora-rank": 2})
    monkeypatch.setenv(DATA_DIR, str(data))
    monkeypatch.chdir(tmp_path)
    texts = str(data / "texts.csv")
    found = command("predict", "run", "--data", texts, "--label", "label", "--output", "p.csv")
    rows = list(csv.DictReader((tmp_path / "p.csv").open()))
    share = sum(row["label"] == row["given"] for row in rows) / len(rows)
    assert found[:2] == ["examples    90", f"accuracy    {100 * share:.1f} %"]
    assert command("predict", "run", "--data", texts)[-1].endswith("no column of labels is named (label)")

    for form in ("huggingface", "adapter"):
        command("export", "run", "--to", form)
    tokens = AutoTokenizer.from_pretrained(tmp_path / "run-huggingface")
    whole = AutoModelForSequenceClassification.from_pretrained(tmp_path / "run-huggingface")
    base = AutoModelForSequenceClassification.from_pretrained(data / "bert", num_labels=2)
    adapted = PeftModel.from_pretrained(base, tmp_path / "run-adapter")
    assert whole.config.id2label == {0: "bad", 1: "good"}
    inputs = tokens([text for text, _ in sentences(90)], padding=True, return_tensors="pt")
    for model in (whole.eval(), adapted.eval()):
        probabilities, labels = model(**inputs).logits.softmax(1).max(1)
        assert [whole.config.id2label[label] for label in labels.tolist()] == [row["label"] for row in rows]
        assert probabilities.tolist() == pytest.approx([float(row["probability"]) for row in rows], abs=1e-4)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p.csv", "run", "run-adapter", "run-huggingface"]


def test_a_language_models_tied_layers_travel_once_and_are_tied_in_the_trained_model(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = {"model-dir": "gpt2", "data": "texts.csv", "max-length": 8, "lora-rank": 0}
    settings = {
        **{"task": "fedappeal.hf:CausalLM", "strategy": "fedavg", "local-rule": "adamw", "learning-rate": 0.01},
        **{"clients": 3, "rounds": 2, "local-steps": 5, "requirement": "fixed", "participation": "always"},
        **{f"hf-lm.{key}": value for key, value in own.items()},
    }
    config, folder = RunConfig.parse(settings), tmp_path / "run"
    simulate(
        config, RunPlan.of(config, folder).folder({}), Simulation(mode="sequential", data_dir=str(data), threads=1)
    )
    first, last = Record(folder).history
    assert last["loss"] < first["loss"]
    assert 0 < last["token_accuracy"] < 1

    arrays, _ = read_safetensors(folder / MODEL)
    assert "transformer.wte.weight" in arrays
    assert "lm_head.weight" not in arrays
    monkeypatch.setenv(DATA_DIR, str(data))
    opened = open_model(folder)
    model: Any = opened.model
    found, unlabelled = predict_table(opened, data / "texts.csv", Columns())
    assert (len(found.lines), unlabelled, set(found.metrics)) == (90, "", {"token-accuracy"})
    for columns, line in ((Columns(("words",)), "has no column words"), (Columns((), "label"), "have no labels")):
        with pytest.raises(ConfigError, match=f"^data = '{data}/texts.csv' is not allowed: .*{line}"):
            predict_table(opened, data / "texts.csv", columns)
    x = opened.task.encoded(["word1 word2"])  # type: ignore[attr-defined]
    share, token = opened.task.forward(model, x)[0, 1].softmax(0).max(0)
    outputs = opened.task.forward(model, x)
    with WithoutFloat64():
        ((name, probability),) = opened.task.answers(outputs, x) or ()
    assert (name, probability) == (opened.task.tokenizer.decode([int(token)]), pytest.approx(share.item()))  # type: ignore[attr-defined]
    assert model.lm_head.weight is model.transformer.wte.weight
    assert np.array_equal(model.lm_head.weight.detach().numpy(), arrays["transformer.wte.weight"])
