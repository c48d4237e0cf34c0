"""Plug-ins that a test writes into a folder: a plain module, or an installed distribution with entry points."""

import sys
from pathlib import Path

IMPORTED = "imported"
"""The file that the code makes in the current folder when it is imported."""

CODE = f'''
import pathlib
import torch
from fedappeal.core.policy import Policy
from fedappeal.core.requirement import Requirement, RequirementKind
from client.training.sgd import SGD
from fedappeal.protocol.keys import Decision
from fedappeal.tasks.examples import ClientData, Split
from fedappeal.tasks.task import Task
from strategies import FedAvg

pathlib.Path("{IMPORTED}").touch()

class Mean(FedAvg):
    """FedAvg under another name."""

class Willing(Policy):
    """Joins."""
    needs_loss = False
    def decide(self, situation):
        return Decision.JOINED

class Step(SGD):
    """SGD under another name."""

class Nothing(RequirementKind):
    """No requirement: any loss will do."""
    def make(self, client):
        return Requirement(1e9)

class Net(torch.nn.Linear):
    """A model of images of 8 x 8 pixels."""
    def __init__(self, num_classes):
        super().__init__(64, num_classes)
    def forward(self, x):
        return super().forward(x.flatten(1))

class Line(Task):
    """Two points on a line."""
    input_shape = (1,)
    num_classes = 2
    def initial_model(self, seed):
        return torch.nn.Linear(1, 2)
    def load(self, client):
        split = Split(torch.tensor([[0.0], [1.0]]), torch.tensor([0, 1]))
        return ClientData(split, split)
'''


def write_module(folder: Path, name: str, code: str = CODE) -> None:
    """Write a module that has not been imported."""
    (folder / f"{name}.py").write_text(code)
    sys.modules.pop(name, None)


def write_distribution(folder: Path, name: str, version: str, module: str, entry_points: str) -> None:
    """Write what pip leaves of an installed distribution with one module."""
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "top_level.txt").write_text(f"{module}\n")
    (info / "entry_points.txt").write_text(entry_points)
