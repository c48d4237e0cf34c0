"""Promise: a name in a message, a bundle, a run's folder or a model's card calls nothing that is no plug-in.

The attacker names functions of fedappeal's own, or of a package that the owner allows; each is a trap here.
"""

import importlib
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedappeal
from client.data.own_function import find_function
from client.named import check_plugins
from client.settings import NodeSettings
from fedappeal.cli.option_groups import ResumeOptions
from fedappeal.cli.start import resume_run
from fedappeal.core import plugins
from fedappeal.core.plugins import ALL, Allowed
from fedappeal.core.registry import LOCAL_RULES, POLICIES, REQUIREMENTS, STRATEGIES
from fedappeal.data.columns import Unfit
from fedappeal.protocol import keys
from fedappeal.record.lines import CONFIG
from fedappeal.runs.checks import check_allowed, check_clients_take
from fedappeal.runs.plan import RunPlan
from fedappeal.settings.config import ConfigError, RunConfig
from fedappeal.system.files import CARD, write_safetensors
from fedappeal.tasks import MODELS, TASKS, load_task
from fedappeal.trained import load_model
from fedappeal.views.report.report import write_report
from fedappeal.views.tracking.tracker import TRACKERS
from tests.node import Node, run_config
from tests.plugin_folder import CODE, IMPORTED, write_module
from tests.trained.models import write_model

