"""A client with its own data: what its owner sets, what the server learns of it, and what it does without."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict
from flwr.common.config import parse_config_args

import client.process.serve
from client.participant import Participant
from client.roster import KEPT_WITH_OWN_DATA, Participants
from client.settings import Connection, NodeSettings
from client.state.store import ContextStore
from client.training.task_learner import TaskLearners
from fedappeal.cli.main import main
from fedappeal.protocol import keys
from fedappeal.settings.config import ConfigError, RunConfig
from fedappeal.tasks import load_task
from tests.node import Node, changed, participant_of, run_config

ROOT = Path(__file__).parents[3]
RNG = np.random.default_rng(2)
CONFIG = run_config(clients=2, solo__steps=3, local_steps=2)


@pytest.fixture
def own(tmp_path: Path) -> str:
    path = tmp_path / "mine.npz"
    np.savez(path, x=RNG.integers(0, 17, (30, 8, 8)).astype(np.uint8), y=np.arange(30) % 10)
    return str(path)


def participant(node: NodeSettings, config: RunConfig = CONFIG) -> Participant:
    return participant_of(config, node, ContextStore(RecordDict()))


def called(node: NodeSettings, config: RunConfig = CONFIG) -> Message:
    """Return what a client answers to the server's roll call."""
    own = {"partition-id": -1, **node.as_config()}
    return Node(config, **own).reply("query", fingerprint=load_task(config.task_settings()).fingerprint)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"data": "a", "partition-id": 0}, "partition-id = 0 is not allowed together with data = 'a': a client has"),
        ({"data": "a", "num-partitions": 3}, "num-partitions = 3 is not allowed together with data = 'a'"),
        ({"role": "unseen", "partition-id": 0}, "role = 'unseen' is not allowed without data: partition-id says"),
        ({"data": "a.csv"}, "label is missing: which column of data = 'a.csv' holds the labels"),
        ({"data": "a.csv", "label": "y", "features": "x,y"}, "label = 'y' is not allowed: it is one of the features"),
        ({"data": "a.npz", "label": "y"}, "label = 'y' is not allowed with data = 'a.npz': only a table"),
        (
            {"data": "mine:load", "features": "a"},
            "features = 'a' is not allowed with data = 'mine:load': only a table",
        ),
        ({"label": "y", "partition-id": 0}, "label = 'y' is not allowed without data: it names columns of a table"),
        ({"role": "seeing", "data": "a"}, "role = 'seeing' is not allowed: input should be 'seen' or 'unseen'"),
    ],
)
def test_settings_that_do_not_go_together(settings: dict[str, object], expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        NodeSettings.parse(settings)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_neither_names_both() -> None:
    for act in (NodeSettings().check_data_source, lambda: participant(NodeSettings())):
        with pytest.raises(
            ConfigError, match=r"partition-id = -1 is not allowed without data: give data .*partition-id"
        ):
            act()


def test_flowers_node_config_carries_it(own: str) -> None:
    given = parse_config_args([f"data='{own}' role='unseen'"])
    assert NodeSettings.parse(given) == NodeSettings(data=own, role="unseen")


@pytest.mark.parametrize(("role", "clients"), [("seen", 2), ("unseen", 2), ("seen", 5000)])
def test_the_server_learns_role_and_number_of_examples_and_no_more(role: str, clients: int, own: str) -> None:
    config = changed(CONFIG, clients=clients)  # far more than the task's own data would be enough for
    node = NodeSettings.parse({"data": own, "role": role, "client-id": "anna", "device": "cpu"})
    reply = called(node, config)
    assert dict(reply.content[keys.METRICS]) == {keys.NUM_EXAMPLES: 18}
    info = dict(reply.content[keys.INFO])
    assert (info[keys.ROLE], info[keys.CLIENT_ID], info[keys.PRIORITY]) == (role, "anna", 0)
    assert own not in str(reply.content)
    assert set(info) == set(called(NodeSettings(partition_id=0, device="cpu")).content[keys.INFO])


def test_what_is_wrong_with_the_data_is_told_to_the_owner_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "patients.npz"
    np.savez(path, x=np.zeros((20, 8, 8), np.uint8), y=np.full(20, 77))
    reply = called(NodeSettings(data=str(path), client_id="anna", device="cpu"))
    assert {name: dict(record) for name, record in reply.content.items()} == {
        keys.INFO: {keys.CLIENT_ID: "anna", keys.DATA_REFUSED: "labels"}
    }
    (line,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert line == f"task 'digits': data = '{path}' is not allowed: label 77 in row 0 of y: 0 to 9 are allowed"
    # Nor does a later message tell more.
    with pytest.raises(ConfigError, match=r"^data is refused: labels out of range .the client's log says why.$"):
        Node(CONFIG, data=str(path), client_id="anna", partition_id=-1)("train")
    # The reason is not kept: once the file is right, so is the client.
    np.savez(path, x=np.zeros((20, 8, 8), np.uint8), y=np.arange(20) % 10)
    assert called(NodeSettings(data=str(path), client_id="anna", device="cpu")).has_content()


def test_settings_for_the_tasks_own_clients_do_not_touch_it(own: str) -> None:
    config = run_config(clients=2, strategy="fedalign", flip_share=1.0, fedalign__priority_clients=2)
    one = participant(NodeSettings(data=own, client_id="anna", device="cpu"), config)
    honest = participant(NodeSettings(data=own, client_id="anna", device="cpu"))
    assert one.learner.data.fingerprint == honest.learner.data.fingerprint
    assert not one.priority()
    assert participant(NodeSettings(data=own, priority=True, device="cpu")).priority()


def test_few_runs_data_are_held_at_a_time(own: str) -> None:
    kept = Participants(TaskLearners())
    for seed in range(KEPT_WITH_OWN_DATA + 2):
        config = changed(CONFIG, seed=seed).as_config()
        kept.of(Context(1, 2, NodeSettings(data=own, device="cpu").as_config(), RecordDict(), config))
    assert len(kept._participants) == KEPT_WITH_OWN_DATA
    assert [c.seed for c, _ in kept._participants] == [2, 3]


def test_the_command_checks_the_data_before_it_connects(
    own: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started: list[NodeSettings] = []

    def run_client(node: NodeSettings, connection: Connection, app: object, **options: object) -> int:
        started.append(node)
        return 0

    monkeypatch.setattr(client.process.serve, "run_client", run_client)
    monkeypatch.chdir(tmp_path)
    command = f"fedappeal client --superlink 127.0.0.1:9 --insecure --state-dir {tmp_path / 'state'}"
    for options, expected in (
        ("", "fedappeal: partition-id = -1 is not allowed without data"),
        ("--data mine.npz --partition-id 1", "fedappeal: partition-id = 1 is not allowed together with data"),
        ("--data other.npz", f"fedappeal: data = '{tmp_path / 'other.npz'}' is not allowed: no such file or folder"),
        (f"--data {tmp_path / 'state'}", "is not allowed: no such file or folder"),
    ):
        monkeypatch.setattr(sys, "argv", [*command.split(), *options.split()])
        with pytest.raises(SystemExit) as ended:
            main()
        line = capsys.readouterr().err
        assert (ended.value.code, line.count("\n"), expected in line) == (2, 1, True), line
    assert started == []
    monkeypatch.setattr(sys, "argv", [*command.split(), "--data", "mine.npz", "--role", "unseen"])
    with pytest.raises(SystemExit):
        main()
    (node,) = started
    assert (node.data, node.role, node.partition_id) == (own, "unseen", -1)


BARE = """
import importlib.abc, sys

ABSENT = ("sklearn", "scipy", "flwr_datasets", "datasets", "pandas", "pyarrow", "ray", "matplotlib", "torchvision")

class Without(importlib.abc.MetaPathFinder):
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in ABSENT else self.finder.find_spec(name, path, target)

sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
"""
"""What `pip install fedappeal` has not, is not there; nor is torchvision, which a client need not import."""

WORK = """
from flwr.app import RecordDict
from client.learner import Job
from client.roster import Participants
from client.settings import NodeSettings
from client.state.store import ContextStore
from fedappeal.settings.training import LocalTrainingSettings
from client.training.sgd import SGD
from client.training.task_learner import TaskLearners
from fedappeal.settings.config import ConfigError, RunConfig
from fedappeal.tasks.datasets import idx_images

idx_images.DEBIAN_DIR /= "nowhere"
clients = Participants(TaskLearners())
for task in ("digits", "fmnist"):
    config = RunConfig.parse({"task": task, "clients": 2, "solo.steps": 3})
    one = clients.new_participant(config, NodeSettings(data=f"{task}.npz", device="cpu"), ContextStore(RecordDict()))
    arrays = one.learner.task.initial_model(0).state_dict()
    arrays = {name: value.numpy() for name, value in arrays.items()}
    one.begin_run("k", arrays)
    training = LocalTrainingSettings(learning_rate=0.1, batch_size=16, local_steps=2)
    one.learner.train(arrays, Job(SGD(), training, "batches", 1))
    print(len(one.learner.data.train), len(one.learner.data.test))
    try:
        clients.new_participant(config, NodeSettings(partition_id=0, device="cpu"), ContextStore(RecordDict()))
    except (ConfigError, ImportError) as error:
        print(error)
"""


def test_neither_the_data_set_nor_its_packages_are_needed(tmp_path: Path) -> None:
    for task, side in (("digits", 8), ("fmnist", 28)):
        x = RNG.integers(0, 17, (20, side, side)).astype(np.uint8)
        np.savez(tmp_path / f"{task}.npz", x=x, y=np.arange(20) % 10)
    done = subprocess.run(
        [sys.executable, "-c", BARE + WORK],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.strip().splitlines()
    assert lines[::2] == ["12 8", "12 8"]
    # One of the task's own clients does need them, so they were really absent.
    assert "pip install 'fedappeal[data]'" in lines[1]
    assert lines[3].startswith("task = 'fmnist' finds no data")
    assert len(lines) == 4
