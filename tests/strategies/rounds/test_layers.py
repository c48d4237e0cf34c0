"""A model's layers by name, on a strategy that treats each layer in its own way."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord
from numpy.typing import NDArray

from fedappeal.protocol.packing import Layout, array_record
from strategies import FedAvg
from strategies.rounds.exchange.members import Members
from strategies.rounds.round import Round, RoundRecord

SENT = {"body.weight": np.array([[3.0, 0.0], [0.0, 4.0]], np.float32), "head.bias": np.array([1.0, 2.0], np.float32)}
LAYOUT = Layout.of(SENT)


class LayerWise(FedAvg):
    """FedAvg whose step is, in each layer, as long as the layer itself (after LARS: You et al., 2017)."""

    def update(self, round: Round) -> ArrayRecord:
        sent, mean = round.layers(), round.layers(super().update(round))
        steps = {name: mean[name] - w for name, w in sent.items()}
        norm = np.linalg.norm
        return round.model_of({n: (w + steps[n] * (norm(w) / norm(steps[n]))) for n, w in sent.items()})


def a_round(packed: bool, layout: Layout | None) -> Round:
    form = LAYOUT.pack if packed else LAYOUT.named
    round = Round(form(SENT), Members(), RoundRecord(1), layout=layout)
    changed = {"body.weight": np.array([[0.0, 2.0], [0.0, 0.0]]), "head.bias": np.array([0.0, -3.0])}
    round.sum.add(form({name: np.asarray(SENT[name] + step, np.float32) for name, step in changed.items()}), 5.0)
    return round


def values(layers: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    return {name: array.tolist() for name, array in layers.items()}


@pytest.mark.parametrize(("packed", "layout"), [(True, LAYOUT), (False, LAYOUT), (False, None)])
def test_a_layer_wise_strategy_reads_and_returns_layers_whatever_the_models_form(
    packed: bool, layout: Layout | None
) -> None:
    round = a_round(packed, layout)
    assert values(round.layers()) == values(SENT)
    model = LayerWise().update(round)
    assert list(model) == list(round.model)
    # The body's norm is 5, its step 2 to the right of row one; the head's norm is sqrt(5), its step 3 down.
    assert round.layers(model)["body.weight"] == pytest.approx(np.array([[3.0, 5.0], [0.0, 4.0]]))
    assert round.layers(model)["head.bias"] == pytest.approx(np.array([1.0, 2.0 - 5.0**0.5]))


@pytest.mark.parametrize(("packed", "layout"), [(True, LAYOUT), (False, None)])
def test_layers_are_views_of_the_model_and_cannot_be_written(packed: bool, layout: Layout | None) -> None:
    round = a_round(packed, layout)
    layer = round.layers()["body.weight"]
    with pytest.raises(ValueError, match="read-only"):
        layer[0] = 1.0
    array = next(iter(round.model.values()))
    assert np.shares_memory(layer, np.frombuffer(memoryview(array.data), np.uint8))


@pytest.mark.parametrize("layout", [LAYOUT, None])
def test_layers_of_another_model_are_refused(layout: Layout | None) -> None:
    round = a_round(False, layout)
    for wrong in (
        {"body.weight": SENT["body.weight"]},
        SENT | {"head.bias": np.zeros(3, np.float32)},
        SENT | {"head.bias": np.zeros(2)},
    ):
        with pytest.raises(ValueError, match="does not match the run's layout"):
            round.model_of(wrong)


def test_a_packed_model_without_a_layout_is_one_layer() -> None:
    model = LAYOUT.pack(SENT)
    assert list(Round(model, Members(), RoundRecord(1)).layers()) == ["flat"]
    assert values(Round(array_record(SENT), Members(), RoundRecord(1)).layers()) == values(SENT)
