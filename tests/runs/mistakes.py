"""Typical mistakes of a plug-in's author: the code, in which HERE marks the line that is named, and what is said."""

HEAD = """
import copy, random
import numpy as np
import torch
from pydantic import Field
from client.training.sgd import SGD
from fedappeal.core.plugins import PluginSettings
from fedappeal.core.policy import Policy
from fedappeal.core.requirement import RequirementKind
from fedappeal.protocol.keys import Decision
from fedappeal.tasks.task import ClientData, Split, Task
from strategies import FedAvg
"""
MISTAKES = {
    "a forgotten return": (
        """
        class X(FedAvg):
            def update(self, round):  # HERE
                super().update(round)
        """,
        r"returned None \(a forgotten return\?\) as the next model: .* KEEP_MODEL",
    ),
    "carried() without a return": (
        """
        class X(FedAvg):
            def carried(self):  # HERE
                self.steps = {"steps": {"count": 3}}
        """,
        r"strategy \S+ returned None from carried\(\): a dict is allowed",
    ),
    "a misspelt attribute": (
        """
        class X(FedAvg):
            def update(self, round):
                return round.modle  # HERE
        """,
        "AttributeError: 'Round' object has no attribute 'modle'",
    ),
    "NaN in the model": (
        """
        class X(FedAvg):
            def update(self, round):  # HERE
                return round.model_of({n: w * np.nan for n, w in round.layers().items()})
        """,
        "the new model holds NaN or inf",
    ),
    "a wrong shape": (
        """
        class X(FedAvg):
            def update(self, round):
                return round.model_of({n: w[None] for n, w in round.layers().items()})  # HERE
        """,
        r"ValueError: layer '.*' of shape \(1, ",
    ),
    "a wrong dtype": (
        """
        class X(FedAvg):
            def update(self, round):
                return round.model_of({n: w.astype(np.float64) for n, w in round.layers().items()})  # HERE
        """,
        "ValueError: layer '.*' of .* dtype float64 does not match .* float32",
    ),
    "layers in place of a model": (
        """
        class X(FedAvg):
            def update(self, round):  # HERE
                return round.layers(super().update(round))
        """,
        "returned {.* as the next model: one like round.model",
    ),
    "arrays by name, which deployed runs pack": (
        """
        class X(FedAvg):
            def update(self, round):
                round.model["fc1.weight"]  # HERE
                return super().update(round)
        """,
        "KeyError: 'fc1.weight'",
    ),
    "no super().__init__": (
        """
        class X(FedAvg):
            def __init__(self, **settings):  # HERE
                self.m = {}
        """,
        r"__init__ does not call super\(\).__init__",
    ),
    "an __init__ without settings": (
        """
        class X(FedAvg):
            def __init__(self):  # HERE
                super().__init__()
        """,
        "X cannot be made: TypeError: .*unexpected keyword",
    ),
    "Settings that are a dict": (
        """
        class X(FedAvg):
            Settings = {}
        """,
        "Settings = {} is not allowed: a class derived from PluginSettings",
    ),
    "a setting without a default": (
        """
        class X(Policy):
            class Settings(PluginSettings):
                share: float
            def decide(self, situation):
                return Decision.JOINED
        """,
        "setting 'share' has no default",
    ),
    "a state that is not carried": (
        """
        class X(FedAvg):
            def __init__(self, **settings):
                super().__init__(**settings)
                self.rounds = 0
            def update(self, round):  # HERE
                self.rounds += 1
                return round.model_of({n: w + self.rounds for n, w in round.layers().items()})
        """,
        r"ends in another model: .* carried\(\)",
    ),
    "a state that no checkpoint holds": (
        """
        class X(FedAvg):
            def carried(self):  # HERE
                return {"x": {"rounds": object()}}
        """,
        r"carried\(\)\['x'\] = \{'rounds': <object .* is not allowed: a dict of numbers",
    ),
    "a state that is no dict of dicts": (
        """
        class X(FedAvg):
            def carried(self):  # HERE
                return {"count": 0}
        """,
        r"carried\(\)\['count'\] = 0 is not allowed: a dict of numbers",
    ),
    "a model of another size": (
        """
        class X(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(63, 10)
            def forward(self, x):
                return self.layer(x.flatten(1))  # HERE
        """,
        r"calling the model failed: RuntimeError: .*mat1 and mat2 .* \(x is float32 \(1, 8, 8\) an example\)",
    ),
    "a model with too few outputs": (
        """
        class X(torch.nn.Sequential):
            def __init__(self, input_shape):  # HERE
                super().__init__(torch.nn.Flatten(), torch.nn.Linear(64, 9))
        """,
        r"model is not allowed: it has 9 outputs, the labels are 0 to 9 \(mine",
    ),
    "a model that is called with more": (
        """
        class X(torch.nn.Module):
            def __init__(self, width): ...
        """,
        r"model = .* failed: TypeError: .*'width'.* called with input_shape and num_classes, where it takes them",
    ),
    "a weight below 0": (
        """
        class X(FedAvg):
            def weight(self, reply):  # HERE
                return -1.0
        """,
        "weight = -1.0 is not allowed",
    ),
    "a report of NaN": (
        """
        class X(FedAvg):
            def report(self, measured):  # HERE
                return {"mine": float("nan")}
        """,
        "mine = nan is not a finite number",
    ),
    "a policy that returns a bool": (
        """
        class X(Policy):
            def decide(self, situation):  # HERE
                return situation.met
        """,
        "policy X returned (True|False): Decision.JOINED, SAT_OUT or LEFT is allowed",
    ),
    "a policy that raises": (
        """
        class X(Policy):
            def decide(self, situation):
                return situation.losses  # HERE
        """,
        "AttributeError: 'Situation' object has no attribute 'losses'",
    ),
    "a memory in self": (
        """
        class X(Policy):
            rounds = 0
            def decide(self, situation):  # HERE
                self.rounds += 1
                return Decision.JOINED if self.rounds < 3 else Decision.SAT_OUT
        """,
        "situation.history",
    ),
    "a draw without the seed": (
        """
        class X(SGD):
            def train(self, model, problem):  # HERE
                with torch.no_grad():
                    next(model.parameters()).fill_(random.random())
        """,
        "two runs of one seed end in two models",
    ),
    "a rule that ends in NaN": (
        """
        class X(SGD):
            def train(self, model, problem):  # HERE
                with torch.no_grad():
                    next(model.parameters()).fill_(torch.nan)
        """,
        "not finite",
    ),
    "a requirement that is a number": (
        """
        class X(RequirementKind):
            def make(self, client):  # HERE
                return 1.0
        """,
        "returned 1.0",
    ),
    "a loss an example": (
        """
        class X(Task):
            input_shape, num_classes = (1,), 2
            def initial_model(self, seed):
                return torch.nn.Linear(1, 2)
            def load(self, client):
                split = Split(torch.tensor([[0.0], [1.0]]), torch.tensor([0, 1]))
                return ClientData(split, split)
            def loss(self, outputs, y, reduction="mean"):  # HERE
                return torch.nn.functional.cross_entropy(outputs, y, reduction="none")
        """,
        r"loss is not allowed: it returned a tensor of shape \(2,\)",
    ),
    "a weight without a return": (
        """
        class X(FedAvg):
            def weight(self, reply):  # HERE
                reply.num_examples
        """,
        "weight = None is not allowed: a finite number",
    ),
    "no weight for any client": (
        """
        class X(FedAvg):
            def weight(self, reply):  # HERE
                return 0
        """,
        "the model is still the initial one after 3 rounds",
    ),
    "a strategy that ends Python": (
        """
        class X(FedAvg):
            def update(self, round):
                raise SystemExit("enough")  # HERE
        """,
        "SystemExit: enough",
    ),
    "a default of another type": (
        """
        class X(Policy):
            class Settings(PluginSettings):
                share: float = "half"
        """,
        "x.share = 'half' is not allowed: input should be a valid number",
    ),
    "a rule that trains a copy": (
        """
        class X(SGD):
            def train(self, model, problem):  # HERE
                super().train(copy.deepcopy(model), problem)
        """,
        "the model is still the initial one after 3 rounds",
    ),
    "a policy that returns a text": (
        """
        class X(Policy):
            def decide(self, situation):  # HERE
                return "joined"
        """,
        "policy X returned 'joined': Decision.JOINED",
    ),
    "a model that fails for one example": (
        """
        class X(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(64, 10)
            def forward(self, x):  # HERE
                return self.layer(x.flatten(1)).squeeze()
        """,
        r"in eval mode its outputs are float32 \(\) with one example, and float32 \(10,\) with 8 \(x is ",
    ),
    "a model that is not called": (
        "X = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))",
        "model = 'mine.*' is not allowed: Sequential; a class or a function is$",
    ),
    "a load without test data": (
        """
        class X(Task):
            input_shape, num_classes = (1,), 2
            def initial_model(self, seed):
                return torch.nn.Linear(1, 2)
            def load(self, client):
                return ClientData(Split(torch.tensor([[0.0], [1.0]]), torch.tensor([0, 1])))  # HERE
        """,
        "load of the task failed: TypeError: .* missing 1 required positional argument: 'test'",
    ),
    "a load without a return": (
        """
        class X(Task):
            input_shape, num_classes = (1,), 2
            def initial_model(self, seed):
                return torch.nn.Linear(1, 2)
            def load(self, client):  # HERE
                split = Split(torch.tensor([[0.0], [1.0]]), torch.tensor([0, 1]))
        """,
        "load of the task failed: AttributeError: 'NoneType'",
    ),
    "a load that asks the network": (
        """
        import urllib.request
        class X(Task):
            input_shape, num_classes = (1,), 2
            def initial_model(self, seed):
                return torch.nn.Linear(1, 2)
            def load(self, client):
                return urllib.request.urlopen("http://127.0.0.1:9/data.npz")  # HERE
        """,
        "load of the task failed: URLError",
    ),
    "an initial model without a return": (
        """
        class X(Task):
            input_shape, num_classes = (1,), 2
            def initial_model(self, seed):  # HERE
                torch.nn.Linear(1, 2)
            def load(self, client): ...
        """,
        "initial_model of the task failed: AttributeError: 'NoneType'",
    ),
    "more outputs than classes": (
        """
        class X(Task):
            input_shape, num_classes = (1,), 2
            def initial_model(self, seed):  # HERE
                return torch.nn.Linear(1, 3)
            def load(self, client):
                split = Split(torch.tensor([[0.0], [1.0]]), torch.tensor([0, 1]))
                return ClientData(split, split)
        """,
        "model is not allowed: it has 3 outputs, the labels are 0 to 1",
    ),
    "a task without load": (
        """
        class X(Task):
            def initial_model(self, seed): ...
        """,
        r"plug-in X lacks load \(mine\d+.py\)",
    ),
    "a task without super().__init__": (
        """
        class X(Task):
            def __init__(self, settings, data_dir=None):  # HERE
                self.users = 3
            def initial_model(self, seed): ...
            def load(self, client): ...
        """,
        r"plug-in X: __init__ does not call super\(\).__init__",
    ),
    "a misspelt class": ("class X_(FedAvg): ...", r"has no attribute 'X' \(did you mean 'X_'\?\)"),
    "an import that fails": ("import pandsa  # HERE", "cannot be imported: ModuleNotFoundError: .*'pandsa'"),
    "an import that ends Python": ("raise SystemExit(3)  # HERE", "cannot be imported: SystemExit: 3"),
    "a class without a base": (
        "class X: pass",
        "name = .* is not allowed: it is no subclass of .*RequirementKind, .*Task",
    ),
    "a syntax error": ("class X(FedAvg)\n    pass  # NO", r"SyntaxError: expected ':' \(mine\d+.py, line 13\)"),
}
