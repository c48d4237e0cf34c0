"""Replicas that are all alike become clients of their own: by the first slot that no other replica holds."""

import signal
import sys
import time
from pathlib import Path
from subprocess import PIPE

from fedappeal.containers.replica import claim_slot, taken_slots
from tests.warm import WarmPopen

REPLICA = """
import sys, time
from pathlib import Path
from fedappeal.containers.replica import claim_slot
with claim_slot(Path(sys.argv[1])) as slot:
    print(slot.number, flush=True)
    time.sleep(60)
"""


def replica(folder: Path) -> WarmPopen:
    return WarmPopen([sys.executable, "-c", REPLICA, str(folder)], stdout=PIPE, text=True)


def number(process: WarmPopen) -> int:
    assert process.stdout is not None
    return int(process.stdout.readline())


def kill(process: WarmPopen) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()


def numbers(folder: Path) -> list[int]:
    return [slot.number for slot in taken_slots(folder)]


def test_replicas_that_start_together_are_different_clients_without_gaps(tmp_path: Path) -> None:
    replicas = [replica(tmp_path / "clients") for _ in range(6)]
    try:
        end = time.monotonic() + 240
        while len(numbers(tmp_path / "clients")) < 6 and time.monotonic() < end:
            pass  # a look takes locks for a moment: it must not push a replica on to the next slot
        assert sorted(number(each) for each in replicas) == [0, 1, 2, 3, 4, 5]
        assert numbers(tmp_path / "clients") == [0, 1, 2, 3, 4, 5]
    finally:
        for each in replicas:
            kill(each)
    assert numbers(tmp_path / "clients") == []


def test_the_one_started_in_place_of_a_killed_one_is_the_same_client(tmp_path: Path) -> None:
    with claim_slot(tmp_path) as first:
        second = replica(tmp_path)
        assert (first.number, number(second)) == (0, 1)
        with claim_slot(tmp_path) as third:
            assert third.number == 2
            kill(second)
            assert numbers(tmp_path) == [0, 2]
            with claim_slot(tmp_path) as again:
                assert again.number == 1
                assert again.folder == tmp_path / "01"
                assert numbers(tmp_path) == [0, 1, 2]
    assert numbers(tmp_path) == []


def test_a_claim_ends_with_an_error_too(tmp_path: Path) -> None:
    try:
        with claim_slot(tmp_path):
            raise RuntimeError("the client failed")
    except RuntimeError:
        pass
    assert numbers(tmp_path) == []
    with claim_slot(tmp_path) as slot:
        assert slot.number == 0


def test_no_slot_is_held_where_no_replica_has_been(tmp_path: Path) -> None:
    assert taken_slots(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_each_client_has_its_own_key_and_state(tmp_path: Path) -> None:
    with claim_slot(tmp_path) as one, claim_slot(tmp_path) as two:
        assert one.key == tmp_path / "00" / "client.key"
        assert two.public_key == tmp_path / "01" / "client.pub"
        assert one.state != two.state
