"""Any Flower ClientApp becomes a volunteer: under our strategies, and under Flower's own."""

from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg as FlowerFedAvg
from flwr.serverapp.strategy import FedProx as FlowerFedProx
from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords

from client.approval import approve
from client.state.store import DiskStore
from fedappeal.clientapp import volunteer
from fedappeal.flower.messages import be_sender
from fedappeal.protocol import keys
from fedappeal.settings.config import ConfigError
from fedappeal.strategies import AdaGD, FedAvg, FedProx, MaxFL, RoundRecord, appeal_weight
from tests.client.numpy_app import START, initial, loss, numpy_app, points, step
from tests.grid import Handler, MemoryGrid, Watch, time_of

Seen = list[tuple[str, dict[str, Any]]]


class Records(Watch):
    """Keeps the records of rounds, of any model."""

    def on_round_end(self, record: RoundRecord, arrays: ArrayRecord) -> None:
        self.records.append(record)


class Node:
    """One node of a grid, which runs an app and keeps its state."""

    def __init__(self, number: int, app: ClientApp) -> None:
        self.app, self.context = app, Context(7, 10 + number, {"partition-id": number}, RecordDict(), {"lr": 0.1})
        self.replies: list[Message] = []

    def __call__(self, message: Message) -> Message:
        self.replies.append(reply := self.app(message, self.context))
        return reply


def federation(apps: list[ClientApp]) -> tuple[MemoryGrid, list[Node]]:
    nodes = [Node(number, app) for number, app in enumerate(apps)]
    handlers: dict[int, Handler] = {10 + number: node for number, node in enumerate(nodes)}
    return MemoryGrid(handlers), nodes


def run(strategy: Any, grid: MemoryGrid, rounds: int, **more: Any) -> tuple[Any, Records]:
    watch = Records()
    with time_of(grid):
        result = strategy.start(grid, initial(), rounds, hooks=watch, **more)
    return result, watch


def solo(client: int, calls: int) -> float:
    w = np.zeros(2)
    for _ in range(calls):
        w = step(w, points(client))
    return loss(w, points(client))


def model_of(result: Any) -> np.ndarray:
    return np.concatenate([array.numpy() for array in result.arrays.values()])


def by_hand(rounds: int, clients: int, calls: int, asked: int) -> tuple[np.ndarray, list[list[bool]]]:
    """MaxFL over the apps, written again: equations 4 to 6, and clients that join where their loss is high."""
    w, decisions = np.zeros(2), []
    for number in range(1, rounds + 1):
        total, moved, joined = 0.0, np.zeros(2), []
        for k in range(clients):
            rho, now = solo(k, calls), loss(w, points(k))
            joined.append(number <= asked or now < rho)
            if joined[-1]:
                q = appeal_weight(now, rho)
                total, moved = total + q, moved + q * (step(w, points(k)) - w)
        decisions.append(joined)
        w = w + moved / (total + 1e-3)
    return w, decisions


def test_maxfl_over_wrapped_apps_is_maxfl_by_hand() -> None:
    seen: Seen = []
    grid, nodes = federation([volunteer(numpy_app(seen=seen), solo__steps=2) for _ in range(7)])
    strategy = MaxFL(min_clients=7, mandatory_rounds=5, on_empty_round="keep")
    result, watch = run(strategy, grid, 8, train_config=ConfigRecord({"lr": 0.1, "local-epochs": 2}))
    w, decisions = by_hand(8, 7, 2, 5)
    names = [f"client-{k:04d}" for k in range(7)]
    recorded = [[r.decisions[name] == "joined" for name in names] for r in watch.records]
    assert recorded == decisions
    assert {True, False} == set(decisions[-1]), "one joins, another does not"
    assert model_of(result) == pytest.approx(w, rel=1e-6)
    assert list(result.arrays) == list(START)
    # What the app tells arrives under its own names, and what its context remembers is of joined rounds alone.
    metrics = result.evaluate_metrics_clientapp[8]
    losses = [loss(model_of(result), points(k)) for k in range(7)]
    assert metrics["eval_loss"] == pytest.approx(np.mean(losses), rel=1e-6)
    assert [metrics["accuracy"], metrics["eval_acc"]] == pytest.approx([np.mean([1 / (1 + x) for x in losses])] * 2)
    assert metrics["gm_appeal"] == np.mean([x < solo(k, 2) for k, x in enumerate(losses)])
    assert set(result.train_metrics_clientapp[1]) >= {"calls"}
    assert "appeal-weight" not in result.train_metrics_clientapp[1], "a claim is no number of the app's"
    for k, node in enumerate(nodes):
        assert node.context.state["count"]["calls"] == sum(joined[k] for joined in decisions)
    assert {config["local-epochs"] for kind, config in seen if kind == "train"} == {2}


