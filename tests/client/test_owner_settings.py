"""What an owner decides and a message cannot: which code may run, and what a reply may say."""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict

import client.app
import client.registry
from client.loaded import data_of, task_of
from client.models import arrays_of
from fedappeal.protocol import keys
from fedappeal.protocol.config import ConfigError, RunConfig, Scalar
from fedappeal.protocol.packing import Layout
from fedappeal.tasks import load_task

pytestmark = pytest.mark.usefixtures("fresh")

MODULE = "an_owners_task"
CODE = """
import torch
from fedappeal.tasks.task import ClientData, Split, Task

class Line(Task):
    input_shape = (1,)
    num_classes = 2
    def initial_model(self, seed):
        return torch.nn.Linear(1, 2)
    def load(self, client):
        split = Split(torch.tensor([[0.0], [1.0]]), torch.tensor([0, 1]))
        return ClientData(split, split)
"""
OWN = RunConfig(task=f"{MODULE}:Line", clients=2, warmup_steps=1, local_steps=1)
ZERO = {"weight": np.zeros((2, 1), np.float32), "bias": np.zeros(2, np.float32)}
DIGITS = RunConfig(clients=4, requirement="fixed", local_steps=1)
INITIAL = arrays_of(load_task(DIGITS.task_settings()).initial_model(0))


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A module that can be imported from the current folder, and has not been."""
    (tmp_path / f"{MODULE}.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    sys.modules.pop(MODULE, None)
    task_of.cache_clear()
    data_of.cache_clear()
    yield
    sys.modules.pop(MODULE, None)


def ask(kind: str, config: RunConfig, arrays: ArrayRecord, told: dict[str, Scalar], **node: Scalar) -> RecordDict:
    settings: dict[str, Scalar] = {"partition-id": 0, "device": "cpu", **node}
    context = Context(7, 3, settings, RecordDict(), config.as_config())
    sent = ConfigRecord({keys.RUN_KEY: "k", keys.SERVER_ROUND: 1, keys.MANDATORY: 1, **told})
    content = RecordDict({keys.ARRAYS: arrays, keys.CONFIG: sent})
    return client.app.app(Message(content, 3, kind), context).content


def ask_own(kind: str, **node: Scalar) -> RecordDict:
    return ask(kind, OWN, Layout.of(ZERO).pack(ZERO), {}, **node)


@pytest.mark.parametrize("named", ["", "digits", f"{MODULE}:Circle", MODULE])
@pytest.mark.parametrize("kind", ["query", "train", "evaluate"])
def test_a_task_of_ones_own_that_the_owner_has_not_named_is_not_imported(kind: str, named: str) -> None:
    with pytest.raises(ConfigError) as error:
        ask_own(kind, task=named)
    assert str(error.value) == (
        f"task = '{MODULE}:Line' is not allowed: this client's owner has not named it (--task '{named}')"
    )
    assert MODULE not in sys.modules


@pytest.mark.parametrize("node", [{"task": f"{MODULE}:Line"}, {"task": "any"}, {}])
def test_a_task_of_ones_own_that_the_owner_allows_runs(node: dict[str, Scalar]) -> None:
    content = ask_own("query", **node)
    assert content.config_records[keys.INFO][keys.TASK] == f"{MODULE}:Line"
    assert content.metric_records[keys.METRICS][keys.NUM_EXAMPLES] == 2
    assert MODULE in sys.modules


def digits(
    kind: str, config: RunConfig = DIGITS, told: dict[str, Scalar] | None = None, **node: Scalar
) -> RecordDict:
    return ask(kind, config, Layout.of(INITIAL).pack(INITIAL), told or {}, **node)


@pytest.mark.parametrize("named", ["", "any", "digits", "another.module:task"])
def test_fedappeals_own_tasks_need_no_name(named: str) -> None:
    assert digits("query", task=named).config_records[keys.INFO][keys.TASK] == "digits"


@pytest.mark.parametrize("by", ["owner", "run"])
def test_a_client_that_reports_no_loss_declines_a_run_that_needs_losses(by: str) -> None:
    node: dict[str, Scalar] = {"report-loss": False} if by == "owner" else {}
    config = DIGITS if by == "owner" else DIGITS.model_copy(update={"report_loss": False})
    line = "report-loss = False is not allowed in this run: its strategy needs the"
    with pytest.raises(ConfigError, match=line) as error:
        digits("query", config, {keys.NEEDS_LOSS: 1}, **node)
    assert "\n" not in str(error.value)
    with pytest.raises(ConfigError, match=line):
        digits("train", config, {keys.REPORT: keys.LOSS}, **node)
    assert keys.INFO in digits("query", config, {keys.NEEDS_LOSS: 0}, **node)
    assert keys.INFO in digits("query", DIGITS, {keys.NEEDS_LOSS: 1})


def test_what_a_joined_reply_is_asked_to_report_besides() -> None:
    plain = digits("train").metric_records[keys.METRICS]
    assert set(plain) == {keys.NUM_EXAMPLES, keys.DECISION}
    asked = f"{keys.LOSS},{keys.SATISFIED},{keys.PRIORITY}"
    told = digits("train", told={keys.REPORT: asked}).metric_records[keys.METRICS]
    measured = digits("evaluate", told={keys.SPLIT: keys.TRAIN_SPLIT}).metric_records[keys.METRICS]
    assert told[keys.LOSS] == measured[keys.LOSS]
    # Ten classes: the loss of a fresh model is near ln 10 = 2.3, above the fixed requirement of 1.
    assert 1.5 < told[keys.LOSS] < 4  # type: ignore[operator]
    assert told[keys.SATISFIED] == 0
    assert told[keys.PRIORITY] == 1, "by default the first half of the clients ask for priority"
    easy = DIGITS.model_copy(update={"fixed_requirement": 9.0})
    assert digits("train", easy, {keys.REPORT: keys.SATISFIED}).metric_records[keys.METRICS][keys.SATISFIED] == 1
    with pytest.raises(ValueError, match="report = 'rho' is not known to this client"):
        digits("train", told={keys.REPORT: "rho"})


@pytest.mark.parametrize(
    ("asks", "granted", "told"), [(True, 0, 0), (False, 1, 1), (True, None, 1), (False, None, 0)]
)
def test_the_servers_word_on_priority_goes_before_the_clients(asks: bool, granted: int | None, told: int) -> None:
    sent: dict[str, Scalar] = {keys.REPORT: keys.PRIORITY} | ({} if granted is None else {keys.PRIORITY: granted})
    content = digits("train", DIGITS, sent, **{"partition-id": 3, "priority": asks})
    assert content.metric_records[keys.METRICS][keys.PRIORITY] == told


def test_the_owners_name_for_a_client_is_its_id() -> None:
    assert digits("query", **{"client-id": "anna"}).config_records[keys.INFO][keys.CLIENT_ID] == "anna"
