"""The roll call: who is enrolled, who is refused, and how long the server waits."""

import pytest
from flwr.app import ConfigRecord, Error, Message, MetricRecord, RecordDict

from fedappeal.protocol import keys
from fedappeal.protocol.keys import DataProblem
from strategies import FedAvg, Hooks
from strategies.rounds.exchange import roll_call
from strategies.rounds.exchange.exchange import Channel
from strategies.rounds.exchange.members import Members
from strategies.rounds.exchange.replies import read_roll_call
from strategies.rounds.exchange.roll_call import MOST_TOLD, RollCall, RollCallError
from strategies.rounds.reply import Refused
from strategies.rounds.round import Setup
from strategies.rounds.strategy import rounds_of
from tests.grid import MemoryGrid, Volunteer, Watch, model, run


def test_every_node_is_asked_once_with_the_initial_model() -> None:
    grid = MemoryGrid({10: Volunteer("a"), 11: Volunteer("b")})
    told = ConfigRecord({keys.RUN_KEY: "k", keys.LAYOUT: "l"})
    run(FedAvg(min_clients=2), grid, 3, roll_call_config=told)
    calls = grid.sent("query")
    assert [m.metadata.dst_node_id for m in calls] == [10, 11]
    for call in calls:
        assert call.content.array_records[keys.ARRAYS] == model(0)
        assert dict(call.content.config_records[keys.CONFIG]) == {keys.STRATEGY: "fedavg", **told}


def test_the_server_waits_until_enough_have_answered() -> None:
    grid = MemoryGrid({10 + k: Volunteer(f"c{k}") for k in range(3)})
    grid.delay = lambda node, message: 20.0 * (node - 10) if message.metadata.message_type == "query" else 0.0
    watch = Watch(before={1: lambda: times.append(grid.clock())})
    times: list[float] = []
    run(FedAvg(min_clients=3), grid, 1, watch)
    assert times == pytest.approx([40.0], abs=0.5)
    assert watch.records[0].count("joined") == 3


def test_too_few_clients_is_an_error_that_says_why() -> None:
    grid = MemoryGrid({10: Volunteer("a"), 11: Volunteer("b", refuses="this client runs fedappeal 9")})
    watch = Watch()
    with pytest.raises(RollCallError) as error:
        run(FedAvg(min_clients=3, start_timeout=30.0), grid, 1, watch)
    assert str(error.value) == (
        "1 of 3 clients answered the roll call within 30 s (min-clients, start-timeout); "
        "node 11: ValueError: this client runs fedappeal 9"
    )
    assert watch.refused == {11: "ValueError: this client runs fedappeal 9"}
    assert grid.clock() == pytest.approx(30.0, abs=0.5)
    assert not grid.sent("train")


@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_clients_are_waited_for_however_many_have_declined(nodes: int) -> None:
    grid = MemoryGrid({10 + k: Volunteer(f"c{k}", refuses="no") for k in range(nodes)})
    strategy = FedAvg(min_clients=2, start_timeout=300.0, round_timeout=12.0)
    with pytest.raises(RollCallError, match="node 10: ValueError: no"):
        run(strategy, grid, 1)
    assert grid.clock() == pytest.approx(300.0, abs=0.5)


@pytest.mark.parametrize("problem", DataProblem)
def test_a_client_whose_data_do_not_fit_is_named_and_the_others_run(problem: DataProblem) -> None:
    nodes = {10: Volunteer("a"), 11: Volunteer("anna", data_refused=problem.value), 12: Volunteer("c")}
    grid, watch = MemoryGrid(nodes), Watch()
    run(FedAvg(min_clients=2, start_timeout=300.0), grid, 2, watch)
    assert grid.clock() < 1.0, "nothing is waited for"
    assert watch.refused == {11: f"client anna: data is refused: {problem.text.partition(': ')[2]}"}
    assert [r.decisions for r in watch.records] == [{"a": "joined", "c": "joined"}] * 2