def test_a_round_costs_one_evaluation_more_than_the_app_alone_at_most() -> None:
    seen: Seen = []
    grid, _ = federation([volunteer(numpy_app(seen=seen), solo__steps=2)])
    run(MaxFL(mandatory_rounds=9), grid, 1)
    before = len(seen)
    run_seen = [kind for kind, _ in seen]
    assert run_seen.count("train") == 2 + 1
    seen.clear()
    grid, _ = federation([volunteer(numpy_app(seen=seen), solo__steps=2)])
    run(MaxFL(mandatory_rounds=9), grid, 5)
    kinds = [kind for kind, _ in seen]
    assert len(kinds) - before == 4 * 2, "four rounds more: training, and the evaluation of each new model"


def test_under_flowers_own_fedavg_it_joins_by_goodwill_and_then_sits_out_by_an_error() -> None:
    grid, nodes = federation([volunteer(numpy_app(), solo__steps=4, goodwill=3) for _ in range(7)])
    strategy = FlowerFedAvg(min_train_nodes=7, min_evaluate_nodes=7, min_available_nodes=7)
    with time_of(grid):
        result = strategy.start(grid, initial(), num_rounds=6)
    w = np.zeros(2)
    for number in range(1, 7):
        joined = [k for k in range(7) if number <= 3 or loss(w, points(k)) < solo(k, 4)]
        w = np.mean([step(w, points(k)) for k in joined], axis=0) if joined else w
    assert not np.allclose(w, 0)
    assert model_of(result) == pytest.approx(w, rel=1e-9)
    errors = [reply.error.code for node in nodes for reply in node.replies if reply.has_error()]
    assert set(errors) == {keys.SAT_OUT_ERROR}
    assert len([e for e in errors if e not in (2, 3, 4, 5)]) == len(errors)
    assert list(result.evaluate_metrics_clientapp[6]) == ["eval_loss", "eval_acc"]
    assert list(result.train_metrics_clientapp[1]) == ["train_loss", "calls"]


def test_wrapped_and_plain_apps_share_a_run() -> None:
    grid, _ = federation([volunteer(numpy_app(), participation="always"), numpy_app()])
    result, watch = run(FedAvg(min_clients=2), grid, 1)
    w = np.mean([step(np.zeros(2), points(k)) for k in (0, 1)], axis=0)
    assert model_of(result) == pytest.approx(w, rel=1e-9)
    assert watch.records[0].decisions == {"client-0000": "joined", "11": "joined"}


def test_a_plain_app_under_a_strategy_that_weighs_claims_is_told_what_to_do() -> None:
    grid, _ = federation([volunteer(numpy_app()), numpy_app()])
    _, watch = run(MaxFL(min_clients=2), grid, 1)
    assert watch.records[0].failures["11"].endswith("fedappeal.clientapp.volunteer makes it one")


def test_the_keywords_of_flowers_fedavg_mean_what_they_mean_there() -> None:
    called: list[int] = []

    def aggregate(replies: list[RecordDict], weighted_by: str) -> Any:
        called.append(len(replies))
        [record] = replies[0].metric_records.values()
        assert weighted_by in record
        return {"mine": 1.0}

    apps = [volunteer(numpy_app(names={"n": "size"}), examples="size", participation="always") for _ in range(6)]
    grid, _ = federation(apps)
    strategy = FedAvg(
        fraction_train=0.5,
        fraction_evaluate=0.34,
        min_available_nodes=6,
        weighted_by_key="size",
        arrayrecord_key="weights",
        configrecord_key="told",
        train_metrics_aggr_fn=aggregate,
    )
    result, watch = run(strategy, grid, 2)
    assert [r.count("joined") for r in watch.records] == [3, 3]
    assert [(r.expected, r.evaluated) for r in watch.records] == [(2, 2)] * 2
    assert called == [3, 3]
    assert result.train_metrics_clientapp[2]["mine"] == 1.0
    assert {frozenset(m.content) for m in grid.sent("train")} == {frozenset({"weights", "told"})}


