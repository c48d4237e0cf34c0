"""An owner who wants to be asked: what a run gets to hear until it is approved, and what asks again."""

import sys
from pathlib import Path

import pytest
from flwr.app import RecordDict

from client.approval import _MOST, approve, asking
from client.process.owner import RETURNED
from client.process.status import RunState, client_status
from client.settings import NodeSettings
from client.state.activity import Activity
from client.state.own_key import note_connection
from client.state.store import DiskStore
from fedappeal.cli.main import main
from fedappeal.protocol import keys
from fedappeal.settings.config import ConfigError, RunConfig, Scalar
from fedappeal.tasks import load_task
from strategies.rounds.exchange.replies import AwaitsApproval, Declined, read_client_id, read_roll_call
from strategies.rounds.reply import Refused
from tests.node import Node, changed, run_config

CONFIG = run_config(clients=4, solo__steps=1, local_steps=1, model="logistic")
FINGERPRINT = load_task(CONFIG.task_settings()).fingerprint


class Client(Node):
    """A client of one SuperLink, which asks its owner."""

    def __init__(
        self, folder: Path, config: RunConfig = CONFIG, *, superlink: str = "a:1", run: int = 7, **node: Scalar
    ) -> None:
        super().__init__(config, folder, **{"approve": "asked", **node})
        note_connection(self.context.state, "key-1", lasting=True, superlink=superlink)
        self.context.run_id = run

    def called(self, **told: Scalar) -> str:
        """The word for the owner's approval in the answer to a roll call; empty: the client takes part."""
        content = self("query", fingerprint=FINGERPRINT, **told)
        assert isinstance(content, RecordDict)
        assert (keys.METRICS in content) is (keys.APPROVAL not in content.config_records[keys.INFO])
        return str(content.config_records[keys.INFO].get(keys.APPROVAL, ""))


def test_a_new_run_waits_and_takes_part_once_it_is_approved(tmp_path: Path) -> None:
    client = Client(tmp_path)
    assert client.called() == client.called() == keys.WAITING
    for kind in ("train", "evaluate"):
        with pytest.raises(ConfigError, match="takes no part in this run: waits for its owner's approval"):
            client(kind, server_round=1)
    assert not client.participants.kept_participants(), "nothing of the run was loaded"
    assert "strategy = maxfl" not in asking(tmp_path)["k"][1], "a default is not said"
    approved, what = asking(tmp_path)["k"]
    assert not approved
    assert what.startswith("a run of a:1: code = fedappeal's own, task = digits, model = logistic, clients = 4, ")
    said = approve(tmp_path, "k")
    assert said.startswith("approved: a run of a:1: code = fedappeal's own, task = digits")
    assert (tmp_path / RETURNED).exists(), "the client comes online anew: the server calls it again"
    assert client.called() == ""
    assert client("train", server_round=1)
    assert Client(tmp_path)("train", server_round=1), "what was approved is kept"


def test_a_client_that_is_not_asked_takes_any_run(tmp_path: Path) -> None:
    assert Client(tmp_path, approve="any").called() == ""
    assert asking(tmp_path) == {}


def test_a_listed_run_is_taken_and_any_other_is_declined_with_one_line(tmp_path: Path) -> None:
    client = Client(tmp_path, approve="listed")
    assert client.called() == keys.DECLINED
    outcome = client.outcome("query", fingerprint=FINGERPRINT)
    assert (outcome.what, outcome.why) == ("declined", "its owner takes approved runs alone (approve = listed)")
    approve(tmp_path, "k")
    assert client.called() == ""


def test_an_approved_run_may_begin_again_under_another_name(tmp_path: Path) -> None:
    Client(tmp_path).called()
    approve(tmp_path, "k")
    again = Client(tmp_path, changed(CONFIG, out="elsewhere", resume=True), run=8)
    assert again.called(run_key="later", nonce="0" * 32) == ""
    assert again("train", server_round=1, run_key="later")
    assert asking(tmp_path)["later"][0]


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: Client(folder, changed(CONFIG, local_steps=2)).called(),
        lambda folder: Client(folder, changed(CONFIG, task="synth", model="auto")).called(),
        lambda folder: Client(folder, superlink="b:1").called(),
        lambda folder: Client(folder).called(plugins="strategy\tmine:S\tmine:S (mine 1, source 12)"),
        lambda folder: Client(folder, superlink="b:1").called(superlink="a:1"),
    ],
)
def test_a_change_of_settings_task_code_or_superlink_asks_again(tmp_path: Path, change: object) -> None:
    Client(tmp_path).called()
    approve(tmp_path, "k")
    assert callable(change)
    assert change(tmp_path) == keys.WAITING


def test_what_is_approved_is_what_was_shown_last(tmp_path: Path) -> None:
    for local_steps in range(1, 6):  # one run key, with other settings each time
        client = Client(tmp_path, changed(CONFIG, local_steps=local_steps + 1))
        assert client.called() == keys.WAITING
        assert f"local-steps = {local_steps + 1}" in asking(tmp_path)["k"][1]
        assert f"local-steps = {local_steps + 1}" in approve(tmp_path, "k")
        assert client.called() == ""


