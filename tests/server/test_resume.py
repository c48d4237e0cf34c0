"""Whole runs of the server with the real ClientApp, in memory: what a run leaves behind, and resume."""

import re
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict

import fedappeal
from client.app import Clients, app_of
from client.participation.behaviour import Mixture
from client.roster import Participants
from client.training.task_learner import TaskLearners
from fedappeal.core.algorithm import personal_of
from fedappeal.protocol import keys
from fedappeal.record.folder import RunFolder
from fedappeal.record.lines import CHECKPOINT, MODEL, POLICIES
from fedappeal.record.reader import Record
from fedappeal.settings.config import ConfigError, RunConfig, Scalar
from fedappeal.system.files import read_safetensors, write_safetensors
from fedappeal.trained import read_card
from server.build import check_settings, run_plugins
from server.checkpoints import Checkpoint
from server.server_run import run
from strategies import FedAvg, MaxFL
from strategies.rounds.exchange.roll_call import RollCallError
from strategies.rounds.strategy import shared_of
from tests.grid import Handler, MemoryGrid, time_of
from tests.node import changed, run_config

CONFIG = run_config(
    clients=5,
    unseen_clients=1,
    clients_per_round=3,
    rounds=6,
    mandatory_rounds=2,
    solo__steps=15,
    local_steps=10,
    start_timeout=20.0,
)


def volunteers(config: RunConfig, **node: Scalar) -> dict[int, Handler]:
    """Clients that remember nothing from before."""
    app = app_of(Clients(Participants(TaskLearners())))
    total = config.clients + config.unseen_clients

    def volunteer(number: int) -> Handler:
        own: dict[str, Scalar] = {"partition-id": number, "num-partitions": total, "device": "cpu"}
        own |= {key.replace("_", "-"): value for key, value in node.items()}
        context = Context(7, 100 + number, own, RecordDict(), config.as_config())
        return lambda message: app(message, context)

    return {100 + k: volunteer(k) for k in range(total)}


def federate(config: RunConfig, **node: Scalar) -> MemoryGrid:
    """Run the server with clients that remember nothing from before."""
    grid = MemoryGrid(volunteers(config, **node))
    with time_of(grid):
        run(grid, run_plugins(config))
    return grid


def test_a_run_stopped_and_resumed_is_the_undisturbed_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = changed(CONFIG, out=str(tmp_path / "whole"))
    federate(whole)

    write = Checkpoint.write

    def killed(self: Checkpoint, path: Path, durable: bool = True) -> None:
        if self.server_round == 4:
            raise RuntimeError("killed")  # after the lines of round 4, before its checkpoint
        write(self, path, durable)

    halved = changed(CONFIG, out=str(tmp_path / "halved"))
    with monkeypatch.context() as patch:
        patch.setattr(Checkpoint, "write", killed)
        with pytest.raises(RuntimeError, match="killed"):
            federate(halved)
    assert [line["round"] for line in Record(tmp_path / "halved").history] == [1, 2, 3, 4]
    assert Checkpoint.read(tmp_path / "halved" / CHECKPOINT).server_round == 3
    key = RunFolder.open(tmp_path / "halved").run_key
    federate(changed(halved, resume=True))
    assert RunFolder.open(tmp_path / "halved").run_key == key

    one, other = (Record(tmp_path / name).decisions for name in ("whole", "halved"))
    assert one == other
    assert {line["decision"] for line in one} >= {"joined", "sat-out"}
    for name in ("round", "joined", "sat_out", "gm_appeal", "evaluated", "bytes_down", "bytes_up"):
        pair = [[line[name] for line in Record(tmp_path / run).history] for run in ("whole", "halved")]
        assert pair[0] == pytest.approx(pair[1])
    models = [read_safetensors(tmp_path / name / MODEL) for name in ("whole", "halved")]
    for name, (_, values) in zip(("whole", "halved"), models, strict=True):
        card = read_card(tmp_path / name / MODEL)
        assert (values["round"], values["task"], card.round, card.task) == (6, "digits", 6, "digits")
        assert card.figures["gm_appeal"] == Record(tmp_path / name).history[-1]["gm_appeal"]
    for name, array in models[0][0].items():
        np.testing.assert_allclose(models[1][0][name], array, atol=1e-6)
    kinds = [e["event"] for e in Record(tmp_path / "halved").events]
    assert [k for k in kinds if k in ("failed", "resumed", "finished")] == ["failed", "resumed", "finished"]


