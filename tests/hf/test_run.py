"""Whole runs: adapters travel alone, and both they and whole models learn."""

from pathlib import Path

import pytest

from fedappeal.files import read_safetensors
from fedappeal.protocol.config import RunConfig
from fedappeal.simulation.engine import Simulation, simulate
from server.run_folder import HISTORY, MODEL, RunFolder, read_lines
from tests.hf.tiny import save_model, save_texts

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
    simulate(config, RunFolder.create(folder, config), Simulation(mode="sequential", data_dir=str(data), threads=1))
    return list(read_lines(folder / HISTORY))


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
