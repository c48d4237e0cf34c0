"""Promise: a run begins with the good clients, whatever other nodes answer to the roll call."""

from pathlib import Path

from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.common.constant import ErrorCode

from fedappeal.protocol import keys
from tests.hostile.federation import Attacker, enrolled, federation
from tests.hostile.test_identity import ALICE, enrolments, refusals, until


def too_long(attacker: Attacker, message: Message) -> Message:
    return enrolled(message, "x" * 3_000_000)


def garbage(attacker: Attacker, message: Message) -> Message:
    return Message(RecordDict({keys.INFO: ConfigRecord({keys.CLIENT_ID: b"\xff\xfe"})}), reply_to=message)


def unavailable(attacker: Attacker, message: Message) -> Message:
    return Message(Error(ErrorCode.REPLY_MESSAGE_UNAVAILABLE, "not now"), reply_to=message)


def test_a_run_begins_without_four_nodes_that_answer_badly(tmp_path: Path) -> None:
    with federation(tmp_path, attackers=4, clients=6, rounds=2, start_after=4.0, start_timeout=60.0) as attacked:

        def thief(attacker: Attacker, message: Message) -> Message:
            until(attacked, lambda: enrolments(attacked, ALICE))
            return enrolled(message, ALICE)

        bad = [attacked.attack(answer) for answer in (too_long, garbage, unavailable, thief)]
        attacked.run()
        assert [len(refusals(attacked, attacker)) for attacker in bad] == [1] * 4
    assert [line["joined"] for line in attacked.history] == [2, 2]
