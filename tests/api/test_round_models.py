"""The model of each round: while the run is under way, and as files."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedappeal
from fedappeal.trained import load_model, read_card
from server import recorder
from tests.api.blobs import QUICK, Net, pairs


def values(model: Any) -> Any:
    return np.concatenate([parameter.detach().numpy().ravel() for parameter in model.parameters()])


@pytest.mark.parametrize("more", [{}, {"pack": False}, {"share": "hidden.*", "local_rule": "sgd"}], ids=str)
def test_on_round_has_each_rounds_own_model(tmp_path: Path, more: dict[str, Any]) -> None:
    """They are those that the server evaluates, kept until after the run; its checkpoints are a second apart."""
    evaluated: dict[int, Any] = {}
    told: list[fedappeal.FinishedRound] = []

    def evaluate(number: int, model: Any) -> dict[str, float]:
        evaluated[number] = values(model).copy()
        return {}

    settings: dict[str, Any] = {**QUICK, "rounds": 6, "out": tmp_path / "run", **more}
    run = fedappeal.simulate(
        "fedavg", model=Net, data=pairs(), evaluate=evaluate, on_round=told.append, keep_models=2, **settings
    )
    assert [each.number for each in told] == [1, 2, 3, 4, 5, 6]
    for each in told:
        assert np.array_equal(values(each.model), evaluated[each.number])
        assert not each.model.training
    assert len({values(each.model).tobytes() for each in told}) == 6
    assert sorted(file.name for file in run.path.glob("model-*")) == ["model-5.safetensors", "model-6.safetensors"]
    kept = run.path / "model-5.safetensors"
    assert np.array_equal(values(run.model(round=5)), evaluated[5])
    assert np.array_equal(values(load_model(kept, Net())), evaluated[5]) or "share" in more
    assert (read_card(kept).round, read_card(kept).figures["loss"]) == (5, told[4].row["loss"])
    with pytest.raises(fedappeal.ConfigError, match=r"round = 4 is not allowed: .* \(5, 6\)$"):
        run.model(round=4)


def test_a_model_of_an_earlier_round_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "SECONDS_APART", 100.0)
    said: list[str] = []

    def on_round(each: fedappeal.FinishedRound) -> None:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model = each.run.model()
        said.append(str(caught[0].message).partition(":")[0] if caught else "")
        assert np.array_equal(values(model), values(each.model)) == (not caught)

    run = fedappeal.simulate(
        "fedavg", model=Net, data=pairs(), on_round=on_round, out=tmp_path / "run", **{**QUICK, "rounds": 5}
    )
    late = "this is the model of round 2, {} are over"
    assert said == ["", "", late.format(3), late.format(4), ""]
    assert run.rounds == 5


@pytest.mark.parametrize("wrong", [-1, 1.5, "all"])
def test_a_number_of_kept_models_is_checked(wrong: Any, tmp_path: Path) -> None:
    with pytest.raises(fedappeal.ConfigError, match=r"^keep_models = .* is not allowed: a number of rounds"):
        fedappeal.simulate("fedavg", model=Net, data=pairs(), keep_models=wrong, out=tmp_path / "run", **QUICK)
    assert not (tmp_path / "run").exists()
