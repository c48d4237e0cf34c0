"""The card of a trained model: all that is needed to use it, readable by any program."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from fedappeal.protocol.metric import Metric
from fedappeal.settings.config import ConfigError, RunConfig
from fedappeal.system.files import CARD, read_safetensors, write_safetensors
from fedappeal.tasks import load_task
from fedappeal.tasks.task import Normalisation
from fedappeal.trained.card import ModelCard, read_card
from tests.trained.models import write_model

ARRAYS = {"w": np.ones(2, np.float32)}


def test_a_card_says_what_is_needed_to_use_the_model(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    write_model(path, ARRAYS, {"task": "fmnist", "strategy": "fedavg", "tuning-steps": 2, "seed": 5})
    card = read_card(path)
    assert read_card(str(path)) == read_card(tmp_path) == card
    assert (card.task, card.model, card.input_shape, card.input_dtype) == ("fmnist", "mlp", (1, 28, 28), "float32")
    assert card.normalisation == Normalisation(255.0, 0.2860, 0.3530)
    assert card.class_names[:2] == ("t-shirt", "trouser")
    assert (card.num_classes, card.metric, card.label(1)) == (10, Metric(), "trouser")
    assert (card.strategy, card.round, card.run_key, card.tuning_steps) == ("fedavg", 3, "k", 2)
    assert (card.figures, card.measured_on, card.shared) == ({"accuracy": 0.5}, "test data of 2 clients", "all")
    assert set(card.versions) == {"fedappeal", "torch"}
    assert card.date[:2] == "20"
    settings = RunConfig.parse({"task": "fmnist", "seed": 5}).task_settings()
    assert card.task_settings() == settings
    assert card.fingerprint == load_task(settings).fingerprint


def test_other_programs_read_it_as_json(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    write_model(path, ARRAYS, figures={"accuracy": 0.25})
    with safe_open(path, framework="numpy") as file:
        metadata = file.metadata()
    told = json.loads(metadata[CARD], parse_constant=lambda text: pytest.fail(f"{text} is no JSON"))
    assert told["normalisation"] == {"scale": 16.0, "mean": 0.3053, "std": 0.376}
    assert told["input-shape"] == [1, 8, 8]
    assert json.loads(metadata["fedappeal"]) == {"round": 3}
    assert read_safetensors(path)[1] == {"round": 3, CARD: metadata[CARD]}


def test_it_comes_back_as_it_was_infinite_bounds_included(tmp_path: Path) -> None:
    metric = Metric("abs-error", higher_is_better=False, low=0.0, high=math.inf)
    by_channel = Normalisation(255.0, (0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
    told = write_model(
        tmp_path / "m",
        ARRAYS,
        metric=metric,
        normalisation=by_channel,
        shared=("w",),
        which="solo",
        requirement_met=False,
    )
    assert read_card(tmp_path / "m") == told


def test_the_tasks_own_settings_are_there_and_the_strategys_are_not(tmp_path: Path) -> None:
    write_model(tmp_path / "m", ARRAYS, {"task": "synth", "synth.alpha": 0.5, "maxfl.server-lr": 2.0})
    card = read_card(tmp_path / "m")
    assert card.settings["synth.alpha"] == 0.5
    assert card.settings["synth.noisy"] == 0
    assert "maxfl.server-lr" not in card.settings
    assert card.normalisation is None
    assert load_task(card.task_settings()).fingerprint == card.fingerprint


def test_figures_that_are_not_finite_are_left_out() -> None:
    config = RunConfig()
    figures = {"accuracy": 0.5, "loss": math.nan, "gm_appeal": math.inf}
    card = ModelCard.of(
        load_task(config.task_settings()), config, round=1, run_key="", figures=figures, measured_on=""
    )
    assert card.figures == {"accuracy": 0.5}


def test_a_card_of_a_later_version_is_read_without_what_is_not_known(tmp_path: Path) -> None:
    card = write_model(tmp_path / "m", ARRAYS)
    later = {**json.loads(card.to_json()), "licence": "CC0"}
    later["settings"]["colour"] = "red"
    write_safetensors(tmp_path / "m", ARRAYS, {CARD: json.dumps(later)})
    assert read_card(tmp_path / "m").task_settings() == card.task_settings()


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"round": 3}, "has no card, which says of which task its model is"),
        ({CARD: "{"}, "the card of file '.*' cannot be read: Expecting property name"),
        ({CARD: "[]"}, "the card of file '.*' cannot be read: no JSON object"),
        ({CARD: '{"task": 3}'}, "the card of file '.*' cannot be read: task = 3 is not allowed: .*; .* is missing"),
    ],
)
def test_what_is_no_card_is_one_line(tmp_path: Path, values: dict[str, str], line: str) -> None:
    write_safetensors(tmp_path / "m", ARRAYS, values)
    with pytest.raises(ConfigError, match=line) as error:
        read_card(tmp_path / "m")
    assert "\n" not in str(error.value)


def test_a_card_of_another_party_is_not_deep_and_holds_no_control_characters(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    write_model(path, ARRAYS)
    told = json.loads(str(read_safetensors(path)[1][CARD]))
    changed = told | {"strategy": "\x1b[31mred", "class-names": ["\x1b]0;title\x07"]}
    write_safetensors(path, ARRAYS, {CARD: json.dumps(changed)})
    assert (read_card(path).strategy, read_card(path).class_names) == ("?[31mred", ("?]0;title?",))
    write_safetensors(path, ARRAYS, {CARD: "[" * 100_000})
    with pytest.raises(ConfigError, match=r"the card of file '.*' cannot be read: it is nested too deeply"):
        read_card(path)
    save_file(ARRAYS, path, {"fedappeal": "[]"})
    with pytest.raises(ConfigError, match="its 'fedappeal' is no JSON object of scalars"):
        read_card(path)
