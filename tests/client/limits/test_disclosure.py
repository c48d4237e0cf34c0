"""The owner's switches for what replies tell: which runs decline, and what the others go on without."""

import sys
from pathlib import Path

import pytest
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.common.config import parse_config_args

import client.process.serve
from client.app import Clients, app_of
from client.roster import Participants
from client.settings import Connection, NodeSettings
from client.training.models import arrays_of
from client.training.task_learner import TaskLearners
from fedappeal.cli.main import main
from fedappeal.core.algorithm import Claims
from fedappeal.protocol import keys
from fedappeal.protocol.packing import Layout
from fedappeal.settings.config import ConfigError, RunConfig, Scalar
from fedappeal.tasks import load_task
from server.build import check_settings, run_plugins
from server.server_run import roll_call_settings
from strategies import FedAvg, Hooks, RoundRecord
from strategies.scaffold import CONTROL
from tests.grid import Handler, MemoryGrid, time_of
from tests.node import Node, changed, metrics_of, run_config

CONFIG = run_config(clients=3, model="logistic", strategy="fedavg", solo__steps=5, local_steps=2, min_clients=3)
SWITCHES = ("report-loss", "report-weight", "report-appeal", "answer-evaluate", "answer-train-split")
NEEDS = {
    "report-loss": "its strategy needs the clients' losses",
    "report-weight": "its strategy needs what a client tells besides its model",
    "report-appeal": "its strategy needs to know whether the model meets a client's requirement",
    "answer-evaluate": "its strategy asks how a model does on the training examples",
    "answer-train-split": "its strategy asks how a model does on the training examples",
}
LINES = {switch: f"{switch} = False is not allowed in this run: {need}" for switch, need in NEEDS.items()}
NEEDED: dict[str, set[str]] = {
    "adagd": {"report-loss", "report-weight"},
    "afl": {"report-loss", "report-weight"},
    "ditto": set(),
    "fedadam": set(),
    "fedau": set(),
    "fedalign": {"report-loss", "report-weight", "answer-evaluate", "answer-train-split"},
    "fedavg": set(),
    "fednova": set(),
    "fedprox": set(),
    "maxfl": {"report-weight"},
    "maxfl-adagd": {"report-weight"},
    "mifa": set(),
    "mwfed": {"report-weight", "report-appeal"},
    "oracle": set(),
    "perfedavg": set(),
    "pfedme": set(),
    "qfedavg": {"report-loss", "report-weight"},
    "scaffold": set(),
    "term": {"report-loss", "report-weight"},
}


def told_of(config: RunConfig) -> dict[str, Scalar]:
    """What the roll call of a run says."""
    return roll_call_settings(run_plugins(config), load_task(config.task_settings()))


@pytest.mark.parametrize("switch", SWITCHES)
@pytest.mark.parametrize("strategy", NEEDED)
def test_a_run_that_needs_what_stays_is_declined_with_one_line_and_any_other_answered(
    strategy: str, switch: str
) -> None:
    config = changed(CONFIG, strategy=strategy)
    node = Node(config, **{switch: False})
    if switch in NEEDED[strategy]:
        with pytest.raises(ConfigError) as error:
            node("query", told=told_of(config))
        assert str(error.value) == LINES[switch]
        return
    assert keys.INFO in node("query", told=told_of(config))
    control = {CONTROL: node.layout.pack(node.initial)} if strategy == "scaffold" else {}
    assert metrics_of(node("train", records=control, mandatory=1))[keys.DECISION] == 1
    assert keys.NUM_EXAMPLES in metrics_of(node("evaluate"))


@pytest.mark.parametrize("strategy", [name for name, needs in NEEDED.items() if "report-weight" in needs])
def test_a_server_that_keeps_its_needs_to_itself_gets_no_answer_to_train_either(strategy: str) -> None:
    """Not even a decision: it would tell the comparison with rho_k."""
    for mandatory in (0, 1):
        with pytest.raises(ConfigError, match=LINES["report-weight"]):
            Node(changed(CONFIG, strategy=strategy), report_weight=False)("train", mandatory=mandatory)


def test_fedalign_asks_no_client_about_its_training_examples_where_its_loss_may_be_stale() -> None:
    config = changed(CONFIG, strategy="fedalign", fedalign__global_loss="stale")
    for switch in ("answer-train-split", "answer-evaluate"):
        assert keys.INFO in Node(config, **{switch: False})("query", told=told_of(config))


class Polite(FedAvg):
    """Asks for a claim that it can do without."""

    needs_weight = False

    def report(self, measured: object) -> Claims:
        return {"note": 1.0}


class Asking(Polite):
    """Writes `report` again, and says nothing of it."""

    def report(self, measured: object) -> Claims:
        return {"note": 2.0}


def test_a_strategy_that_reports_needs_the_weight_unless_it_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (Polite.needs_weight, Asking.needs_weight, FedAvg.needs_weight) == (False, True, False)
    name = f"{__name__}:Polite"
    monkeypatch.setattr(sys, "path", [*sys.path, str(Path(__file__).parents[2])])
    config = changed(CONFIG, strategy=name)
    for report_weight in (True, False):
        node = Node(config, allow="tests", report_weight=report_weight)
        assert ("note" in metrics_of(node("train", mandatory=1))) is report_weight