def test_where_too_few_are_left_the_end_names_the_client() -> None:
    grid = MemoryGrid({10: Volunteer("a"), 11: Volunteer("anna", data_refused="labels")})
    with pytest.raises(RollCallError) as error:
        run(FedAvg(min_clients=2, start_timeout=30.0), grid, 1)
    assert str(error.value).endswith("; client anna: data is refused: labels out of range")
    grid = MemoryGrid({11: Volunteer("anna", data_refused="too-few")})
    with pytest.raises(RollCallError, match=r"0 of 1 .*; client anna: data is refused: too few examples"):
        run(FedAvg(start_timeout=12.0), grid, 1)


def test_a_category_that_is_not_known_is_not_repeated_at_length() -> None:
    grid, watch = MemoryGrid({10: Volunteer("a"), 11: Volunteer("b", data_refused="x" * 1000)}), Watch()
    run(FedAvg(), grid, 1, watch)
    allowed = "unreadable, columns, shape, values, labels, too-few, not-taken"
    assert watch.refused == {11: f"data-refused = '{'x' * 40}' is not allowed: {allowed}"}


@pytest.mark.parametrize("refusal", [{"data_refused": "labels"}, {"refuses": "no"}])
def test_of_very_many_refusals_few_are_told(refusal: dict[str, str]) -> None:
    strangers = {100 + k: Volunteer(f"stranger-{k}", **refusal) for k in range(2 * MOST_TOLD)}  # type: ignore[arg-type]
    _, watch = run(FedAvg(), MemoryGrid({10: Volunteer("a"), **strangers}), 1)
    assert len(watch.refused) == MOST_TOLD + 1
    assert watch.refused[100 + 63].endswith(f"(refusal 64 of this run; few are told from {MOST_TOLD} on)")


def test_nodes_that_are_refused_and_go_away_are_forgotten_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roll_call, "MOST_GONE", 5)
    grid = MemoryGrid({9: Volunteer("a", refuses="not yet")})
    channel = Channel(grid, clock=grid.clock, sleep=grid.clock.sleep)
    calls = RollCall(channel, Members(), model(0), ConfigRecord(), Hooks(), Setup())
    for node in range(10, 40):
        grid.nodes[node] = Volunteer("b", refuses="no")
        calls.update()
        calls.update()
        del grid.nodes[node]
    calls.update()
    assert list(calls.refused) == [9, 35, 36, 37, 38, 39], "one is here still, and the latest of those that went"
    grid.nodes[11], grid.nodes[39] = Volunteer("b"), Volunteer("c")
    grid.clock.sleep(200.0)
    calls.update()
    assert not calls._calls._failed, "a pause that is long over is forgotten"
    calls.update()
    assert list(calls.refused) == [9, 35, 36, 37, 38], "both were called again"
    assert {member.client_id for member in calls.members.online()} == {"b", "c"}


def test_misfits_do_not_keep_others_from_coming() -> None:
    grid = MemoryGrid({10: Volunteer("a", refuses="no"), 11: Volunteer("b", refuses="no"), 12: Volunteer("c")})
    grid.delay = lambda node, message: 5.0 if node == 12 and message.metadata.message_type == "query" else 0.0
    _, watch = run(FedAvg(min_clients=1, round_timeout=12.0), grid, 1)
    assert watch.records[0].decisions == {"c": "joined"}


def test_a_refused_node_that_went_away_and_came_back_is_called_again() -> None:
    grid = MemoryGrid({10: Volunteer("a"), 11: Volunteer("b", refuses="too old")})
    grid.delay = lambda node, message: 2.0 if message.metadata.message_type == "train" else 0.0

    def away() -> None:
        del grid.nodes[11]

    def mended() -> None:
        grid.nodes[11] = Volunteer("b")

    _, watch = run(FedAvg(min_clients=1), grid, 4, Watch(before={2: away, 3: mended}))
    assert [sorted(r.decisions) for r in watch.records] == [["a"], ["a"], ["a", "b"], ["a", "b"]]


