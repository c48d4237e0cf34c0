"""Which participants a process keeps, and what they share."""

from pathlib import Path

import pytest
from flwr.app import Context, RecordDict

from client.roster import KEPT, KEPT_WITH_OWN_DATA, Participants
from client.state.store import ContextStore, DiskStore
from client.training.devices import pick_device
from client.training.task_learner import TaskLearners
from fedappeal.settings.config import RunConfig
from fedappeal.simulation.pool import Pool
from fedappeal.tasks import load_task
from strategies.maxfl import MaxFL

CLIENTS = KEPT + 4
CONFIG = RunConfig.parse({"task": "synth", "clients": CLIENTS, "set": "synth.examples=10", "min-examples": 1})
TOLD = CONFIG.as_config()


def context(k: int) -> Context:
    return Context(1, 2 + k, {"partition-id": k, "device": "cpu"}, RecordDict(), TOLD)


def simulated(config: RunConfig, clients: int) -> Participants:
    pool = Pool(load_task(config.task_settings()), range(clients), pick_device("cpu"))
    return Participants(TaskLearners(data=pool.client))


def test_a_simulators_participants_all_stay_and_share_all_but_what_is_their_own() -> None:
    pool = Pool(load_task(CONFIG.task_settings()), range(CLIENTS), pick_device("cpu"))
    participants = Participants(TaskLearners(data=pool.client))
    contexts = [context(k) for k in range(CLIENTS)]
    first = [participants.of(each) for each in contexts]
    assert [participants.of(each) for each in contexts] == first == participants.kept_participants()
    for name in ("task", "model", "expects", "parts"):
        assert len({id(getattr(each.learner, name)) for each in first}) == 1, name
    for name in ("strategy", "discloses"):
        assert len({id(getattr(each, name)) for each in first}) == 1, name
    assert len({each.client_id for each in first}) == len({id(each.policy) for each in first}) == CLIENTS
    participants.clear()
    assert not participants.kept_participants()
    assert participants.of(contexts[0]) is not first[0]


def test_one_whose_store_is_another_now_remembers_there() -> None:
    participants = Participants(
        TaskLearners(data=Pool(load_task(CONFIG.task_settings()), range(1), pick_device("cpu")).client)
    )
    one = context(0)
    participant = participants.of(one)
    one.state = RecordDict()
    assert participants.of(one) is participant
    assert isinstance(participant.store, ContextStore)
    assert participant.store.holds(one.state)


def test_participants_with_loaded_data_are_let_go() -> None:
    participants = Participants(TaskLearners())
    for k in range(CLIENTS):
        participants.of(context(k))
    assert len(participants.kept_participants()) == KEPT > KEPT_WITH_OWN_DATA
    assert participants.kept_participants()[0].node.partition_id == CLIENTS - KEPT


def test_a_tilde_stands_for_the_owners_home_in_every_runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    one = context(0)
    one.node_config |= {"state-dir": "~/state"}
    participant = Participants(TaskLearners()).of(one)
    assert isinstance(participant.store, DiskStore)
    assert participant.store.folder == tmp_path / "state"
    assert participant.guard is not None
    assert [folder.name for folder in tmp_path.iterdir()] == ["state"]


class Counting(MaxFL):
    """A strategy that remembers in itself."""

    name = "counting"


def test_a_strategy_of_ones_own_is_each_clients_own() -> None:
    config = RunConfig.parse({**TOLD, "strategy": f"{__name__}:Counting"})
    participants = Participants(
        TaskLearners(data=Pool(load_task(config.task_settings()), range(2), pick_device("cpu")).client)
    )
    told = config.as_config()
    contexts = [Context(1, 2 + k, {"partition-id": k, "device": "cpu"}, RecordDict(), told) for k in range(2)]
    one, other = (participants.of(each).strategy for each in contexts)
    assert type(one) is type(other) is Counting
    assert one is not other


def test_what_clients_of_a_run_have_in_common_is_one_object() -> None:
    participants = Participants(
        TaskLearners(data=Pool(load_task(CONFIG.task_settings()), range(2), pick_device("cpu")).client)
    )
    first, second = (participants.of(context(k)) for k in range(2))
    assert first.terms is second.terms
    again = context(0)
    assert participants.of(again) is first  # equal settings in other objects
    again.node_config = {**again.node_config, "participation": "defect"}
    assert participants.of(again).terms is not first.terms