def test_what_each_switch_takes_from_an_evaluation() -> None:
    config = changed(CONFIG, report_train_loss=True, strategy="perfedavg")
    whole = set(metrics_of(Node(config)("evaluate")))
    assert whole == {
        *(keys.NUM_EXAMPLES, keys.LOSS, "accuracy", keys.APPEALED, keys.APPEALED_TRAIN, keys.TRAIN_LOSS),
        *("preferred-accuracy", keys.SERVED, keys.ADAPTED_LOSS, "adapted-accuracy"),
    }
    taken = {
        "report-loss": {keys.LOSS, keys.TRAIN_LOSS, keys.ADAPTED_LOSS},
        "report-weight": set(),
        "report-appeal": {keys.APPEALED, keys.APPEALED_TRAIN, keys.SERVED, "preferred-accuracy"},
        "answer-evaluate": whole - {keys.NUM_EXAMPLES},
        "answer-train-split": {keys.APPEALED_TRAIN, keys.TRAIN_LOSS},
    }
    for switch in SWITCHES:
        assert set(metrics_of(Node(config, **{switch: False})("evaluate"))) == whole - taken[switch]


def test_the_preferred_models_figure_is_the_appeal_bit_in_other_words() -> None:
    """Why it goes with that bit: it is the accuracy that is told beside it, if and only if the model appeals."""
    for solo_steps, appeals in ((1, False), (300, False)):
        told = metrics_of(Node(changed(CONFIG, solo__steps=solo_steps))("evaluate"))
        assert bool(told[keys.APPEALED]) is appeals
        assert told["preferred-accuracy"] != told["accuracy"]


class Records(Hooks):
    def __init__(self) -> None:
        self.rounds: list[RoundRecord] = []

    def on_round_end(self, record: RoundRecord, arrays: object) -> None:
        self.rounds.append(record)


def two_rounds(*owners: dict[str, Scalar]) -> tuple[list[RoundRecord], list[list[MetricRecord]]]:
    """Run two rounds of the real strategy with a real client for each owner: the records, each client's figures."""
    app, answers = app_of(Clients(Participants(TaskLearners()))), [list[MetricRecord]() for _ in owners]

    def volunteering(number: int) -> Handler:
        own: dict[str, Scalar] = {"partition-id": number, "device": "cpu", **owners[number]}
        context = Context(7, 3, own, RecordDict(), CONFIG.as_config())

        def answer(message: Message) -> Message:
            reply = app(message, context)
            if message.metadata.message_type == "evaluate":
                answers[number].append(reply.content.metric_records[keys.METRICS])
            return reply

        return answer

    initial = arrays_of(load_task(CONFIG.task_settings()).initial_model(0))
    layout, records = Layout.of(initial), Records()
    grid = MemoryGrid({10 + k: volunteering(k) for k in range(len(owners))})
    told = {keys.RUN_KEY: "k", keys.LAYOUT: layout.hash}
    with time_of(grid):
        check_settings(CONFIG).build().start(
            grid,
            layout.pack(initial),
            2,
            train_config=ConfigRecord(dict(told)),
            evaluate_config=ConfigRecord(dict(told)),
            hooks=records,
            roll_call_config=ConfigRecord({**told, **told_of(CONFIG)}),
        )
    return records.rounds, answers


def test_averages_are_of_the_clients_that_report() -> None:
    rounds, answers = two_rounds({}, {"report-appeal": False}, {"answer-evaluate": False})
    assert [record.count("joined") for record in rounds] == [3, 3]
    for record, first, second, third in zip(rounds, *answers, strict=True):
        assert record.evaluated == 3
        assert set(third) == {keys.NUM_EXAMPLES}
        assert record.metrics["gm_appeal"] == first[keys.APPEALED]
        assert record.metrics["accuracy"] == pytest.approx((first["accuracy"] + second["accuracy"]) / 2)  # type: ignore[operator]


def test_a_run_of_clients_that_report_nothing_goes_on() -> None:
    rounds, _ = two_rounds(*[{"answer-evaluate": False, "report-weight": False}] * 3)
    assert [record.count("joined") for record in rounds] == [3, 3]
    assert not {"gm_appeal", "accuracy", "loss"} & set(rounds[-1].metrics)


def test_the_options_of_the_command_are_the_settings_of_a_node(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started: list[NodeSettings] = []

    def run_client(node: NodeSettings, connection: Connection, app: object, **options: object) -> int:
        started.append(node)
        return 0

    monkeypatch.setattr(client.process.serve, "run_client", run_client)
    command = f"fedappeal client --superlink 127.0.0.1:9 --insecure --partition-id 0 --state-dir {tmp_path}"
    noise = ["--clipping-norm", "1.5", "--dp-epsilon", "5"]
    for given in ([], [f"--no-{switch}" for switch in SWITCHES], noise):
        monkeypatch.setattr(sys, "argv", [*command.split(), *given])
        with pytest.raises(SystemExit):
            main()
    told = [[node.as_config()[switch] for switch in SWITCHES] for node in started]
    assert told == [[True] * 5, [False] * 5, [True] * 5]
    assert [(node.clipping_norm, node.dp_epsilon) for node in started] == [(0, 0), (0, 0), (1.5, 5)]
    flowers = parse_config_args([" ".join(f"{switch}=false" for switch in SWITCHES)])
    assert not any(NodeSettings.parse(flowers).as_config()[switch] for switch in SWITCHES)
