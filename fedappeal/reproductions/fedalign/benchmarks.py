"""FedALIGN, figure 1: image data in shards of one label, 2 priority clients of 60."""

from fedappeal.reproductions.fedalign import settings as fedalign
from fedappeal.studies.experiment import Experiment, Quick
from fedappeal.studies.pictures import curves, forest

_FEWEST = (fedalign.PRIORITY_ONLY, fedalign.ALL, fedalign.FEDALIGN)
_FEW = (fedalign.PRIORITY_ONLY, fedalign.ALL, fedalign.ALL_LATER, fedalign.FEDALIGN)
_ALL_ARMS = (*_FEW, fedalign.TO_ZERO, fedalign.ON_LOSS)
_SHARDS = {"clients": 60, "fedalign.priority-clients": 2, "partition": "shards", "shards-per-client": 2}
_MLP = {"model": "mlp"}
_CNN = {"model": "cnn", "learning-rate": 0.01}
_SCARCE = {"max-train-examples": 100}

_FMNIST = fedalign.Setting("Fashion-MNIST, logistic regression", "", {}, _ALL_ARMS)
_PANELS = (
    _FMNIST,
    fedalign.Setting("Fashion-MNIST, 100 training examples a client", "100 examples", _SCARCE, _ALL_ARMS),
    fedalign.Setting("EMNIST balanced, two layers", "EMNIST", {**_MLP, "task": "emnist-balanced"}, _FEW),
    fedalign.Setting("Fashion-MNIST in EMNIST's place, two layers", "two layers", _MLP, _FEW),
    fedalign.Setting("CIFAR-10, CNN", "CIFAR-10", {**_CNN, "task": "cifar10"}, _FEW),
    fedalign.Setting(
        "Fashion-MNIST in CIFAR-10's place, CNN, 50 training examples a client, 100 rounds",
        "CNN",
        {**_CNN, "max-train-examples": 50, "rounds": 100, "evaluate-every": 10},
        _FEWEST,
    ),
)

_NOTES = """\
- The paper prints curves alone. Accuracy is on the two priority clients' test data.
- Two shards of one label a client, 700 rows to train on. The models' shapes are ours.
- `FedALIGN` compares 1 - accuracy with epsilon, 0.2; `on the loss` losses (Algorithm 1); `epsilon to 0` lowers it.
  `all, after warm-up` reads the caption literally.
"""

EXPERIMENTS = (
    Experiment(
        name="fedalign-figure1",
        title="FedALIGN: benchmark data in shards, 2 priority clients of 60",
        source="FedALIGN, figure 1",
        claim="After the warm-up FedALIGN converges faster than FedAvg over the priority clients, and it ends with a "
        "higher accuracy; FedAvg over all clients is far worse.",
        settings={**fedalign.SETTINGS, **_SHARDS, "task": "fmnist", "model": "logistic"},
        arms=tuple(row for panel in _PANELS for row in panel.rows()),
        measures=fedalign.MEASURES,
        quick=Quick(
            {"rounds": 12, "clients": 12, "max-train-examples": 50, "local-epochs": 2},
            tuple(_FMNIST.named(arm) for arm in _FEWEST),
        ),
        claims=tuple(claim for panel in _PANELS for claim in panel.claims()),
        figure=curves((("priority_accuracy", "test accuracy %", True),), tuple(fedalign.HOW)),
        glances={"-gaps": forest},
        notes=_NOTES,
    ),
)
