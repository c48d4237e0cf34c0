"""What the owner of a client reads of one answer, and what is remembered of it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

from client.answers import AWAY
from client.outcome import FAILED, SAT_OUT, Outcome
from client.process.answer import Answer
from client.state.activity import Activity, Judged
from fedappeal.flower.messages import be_sender
from fedappeal.protocol.packing import content_size
from tests.outcomes import outcome_of

JUDGED = Judged(0.4121, 0.3879, "loss", "train", False)


def message(kind: str = "train", **config: int | str) -> Message:
    be_sender(run_id=7, node_id=1, task_id=9)
    model = ArrayRecord({"w": Array(np.zeros(1000, np.float32))})
    told = ConfigRecord({key.replace("_", "-"): value for key, value in config.items()})
    return Message(RecordDict({"arrays": model, "config": told}), 3, kind)


def answered(asked: Message, judged: Judged | None = None, **metrics: int) -> Answer:
    reply = Message(RecordDict({"metrics": MetricRecord(dict(metrics))}), reply_to=asked)
    return Answer(asked, replace(outcome_of(asked, reply), judged=judged))


@pytest.mark.parametrize(
    ("decision", "judged", "line"),
    [
        (0, JUDGED, "round 11: sat out (loss 0.412, requirement 0.388; 0.01 s)"),
        (0, None, "round 11: sat out (0.01 s)"),
        (1, JUDGED, "round 11: joined (0.01 s)"),
        (-1, JUDGED, "round 11: left for good (0.01 s)"),
    ],
)
def test_a_client_that_sat_out_says_by_which_figures(decision: int, judged: Judged | None, line: str) -> None:
    assert answered(message(server_round=11), judged, decision=decision).line(0.0123) == line


def test_a_client_that_did_not_look_at_the_model_says_why() -> None:
    answer = Answer(message(server_round=2), Outcome(SAT_OUT, AWAY, told={"num-examples": 3, "decision": 0}))
    assert answer.line(0.0123) == f"round 2: sat out, {AWAY} (0.01 s)"


def test_other_answers_are_a_word() -> None:
    assert answered(message("evaluate", server_round=2), JUDGED).line(0.5) == "round 2: evaluated (0.50 s)"
    assert answered(message("query")).line(0.5) == "roll call: answered (0.50 s)"


def test_an_error_reply_is_a_failure() -> None:
    asked = message(server_round=2)
    answer = Answer(asked, Outcome(FAILED, "no data", replied=Message(Error(2, "no data"), reply_to=asked)))
    assert (answer.kind, answer.decided) == ("failed", ("failed", "no data"))
    assert answer.line(0.5) == "round 2: failed, no data (0.50 s)"


@pytest.mark.parametrize("met", [False, True])
def test_a_client_that_joins_a_mandatory_round_joined_on_request(met: bool) -> None:
    judged = replace(JUDGED, met=met)
    for mandatory, what in ((1, "joined on request"), (0, "joined")):
        decided = answered(message(server_round=2, mandatory=mandatory), judged, decision=1).decided
        assert (decided or "")[0] == what
    sat_out = answered(message(server_round=2, mandatory=1), judged, decision=0).decided
    assert (sat_out or "")[0] == "sat out"


def test_each_answer_is_remembered_with_its_size(tmp_path: Path) -> None:
    activity, settings = Activity(tmp_path), {"strategy": "maxfl", "task": "digits"}
    asked = message(server_round=1, run_key="k")
    down, up = 0, 0
    answers = [
        answered(message("query", run_key="k")),
        answered(asked, decision=1),
        answered(message(server_round=2, run_key="k"), JUDGED, decision=0),
        answered(message("evaluate", server_round=2, run_key="k")),
        Answer(asked, Outcome(FAILED, "no data", replied=Message(Error(2, "no data"), reply_to=asked))),
    ]
    for answer in answers:
        answer.remember(activity, settings, 0.5)
        down += content_size(answer.message.content)
        up += content_size(answer.reply.content) if answer.reply.has_content() else 0
    run = activity.runs()["k"]
    assert run.done == {"joined": 1, "sat-out": 1, "evaluated": 1, "failed": 1}
    assert (run.bytes_down, run.bytes_up, run.seconds) == (down, up, 2.5)
    assert down > 5 * 4000
    assert (run.server_round, run.judged) == (2, JUDGED)
