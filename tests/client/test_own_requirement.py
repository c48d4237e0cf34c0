"""What an owner keeps: a requirement of its own, and its losses to itself."""

import sys
from pathlib import Path

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.common.config import parse_config_args

import client.process.serve
from client.app import Clients, app_of
from client.process.status import describe
from client.requirement import Fixed, requirement_key
from client.roster import Participants
from client.settings import Connection, NodeSettings
from client.state.store import DiskStore
from client.training.models import arrays_of
from client.training.task_learner import TaskLearner, TaskLearners
from fedappeal.cli.main import main
from fedappeal.core.registry import STRATEGIES
from fedappeal.protocol import keys
from fedappeal.protocol.packing import Layout
from fedappeal.settings.config import ConfigError, RunConfig, Scalar
from fedappeal.tasks import load_task
from server.build import check_settings
from strategies import Hooks, RoundRecord
from strategies.maxfl import APPEAL_WEIGHT, appeal_weight
from tests.grid import Handler, MemoryGrid, time_of
from tests.node import Node, changed, participant_of, run_config

CONFIG = run_config(clients=3, model="logistic", solo__steps=5, local_steps=2, batch_size=16, min_clients=3)
INITIAL = arrays_of(load_task(CONFIG.task_settings()).initial_model(0))
LAYOUT = Layout.of(INITIAL)


def volunteer(config: RunConfig = CONFIG, **node: Scalar) -> Node:
    return Node(config, **{"partition-id": 0, **node})


def ask(one: Node, kind: str, **told: Scalar) -> dict[str, object]:
    return one.metrics(kind, **{"server_round": 1, "mandatory": 0, **told})


# -- a requirement of one's own --------------------------------------------------------------------------


@pytest.mark.parametrize("run", ["solo", "fixed"])
@pytest.mark.parametrize("own", [0.25, 7.5])
def test_the_owners_number_goes_before_the_runs_requirement(run: str, own: float, tmp_path: Path) -> None:
    config = changed(CONFIG, requirement=run, fixed__loss=4.0)
    one = volunteer(config, **{"fixed-requirement": own, "state-dir": str(tmp_path)})
    ask(one, "query")
    # Ten classes: the fresh model's loss is near ln 10 = 2.3, between the two numbers.
    loss = ask(one, "evaluate", split="train")[keys.LOSS]
    assert isinstance(loss, float)
    assert 0.25 < loss < 4
    told = ask(one, "train")
    assert told[keys.DECISION] == int(loss < own)
    told = ask(one, "train", mandatory=1)
    assert told[APPEAL_WEIGHT] == pytest.approx(appeal_weight(loss, own), rel=1e-6)
    measured = ask(one, "evaluate", split="test", final=1)
    assert measured[keys.APPEALED] == measured[keys.APPEALED_TRAIN] == int(loss < own)
    assert "preferred-accuracy" not in measured, "there is no solo model to prefer"
    lines = describe(tmp_path)
    assert [line for line in lines if line.startswith("requires")] == [
        f"requires   a loss below {own:.4f} (from a fixed number)"
    ]
    assert any(line.startswith("prefers    the global model") for line in lines)


def test_nothing_is_trained_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TaskLearner, "train", None)
    assert ask(volunteer(**{"fixed-requirement": 1.5}), "query")[keys.NUM_EXAMPLES]


def test_it_can_be_changed_and_taken_back(tmp_path: Path) -> None:
    def requires(**node: Scalar) -> float:
        participant = participant_of(CONFIG, NodeSettings.parse({"partition-id": 0, "device": "cpu", **node}), store)
        begun = participant.begin_run("k", INITIAL)
        assert participant.requirement("k").rho == begun.rho
        return begun.rho

    store = DiskStore(tmp_path / "other")
    solo = requires()
    store = DiskStore(tmp_path / "own")
    assert requires(**{"fixed-requirement": 0.5}) == 0.5
    assert requires(**{"fixed-requirement": 0.75}) == 0.75
    assert requires() == solo
    # Without another roll call (the same node came back within the run), it holds at once.
    now = NodeSettings.parse({"partition-id": 0, "device": "cpu", "fixed-requirement": 0.125})
    assert participant_of(CONFIG, now, store).requirement("k").rho == 0.125


def test_the_storage_key_changes_with_it() -> None:
    def key(config: RunConfig, **node: Scalar) -> str:
        one = volunteer(config, **node)
        kind = one.participants.of(one.context)._required
        return requirement_key(kind, config, "task", "data", "layout", "initial", "client")

    found = {key(CONFIG), key(CONFIG, fixed_requirement=0.5), key(CONFIG, fixed_requirement=0.75)}
    assert len(found) == 3
    fixed = changed(CONFIG, requirement="fixed", fixed__loss=0.5)
    assert key(fixed) in found, "the same number is the same requirement"
    of_run = volunteer(fixed, fixed_requirement=0.75)
    assert of_run.participants.of(of_run.context)._required.settings == Fixed.Settings(loss=0.75)


@pytest.mark.parametrize("number", ["nan", "inf", "-inf", "much"])
def test_a_number_that_is_not_finite_is_one_line(
    number: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match=r"fixed-requirement = .* is not allowed") as error:
        NodeSettings.parse({"fixed-requirement": number})
    assert "\n" not in str(error.value)
    if number != "much":  # which typer refuses itself
        command = "fedappeal client --superlink 127.0.0.1:9 --insecure --partition-id 0 --fixed-requirement"
        monkeypatch.setattr(sys, "argv", [*command.split(), number])
        with pytest.raises(SystemExit):
            main()
        assert capsys.readouterr().err.startswith(f"fedappeal: fixed-requirement = {number} is not allowed")