PACKAGE = "allowed_package"
REGISTRIES = (STRATEGIES, LOCAL_RULES, POLICIES, REQUIREMENTS, TASKS, MODELS, TRACKERS)
OURS = (
    "fedappeal.cli.client:pause",
    "fedappeal.cli.client:reset",
    "fedappeal.cli.main:main",
    "fedappeal.cli.commands:app",
    "fedappeal.__main__:main",
    "client.app:log.root.handlers.clear",
    "client.app:app",
    "client.process.owner:reset",
    "client.page.__main__:main",
    "client.state.store:DiskStore",
    "client.process.fork_server:main",
    "server.app:main",
    "fedappeal.containers:main",
    "fedappeal.flower.superlink.superlink_process:main",
    "fedappeal.system.files:replace_file",
    "fedappeal.tasks:load_task",
    "fedappeal.tasks.models:nn.Module.__subclasses__",
    "fedappeal.tasks.models:make_module",
    "fedappeal.hf:__getattr__",
    "fedappeal.hf.models:nn.Linear",
    "fedappeal.reproductions:reproduce",
    "fedappeal:simulate",
    "strategies.scaffold:np.save",
)
OF_THE_PACKAGE = (
    "{}:clear",  # a list's method
    "{}:log",
    "{}:system",  # of another package
    "{}:pause",  # of fedappeal's
    "{}:Holder",  # a class, but of no kind
    "{}:Holder.walk",
    "{}:torch.nn.Linear",
    "{}:partly",
    "{}:model",  # an object
    "{}:__getattr__",
    "{}:__loader__",
    "{}.__main__:main",
)
NOT_ALLOWED = (
    "os:system",
    "builtins:exec",
    "__main__:main",
    "torchvision.io:write_file",
    "transformers.pipelines:pipeline",
)
LIBRARIES = ("torchvision:io.write_file", "torchvision:__init__", "torchvision:resnet18.x", "transformers:pipeline")
TRAP = """
import functools, logging, os, torch
from os import system
from fedappeal.cli.client import pause
log = logging.getLogger("trap")
clear = [].clear
class Holder:
    def __init__(self, *given): open("called", "w").close()
    walk = __init__
def make(num_classes): return torch.nn.Linear(64, num_classes)
def line(settings, data_dir): return Line(settings, data_dir)
partly = functools.partial(make, num_classes=3)
model = torch.nn.Linear(1, 1)
def __getattr__(name): open("called", "w").close(); raise AttributeError(name)
"""
HOSTILE = (*OURS, *NOT_ALLOWED, *(name.format(PACKAGE) for name in OF_THE_PACKAGE))
PLACES = {path.partition(":")[0] for registry in REGISTRIES for path in registry.built_in.values()}
PLACES |= {place for registry in REGISTRIES for place in registry.places}
"""Modules that hold plug-ins."""
BASE = {"clients": 2, "rounds": 1, "local-steps": 1, "task": "digits", "strategy": "fedavg", "solo.steps": 1}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with an allowed package; what fedappeal imports because of a name is noted in `imported`."""
    write_module(tmp_path, PACKAGE, CODE + TRAP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for trap in ("fedappeal.cli.client.pause", "fedappeal.cli.client.reset", "fedappeal.system.files.replace_file"):
        monkeypatch.setattr(trap, lambda *given, **named: pytest.fail("called"))
    yield tmp_path
    sys.modules.pop(PACKAGE, None)
    assert not (tmp_path / "called").exists()


@pytest.fixture
def imported(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    names: list[str] = []
    load = importlib.import_module

    def noted(name: str, package: str | None = None) -> object:
        names.append(name)
        return load(name, package)

    monkeypatch.setattr(importlib, "import_module", noted)
    return names


def of_bundle(setting: str, name: str) -> object:
    """Answer a roll call of a run whose settings, in its bundle, hold the name."""
    node = Node(run_config(task="digits", clients=4), allow=PACKAGE)
    node.layout, node.context.run_config = node.layout, {**node.context.run_config, setting: name}
    return node("query")


def of_train(key: str, name: str) -> object:
    """Answer a TRAIN that holds the name, of a run whose settings name no strategy."""
    node = Node(run_config(task="digits", clients=4, local_steps=1, requirement="fixed"), allow=PACKAGE)
    return node("train", told={key: name}, mandatory=1)


def of_card(setting: str, name: str) -> object:
    """Open a model whose card holds the name."""
    arrays: dict[str, Any] = {"weight": np.ones((2, 1), np.float32)}
    path = Path("model.safetensors")
    card = write_model(path, arrays)
    changes = {"task": name} if setting == "task" else {"settings": {**card.settings, setting: name}}
    write_safetensors(path, arrays, {CARD: card.model_copy(update=changes).to_json()})
    return load_model(path, allow=[PACKAGE])


def of_folder(setting: str, name: str) -> None:
    """Check whether a run may be resumed whose settings hold the name."""
    check_allowed(RunConfig.parse({"strategy": "fedavg", setting: name}), Path("run"), [PACKAGE])


PLUGINS = ("model", "task", "strategy", "local-rule", "requirement", "participation")
CHANNELS = [
    *((of_bundle, setting) for setting in PLUGINS),
    *((of_train, key) for key in (keys.STRATEGY, keys.LOCAL_RULE)),
    *((of_card, setting) for setting in ("model", "task")),
    *((of_folder, setting) for setting in PLUGINS),
]


@pytest.mark.parametrize(("answer", "setting"), CHANNELS, ids=lambda part: getattr(part, "__name__", part))
def test_a_hostile_name_is_refused_by_every_channel(
    answer: Callable[[str, str], object], setting: str, imported: list[str]
) -> None:
    for name in HOSTILE:
        with pytest.raises(ConfigError) as refused:
            answer(setting, name)
        assert "\n" not in str(refused.value)
        module = name.partition(":")[0]
        assert module in {PACKAGE, *PLACES} or module not in imported, name


@pytest.mark.parametrize("registry", REGISTRIES, ids=lambda registry: registry.kind)
def test_a_hostile_name_of_each_kind_is_refused_in_one_place(registry: plugins.Registry[object]) -> None:
    for name in HOSTILE:
        for by_call in (False, True):
            with pytest.raises(ConfigError, match="is not allowed"):
                registry.maker(name, Allowed.of([PACKAGE, "."], by_call))
        with pytest.raises(ConfigError):
            check_plugins(f"{registry.kind}\t{name}\tx", Allowed.of([PACKAGE]))


def test_of_a_library_only_models_are_named(imported: list[str]) -> None:
    for name in LIBRARIES:
        for answer in (of_bundle, of_card):
            with pytest.raises(ConfigError, match=f"model = '{re.escape(name)}' is not allowed"):
                answer("model", name)
    assert not {"torchvision.io", "transformers.pipelines"} & set(imported)


def test_what_only_reads_a_run_calls_nothing(imported: list[str]) -> None:
    named: Any = {key.replace("-", "_"): value for key, value in BASE.items() if "." not in key}
    fedappeal.simulate(out="run", quiet=True, **named)
    for setting, name in (("model", OURS[0]), ("task", f"{PACKAGE}:Line")):
        record = json.loads(Path("run", CONFIG).read_text())
        record["settings"][setting] = name
        Path("run", CONFIG).write_text(json.dumps(record))
    write_report([Path("run")])
    record["settings"]["task"] = "digits"
    Path("run", CONFIG).write_text(json.dumps(record))
    for resume in (fedappeal.load("run").resume, lambda **more: resume_run(Path("run"), ResumeOptions(**more))):
        with pytest.raises(ConfigError, match=f"^model = '{OURS[0]}' is not allowed"):
            resume(rounds=2)
    assert not {"fedappeal.cli.client", PACKAGE} & set(imported)
    assert not Path(IMPORTED).exists()


@pytest.mark.parametrize(
    ("setting", "name"),
    [
        ("model", "logistic"),
        ("model", "torchvision:squeezenet1_1"),
        ("model", f"{PACKAGE}:Net"),
        ("model", f"{PACKAGE}:make"),
        ("task", f"{PACKAGE}:Line"),
        ("task", f"{PACKAGE}:line"),
        ("task", "fedappeal.tasks.datasets.synth:Synth"),
        ("strategy", f"{PACKAGE}:Mean"),
        ("strategy", "strategies.fedavg:FedAvg"),
        ("local-rule", f"{PACKAGE}:Step"),
        ("requirement", f"{PACKAGE}:Nothing"),
        ("participation", f"{PACKAGE}:Willing"),
    ],
)
def test_a_plug_in_is_called_where_its_package_is_allowed(setting: str, name: str) -> None:
    config = RunConfig.parse({**BASE, "requirement": "fixed", setting: name})
    assert keys.INFO in Node(config, allow=PACKAGE)("query")


def test_tasks_of_ours_outside_of_the_registry_may_be_named() -> None:
    for name in ("fedappeal.hf:TextClassification", "fedappeal.reproductions.adagd.task:KeptShare"):
        assert issubclass(TASKS.load(name, Allowed.of([])), TASKS.base_class)


def test_users_name_what_they_like_and_hear_what_clients_will_refuse() -> None:
    """Of what they type themselves no permission is asked."""
    for name in ("partly", "make", "Net"):
        assert callable(MODELS.maker(f"{PACKAGE}:{name}", ALL))
    assert load_task(RunConfig.parse({**BASE, "model": f"{PACKAGE}:partly"}).task_settings()).initial_model(0)
    with pytest.raises(Unfit, match="not callable"):
        find_function(f"{PACKAGE}:log")
    assert NodeSettings.parse({"partition-id": 0}).allowed == ALL  # a stock SuperNode runs whatever it is sent
    check_clients_take(RunPlan.of(RunConfig.parse({**BASE, "model": f"{PACKAGE}:Net"}), Path("run")))
    with pytest.raises(ConfigError, match=f"{PACKAGE}:partly' is not allowed: it is no subclass of .*Module, nor a"):
        check_clients_take(RunPlan.of(RunConfig.parse({**BASE, "model": f"{PACKAGE}:partly"}), Path("run")))
