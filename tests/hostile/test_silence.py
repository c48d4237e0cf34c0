"""Promise: a client that never answers costs a round its deadline, and no more."""

from pathlib import Path

from flwr.app import Message

from tests.hostile.federation import Attacker, enrolled, federation, is_roll_call


def silent(attacker: Attacker, message: Message) -> Message | None:
    return enrolled(message) if is_roll_call(message) else None


def test_rounds_go_on_without_a_client_that_enrols_and_is_silent(tmp_path: Path) -> None:
    with federation(tmp_path, round_timeout=3.0) as attacked:
        attacked.attack(silent)
        attacked.run()
    assert [line["joined"] for line in attacked.history] == [2, 2, 2]
    assert attacked.failures_of("mallory")