@pytest.mark.parametrize(
    ("keywords", "line"),
    [
        ({"fraction_train": 0.5, "clients_per_round": 3}, "fraction-train = 0.5 is not allowed together with"),
        ({"fraction_train": 1.5}, "fraction-train = 1.5 is not allowed"),
        ({"fraction_train": 0}, "fraction-train = 0 is not allowed"),
        ({"min_fit_clients": 3}, "min"),
    ],
)
def test_keywords_that_say_nothing_are_one_line(keywords: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError, match=line) as error:
        MaxFL(**keywords)
    assert "\n" not in str(error.value)


def test_it_can_be_sent_to_another_process_with_each_message() -> None:
    """As Flower's simulation does, with cloudpickle: what it remembers is in the context alone."""
    wrapped = volunteer(numpy_app(), solo__steps=2)
    grid, _ = federation([wrapped, wrapped])
    again, their_nodes = federation([wrapped, wrapped])
    for node in their_nodes:
        app = node.app
        node.app = lambda message, context, app=app: cloudpickle.loads(cloudpickle.dumps(app))(message, context)  # type: ignore[assignment]
    runs = [run(MaxFL(min_clients=2, mandatory_rounds=2), one, 4) for one in (grid, again)]
    assert [model_of(result).tolist() for result, _ in runs] == [model_of(runs[0][0]).tolist()] * 2


def test_a_client_that_leaves_says_so_by_an_error_that_ours_reads_too() -> None:
    grid, nodes = federation(
        [volunteer(numpy_app(), participation="defect", requirement="fixed", defect__leave_below=1e9)]
    )
    _, watch = run(FedAvg(), grid, 2)
    assert watch.records[0].decisions == {"client-0000": "left"}
    stock = FlowerFedAvg(min_train_nodes=1, min_evaluate_nodes=1, min_available_nodes=1)
    grid, nodes = federation(
        [volunteer(numpy_app(), participation="defect", requirement="fixed", defect__leave_below=1e9)]
    )
    with time_of(grid):
        stock.start(grid, initial(), num_rounds=1)
    assert nodes[0].replies[0].error.code == keys.LEFT_ERROR


def test_training_alone_goes_on_over_several_messages_where_one_is_too_short(monkeypatch: pytest.MonkeyPatch) -> None:
    import client.app_learner as learner

    left = iter([100.0, 90.0, 10.0, 8.0] + [100.0, 99.0] * 40)
    monkeypatch.setattr(learner, "seconds_left", lambda message: next(left))
    grid, nodes = federation([volunteer(numpy_app(), solo__steps=6)])
    _, watch = run(MaxFL(mandatory_rounds=2), grid, 2)
    assert "fedappeal.solo-progress-run-7" in nodes[0].context.state
    assert [r.decisions for r in watch.records] == [{"client-0000": "joined"}] * 2
    rho = nodes[0].context.state
    [stored] = [
        rho[name]["rho"] for name in rho if name.startswith("fedappeal.requirement-") and "arrays" not in name
    ]
    assert stored == pytest.approx(solo(0, 6), rel=1e-12)