@pytest.mark.parametrize(
    ("delays", "grace", "began", "joined"),
    [
        ((0.0, 5.0, 9.0), 60.0, 9.0, 3),  # the third is 4 s behind the second: waited for
        ((0.0, 5.0, 30.0), 60.0, 10.0, 2),  # silent for 5 s after the second (paused, say): not waited for
        ((0.0, 5.0, 9.0), 2.0, 7.0, 2),
        ((0.0, 4.0, 8.0, 12.0, 16.0), 60.0, 16.0, 5),  # they keep coming, 4 s apart
        ((0.0, 4.0, 8.0, 12.0, 16.0), 7.0, 11.0, 3),  # as long as the grace: two are there after 4 s
    ],
)
def test_once_there_are_enough_others_are_waited_for_while_they_keep_coming(
    delays: tuple[float, ...], grace: float, began: float, joined: int
) -> None:
    grid = MemoryGrid({10 + k: Volunteer(f"c{k}") for k in range(len(delays))})
    grid.delay = lambda node, message: delays[node - 10] if message.metadata.message_type == "query" else 0.0
    times: list[float] = []
    watch = Watch(before={1: lambda: times.append(grid.clock())})
    _, watch = run(FedAvg(min_clients=2, round_timeout=grace, start_timeout=300.0), grid, 1, watch)
    assert times == pytest.approx([began], abs=0.5)
    assert sorted(watch.records[0].decisions) == [f"c{k}" for k in range(joined)]
    assert watch.waited == []


def test_while_it_waits_it_is_said_how_many_are_missing_and_which_nodes_are_silent() -> None:
    grid = MemoryGrid({10: Volunteer("a"), 11: Volunteer("b"), 12: Volunteer("c")})
    grid.delay = lambda node, message: 70.0 if node == 12 and message.metadata.message_type == "query" else 0.0
    _, watch = run(FedAvg(min_clients=3, start_timeout=300.0), grid, 1)
    assert [said[:2] for said in watch.waited] == [(2, 3)] * 3
    assert [said[2] for said in watch.waited] == pytest.approx([295.0, 265.0, 235.0], abs=0.5)
    assert [said[3] for said in watch.waited] == [[12]] * 3


def test_there_is_no_grace_for_a_client_that_was_refused() -> None:
    grid = MemoryGrid({10: Volunteer("a"), 11: Volunteer("b", refuses="no")})
    run(FedAvg(round_timeout=60.0, evaluate_every=0), grid, 1)
    assert grid.clock() < 1.0


def test_a_node_that_stays_silent_is_called_again_after_the_timeout() -> None:
    grid = MemoryGrid({10: Volunteer("a"), 11: Volunteer("b")})
    calls: list[float] = []

    def delay(node: int, message: Message) -> float:
        if message.metadata.message_type == "query" and node == 11:
            calls.append(grid.clock())
            return 1000.0 if len(calls) == 1 else 0.0
        return 4.0 if message.metadata.message_type == "train" else 0.0

    grid.delay = delay
    strategy = FedAvg(start_timeout=30.0, round_timeout=5.0, evaluate_every=0)
    _, watch = run(strategy, grid, 10)
    # Round 1 begins after the grace of 5 s, each takes 4 s: round 8 begins at 33 s, the first after 30 s.
    assert calls == pytest.approx([0.0, 33.0], abs=1.0)
    assert watch.enrolled == [("a", 1), ("b", 2)]
    assert [11 in grid.asked(r) for r in range(1, 11)] == [False] * 7 + [True] * 3
    assert not watch.refused


