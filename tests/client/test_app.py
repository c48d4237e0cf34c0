"""The ClientApp: what it answers to each message, and what it keeps to itself."""

from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, RecordDict

import fedappeal
from client.requirement import read_requirement
from client.state.store import DiskStore
from client.training.models import arrays_of
from fedappeal.core.requirement import Requirement
from fedappeal.protocol import keys
from fedappeal.protocol.packing import Layout, content_size
from fedappeal.settings.config import ConfigError, RunConfig, Scalar
from fedappeal.tasks import load_task
from fedappeal.trained.card import card_in
from strategies.maxfl import APPEAL_WEIGHT, appeal_weight
from tests.node import Node, changed, run_config
from tests.node import metrics_of as told_by

CONFIG = run_config(clients=4, unseen_clients=1, solo__steps=30, batch_size=16, local_steps=4)
TASK = load_task(CONFIG.task_settings())
INITIAL = arrays_of(TASK.initial_model(0))
LAYOUT = Layout.of(INITIAL)


class Volunteer(Node):
    """A client whose state is on disk, so that a test can look at rho_k."""

    def __init__(self, folder: Path, config: RunConfig = CONFIG, **node: Scalar) -> None:
        super().__init__(config, folder, **node)
        self.folder = folder

    @property
    def requirement(self) -> Requirement:
        store = DiskStore(self.folder)
        (name,) = [n for n in store.names() if n.startswith("requirement-")]
        found = read_requirement(store, name)
        assert found is not None
        return found

    def solo(self) -> ArrayRecord:
        """The solo model: its training loss is rho_k itself, so it never appeals."""
        return LAYOUT.pack({name: self.requirement.solo[name] for name in INITIAL})


def test_the_roll_call_says_who_this_is_and_makes_the_requirement_ready(tmp_path: Path) -> None:
    node = Volunteer(tmp_path, priority=True)
    content = node("query", fingerprint=TASK.fingerprint, protocol=keys.PROTOCOL)
    assert dict(content.config_records[keys.INFO]) == {
        keys.CLIENT_ID: "client-0001",
        keys.ROLE: keys.SEEN,
        keys.PRIORITY: 1,
        keys.LEFT_RUN: 0,
        keys.TASK: "digits",
        keys.FINGERPRINT: TASK.fingerprint,
        keys.PROTOCOL_VERSION: keys.PROTOCOL,
        keys.VERSION: fedappeal.__version__,
    }
    assert told_by(content) == {keys.NUM_EXAMPLES: len(TASK.load(1).train)}
    assert node.requirement.rho > 0
    assert Volunteer(tmp_path / "u", partition_id=4)("query").config_records[keys.INFO][keys.ROLE] == keys.UNSEEN


@pytest.mark.parametrize(
    ("told", "line"),
    [
        (
            {"protocol": 9},
            rf"protocol {keys.PROTOCOL} \(fedappeal {fedappeal.__version__}\), the run 9$",
        ),
        ({"fingerprint": "abc"}, "task and partition settings must be the same"),
    ],
)
def test_a_run_that_does_not_fit_is_one_line(tmp_path: Path, told: dict[str, Scalar], line: str) -> None:
    with pytest.raises(ConfigError, match=line) as error:
        Volunteer(tmp_path)("query", told=told)
    assert "\n" not in str(error.value)


def test_another_layout_is_one_line_for_every_message(tmp_path: Path) -> None:
    node = Volunteer(tmp_path)
    for kind in ("query", "train", "evaluate"):
        with pytest.raises(ValueError, match="layout 0123 of the model") as error:
            node(kind, layout="0123", server_round=1)
        assert "\n" not in str(error.value)
        with pytest.raises(ValueError, match="array 'flat'"):
            node(kind, ArrayRecord({"flat": Array(np.zeros(3, np.float32))}), server_round=1)


@pytest.mark.parametrize("number", [-2, 1_000_001, 5_000_000_000])
def test_a_round_that_no_run_reaches_is_declined_before_a_policy_looks_at_all_before(
    tmp_path: Path, number: int
) -> None:
    node = Volunteer(tmp_path, changed(CONFIG, participation="always+markov"))
    node("query")
    for kind in ("train", "evaluate"):
        with pytest.raises(ConfigError, match=rf"^server-round = {number} is not allowed: 0 to 1000000$"):
            node(kind, server_round=number, mandatory=1)