def test_approval_is_for_the_run_as_it_was_called(tmp_path: Path) -> None:
    Client(tmp_path).called()
    approve(tmp_path, "k")
    for other in (
        Client(tmp_path, run=8),
        Client(tmp_path, superlink="b:1"),
        Client(tmp_path, changed(CONFIG, local_steps=99)),
    ):
        with pytest.raises(ConfigError, match="waits for its owner's approval"):
            other("train", server_round=1)


def test_a_damaged_record_asks_again_and_very_many_runs_are_forgotten(tmp_path: Path) -> None:
    client = Client(tmp_path)
    client.called()
    approve(tmp_path, "k")
    store = DiskStore(tmp_path)
    (name,) = [name for name in store.names() if name.startswith("approval-")]
    store.path(name).write_bytes(b"nonsense")
    assert client.called() == keys.WAITING
    approve(tmp_path, "k")
    for number in range(_MOST + 5):
        Client(tmp_path, changed(CONFIG, seed=number + 1), run=100 + number).called(run_key=f"r{number}")
    assert asking(tmp_path)["k"][0], "what is approved stays"
    assert "r0" not in asking(tmp_path)
    assert len([name for name in store.names() if name.startswith("approval-")]) == _MOST + 1


def test_nothing_can_be_kept_without_a_state_folder() -> None:
    with pytest.raises(ValueError, match="approve = 'asked' is not allowed without state-dir"):
        NodeSettings(partition_id=0, approve="asked")


def test_a_run_that_has_not_asked_cannot_be_approved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Client(tmp_path).called()
    monkeypatch.setattr(sys, "argv", ["fedappeal", "client", "approve", "x", "--state-dir", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert capsys.readouterr().err == (
        "fedappeal: run = 'x' is not allowed: a run that has asked for approval (7, k)\n"
    )


def test_its_owner_sees_what_waits(tmp_path: Path) -> None:
    Client(tmp_path).called()
    activity = Activity(tmp_path)
    activity.answered("k", CONFIG.as_config(), decided=("waiting", "waits for its owner's approval"))
    (run,) = client_status(tmp_path).runs
    assert run.state is RunState.WAITING
    assert run.line.startswith("waits for its owner's approval: a run of a:1: code = fedappeal's own, task")
    approve(tmp_path, "k")
    (run,) = client_status(tmp_path).runs
    assert run.state is RunState.TAKES_PART


def test_a_server_reads_who_waits_and_one_that_does_not_know_it_enrols_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = Client(tmp_path).reply("query", fingerprint=FINGERPRINT)
    with pytest.raises(AwaitsApproval, match="client client-0001: it waits for its owner's approval"):
        read_roll_call(waiting)
    declined = Client(tmp_path, approve="listed").reply("query", fingerprint=FINGERPRINT)
    with pytest.raises(Declined, match="client client-0001: its owner has not approved the run"):
        read_roll_call(declined)
    monkeypatch.setattr(keys, "APPROVAL", "unknown-to-this-server")
    for reply in (waiting, declined):
        assert read_client_id(reply) == "client-0001"
        with pytest.raises(Refused, match="reply has no MetricRecord 'metrics'"):
            read_roll_call(reply)


def test_of_two_runs_of_one_name_none_is_approved_for_the_other(tmp_path: Path) -> None:
    """A server chooses the name: without this a hostile run is approved by that of another."""
    good, bad = Client(tmp_path), Client(tmp_path, changed(CONFIG, local_steps=99), run=8)
    good.called()
    bad.called(run_key="7")
    approved, what = asking(tmp_path)["7"]
    assert not approved
    assert "local-steps = 99" in what
    assert "; and a run of a:1" in what
    with pytest.raises(ConfigError, match="several runs ask by that name; approve one of approval-") as error:
        approve(tmp_path, "7")
    assert (good.called(), bad.called(run_key="7")) == (keys.WAITING, keys.WAITING)
    store = DiskStore(tmp_path)
    waiting = [name for name in store.names() if name.startswith("approval-")]
    (mine,) = [name for name in waiting if "local-steps = 99" not in str(store.readable_values(name))]
    assert mine in str(error.value)
    approve(tmp_path, mine)
    assert (good.called(), bad.called(run_key="7")) == ("", keys.WAITING)


def test_a_setting_cannot_pass_for_others_or_hide_them(tmp_path: Path) -> None:
    said = "digits, code = fedappeal's own, lr = 0.5"
    for text in (said, "x" * 5000, 'a" b'):
        config = changed(CONFIG, plugins=(("mine.text", text),))
        client = Client(tmp_path, config, run=len(text))
        client.called(plugins="strategy\tmine:S\tmine:S (mine 1, source 12), lr = 3")
        _, what = asking(tmp_path)[str(len(text))]
        assert what.startswith('a run of a:1: code = "strategy mine:S mine:S (mine 1, source 12), lr = 3"')
        assert "local-steps = 1" in what
        assert f", {said}" not in what
        assert len(what) < 1000


def test_a_run_without_a_roll_call_says_no_code(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="takes no part"):
        Client(tmp_path)("train", server_round=1)
    assert "code = not said" in asking(tmp_path)["7"][1]
