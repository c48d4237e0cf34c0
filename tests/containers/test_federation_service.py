"""The one-shot service: whom it waits for, and which command it turns its settings into."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from fedappeal.containers.federation_service import arguments, count_replicas, submit_arguments, wait_for_replicas
from fedappeal.containers.replica import ReplicaSlot, claim_slot
from fedappeal.settings.config import ConfigError

RUNS = Path("/runs")
CA = Path("/federation/ca/ca.crt")
WHERE = ["--superlink", "control:8000", "--root-certificates", str(CA)]


@pytest.fixture
def replicas(tmp_path: Path) -> Iterator[list[ReplicaSlot]]:
    """Three replicas with keys."""
    with ExitStack() as stack:
        slots = [stack.enter_context(claim_slot(tmp_path)) for _ in range(3)]
        for slot in slots:
            slot.public_key.touch()
        yield slots


def test_it_waits_for_every_replica_and_its_key(tmp_path: Path, replicas: list[ReplicaSlot]) -> None:
    replicas[1].public_key.unlink()
    looks = 0

    def count() -> int:
        nonlocal looks
        looks += 1
        if looks == 4:
            replicas[1].public_key.touch()
        return min(looks, 3)

    assert wait_for_replicas(tmp_path, count, poll=0.001) == replicas
    assert looks == 4


def test_replicas_that_are_not_ready_in_time_are_an_error_that_says_where_to_look(
    tmp_path: Path, replicas: list[ReplicaSlot]
) -> None:
    replicas[0].public_key.unlink()
    with pytest.raises(ConfigError, match="3 replicas of 'client' run, and 2 of them are ready: see `docker compose"):
        wait_for_replicas(tmp_path, lambda: 3, timeout=0.02, poll=0.001)


def test_gaps_between_the_replicas_are_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    with claim_slot(tmp_path) as first, ExitStack() as stack:
        with claim_slot(tmp_path):
            third = stack.enter_context(claim_slot(tmp_path))
        for slot in (first, third):
            slot.public_key.touch()
        with pytest.raises(ConfigError, match=r"are the clients 0, 2, .*`docker compose restart client`"):
            wait_for_replicas(tmp_path, lambda: 2, poll=0.001)


def test_a_service_without_replicas_counts_none() -> None:
    assert count_replicas("no-such-service.invalid") == 0


def options(given: list[str], **environment: str) -> dict[str, str]:
    """Return the options by name; where one is given twice, the last."""
    parts = submit_arguments(environment, given, 5, RUNS)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def test_settings_come_from_the_environment_and_options_given_win() -> None:
    found = options(
        ["--rounds", "4"],
        STRATEGY="fedavg",
        TASK="fmnist",
        ROUNDS="9",
        SEED="",
        OPTIONS="--set 'fedalign.epsilon=0.5'",
    )
    assert {k: v for k, v in found.items() if k != "--out"} == {
        "--strategy": "fedavg",
        "--task": "fmnist",
        "--rounds": "4",
        "--set": "fedalign.epsilon=0.5",
        "--clients": "5",
    }
    assert found["--out"].startswith("/runs/")
    assert found["--out"].endswith("-fedavg-fmnist")


def test_a_run_of_ones_own_strategy_and_task_has_a_folder_without_colons() -> None:
    assert options([], STRATEGY="mine:Mine", TASK="own.task:Own")["--out"].endswith("-mine.Mine-own.task.Own")


def test_the_number_of_clients_is_that_of_the_replicas_unless_it_is_given() -> None:
    assert options([])["--clients"] == "5"
    assert options(["--unseen-clients", "2"])["--clients"] == "3"
    assert options([], OPTIONS="--clients 6")["--clients"] == "6"
    with pytest.raises(ConfigError, match="5 replicas of 'client' run: too few"):
        options(["--unseen-clients", "5"])


def test_options_that_cannot_be_read_are_an_error() -> None:
    with pytest.raises(ConfigError, match="OPTIONS = '--task \"x' is not allowed: No closing quotation"):
        options([], OPTIONS='--task "x')


@pytest.mark.parametrize("named", ["first", "runs/first", "./runs/first", "/runs/first"])
def test_a_runs_folder_is_called_as_on_the_machine(named: str) -> None:
    assert options(["--out", named])["--out"] == "/runs/first"
    assert arguments(["resume", named], {}, lambda: 5, CA, RUNS) == ["resume", "/runs/first", *WHERE]


def test_other_commands_are_told_where_the_superlink_is_and_wait_for_no_client() -> None:
    def no_client() -> int:
        raise AssertionError("waited")

    assert arguments(["federation", "list"], {}, no_client, CA, RUNS) == ["federation", "list", *WHERE]
    page = ["--federation", "/federation/invitations"]  # whose buttons invite
    assert arguments(["watch", "--page=1"], {}, no_client, CA, RUNS) == ["watch", "--page=1", *page]
    served = {"METRICS_PORT": "9464", "METRICS_ADDRESS": "0.0.0.0"}
    metrics = ["--metrics-port", "9464", "--metrics-address", "0.0.0.0"]
    assert arguments(["watch"], served, no_client, CA, RUNS) == ["watch", *metrics, *page]
    assert arguments(["compare", "a", "b"], {}, no_client, CA, RUNS) == ["compare", "a", "b"]


def test_without_a_command_it_submits() -> None:
    said = arguments(["--rounds", "2"], {}, lambda: 3, CA, RUNS)
    assert said[:5] == ["submit", *WHERE]
    assert said[5:7] == ["--rounds", "2"]
    assert arguments(["submit", "--rounds", "2"], {}, lambda: 3, CA, RUNS)[:7] == said[:7]


@pytest.mark.parametrize("command", ["invite laptop", "invites --json"])
def test_invitations_are_those_of_the_volume(command: str) -> None:
    said = arguments(command.split(), {}, lambda: 0, CA, RUNS)
    assert said == ["federation", *command.split(), "--federation", "/federation/invitations"]
