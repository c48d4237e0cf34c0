"""What an algorithm may override besides weight and update: survey, per-client settings, records, waves."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, RecordDict

from fedappeal.protocol import keys
from fedappeal.protocol.packing import content_size
from fedappeal.settings.config import ConfigError
from strategies import FedAvg
from strategies.rounds.algorithm import Survey
from strategies.rounds.exchange.exchange import NO_ANSWER, NOT_SENT
from strategies.rounds.exchange.members import Member
from strategies.rounds.reply import Refused
from strategies.rounds.round import Instructions, Reply, Round, RoundRecord, claim
from strategies.rounds.strategy import rounds_of
from tests.grid import Handler, MemoryGrid, Volunteer, Watch, model, run, values_of


class Questions(Survey):
    def asked(self, round: Round, order: Sequence[Member]) -> Sequence[Member]:
        asked = self.algorithm.asked
        return [m for m in round.members.online() if asked is None or m.client_id in asked]

    def answered(self, round: Round, member: Member, metrics: Mapping[str, Any]) -> None:
        loss = claim(metrics, keys.LOSS, 0.0, 100.0)
        self.algorithm.happened.append(("answer", member.client_id, loss))


class Surveyor(FedAvg):
    """Asks some clients for their loss before each round; keeps all that happened, in order."""

    survey = Questions

    def __init__(self, asked: set[str] | None = None, **shared: object) -> None:
        super().__init__(**shared)  # type: ignore[arg-type]
        self.asked = asked
        self.happened: list[tuple[str, str, float]] = []

    def add(self, round: Round, reply: Reply) -> None:
        super().add(round, reply)
        self.happened.append(("joined", reply.member.client_id, reply.num_examples))


def trio(**losses: float) -> dict[int, Volunteer]:
    return {10 + k: Volunteer(n, evaluation={keys.LOSS: loss}) for k, (n, loss) in enumerate(losses.items())}


def test_the_questions_are_answered_before_anybody_is_asked_to_train() -> None:
    grid = MemoryGrid(dict(trio(a=1.0, b=2.0, c=3.0)))
    grid.delay = lambda node, message: float(node - 10)
    strategy = Surveyor({"a", "c"}, evaluate_every=0)
    _, watch = run(strategy, grid, 2, train_config=ConfigRecord({keys.RUN_KEY: "k"}))
    assert strategy.happened[:2] == [("answer", "a", 1.0), ("answer", "c", 3.0)]
    assert {what for what, _, _ in strategy.happened[2:5]} == {"joined"}
    assert [what for what, _, _ in strategy.happened[5:]] == ["answer"] * 2 + ["joined"] * 3
    kinds = [(m.metadata.message_type, m.metadata.group_id) for _, m in grid.pushed]
    one, two = ([("evaluate", r)] * 2 + [("train", r)] * 3 for r in "12")
    assert kinds == [("query", "0")] * 3 + one + two + [("evaluate", "2")] * 3
    times = {kind: [t for t, m in grid.pushed if m.metadata.message_type == kind] for kind in ("evaluate", "train")}
    # c answers after 2 s; the round began at 2 s, when the roll call was complete.
    assert times["train"][:3] == pytest.approx([times["evaluate"][0] + 2.0] * 3, abs=0.3)
    for message in grid.sent("evaluate", 1):
        assert dict(message.content.config_records[keys.CONFIG]) == {
            keys.RUN_KEY: "k",
            keys.SPLIT: keys.TRAIN_SPLIT,
            keys.SERVER_ROUND: 1,
        }
    assert [r.count("joined") for r in watch.records] == [3, 3]
    assert not any(r.failures for r in watch.records)


def test_bad_answers_are_left_out_and_counted_with_their_reason() -> None:
    nodes: dict[int, Handler] = dict(trio(a=1.0, b=-1.0, c=float("nan"), d=2.0))

    def broken(message: Message) -> Message | None:
        if message.metadata.message_type == "evaluate":
            return Message(Error(2, "out of memory"), reply_to=message)
        return Volunteer("e")(message)

    nodes |= {20: broken, 21: Volunteer("f", evaluation={})}
    strategy = Surveyor(evaluate_every=0)
    _, watch = run(strategy, MemoryGrid(nodes), 2)
    record = watch.records[0]
    assert [h for h in strategy.happened if h[0] == "answer"] == [("answer", "a", 1.0), ("answer", "d", 2.0)] * 2
    assert record.failures == {
        "b": "survey: loss = -1.0 is not allowed: 0.0 to 100.0",
        "c": "survey: loss = nan is not a finite number",
        "e": "survey: out of memory",
        "f": "survey: reply has no 'loss'",
    }
    assert record.as_line()["failures"] == record.failures
    assert record.count("joined") == 6, "a client without an answer may still train"


@pytest.mark.parametrize("name", ["round", "joined", "seconds"])
def test_a_strategys_number_takes_no_name_that_every_round_has(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"round\.metrics\['{name}'\] is not allowed"):
        RoundRecord(1, metrics={name: 7.0, "mine": 1.0}).as_line()
    assert RoundRecord(1, metrics={"mine": 1.0}).as_line()["mine"] == 1.0


def test_one_silent_client_does_not_use_up_the_round() -> None:
    nodes: dict[int, Handler] = dict(trio(a=1.0, b=2.0, c=3.0))
    grid = MemoryGrid(nodes)
    grid.delay = lambda node, message: 1000.0 if node == 11 and message.metadata.group_id == "1" else 0.0
    strategy = Surveyor(round_timeout=60.0, evaluate_every=0)
    _, watch = run(strategy, grid, 2)
    first, second = watch.records
    assert {k: v for k, v in first.decisions.items() if k != "b"} == {"a": "joined", "c": "joined"}
    assert first.decisions["b"] == "absent"
    assert first.seconds == pytest.approx(30.0, abs=0.5), "half of the deadline is the survey's"
    questions = [m for r in (1, 2) for m in grid.sent("evaluate", r)[:3]]  # the end of the run asks once more
    assert [m.metadata.ttl for m in questions] == pytest.approx([30.0] * 6)
    assert second.decisions == dict.fromkeys("abc", "joined")
    assert second.seconds < 1.0


@pytest.mark.parametrize("reached", [True, False])
def test_a_question_that_gets_no_answer_is_a_failure_of_the_round(reached: bool) -> None:
    grid = MemoryGrid(dict(trio(a=1.0, b=2.0)))
    volunteer = grid.nodes[11]
    assert isinstance(volunteer, Volunteer)
    watch = Watch()
    if reached:
        volunteer.evaluation = None
    else:
        watch.before[1] = lambda: grid.unreachable.add(11)
    strategy = Surveyor({"b"}, evaluate_every=0)
    rounds_of(strategy).train_messages = lambda *arguments: []  # type: ignore[assignment, method-assign]  # the survey alone
    run(strategy, grid, 1, watch)
    assert watch.records[0].failures == {"b": f"survey: {NO_ANSWER if reached else NOT_SENT}"}


def test_the_bytes_of_a_survey_count() -> None:
    nodes = trio(a=1.0, b=2.0)
    replies: list[Message] = []

    def kept(volunteer: Volunteer) -> Handler:
        def answer(message: Message) -> Message | None:
            reply = volunteer(message)
            if reply is not None and message.metadata.group_id == "1":
                replies.append(reply)
            return reply

        return answer

    grid = MemoryGrid({node: kept(v) for node, v in nodes.items()})
    _, watch = run(Surveyor(evaluate_every=0), grid, 2)
    assert len(replies) == 4
    down = [m for _, m in grid.pushed if m.metadata.group_id == "1"]
    assert len(down) == 4
    assert watch.records[0].bytes_down == sum(content_size(m.content) for m in down)
    assert watch.records[0].bytes_up == sum(content_size(m.content) for m in replies)


class Personal(FedAvg):
    """Tells each client something of its own, sends a record besides, and wants one back."""

    reply_records = ("extra",)

    def __init__(self, **shared: object) -> None:
        super().__init__(**shared)  # type: ignore[arg-type]
        self.sums: dict[str, float] = {}

    def wave(self, round: Round, members: Sequence[Member]) -> Instructions:
        own = {m.client_id: {"local-steps": 7, "only": m.client_id} for m in members if m.client_id == "b"}
        return Instructions({"local-steps": 5, "shared": 1}, own, {"control": model(1.0, 2.0, 3.0)})

    def add(self, round: Round, reply: Reply) -> None:
        assert set(reply.records) == set(self.reply_records)
        self.sums[reply.member.client_id] = sum(values_of(reply.records["extra"]))
        super().add(round, reply)


def with_extra(name: str, extra: ArrayRecord | ConfigRecord | None, decision: int = 1) -> Handler:
    volunteer = Volunteer(name, decision=decision)

    def answer(message: Message) -> Message | None:
        reply = volunteer(message)
        if reply is None or message.metadata.message_type != "train" or extra is None:
            return reply
        return Message(RecordDict({**reply.content, "extra": extra}), reply_to=message)

    return answer


def test_settings_of_one_client_reach_that_client_only() -> None:
    grid = MemoryGrid({10 + k: with_extra(n, model(1)) for k, n in enumerate("abc")})
    before = ConfigRecord({"local-steps": 1, "learning-rate": 0.5})
    run(Personal(), grid, 1, train_config=before)
    told = {m.metadata.dst_node_id: dict(m.content.config_records[keys.CONFIG]) for m in grid.sent("train")}
    everybody = {
        keys.STRATEGY: "personal",
        keys.LOCAL_RULE: "sgd",
        "learning-rate": 0.5,
        "local-steps": 5,
        "shared": 1,
        keys.SERVER_ROUND: 1,
        keys.MANDATORY: 1,
    }
    assert told == {10: everybody, 11: everybody | {"local-steps": 7, "only": "b"}, 12: everybody}
    assert dict(before) == {"local-steps": 1, "learning-rate": 0.5}


def test_records_besides_the_model_are_sent_to_all_and_counted() -> None:
    grid = MemoryGrid({10 + k: with_extra(n, model(1)) for k, n in enumerate("ab")})
    _, watch = run(Personal(evaluate_every=0), grid, 2)
    for message in grid.sent("train"):
        assert values_of(message.content.array_records["control"]) == [1.0, 2.0, 3.0]
        assert len(values_of(message.content.array_records[keys.ARRAYS])) == 1
    assert watch.records[0].bytes_down == sum(content_size(m.content) for m in grid.sent("train", 1))
    assert all("control" not in m.content for m in grid.sent("evaluate"))


def test_a_join_without_the_record_that_was_asked_for_is_refused() -> None:
    grid = MemoryGrid(
        {
            10: with_extra("a", model(2, 3)),
            11: with_extra("b", None),
            12: with_extra("c", ConfigRecord({"w": 1})),
            13: with_extra("d", None, decision=0),
            14: with_extra("e", None, decision=-1),
        }
    )
    strategy = Personal()
    _, watch = run(strategy, grid, 1)
    record = watch.records[0]
    line = "reply joins without the ArrayRecord 'extra'"
    assert record.failures == {"b": line, "c": line}
    assert record.decisions == {"a": "joined", "b": "failed", "c": "failed", "d": "sat-out", "e": "left"}
    assert strategy.sums == {"a": 5.0}
    assert watch.models == [[1.0]]


def test_what_add_refuses_is_a_failure_and_does_not_count() -> None:
    class Picky(FedAvg):
        def add(self, round: Round, reply: Reply) -> None:
            if reply.member.client_id == "b":
                raise Refused("not from b")
            super().add(round, reply)

    grid = MemoryGrid({10: Volunteer("a", local=4.0), 11: Volunteer("b", local=100.0)})
    _, watch = run(Picky(), grid, 1)
    assert watch.records[0].failures == {"b": "not from b"}
    assert watch.models == [[4.0]]


@pytest.mark.parametrize(
    ("asks_on", "ask_on", "asked"), [(True, True, 7), (False, True, 2), (True, False, 2), (False, False, 2)]
)
@pytest.mark.parametrize("silent", [False, True])
def test_a_strategy_or_a_run_may_do_without_a_second_wave(
    asks_on: bool, ask_on: bool, asked: int, silent: bool
) -> None:
    class Once(FedAvg):
        pass

    Once.asks_on = asks_on
    grid = MemoryGrid({10 + k: Volunteer(f"c{k}", decision=0) for k in range(7)})
    watch = Watch(before={1: lambda: grid.unreachable.update(grid.nodes) if silent else None})
    run(Once(clients_per_round=2, evaluate_every=0, ask_on=ask_on), grid, 1, watch)
    (record,) = watch.records
    assert len(record.decisions) == asked
    assert set(record.decisions.values()) == {"absent" if silent else "sat-out"}