def test_runs_that_share_a_state_folder_share_nothing_of_an_app(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import client.app_learner as learner

    app = volunteer(numpy_app(), solo__steps=2, goodwill=9)
    state = {"partition-id": 0, "state-dir": str(tmp_path)}

    def ask(run: int, w: float) -> Message:
        be_sender(run_id=run, node_id=1, task_id=9)
        content = RecordDict(
            {"arrays": ArrayRecord({k: Array(np.array([w])) for k in START}), "config": ConfigRecord()}
        )
        return app(
            Message(content, 10, "train", ttl=600, group_id="1"), Context(run, 10, dict(state), RecordDict(), {})
        )

    left = iter([100.0, 90.0, 10.0, 1.0] + [100.0, 99.0] * 40)
    monkeypatch.setattr(learner, "seconds_left", lambda message: next(left))
    ask(1, 0.0)  # trains alone once, and is to go on with its run's next message
    assert ask(2, 3.0).has_content()
    start = np.array([3.0, 3.0])
    store = DiskStore(tmp_path)
    stored = [store.look(name) for name in store.names() if name.startswith("requirement-")]
    alone = loss(step(step(start, points(0)), points(0)), points(0))
    assert [record.values["rho"] for record in stored if record] == pytest.approx([alone], rel=1e-12)
    assert ask(3, 3.0).has_content()
    requirements = {store.readable_values(f"run-run-{run}")["requirement"] for run in (2, 3)}
    assert len(requirements) == 2, "what the app is told may differ, and with it what it reaches alone"


def test_an_app_is_told_the_round_and_lists_whenever_it_is_asked() -> None:
    seen: Seen = []
    grid, _ = federation([volunteer(numpy_app(seen=seen), solo__steps=2)])
    told = ConfigRecord({"lr": 0.1, "layers": [1, 2], "key": b"x"})
    _, watch = run(MaxFL(mandatory_rounds=2), grid, 2, train_config=told, evaluate_config=told)
    assert [r.decisions for r in watch.records] == [{"client-0000": "joined"}] * 2
    assert {tuple(config[key]) for _, config in seen for key in ("layers",)} == {(1, 2)}
    assert {config["key"] for _, config in seen} == {b"x"}
    assert {config["server-round"] for _, config in seen} == {1, 2}


@pytest.mark.parametrize(
    ("names", "loss_key", "line"),
    [
        ({"loss": "error"}, "", "the app's evaluate tells no single number that ends in 'loss'"),
        ({"acc": "other_loss"}, "", "the app's evaluate tells no single number that ends in 'loss'"),
        ({}, "mse", "the app's evaluate tells no single number 'mse'"),
        ({"n": "size"}, "", "the app's evaluate tells no 'num-examples'"),
    ],
)
def test_an_app_whose_numbers_are_not_known_is_refused_in_one_line(names: Any, loss_key: str, line: str) -> None:
    grid, _ = federation([volunteer(numpy_app(names=names), loss=loss_key, requirement="fixed")])
    with pytest.raises(Exception, match=line):
        run(MaxFL(start_timeout=5), grid, 1)


def test_an_app_that_takes_a_rules_settings_is_told_them() -> None:
    seen: Seen = []
    grid, _ = federation([volunteer(numpy_app(seen=seen), rules=["prox"], solo__steps=1)])
    run(FedProx(proximal_mu=0.25), grid, 2)
    told = [config.get("proximal-mu") for kind, config in seen if kind == "train"]
    assert told == [0.0, 0.25, 0.25], "training alone has no anchor"


def test_flowers_own_fedprox_does_not_pull_training_alone_to_its_start() -> None:
    seen: Seen = []
    grid, _ = federation([volunteer(numpy_app(seen=seen), solo__steps=2, goodwill=1) for _ in range(2)])
    with time_of(grid):
        FlowerFedProx(min_train_nodes=2, min_evaluate_nodes=2, proximal_mu=0.25).start(grid, initial(), num_rounds=1)
    told = [config["proximal-mu"] for kind, config in seen if kind == "train"]
    assert told == [0.0, 0.0, 0.25] * 2


@pytest.mark.parametrize("gradient", ["query", "lr"])
def test_ada_gd_takes_a_gradient_that_the_app_returns_or_that_one_plain_step_says(gradient: str) -> None:
    app = numpy_app()

    @app.query("gradient")
    def of(message: Message, context: Context) -> Message:
        [(name, sent)] = message.content.array_records.items()
        w = np.concatenate([array.numpy() for array in sent.values()])
        slope = (w - step(w, points(int(str(context.node_config["partition-id"]))))) / 0.1
        arrays = ArrayRecord({k: Array(np.array([v])) for k, v in zip(sent, slope, strict=True)})
        return Message(RecordDict({name: arrays}), reply_to=message)

    grid, _ = federation([volunteer(app, gradient=gradient, requirement="fixed") for _ in range(3)])
    result, watch = run(
        AdaGD(min_clients=3, step_size=0.05, precision=0.01), grid, 3, train_config=ConfigRecord({"lr": 0.1})
    )
    w = np.zeros(2)
    for _ in range(3):  # far from the precision nobody is predicted to leave: case 1, the mean gradient
        v = np.mean([(w - step(w, points(k))) / 0.1 for k in range(3)], axis=0)
        w = w - 0.05 * v / max(np.linalg.norm(v), 1)
    assert [set(r.decisions.values()) for r in watch.records] == [{"joined"}] * 3
    assert model_of(result) == pytest.approx(w, rel=1e-6)


def test_ada_gds_local_form_needs_nothing_more_of_an_app() -> None:
    grid, _ = federation([volunteer(numpy_app(), requirement="fixed") for _ in range(3)])
    result, watch = run(AdaGD(min_clients=3, local_steps=1, precision=0.01), grid, 3)
    w = np.zeros(2)
    for _ in range(3):
        w = np.mean([step(w, points(k)) for k in range(3)], axis=0)
    assert [set(r.decisions.values()) for r in watch.records] == [{"joined"}] * 3
    assert model_of(result) == pytest.approx(w, rel=1e-6)


def test_a_local_rule_that_an_app_does_not_know_is_refused_at_the_roll_call() -> None:
    grid, _ = federation([volunteer(numpy_app())])
    with pytest.raises(Exception, match="local-rule = 'prox' is not allowed for this client"):
        run(FedProx(start_timeout=5), grid, 1)


def test_an_owner_who_wants_to_be_asked_is_asked_before_the_app_sees_anything(tmp_path: Path) -> None:
    seen: Seen = []
    grid, nodes = federation([volunteer(numpy_app()), volunteer(numpy_app(seen=seen))])
    nodes[1].context.node_config |= {"approve": "asked", "state-dir": str(tmp_path)}
    _, watch = run(FedAvg(min_clients=1), grid, 2)
    assert [sorted(record.decisions.values()) for record in watch.records] == [["joined"], ["joined"]]
    assert seen == []
    (reply,) = nodes[1].replies
    assert reply.content.config_records[keys.INFO][keys.APPROVAL] == keys.WAITING
    be_sender(run_id=7, node_id=1, task_id=9)
    for kind in ("train", "train.mine"):
        reply = nodes[1](Message(RecordDict({"arrays": initial(), "config": ConfigRecord()}), 11, kind))
        assert reply.error.code == keys.SAT_OUT_ERROR
        assert "waits for its owner's approval" in str(reply.error.reason)
    approve(tmp_path, "7")
    _, watch = run(FedAvg(min_clients=2), grid, 2)
    assert [sorted(record.decisions.values()) for record in watch.records] == [["joined", "joined"]] * 2
    assert seen


def test_a_stock_strategys_first_message_asks_the_owner_who_then_takes_part(tmp_path: Path) -> None:
    seen: Seen = []
    grid, nodes = federation([volunteer(numpy_app(), goodwill=9), volunteer(numpy_app(seen=seen), goodwill=9)])
    nodes[1].context.node_config |= {"approve": "asked", "state-dir": str(tmp_path)}
    strategy = FlowerFedAvg(min_train_nodes=2, min_evaluate_nodes=2, min_available_nodes=2)
    with time_of(grid):
        strategy.start(grid, initial(), num_rounds=1)
        assert seen == []
        assert {reply.error.code for reply in nodes[1].replies} == {keys.SAT_OUT_ERROR}
        approve(tmp_path, "7")
        nodes[1].replies.clear()
        strategy.start(grid, initial(), num_rounds=1)
    assert not any(reply.has_error() for reply in nodes[1].replies)
    assert seen


def broken(kind: str) -> ClientApp:
    """An app with one mistake."""
    app, whole = ClientApp(), numpy_app()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        reply = whole(message, context)
        [(name, arrays)] = reply.content.array_records.items()
        if kind == "no arrays":
            del reply.content[name]
        if kind == "other names":
            reply.content[name] = ArrayRecord({f"net.{k}": a for k, a in arrays.items()})
        if kind == "other shapes":
            reply.content[name] = ArrayRecord({k: Array(np.zeros((2, 2))) for k in arrays})
        return reply

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        reply = whole(message, context)
        if kind == "a text for a loss":
            reply.content["numbers"] = MetricRecord({"num-examples": 3, "eval_loss": "0.3"})  # type: ignore[dict-item]
        if kind == "a list for a loss":
            reply.content["numbers"] = MetricRecord({"num-examples": 3, "eval_loss": [0.3]})
        if kind == "no count":
            reply.content["numbers"] = MetricRecord({"num-examples": float("nan"), "eval_loss": 0.3})
        if kind == "no numbers":
            del reply.content["numbers"]
        return reply

    return app


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("no arrays", "the app's train returned 0 ArrayRecords: one is allowed"),
        ("other names", r"the app's train returned array 'net\.a-slope' .*: names, shapes and dtypes"),
        ("other shapes", r"the app's train returned array 'a-slope' of shape \(2, 2\)"),
        ("a text for a loss", "TypeError: "),
        ("a list for a loss", "the app tells 'eval_loss' as a list: one number is allowed"),
        ("no count", "the app's evaluate tells 'num-examples' = nan: a number of examples is allowed"),
        ("no numbers", "the app's evaluate returned 0 MetricRecords: one is allowed"),
    ],
)
def test_an_authors_mistake_is_one_clear_line_at_the_roll_call(kind: str, line: str) -> None:
    grid, _ = federation([volunteer(broken(kind), solo__steps=1)])
    with pytest.raises(Exception, match=line) as error:
        run(MaxFL(start_timeout=5), grid, 1)
    assert "\n" not in str(error.value)


