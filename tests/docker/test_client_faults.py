"""Faults of clients, in real containers: each run finishes, nothing is lost, and what was gone comes back."""

import time
from collections.abc import Callable

import numpy as np

from tests.docker.federation import ROUND_TIMEOUT, SLOW, Federation, docker, wait_until

Recovered = Callable[[str, float], None]


def test_a_client_killed_in_training_is_the_same_client_again(federation: Federation, recovered: Recovered) -> None:
    victim = federation.clients()[1]
    client_id, starts = federation.client_id(victim), federation.starts(victim)
    run = federation.run("killed", "--strategy", "maxfl", "--rounds", "12", "--mandatory-rounds", "12", *SLOW)
    run.wait_for_begin(3)
    before = federation.status(victim)
    run.wait_for_begin(5)
    federation.kill(victim)
    killed, lost = time.monotonic(), len(run.history) + 1

    def joined_again() -> bool:
        return any(d == "joined" and r > lost for r, d in run.decisions(client_id).items())

    wait_until(joined_again, "the killed client joins a round again")
    recovered("client killed in training, started again by Docker, joined a round", time.monotonic() - killed)
    run.finished()

    assert federation.starts(victim) == starts + 1
    assert run.decisions(client_id)[lost] == "absent"
    assert federation.client_id(victim) == client_id
    required = [line for line in before if line.startswith(("requires", "client"))]
    assert any(line.startswith("requires") for line in required)
    status = federation.status(victim)
    assert [line for line in status if line in required] == required
    [taking_part] = [line for line in before if line.startswith("run") and line.endswith(": takes part")]
    assert taking_part.replace("takes part", "the run is over") in status
    assert f"this replica is client {federation.number(victim)}" in federation.logs(victim)
    # All others worked on: nobody else failed, and no round was lost.
    others = [p for p in run.participation if p["client-id"] != client_id]
    assert {p["decision"] for p in others} == {"joined"}
    assert len(run.history) == 12


def test_a_client_that_left_for_good_has_still_left_after_a_kill(
    federation: Federation, recovered: Recovered
) -> None:
    settings = ("--strategy", "fedavg", "--participation", "defect", "--set", "defect.leave-below=0.4")
    run = federation.run("left", *settings, "--rounds", "40", "--local-steps", "20", "--learning-rate", "0.05")
    wait_until(lambda: any(p["decision"] == "left" for p in run.participation), "somebody leaves for good")
    left = next(p for p in run.participation if p["decision"] == "left")
    by_id = {federation.client_id(container): container for container in federation.clients()}
    victim, client_id = by_id[left["client-id"]], left["client-id"]
    word = f": left for good in round {left['round']}"
    (left_line,) = [line for line in federation.status(victim) if line.endswith(word)]
    federation.kill(victim)
    killed = time.monotonic()
    enrolled = [e for e in run.events if e["event"] == "enrolled" and e["client"] == client_id]
    wait_until(lambda: federation.logs(victim).count("connected to") >= 2, "the killed client connects again")
    recovered("client that had left killed, connected again", time.monotonic() - killed)
    run.finished()
    assert len(enrolled) == 1
    # A client that is not asked any more looks itself whether the run has ended, every 20 s.
    over = f"{left_line}; the run is over"
    wait_until(lambda: over in federation.status(victim), "the client sees that the run is over")
    # Who has left is not asked again; were it asked, it would say once more that it has left.
    assert {d for r, d in run.decisions(client_id).items() if r > left["round"]} <= {"left"}
    assert len(run.history) == 40


def test_rounds_go_on_without_a_client_that_is_cut_off_and_then_with_it(
    federation: Federation, recovered: Recovered
) -> None:
    victim, network = federation.clients()[2], f"{federation.project}_fleet"
    client_id = federation.client_id(victim)
    run = federation.run("cut-off", "--strategy", "fedavg", "--rounds", "14", *SLOW)
    run.wait_for_begin(3)
    docker("network", "disconnect", network, victim)
    cut = time.monotonic()
    run.wait_for_round(3)
    missed = 3
    wait_until(lambda: time.monotonic() > cut + ROUND_TIMEOUT + 5, "longer than the deadline of a round")
    run.wait_for_round(5)
    docker("network", "connect", "--alias", "client", network, victim)
    connected = time.monotonic()
    gone = len(run.history)

    def joined_again() -> bool:
        return any(d == "joined" and r > gone for r, d in run.decisions(client_id).items())

    wait_until(joined_again, "the client joins a round again")
    recovered("client cut off for longer than a round's deadline, joined a round", time.monotonic() - connected)
    run.finished()
    decisions = run.decisions(client_id)
    assert decisions[missed] == "absent"
    assert all(decisions.get(r, "absent") == "absent" for r in range(missed, gone + 1))
    assert all(line["joined"] >= 3 for line in run.history)


def test_half_of_the_clients_are_paused_for_two_rounds(federation: Federation, recovered: Recovered) -> None:
    paused = federation.clients()[:2]
    ids = [federation.client_id(container) for container in paused]
    run = federation.run("paused", "--strategy", "fedavg", "--rounds", "8", *SLOW)
    run.wait_for_begin(2)
    docker("pause", *paused)
    run.wait_for_round(3)
    docker("unpause", *paused)
    awake, gone = time.monotonic(), len(run.history)

    def all_joined() -> bool:
        return any(line["joined"] == 4 and line["round"] > gone for line in run.history)

    wait_until(all_joined, "all clients join a round again")
    recovered("half of the clients paused for two rounds, all joined a round", time.monotonic() - awake)
    run.finished()
    for client_id in ids:
        decisions = run.decisions(client_id)
        # Where it was silent for so long that the SuperLink counted it as gone, it was not asked any more.
        assert (decisions[2], decisions.get(3, "not asked")) in (("absent", "absent"), ("absent", "not asked"))
    assert [line["joined"] for line in run.history[1:3]] == [2, 2]
    assert len(run.history) == 8


def test_a_round_without_any_client_is_recorded_as_empty_and_changes_nothing(
    federation: Federation, recovered: Recovered
) -> None:
    everybody = federation.clients()
    # Five seconds of training, so that all of them stand still before one has answered.
    run = federation.run("empty", "--strategy", "fedavg", "--rounds", "7", *SLOW, "--local-steps", "50")
    run.wait_for_begin(3)
    docker("pause", *everybody)
    before = run.checkpoint_of(2)
    run.wait_for_round(3)
    after = run.checkpoint_of(3)
    docker("unpause", *everybody)
    awake = time.monotonic()
    run.wait_for_round(4)
    recovered("all clients gone for one round, next round finished", time.monotonic() - awake)
    run.finished()
    empty = run.history[2]
    assert (empty["joined"], empty["sat_out"], empty["left"]) == (0, 0, 0)
    assert before.keys() == after.keys()
    assert all(np.array_equal(before[name], after[name]) for name in before)
    assert [line["joined"] for line in run.history[:2]] == [4, 4]
    assert all(line["joined"] >= 1 for line in run.history[3:])
    assert run.history[-1]["joined"] == 4
    final = run.checkpoint()[1]
    assert not all(np.array_equal(after[name], final[name]) for name in after)
