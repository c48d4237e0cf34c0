"""What stands in arrays and tensors, and models with layers of a special kind: right, or one line and no folder."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn

import fedappeal
from fedappeal.api.client_data import split_of
from fedappeal.settings.config import ConfigError
from tests.api.blobs import QUICK, Net, losses, pairs, side

X, Y = (part.numpy() for part in side(20, 0))
KINDS = ["uint8", "int8", "int16", "uint16", "int32", "uint32", "uint64", ">i8", "O"]
FORMS: dict[str, Callable[[Any], Any]] = {
    "read-only": lambda a: (a.setflags(write=False), a)[1],
    "every second": lambda a: np.repeat(a, 2, axis=0)[::2],
    "backwards": lambda a: a[::-1].copy()[::-1],
    "big-endian": lambda a: a.astype(a.dtype.newbyteorder(">")),
    "objects": lambda a: a.astype(object),
    "lists": lambda a: a.tolist(),
    "nothing masked": np.ma.masked_array,
    "pandas": lambda a: pd.DataFrame(a) if a.ndim == 2 else pd.Series(a),
    "needs a gradient": lambda a: torch.tensor(a, requires_grad=a.dtype.kind == "f"),
    "float64": lambda a: a.astype(np.float64) if a.dtype.kind == "f" else a,
    "long double": lambda a: a.astype(np.longdouble) if a.dtype.kind == "f" else a,
}


@pytest.mark.parametrize("form", FORMS)
def test_the_same_numbers_in_another_form_are_the_same_examples(form: str) -> None:
    with warnings.catch_warnings(action="error"):
        split = split_of((FORMS[form](X.copy()), FORMS[form](Y.copy())), "it")
    assert isinstance(split.x, Tensor)
    assert isinstance(split.y, Tensor)
    assert torch.equal(split.x, torch.tensor(X))
    assert torch.equal(split.y, torch.tensor(Y))
    assert not split.x.requires_grad


@pytest.mark.parametrize("kind", KINDS)
def test_labels_of_every_kind_of_whole_number_are_int64(kind: str) -> None:
    split = split_of((X, Y.astype(kind)), "it")
    assert isinstance(split.y, Tensor)
    assert split.y.dtype == torch.int64
    assert split.y.tolist() == Y.tolist()


def test_small_labels_train_side_by_side_as_one_by_one(tmp_path: Path) -> None:
    small = [((x, y.to(torch.uint8)), (t, u.to(torch.uint8))) for (x, y), (t, u) in pairs()]
    as_usual = losses(fedappeal.simulate("fedavg", model=Net, data=pairs(), out=tmp_path / "usual", **QUICK))
    for mode in ("batched", "sequential"):
        run = fedappeal.simulate("fedavg", model=Net, data=small, out=tmp_path / mode, mode=mode, **QUICK)
        assert losses(run) == pytest.approx(as_usual, rel=1e-5)


@pytest.mark.parametrize(
    ("x", "y", "said"),
    [
        (np.ma.masked_less(X, 0), Y, f"it has {(X < 0).sum()} masked values: fill them in, or drop"),
        (X, np.ma.masked_equal(Y, 1), f"it has {(Y == 1).sum()} masked values"),
        (X, np.array(["a", "b"])[Y], "it holds <U1, no numbers .texts of classes: numpy.unique"),
        (X, [1, "b"] * 10, "it holds <U"),
        (X, [None] * 20, "it holds object, no numbers"),
        ([[1.0] * (2 + k % 2) for k in range(20)], Y, "it holds no numbers"),
        (torch.empty(20, 6, device="meta"), Y, "it holds a tensor on the meta device, without values"),
        (torch.tensor(X).to_sparse(), Y, r"it holds a tensor of layout torch.sparse_coo: .to_dense\(\)"),
    ],
)
def test_what_holds_no_numbers_is_one_line(x: Any, y: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=f"^data is not allowed: {said}"):
        split_of((x, y), "it")


def test_labels_from_1_are_said() -> None:
    ones = [tuple((x, y + 1) for x, y in pair) for pair in pairs()]
    with pytest.warns(
        UserWarning, match=r"^labels are 1 to 2, of classes 0 to 2: no example is of class 0 \(y - 1\?\)"
    ):
        fedappeal.simulate("fedavg", model=lambda: Net(3), data=ones, **{**QUICK, "quiet": False})


def refused(tmp_path: Path, **given: Any) -> str:
    """Return why a run was refused, which left no folder."""
    with pytest.raises(ConfigError) as refusal:
        fedappeal.simulate("fedavg", **{"model": Net, "data": pairs(), "out": tmp_path / "run", **QUICK, **given})
    assert not (tmp_path / "run").exists()
    return str(refusal.value)


CENTRAL: dict[str, tuple[Any, str]] = {
    "another width": ((torch.zeros(5, 7), torch.zeros(5).long()), "RuntimeError: .* (x is float32 (7,)"),
    "label 7": ((torch.zeros(9, 6), torch.tensor([0] * 8 + [7])), "Target 7 is out of bounds"),
    "label 7 behind others": ((torch.zeros(99, 6), torch.tensor([0] * 98 + [7])), "Target 7 is out of bounds"),
    "label -1": ((torch.zeros(5, 6), torch.full((5,), -1)), "Target -1 is out of bounds"),
    "labels of floats": ((torch.zeros(5, 6), torch.zeros(5)), "but got Float"),
    "bfloat16": ((torch.zeros(5, 6).bfloat16(), torch.zeros(5).long()), "x is bfloat16 (6,)"),
    "no example": ((torch.zeros(0, 6), torch.zeros(0).long()), "the central test set has no examples"),
    "NaN": ((torch.full((5, 6), torch.nan), torch.zeros(5).long()), "the central test set x holds NaN"),
}


@pytest.mark.parametrize("wrong", CENTRAL)
def test_a_central_test_set_that_does_not_fit_is_refused_before_the_run(wrong: str, tmp_path: Path) -> None:
    test_set, said = CENTRAL[wrong]
    line = refused(tmp_path, evaluate=test_set)
    assert line.startswith("evaluate is not allowed: the central test set")
    for part in said.split(".* "):
        assert part in line


def test_a_label_that_an_own_loss_does_not_take_is_refused_at_whichever_client(tmp_path: Path) -> None:
    data = pairs()
    data[2][1][1][3] = 7
    line = refused(tmp_path, data=data, loss=nn.functional.cross_entropy)
    assert (
        line == "data is not allowed: the loss of client 2's label 7 failed: IndexError: Target 7 is out of bounds."
    )


@pytest.mark.parametrize("metric", [lambda outputs, y: 1 / 0, lambda outputs, y: "text", lambda outputs, y: None])
def test_a_metric_that_fails_is_refused_before_the_run(metric: Any, tmp_path: Path) -> None:
    assert refused(tmp_path, metrics=metric).startswith("model, data and loss do not fit: the metrics failed")


class HalfUsed(nn.Module):
    """Calls one of its two lazy layers."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.left = nn.LazyLinear(2), nn.LazyLinear(2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.used(x)
        return out