def telling_lists(client: int) -> ClientApp:
    """An app that tells lists of numbers, too."""
    app, whole = ClientApp(), numpy_app()

    def with_lists(message: Message, context: Context) -> Message:
        reply = whole(message, context)
        [metrics] = reply.content.metric_records.values()
        metrics["num-examples"] = 3 + client
        metrics["per_class"], metrics["of_own_length"] = [0.25 * client, 1.0, -2.0], [1.0] * (1 + client)
        return reply

    app.train()(with_lists)
    app.evaluate()(with_lists)
    return app


@pytest.mark.parametrize("wrapped", [True, False])
def test_lists_among_an_apps_metrics_are_averaged_as_flower_does(wrapped: bool) -> None:
    apps = [telling_lists(k) for k in range(2)]
    grid, _ = federation([volunteer(app, participation="always") if wrapped else app for app in apps])
    result, watch = run(FedAvg(min_clients=2), grid, 1)
    assert watch.records[0].failures == {}
    expected = [(3 * 0 + 4 * 0.25) / 7, 1.0, -2.0]
    for told in (result.train_metrics_clientapp[1], result.evaluate_metrics_clientapp[1]):
        assert told["per_class"] == pytest.approx(expected)
        assert "of_own_length" not in told
    metrics = [MetricRecord({"n": 3 + k, "per_class": [0.25 * k, 1.0, -2.0]}) for k in range(2)]
    flowers = aggregate_metricrecords([RecordDict({"m": one}) for one in metrics], "n")
    assert flowers["per_class"] == pytest.approx(expected)