@pytest.mark.parametrize("code", [3, 4, 5])
def test_a_node_that_went_offline_before_it_could_answer_is_called_again(code: int) -> None:
    grid = MemoryGrid({10: Volunteer("a"), 11: lambda message: Message(Error(code, "gone"), reply_to=message)})
    grid.delay = lambda node, message: 2.0 if message.metadata.message_type == "train" else 0.0
    back = Volunteer("b")
    _, watch = run(FedAvg(), grid, 3, Watch(before={2: lambda: grid.nodes.update({11: back})}))
    assert not watch.refused
    assert watch.enrolled == [("a", 1), ("b", 2)]
    assert [11 in grid.asked(r) for r in (1, 2, 3)] == [False, True, True]


def test_two_connected_nodes_with_one_client_id_are_reported_and_the_later_counts() -> None:
    first, second = Volunteer("twin"), Volunteer("twin")
    grid, watch = MemoryGrid({10: first, 11: second}), Watch()
    with pytest.raises(RollCallError, match=r"1 of 2 clients .*; node 10: client-id 'twin' came back from another"):
        run(FedAvg(min_clients=2, start_timeout=5.0), grid, 1, watch)
    assert watch.refused == {10: "client-id 'twin' came back from another node, which counts from now on"}
    grid = MemoryGrid({10: Volunteer("c"), 12: Volunteer("twin")})
    watch = Watch(before={2: lambda: (grid.nodes.pop(12), grid.nodes.update({13: Volunteer("twin")}))})  # type: ignore[dict-item, func-returns-value]
    run(FedAvg(), grid, 2, watch)
    assert watch.refused == {}, "the old node was gone: it came back"


def test_a_client_that_left_comes_back_once_its_owner_has_reset_it() -> None:
    left = Volunteer("a", decision=-1)
    first = FedAvg()
    run(first, MemoryGrid({10: left, 11: Volunteer("b")}), 1)
    for says_it_left, asked in ((True, [21]), (False, [20, 21])):
        again = FedAvg()
        rounds_of(again).restore(rounds_of(first).state())
        grid = MemoryGrid({20: Volunteer("a", left=says_it_left), 21: Volunteer("b")})
        run(again, grid, 2, first_round=2)
        assert sorted(grid.asked(2)) == asked


def test_a_refused_client_is_never_asked() -> None:
    grid = MemoryGrid({10: Volunteer("a"), 11: Volunteer("b", refuses="no")})
    _, watch = run(FedAvg(), grid, 2)
    assert len(grid.sent("query")) == 2
    assert grid.asked(1) == grid.asked(2) == [10]
    assert [r.expected for r in watch.records] == [1, 1]


def test_a_node_that_could_not_be_reached_is_called_again() -> None:
    grid = MemoryGrid({10: Volunteer("a"), 11: Volunteer("b")})
    grid.unreachable.add(11)
    _, watch = run(FedAvg(), grid, 2, Watch(before={2: grid.unreachable.clear}))
    assert watch.enrolled == [("a", 1), ("b", 2)]
    assert sorted(grid.asked(2)) == [10, 11]


def test_an_unreachable_node_is_not_called_in_a_busy_loop() -> None:
    grid = MemoryGrid({10: Volunteer("a")})
    grid.unreachable.add(10)
    calls = 0
    push = grid.push_messages

    def counted(messages: list[Message]) -> list[str]:
        nonlocal calls
        calls += 1
        return list(push(messages))

    grid.push_messages = counted  # type: ignore[assignment, method-assign]
    with pytest.raises(RollCallError):
        run(FedAvg(start_timeout=30.0), grid, 1)
    assert calls < 200