def test_a_reply_that_sits_out_is_small_and_carries_no_model(tmp_path: Path) -> None:
    node = Volunteer(tmp_path)
    node("query")
    content = node("train", node.solo(), server_round=1, mandatory=0)
    assert told_by(content) == {keys.NUM_EXAMPLES: len(TASK.load(1).train), keys.DECISION: 0}
    assert list(content) == [keys.METRICS]
    assert content_size(content) < 2000


def test_a_joined_reply_carries_the_local_model_and_the_weight(tmp_path: Path) -> None:
    node = Volunteer(tmp_path)
    node("query")
    content = node("train", server_round=1, mandatory=1)
    told = told_by(content)
    loss = node("evaluate", split="train").metric_records[keys.METRICS][keys.LOSS]
    assert isinstance(loss, float)
    assert told == {
        keys.NUM_EXAMPLES: len(TASK.load(1).train),
        keys.DECISION: 1,
        APPEAL_WEIGHT: pytest.approx(appeal_weight(loss, node.requirement.rho), rel=1e-6),
    }
    local = LAYOUT.unpack(content.array_records[keys.ARRAYS])
    assert not np.array_equal(local["output.weight"], INITIAL["output.weight"])
    again = node("train", server_round=1, mandatory=1)
    assert again.array_records[keys.ARRAYS] == content.array_records[keys.ARRAYS]


def test_only_maxfl_is_told_the_weight(tmp_path: Path) -> None:
    told = told_by(Volunteer(tmp_path, changed(CONFIG, strategy="fedavg"))("train", server_round=1, mandatory=1))
    assert set(told) == {keys.NUM_EXAMPLES, keys.DECISION}


def test_what_the_server_tells_goes_before_the_clients_own_settings(tmp_path: Path) -> None:
    node = Volunteer(tmp_path, limits="off")
    sent: dict[str, Scalar] = {"server_round": 1, "mandatory": 1}
    own = node("train", **sent)
    for setting in ({"learning_rate": 0.01}, {"local_steps": 2}, {"batch_size": 3}):
        assert node("train", **sent, **setting)[keys.ARRAYS] != own[keys.ARRAYS]
    assert node("train", **sent, learning_rate=0.1, local_steps=4, batch_size=16)[keys.ARRAYS] == own[keys.ARRAYS]
    with pytest.raises(ConfigError, match="learning-rate = -1"):
        node("train", **sent, learning_rate=-1)


def test_refuse_mandatory(tmp_path: Path) -> None:
    node = Volunteer(tmp_path, refuse_mandatory=True)
    node("query")
    assert told_by(node("train", node.solo(), server_round=1, mandatory=1))[keys.DECISION] == 0
    assert told_by(Volunteer(tmp_path)("train", node.solo(), server_round=1, mandatory=1))[keys.DECISION] == 1


def test_an_evaluation_by_definition_one(tmp_path: Path) -> None:
    node = Volunteer(tmp_path)
    node("query")
    rho, data = node.requirement.rho, TASK.load(1)
    model = TASK.initial_model(0)
    for record, appealed in ((LAYOUT.pack(INITIAL), False), (node.solo(), None)):
        model.load_state_dict({k: torch.from_numpy(v.copy()) for k, v in LAYOUT.unpack(record).items()})
        model.eval()
        losses = [TASK.loss(model(s.x), s.y).item() for s in (data.test, data.train)]
        accuracy = TASK.metrics(model(data.test.x), data.test.y)["accuracy"]
        told = told_by(node("evaluate", record, split="test"))
        assert told == {
            keys.NUM_EXAMPLES: len(data.test),
            keys.LOSS: pytest.approx(losses[0], rel=1e-5),
            "accuracy": pytest.approx(accuracy),
            keys.APPEALED: int(losses[0] < rho),
            keys.APPEALED_TRAIN: 0,
            "preferred-accuracy": pytest.approx(accuracy if losses[0] < rho else node.requirement.solo_score),
            keys.SERVED: int(accuracy >= node.requirement.solo_score),
        }
        assert appealed is None or told[keys.APPEALED] == int(appealed)