@pytest.mark.parametrize("value", [[float("nan")], [0.0] * 1001])
def test_a_list_that_is_no_finite_or_far_too_many_numbers_leaves_its_client_out(value: list[float]) -> None:
    app, whole = ClientApp(), numpy_app()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        reply = whole(message, context)
        [metrics] = reply.content.metric_records.values()
        metrics["mine"] = value
        return reply

    app.evaluate()(whole)
    grid, _ = federation([app, numpy_app()])
    _, watch = run(FedAvg(min_clients=2), grid, 1)
    assert list(watch.records[0].failures) == ["10"]
    assert "is not a finite number" in watch.records[0].failures["10"]


def test_clients_that_tell_other_numbers_share_what_all_of_them_tell() -> None:
    apps = [numpy_app(names={"acc": name}) for name in ("eval_acc", "hit_accuracy")]
    grid, _ = federation([volunteer(app, participation="always") for app in apps])
    result, watch = run(FedAvg(min_clients=2), grid, 1)
    told = result.evaluate_metrics_clientapp[1]
    assert "eval_loss" in told
    assert not {"eval_acc", "hit_accuracy"} & set(told)
    assert 0 < told["accuracy"] < 1, "by their endings both are accuracies"
    assert watch.records[0].failures == {}


def test_an_apps_own_query_without_a_model_is_its_own() -> None:
    app = numpy_app()

    @app.query()
    def hello(message: Message, context: Context) -> Message:
        return Message(RecordDict({"m": MetricRecord({"hello": 1})}), reply_to=message)

    grid, nodes = federation([volunteer(app)])
    [message] = [Message(RecordDict({"config": ConfigRecord({"x": 1})}), 10, "query", group_id="0")]
    [reply] = grid.send_and_receive([message])
    assert reply.content["m"]["hello"] == 1
    result, watch = run(MaxFL(), grid, 1)
    assert watch.records[0].decisions == {"client-0000": "joined"}, "a roll call has the model"
    assert len(nodes) == 1
    assert result.arrays
