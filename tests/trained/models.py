"""Files of trained models, as a run would leave them."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedappeal.settings.config import RunConfig, Scalar
from fedappeal.system.files import CARD, write_safetensors
from fedappeal.tasks import load_task
from fedappeal.trained.card import ModelCard

MINE = """
import torch
from fedappeal.tasks.examples import ClientData
from fedappeal.tasks.models import seeded
from fedappeal.tasks.task import Task


class Moons(Task):
    input_shape = (2,)
    num_classes = 2
    class_names = ("north", "south")

    def initial_model(self, seed: int) -> torch.nn.Module:
        with seeded(seed):
            return torch.nn.Linear(2, 2)

    def load(self, client: int) -> ClientData:
        raise AssertionError("no data is needed to predict")

    def inputs(self, raw):
        return torch.from_numpy(raw.astype("float32"))
"""


def initial(config: RunConfig) -> dict[str, NDArray[np.generic]]:
    model = load_task(config.task_settings()).initial_model(config.seed)
    return {name: tensor.numpy().copy() for name, tensor in model.state_dict().items()}


def write_model(
    path: Path, arrays: dict[str, NDArray[np.generic]], settings: dict[str, Scalar] | None = None, **fields: Any
) -> ModelCard:
    """Write a model's file with its card; further fields replace the card's."""
    config = RunConfig.parse(settings or {})
    told = {"round": 3, "run_key": "k", "figures": {"accuracy": 0.5}, "measured_on": "test data of 2 clients"}
    card = ModelCard.of(load_task(config.task_settings()), config, **told).model_copy(update=fields)
    write_safetensors(path, arrays, {"round": 3, CARD: card.to_json()})
    return card