MODELS: dict[str, tuple[Any, str]] = {
    "legacy weight_norm": (
        lambda: nn.utils.weight_norm(nn.Linear(6, 2)),
        "cannot be copied: torch.nn.utils.parametrizations.weight_norm in place of torch.nn.utils.weight_norm",
    ),
    "a lazy object": (nn.LazyLinear(2), "this LazyLinear has lazy layers without weights: give what makes it"),
    "an unused lazy layer": (HalfUsed, "model = HalfUsed is not allowed: it calls not all of its lazy layers"),
    "a lazy layer of images": (lambda: nn.LazyConv2d(2, 9), "failed with the first examples"),
    "bfloat16": (lambda: nn.Linear(6, 2).bfloat16(), "its 'weight' is bfloat16, which does not travel"),
    "nothing to train": (nn.Identity, "it has no trainable parameter"),
}


@pytest.mark.parametrize("wrong", MODELS)
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_model_that_cannot_be_trained_is_refused_with_the_reason(wrong: str, tmp_path: Path) -> None:
    model, said = MODELS[wrong]
    assert said in refused(tmp_path, model=model)


@pytest.mark.parametrize("mode", ["batched", "sequential"])
def test_lazy_layers_are_the_layers_of_these_shapes(mode: str, tmp_path: Path) -> None:
    """The same draws in the same order, in every form and after a resumption."""

    def lazy() -> nn.Module:
        return nn.Sequential(nn.LazyLinear(5), nn.ReLU(), nn.LazyLinear(2))

    def whole() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2))

    runs = {
        name: fedappeal.simulate("fedavg", model=make, data=pairs(), mode=mode, out=tmp_path / name, **QUICK)
        for name, make in {"lazy": lazy, "whole": whole}.items()
    }
    again = fedappeal.load(tmp_path / "lazy", model=lazy, data=pairs(), quiet=True).resume(rounds=4)
    assert losses(again) == losses(runs["whole"].resume(rounds=4))


@pytest.mark.parametrize("norm", ["weight_norm", "spectral_norm"])
def test_reparametrised_layers_train_alike_in_both_forms(norm: str, tmp_path: Path) -> None:
    make = getattr(nn.utils.parametrizations, norm)
    trained = [
        losses(
            fedappeal.simulate(
                "fedavg", model=lambda: make(nn.Linear(6, 2)), data=pairs(), mode=mode, out=tmp_path / mode, **QUICK
            )
        )
        for mode in ("auto", "sequential")
    ]
    assert trained[0] == pytest.approx(trained[1], rel=1e-5)
    assert trained[0][-1] < trained[0][0]


def test_labels_too_large_to_be_classes_are_one_line(tmp_path: Path) -> None:
    data = [((x, y + 10**17), (tx, ty + 10**17)) for (x, y), (tx, ty) in pairs()]
    with pytest.raises(
        ConfigError, match=r"^data is not allowed: a label is 1\d{17}; labels are 0 to C-1, with C at"
    ):
        fedappeal.simulate("fedavg", model="logistic", data=data, out=tmp_path / "run", **QUICK)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("kind", "raw", "first"),
    [
        (torch.uint8, np.full((2, 6), 0.5), "0.5"),
        (torch.uint8, np.array([[1, 2, 3, -4, 5, 300]]), "-4"),
        (torch.int64, np.array([[1.0, 2.0, 2.5, 3.0, 4.0, 5.0]]), "2.5"),
        (torch.bool, np.array([[0, 1, 2, 0, 0, 0]]), "2"),
        (torch.float16, np.full((1, 6), 1e6), "1000000.0"),
    ],
)
def test_values_that_the_training_datas_type_does_not_have_are_refused(kind: Any, raw: Any, first: str) -> None:
    class Casting(Net):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.float())

    data = [tuple((x.clamp(0, 1).to(kind), y) for x, y in pair) for pair in pairs()]
    run = fedappeal.simulate("fedavg", model=Casting, data=data, **QUICK)
    with pytest.raises(ConfigError, match=f"{first} is no {str(kind)[6:]}, which the model was trained on$"):
        run.predict(raw)
    assert len(run.predict(np.ones((3, 6)))) == 3