def test_report_loss_false_removes_every_loss(tmp_path: Path) -> None:
    node = Volunteer(tmp_path, report_loss=False)
    node("query")
    for content in (node("train", server_round=1, mandatory=1), node("evaluate", split="train")):
        assert keys.LOSS not in told_by(content)


def numbers_in(content: RecordDict) -> list[float]:
    found: list[float] = []
    for record in content.values():
        for value in record.values():
            found += value.numpy().ravel().tolist() if isinstance(record, ArrayRecord) else [value]  # type: ignore[union-attr]
    return [v for v in found if isinstance(v, int | float)]


def test_no_reply_carries_the_requirement(tmp_path: Path) -> None:
    node = Volunteer(tmp_path, limits="off")
    replies = [node("query")]
    rho = node.requirement.rho
    for arrays in (None, node.solo()):
        replies += [node("train", arrays, server_round=r, mandatory=m) for r in (1, 2) for m in (0, 1)]
        replies += [node("evaluate", arrays, split="test", final=f) for f in (0, 1)]
    for content in replies:
        assert min(abs(v - rho) for v in numbers_in(content)) > 1e-7


@pytest.mark.parametrize("appeals", [True, False])
def test_the_preferred_model_is_kept_at_the_end_only(tmp_path: Path, appeals: bool) -> None:
    config = changed(CONFIG, solo__steps=1, solo__learning_rate=1e-6)
    node = Volunteer(tmp_path, config)  # the requirement is that of the initial model, which is easy to beat
    node("query")
    good = node("train", server_round=1, mandatory=1, local_steps=100)[keys.ARRAYS]
    assert isinstance(good, ArrayRecord)
    sent = good if appeals else LAYOUT.pack({k: 10 * v for k, v in INITIAL.items()})
    node("evaluate", sent, split="test", final=0)
    assert DiskStore(tmp_path).read("preferred") is None
    assert told_by(node("evaluate", sent, split="test", final=1, server_round=1))[keys.APPEALED] == int(appeals)
    kept = DiskStore(tmp_path).read("preferred")
    assert kept is not None
    assert (kept.values["which"], kept.values["run-key"]) == ("global" if appeals else "solo", "k")
    assert card_in(kept.values, tmp_path).round == 1
    expected = LAYOUT.unpack(sent) if appeals else node.requirement.solo
    assert all(np.array_equal(kept.arrays[name], expected[name]) for name in INITIAL)


def test_a_client_that_left_says_so_without_looking_at_the_model(tmp_path: Path) -> None:
    node = Volunteer(tmp_path)
    node("query")
    node.participants.of(node.context).memory("k").leave(2)
    assert node("query").config_records[keys.INFO][keys.LEFT_RUN] == 1
    assert node("query", run_key="other").config_records[keys.INFO][keys.LEFT_RUN] == 0
    content = node("train", ArrayRecord(), server_round=3, mandatory=1)
    assert told_by(content)[keys.DECISION] == -1
    assert list(content) == [keys.METRICS]
    assert told_by(node("train", server_round=3, mandatory=1, run_key="other"))[keys.DECISION] == 1


def test_the_global_generator_is_left_alone(tmp_path: Path) -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    node = Volunteer(tmp_path, changed(CONFIG, tuning_steps=2))
    node("query")
    node("train", server_round=1, mandatory=1)
    node("evaluate", split="test", tuning_steps=2)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("key", ["../../../x", "a/b", "\0", "two\nlines", "k" * 65, "é"])
@pytest.mark.parametrize("kind", ["query", "train", "evaluate"])
def test_a_run_key_that_is_no_part_of_a_files_name_is_one_line_without_the_owners_folder(
    tmp_path: Path, kind: str, key: str
) -> None:
    with pytest.raises(ConfigError, match=r"^run-key = .* is not allowed: up to 64 letters") as error:
        Volunteer(tmp_path)(kind, run_key=key, mandatory=1)
    assert "\n" not in str(error.value)
    assert str(tmp_path) not in str(error.value)