def test_every_way_to_set_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    started: list[NodeSettings] = []

    def run_client(node: NodeSettings, connection: Connection, app: object, **options: object) -> int:
        started.append(node)
        return 0

    monkeypatch.setattr(client.process.serve, "run_client", run_client)
    command = f"fedappeal client --superlink 127.0.0.1:9 --insecure --partition-id 0 --state-dir {tmp_path}"
    for given in ([], ["--fixed-requirement", "0.75"]):
        monkeypatch.setattr(sys, "argv", [*command.split(), *given])
        with pytest.raises(SystemExit):
            main()
    assert [node.fixed_requirement for node in started] == [None, 0.75]
    # The long-lived client hands its settings on as Flower's node configuration, which knows no None.
    assert "fixed-requirement" not in started[0].as_config()
    assert NodeSettings.parse(started[1].as_config()) == started[1]
    flowers = parse_config_args(["fixed-requirement=0.75 partition-id=0"])
    assert NodeSettings.parse(flowers).fixed_requirement == 0.75


# -- losses that stay with the client --------------------------------------------------------------------


class Records(Hooks):
    def __init__(self) -> None:
        self.rounds: list[RoundRecord] = []

    def on_round_end(self, record: RoundRecord, arrays: ArrayRecord) -> None:
        self.rounds.append(record)


def federation(config: RunConfig, **node: Scalar) -> tuple[list[tuple[str, RecordDict]], list[RoundRecord]]:
    """Run two rounds of the real strategy with three real clients; return all replies, by kind, and the records."""
    replies: list[tuple[str, RecordDict]] = []

    def listened(one: Handler) -> Handler:
        def answer(message: Message) -> Message | None:
            if (reply := one(message)) is not None:
                replies.append((message.metadata.message_type, reply.content))
            return reply

        return answer

    app = app_of(Clients(Participants(TaskLearners())))

    def volunteering(number: int) -> Handler:
        own: dict[str, Scalar] = {"partition-id": number, "device": "cpu", **node}
        context = Context(7, 3, own, RecordDict(), config.as_config())
        return lambda message: app(message, context)

    grid = MemoryGrid({10 + k: listened(volunteering(k)) for k in range(3)})
    told, records = ConfigRecord({keys.RUN_KEY: "k", keys.LAYOUT: LAYOUT.hash}), Records()
    with time_of(grid):
        check_settings(config).build().start(
            grid, LAYOUT.pack(INITIAL), 2, train_config=told, evaluate_config=told, hooks=records
        )
    return replies, records.rounds


def losses(replies: list[tuple[str, RecordDict]]) -> list[tuple[str, str]]:
    names = [(kind, name) for kind, content in replies for record in content.values() for name in record]
    return sorted({(kind, name) for kind, name in names if "loss" in name})


ALL = {name: STRATEGIES.load(name) for name in STRATEGIES.built_in}
WITHOUT = [name for name, strategy in ALL.items() if not strategy.needs_losses]


@pytest.mark.parametrize("strategy", WITHOUT)
@pytest.mark.parametrize("by", ["run", "owner"])
def test_no_reply_carries_a_loss_where_none_is_to_be_reported(strategy: str, by: str) -> None:
    config = changed(CONFIG, strategy=strategy, report_loss=by == "owner", tuning_steps=1)
    replies, rounds = federation(config, **{"report-loss": by == "run"})
    assert [kind for kind, _ in replies].count("train") == [kind for kind, _ in replies].count("evaluate") == 6
    assert losses(replies) == []
    for record in rounds:
        assert (record.count("joined"), record.evaluated) == (3, 3)
        assert "gm_appeal" in record.metrics
        assert not [name for name in record.metrics if "loss" in name]


@pytest.mark.parametrize("strategy", WITHOUT)
def test_the_same_run_with_losses_reports_them(strategy: str) -> None:
    replies, rounds = federation(changed(CONFIG, strategy=strategy))
    assert ("evaluate", keys.LOSS) in losses(replies)
    assert all("loss" in record.metrics for record in rounds)


def test_one_client_that_reports_no_loss_is_folded_like_the_others() -> None:
    replies, (_, last) = federation(CONFIG)
    silent, (_, other) = federation(CONFIG, **{"report-loss": False})
    assert {k: v for k, v in last.metrics.items() if k != "loss"} == other.metrics
    models = [[c[keys.ARRAYS] for kind, c in found if kind == "train"] for found in (replies, silent)]
    assert models[0] == models[1]
    assert np.isfinite(last.metrics["loss"])


@pytest.mark.parametrize("strategy", sorted(set(ALL) - set(WITHOUT)))
def test_a_strategy_that_needs_losses_refuses_at_the_start(strategy: str) -> None:
    with pytest.raises(ConfigError) as error:
        check_settings(changed(CONFIG, strategy=strategy, report_loss=False))
    assert str(error.value) == (
        f"report-loss = False is not allowed with strategy = '{strategy}': it needs the clients' losses"
    )
    declines = volunteer(changed(CONFIG, strategy=strategy), **{"report-loss": False})
    with pytest.raises(ConfigError, match="report-loss = False is not allowed in this run") as error:
        ask(declines, "query", needs_loss=int(ALL[strategy].needs_losses))
    assert "\n" not in str(error.value)