def test_a_run_learns_and_leaves_its_lines(tmp_path: Path) -> None:
    config = changed(CONFIG, out=str(tmp_path), clients_per_round=0, strategy="fedavg", participation="always")
    federate(changed(config, learning_rate=0.3))
    lines = Record(tmp_path).history
    expected = {"round", "asked", "joined", "sat_out", "left", "failed", "surplus", "gm_appeal", "loss", "accuracy"}
    expected |= {
        "preferred_accuracy",
        "unseen_accuracy",
        "evaluated",
        "expected",
        "bytes_up",
        "bytes_down",
        "seconds",
    }
    for line in lines:
        assert expected <= set(line)
        assert (line["asked"], line["joined"], line["evaluated"], line["expected"]) == (5, 5, 6, 6)
    assert lines[-1]["loss"] < lines[0]["loss"]
    assert len(Record(tmp_path).decisions) == 6 * 5


def test_the_initial_model_may_come_from_a_file(tmp_path: Path) -> None:
    config = changed(CONFIG, out=str(tmp_path / "a"), rounds=1, mandatory_rounds=1)
    federate(config)
    arrays, _ = read_safetensors(tmp_path / "a" / MODEL)
    federate(changed(config, out=str(tmp_path / "b"), initial_model=str(tmp_path / "a" / MODEL)))
    first = Checkpoint.read(tmp_path / "b" / CHECKPOINT).initial["flat"].numpy()
    assert sorted(first.tolist()) == sorted(v for a in arrays.values() for v in a.ravel().tolist())
    write_safetensors(tmp_path / "wrong.safetensors", {**arrays, "more": np.ones(2, np.float32)}, {})
    # A file that is not there is the server's to refuse; another model, the clients': the server has no torch.
    refusals = {"missing.safetensors": "missing.safetensors", "wrong.safetensors": "layout .* does not match"}
    for wrong, reason in refusals.items():
        out = tmp_path / f"run-{wrong}"
        with pytest.raises((ConfigError, RollCallError), match=reason):
            federate(changed(config, out=str(out), initial_model=str(tmp_path / wrong)))
        last = Record(out).events[-1]
        assert last["event"] == "failed"
        assert re.search(reason, last["reason"])


def test_clients_with_another_task_are_refused_with_their_reason(tmp_path: Path) -> None:
    config = changed(CONFIG, out=str(tmp_path))
    grid = MemoryGrid(volunteers(changed(config, seed=9)))
    with time_of(grid), pytest.raises(RollCallError, match=r"0 of 6 clients .*task and partition settings"):
        run(grid, run_plugins(config))
    events = Record(tmp_path).events
    assert [e["event"] for e in events if e["event"] != "waiting"] == ["refused"] * 6 + ["failed"]


def test_a_strategy_is_built_from_the_settings() -> None:
    built = check_settings(
        changed(CONFIG, maxfl__server_lr=0.5, maxfl__stabilizer=0.2, tuning_steps=3, evaluate_every=4, seed=8)
    ).build()
    assert isinstance(built, MaxFL)
    assert (built.settings.server_lr, built.settings.stabilizer, personal_of(built).tuning_steps()) == (0.5, 0.2, 3)
    shared = shared_of(built)
    assert (shared.clients_per_round, shared.expected_clients, shared.mandatory_rounds) == (3, 6, 2)
    assert (shared.evaluate_every, shared.seed, shared.start_timeout) == (4, 8, 20.0)
    other = check_settings(RunConfig(strategy="fedavg")).build()
    assert isinstance(other, FedAvg)
    assert (shared_of(other).clients_per_round, shared_of(other).mandatory_rounds) == (None, "auto")
    another = check_settings(changed(CONFIG, tuning_steps=3, maxfl__tuning_steps=5)).build()
    assert personal_of(another).tuning_steps() == 5
    with pytest.raises(ConfigError, match=r"strategy = 'maxfll' is not allowed: .*\(did you mean 'maxfl'\?\)"):
        check_settings(RunConfig(strategy="maxfll")).build()


# -- policies, versions and forms of a model -------------------------------------------------------------

MIXED = "appeal=0.5,defect=0.3,always=0.2"


def test_a_mixture_says_who_has_which_policy(tmp_path: Path) -> None:
    config = changed(CONFIG, clients=8, min_clients=8, out=str(tmp_path), participation=MIXED, rounds=3)
    federate(changed(config, defect__leave_below=9.0, clients_per_round=0))
    lines = Record(tmp_path).policies
    mixture = Mixture.parse(MIXED)
    assert [set(line) for line in lines] == [{"client-id", "policy"}] * 9
    assert {line["client-id"]: line["policy"] for line in lines} == {
        f"client-{k:04d}": mixture.of(0, f"client-{k:04d}") for k in range(9)
    }
    policies = {line["client-id"]: line["policy"] for line in lines}
    assert len(set(policies.values())) > 1
    # The clients do what is written: those that defect leave in round 1, the others are bound by mandatory rounds.
    first = [line for line in Record(tmp_path).decisions if line["round"] == 1]
    assert len(first) == 8
    for line in first:
        assert line["decision"] == ("left" if policies[line["client-id"]] == "defect" else "joined")
    # A resumed run does not write them twice.
    federate(changed(config, resume=True, rounds=4, defect__leave_below=9.0, clients_per_round=0))
    assert Record(tmp_path).policies == lines
    assert len(Record(tmp_path).history) == 4