def test_unseen_clients_evaluate_and_never_train() -> None:
    def client(name: str, role: str, **told: float) -> Volunteer:
        return Volunteer(name, role=role, evaluation={k.replace("_", "-"): v for k, v in told.items()})

    grid = MemoryGrid(
        {
            10: client("a", keys.SEEN, accuracy=0.5, loss=1.0, appealed=1, appealed_train=0, preferred_accuracy=0.5),
            11: client("b", keys.SEEN, accuracy=0.8, loss=2.0, appealed=0, appealed_train=0),
            12: client("c", keys.UNSEEN, accuracy=0.2, loss=4.0, appealed=0, preferred_accuracy=0.9),
            13: client("d", keys.UNSEEN, accuracy=0.6, appealed=1, preferred_accuracy=0.7),
            14: client("e", keys.UNSEEN, accuracy=7.0),
            15: Volunteer("f", role=keys.UNSEEN, evaluation=None),
        }
    )
    _, watch = run(FedAvg(), grid, 2)
    for record in watch.records:
        assert sorted(record.decisions) == ["a", "b"]
        assert record.metrics == pytest.approx(
            {
                "gm_appeal": 0.5,
                "gm_appeal_train": 0.0,
                "worst_decile_accuracy": 0.5,
                "lowest_accuracy": 0.5,
                "highest_accuracy": 0.8,
                "unseen_worst_decile_accuracy": 0.2,
                "unseen_lowest_accuracy": 0.2,
                "unseen_highest_accuracy": 0.6,
                "accuracy": 0.65,
                "loss": 1.5,
                "preferred_accuracy": 0.5,
                "unseen_gm_appeal": 0.5,
                "unseen_accuracy": 0.4,
                "unseen_loss": 4.0,
                "unseen_preferred_accuracy": 0.8,
            }
        )
        assert (record.evaluated, record.expected) == (4, 6)
        assert list(record.failures) == ["e"]


@pytest.mark.parametrize(("every", "expected"), [(0, [7]), (1, [1, 2, 3, 4, 5, 6, 7]), (3, [3, 6, 7])])
def test_rounds_that_are_evaluated(every: int, expected: list[int]) -> None:
    grid = MemoryGrid({10: Volunteer("a", evaluation={"accuracy": 0.5})})
    result, watch = run(FedAvg(evaluate_every=every), grid, 7)
    messages = grid.sent("evaluate")
    assert [int(m.metadata.group_id) for m in messages] == expected
    finals = [m.content.config_records[keys.CONFIG][keys.FINAL] for m in messages]
    assert finals == [0] * (len(expected) - 1) + [1]
    assert list(result.evaluate_metrics_clientapp) == expected
    assert [r.server_round for r in watch.records if "accuracy" in r.metrics] == expected


@pytest.mark.parametrize(
    ("info", "metrics", "reason"),
    [
        ({}, {keys.NUM_EXAMPLES: 5}, "client-id"),
        ({keys.CLIENT_ID: ""}, {keys.NUM_EXAMPLES: 5}, "client-id"),
        ({keys.CLIENT_ID: "a", keys.ROLE: "boss"}, {keys.NUM_EXAMPLES: 5}, "role = 'boss' is not allowed"),
        ({keys.CLIENT_ID: "a"}, {keys.NUM_EXAMPLES: 0}, "num-examples"),
        ({keys.CLIENT_ID: "a"}, {}, "num-examples"),
    ],
)
def test_an_answer_that_says_too_little_is_refused(
    info: dict[str, str], metrics: dict[str, float], reason: str
) -> None:
    MemoryGrid()
    call = Message(RecordDict(), 10, "query")
    content = RecordDict({keys.INFO: ConfigRecord(info), keys.METRICS: MetricRecord(metrics)})  # type: ignore[arg-type]
    with pytest.raises(Refused, match=reason):
        read_roll_call(Message(content, reply_to=call))


@pytest.mark.parametrize("client", ["\x1b[31mred", "two\nlines", "x" * 65, "\u202eanna", ".a", "-a", "a/b"])
@pytest.mark.parametrize("data_refused", ["", "labels"])
def test_a_client_id_that_no_terminal_should_see_is_refused(client: str, data_refused: str) -> None:
    grid, watch = MemoryGrid({10: Volunteer("a"), 11: Volunteer(client, data_refused=data_refused)}), Watch()
    run(FedAvg(), grid, 1, watch)
    assert list(watch.refused) == [11]
    reason = watch.refused[11]
    assert reason.isprintable()
    assert len(reason) < 200
    assert "is not allowed: 1 to 64 letters" in reason