def test_one_policy_for_all_is_in_the_settings_alone(tmp_path: Path) -> None:
    federate(changed(CONFIG, out=str(tmp_path), rounds=1, mandatory_rounds=0, participation="always"))
    assert not (tmp_path / POLICIES).exists()
    assert Record(tmp_path).config["settings"]["participation"] == "always"


def test_an_owners_policy_is_in_no_file_of_the_run(tmp_path: Path) -> None:
    config = changed(CONFIG, out=str(tmp_path), rounds=2, mandatory_rounds=1, clients_per_round=0)
    federate(config, participation="defect", set="defect.leave-below=9.87654")
    first = [line for line in Record(tmp_path).decisions if line["round"] == 1]
    assert [line["decision"] for line in first] == ["left"] * 5, "they decide as their owners say"
    written = "".join(path.read_text() for path in tmp_path.iterdir() if path.suffix in (".json", ".jsonl"))
    assert "9.87654" not in written
    assert "defect" not in written


def test_versions_of_server_and_clients_are_recorded(tmp_path: Path) -> None:
    config = changed(CONFIG, out=str(tmp_path), rounds=1, mandatory_rounds=1, clients_per_round=0)
    nodes = volunteers(config)

    def newer(handler: Handler) -> Handler:
        def answer(message: Message) -> Message | None:
            reply = handler(message)
            if reply is not None and keys.INFO in reply.content:
                reply.content.config_records[keys.INFO][keys.VERSION] = "99.0"
            return reply

        return answer

    nodes[102] = newer(nodes[102])
    grid = MemoryGrid(nodes)
    with time_of(grid):
        run(grid, run_plugins(config))
    enrolled = {e["client"]: e["version"] for e in Record(tmp_path).events if e["event"] == "enrolled"}
    assert enrolled == {f"client-{k:04d}": "99.0" if k == 2 else fedappeal.__version__ for k in range(6)}
    assert Record(tmp_path).config["versions"]["fedappeal"]
    assert len(Record(tmp_path).decisions) == 5, "it takes part like the others"


def test_another_protocol_is_refused_with_both_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = changed(CONFIG, out=str(tmp_path))
    grid = MemoryGrid(volunteers(config))
    monkeypatch.setattr("server.server_run.roll_call_settings", lambda *arguments: {keys.PROTOCOL_VERSION: 99})
    line = rf"this client speaks protocol {keys.PROTOCOL} \(fedappeal .*\), the run 99"
    with time_of(grid), pytest.raises(RollCallError, match=line):
        run(grid, run_plugins(config))
    events = [e["event"] for e in Record(tmp_path).events]
    assert [event for event in events if event != "waiting"] == ["refused"] * 6 + ["failed"]


@pytest.mark.parametrize("strategy", ["maxfl", "scaffold", "adagd"])
def test_with_pack_false_models_travel_as_named_arrays_and_the_run_is_the_same(strategy: str, tmp_path: Path) -> None:
    config = changed(CONFIG, strategy=strategy, rounds=2, mandatory_rounds=1, clients_per_round=0, unseen_clients=0)
    models = []
    for pack in (True, False):
        out = tmp_path / str(pack)
        grid = federate(changed(config, out=str(out), pack=pack))
        names = set(read_safetensors(out / MODEL)[0])
        for kind in ("query", "train", "evaluate"):
            for message in grid.sent(kind):
                assert set(message.content.array_records[keys.ARRAYS]) == ({"flat"} if pack else names)
        assert len(names) > 2
        models.append(read_safetensors(out / MODEL)[0])
        assert all(line["failed"] == 0 for line in Record(out).history)
        assert set(Checkpoint.read(out / CHECKPOINT).arrays) == ({"flat"} if pack else names)
    for name, array in models[0].items():
        np.testing.assert_allclose(models[1][name], array, rtol=1e-6, atol=1e-8)
    federate(changed(config, out=str(tmp_path / "False"), pack=False, resume=True, rounds=3))
    assert len(Record(tmp_path / "False").history) == 3
