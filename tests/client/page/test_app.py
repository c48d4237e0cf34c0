"""The volunteer's page over HTTP: what it shows, what it does, and who may ask."""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from client.approval import asking
from client.limits.limits import PRESETS, Limits, preset, preset_of, read_limits, write_limits
from client.page.app import limits_data, volunteer_app
from client.process.owner import PAUSED, departures, key_name, reset
from client.state.activity import Activity, Judged
from client.state.preferred import kept_models
from client.state.receipts import SENT, Receipts
from client.state.signs import working
from client.state.store import DiskStore
from fedappeal.cli.main import main
from fedappeal.core.local_rule import StoredRecord
from fedappeal.trained.card import ModelCard
from fedappeal.web.serving import PagePlace, ServedPage, serve_page
from tests.client.page.test_beside import remember


@pytest.fixture
def page(tmp_path: Path) -> Iterator[ServedPage]:
    store = DiskStore(tmp_path)
    store.write("identity", StoredRecord({"client-id": "anna"}))
    store.write("run-abc", StoredRecord({"requirement": "requirement-1", "left-round": 0}))
    judged = Judged(0.25, 0.5, "loss", "train", True)
    settings = {"strategy": "<b>maxfl", "task": "digits"}
    Activity(tmp_path).answered("abc", settings, done="joined", seconds=2.0, server_round=3, judged=judged)
    with serve_page(volunteer_app(tmp_path), PagePlace(0)) as page:
        yield page


@pytest.fixture
def owner(page: ServedPage) -> Iterator[httpx.Client]:
    address = f"http://{page.address}"
    headers = {"Authorization": f"Bearer {page.token}", "Origin": address}
    with httpx.Client(base_url=address, headers=headers) as client:
        yield client


def test_it_shows_what_was_done_and_what_the_model_gives(owner: httpx.Client) -> None:
    data = owner.get("/data.json").json()
    assert data["client"] == "anna"
    (run,) = data["runs"]
    assert (run["joined"], run["seconds"]) == (1, 2.0)
    assert run["judged"] == "round 3: training loss 0.2500, required below 0.5000: met"


def test_a_client_is_called_by_its_keys_name(owner: httpx.Client, tmp_path: Path) -> None:
    """That of the public half, as the operator's list has it; else the file's; whoever wrote it."""
    assert owner.get("/data.json").json()["name"] == "anna"
    key = tmp_path / "keys" / "laptop.key"
    key.parent.mkdir()
    for public, name in (
        (None, "laptop"), ("ecdsa AAAA anna's laptop\n", "anna's laptop"), ("ecdsa AAAA", "laptop"), ("", "laptop"),
        (f"ecdsa AAAA \x1b[31m{900 * 'x'}", f"?[31m{72 * 'x'}..."),
    ):  # fmt: skip
        if public is not None:
            key.with_suffix(".pub").write_text(public)
        DiskStore(tmp_path).write("identity", StoredRecord({"client-id": "anna", "name": key_name(str(key))}))
        assert owner.get("/data.json").json()["name"] == name


def test_it_shows_what_is_worked_on(owner: httpx.Client, tmp_path: Path) -> None:
    assert owner.get("/data.json").json()["state"] == "never-started"
    with working(tmp_path, "round 4, maxfl on digits", clock=lambda: 7.0):
        data = owner.get("/data.json").json()
        assert (data["state"], data["line"][:34]) == ("asked", "works on round 4, maxfl on digits,")


def test_limits_of_the_command_line_stand_beside_those_that_they_replace(tmp_path: Path) -> None:
    write_limits(tmp_path, Limits.parse({"max-seconds": 60, "hours": "22-6"}))
    found = {
        each["key"]: each for each in limits_data(tmp_path, "max-seconds=5 mains-only=true hours=22-6")["limits"]
    }
    assert (found["max-seconds"]["value"], found["max-seconds"]["instead"]) == (60.0, 5.0)
    assert (found["mains-only"]["value"], found["mains-only"]["instead"]) == (False, True)
    assert found["hours"]["instead"] is None
    assert all(each["instead"] is None for each in limits_data(tmp_path)["limits"])


def test_a_run_that_waits_is_approved_by_a_button(owner: httpx.Client, tmp_path: Path) -> None:
    what = f"a run of a:1: {'x' * 1500}"
    values = {
        "runs": "7 abc",
        "approved": False,
        "at": 1.0,
        "superlink": "a:1",
        "settings": "",
        "what": what,
    }
    DiskStore(tmp_path).write("approval-1", StoredRecord(values))
    Activity(tmp_path).answered("abc", {}, decided=("waiting", "waits for its owner's approval"))
    (run,) = owner.get("/data.json").json()["runs"]
    assert (run["state"], run["can_approve"], run["can_leave"]) == ("waiting", True, False)
    assert run["line"] == f"waits for its owner's approval: {what}", "an owner reads all of what is approved"
    assert owner.post("/do/approve", json={"run": "other"}).status_code == 400
    owner.post("/do/approve", json={"run": "abc"}).raise_for_status()
    (run,) = owner.get("/data.json").json()["runs"]
    assert (run["state"], run["can_approve"]) == ("takes-part", False)
    assert asking(tmp_path)["abc"] == (True, what)


def test_it_shows_what_was_sent_and_that_the_chain_holds(owner: httpx.Client, tmp_path: Path) -> None:
    assert owner.get("/data.json").json()["sent"] == {"receipts": [], "problem": ""}
    kept = Receipts(tmp_path)
    for number in (1, 2):
        kept.confirm(kept.write({"run": "abc", "round": number, "told": {"loss": 0.5}, "bytes": 9, "hash": "ab"}))
    kept.write({"round": 3})
    sent = owner.get("/data.json").json()["sent"]
    assert [(line["round"], line["sent"]) for line in sent["receipts"]] == [(3, False), (2, True), (1, True)]
    assert (sent["receipts"][1]["told"], sent["problem"]) == ("loss 0.5", "")
    path = tmp_path / SENT
    path.write_bytes(path.read_bytes().replace(b"0.5", b"0.4", 1))
    assert "receipt 1, or the one before it, was changed" in owner.get("/data.json").json()["sent"]["problem"]


def test_pause_and_resume(owner: httpx.Client, tmp_path: Path) -> None:
    owner.post("/do/pause").raise_for_status()
    assert (tmp_path / PAUSED).exists()
    assert owner.get("/data.json").json()["paused"]
    owner.post("/do/resume").raise_for_status()
    assert not (tmp_path / PAUSED).exists()


def test_leave_and_erase(owner: httpx.Client, tmp_path: Path) -> None:
    for body in (b"{}", b"[", b"[1]"):
        assert owner.post("/do/leave", content=body).status_code == 400
    owner.post("/do/leave", json={"run": "abc"}).raise_for_status()
    assert departures(DiskStore(tmp_path)) == {"abc"}
    assert owner.get("/data.json").json()["runs"][0]["can_leave"] is False
    owner.post("/do/come-back").raise_for_status()
    assert departures(DiskStore(tmp_path)) == set()
    owner.post("/do/erase").raise_for_status()
    assert owner.get("/data.json").json()["runs"] == []


def test_what_another_process_erases_while_a_page_is_made_is_left_out(
    owner: httpx.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remember(tmp_path)
    assert len(owner.get("/data.json").json()["models"]) == 1

    def listed(store: DiskStore) -> dict[str, ModelCard]:
        cards = kept_models(store)
        reset(tmp_path, forget=True)
        return cards

    monkeypatch.setattr("client.page.app.kept_models", listed)
    assert owner.get("/data.json").json()["models"] == []
    remember(tmp_path)
    assert owner.get("/model/preferred-first").status_code == 404


def test_limits_are_kept_and_a_bad_one_changes_nothing(owner: httpx.Client, tmp_path: Path) -> None:
    owner.post("/do/limits", json={"hours": "22-6", "max-seconds": 60}).raise_for_status()
    answer = owner.post("/do/limits", json={"max-seconds": -1, "hours": ""})
    assert answer.status_code == 400
    assert "max-seconds" in answer.json()["said"]
    kept = read_limits(tmp_path)
    assert (kept.hours, kept.max_seconds) == ("22-6", 60.0)


@pytest.mark.parametrize("first", ["client.page.app", "client.limits.limits"], ids=["page", "command"])
def test_limits_that_page_and_command_change_at_once_are_all_kept(
    owner: httpx.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    words = ["fedappeal", "client", "limits", "--max-steps", "7", "--state-dir", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", words)

    def command() -> None:
        with suppress(SystemExit):
            main()

    changes: list[Callable[[], object]] = [lambda: owner.post("/do/limits", json={"max-rounds": 9}), command]
    if first != "client.page.app":
        changes.reverse()
    other = threading.Thread(target=changes[1])

    def write(folder: Path, limits: Limits) -> None:
        if not other.ident:
            other.start()
            other.join(0.5)
        write_limits(folder, limits)

    monkeypatch.setattr(f"{first}.write_limits", write)
    changes[0]()
    other.join()
    limits = read_limits(tmp_path)
    assert (limits.max_steps, limits.max_rounds) == (7, 9)


@pytest.mark.parametrize(
    "wrong", [{"Authorization": ""}, {"Host": "evil.example"}, {"Origin": "http://evil.example"}]
)
def test_a_stranger_does_nothing(owner: httpx.Client, tmp_path: Path, wrong: dict[str, str]) -> None:
    assert owner.post("/do/pause", headers=wrong).status_code == 403
    assert not (tmp_path / PAUSED).exists()


def test_what_is_shown_of_other_parties_is_short_and_no_page_names_a_command(
    owner: httpx.Client, tmp_path: Path
) -> None:
    activity = Activity(tmp_path)
    for number in range(300):
        judged = Judged(0.2, 0.3, "loss", "test", True, metric="accuracy", score=number / 300, alone=0.65, share=True)
        why = "y" * 5000 if number else "\x1b[2J"
        activity.answered("abc", {}, server_round=number, judged=judged, decided=("joined", why))
    (tmp_path / "limits.json").write_text("{")
    data = owner.get("/data.json").json()
    measure = data["runs"][0]["measure"]
    assert (measure["shared"], measure["alone"], measure["prefers"]) == ("99.7 %", "65.0 %", "shared")
    assert (len(measure["rounds"]), measure["rounds"][0], measure["scores"][-1]) == (200, 100, 299 / 300)
    assert len(data["decisions"]) == 20
    assert max(len(decision["why"]) for decision in data["decisions"]) <= 300
    assert (tmp_path / "activity.json").stat().st_size < 50_000
    said = [owner.post(f"/do/{name}", json={"run": "abc"}).text for name in ("pause", "resume", "leave", "come-back")]
    for text in (owner.get("/data.json").text, owner.get("/limits.json").text, *said, owner.get("/").text):
        assert "fedappeal client" not in text


def test_a_preset_heals_damaged_limits_and_an_unknown_one_changes_nothing(
    owner: httpx.Client, tmp_path: Path
) -> None:
    (tmp_path / "limits.json").write_text("{")
    assert owner.get("/limits.json").json()["preset"] == ""
    owner.post("/do/preset", json={"preset": "light"}).raise_for_status()
    assert read_limits(tmp_path).max_seconds == 60
    assert owner.get("/limits.json").json()["preset"] == "light"
    assert owner.post("/do/preset", json={"preset": ["x"]}).status_code == 400
    assert read_limits(tmp_path).max_seconds == 60


def test_presets_keep_what_guards_the_data() -> None:
    for name in PRESETS:
        limits, default = preset(name), Limits()
        assert (limits.min_batch, limits.min_steps) == (default.min_batch, default.min_steps)
        assert (limits.max_evaluations, limits.max_model) == (default.max_evaluations, default.max_model)
        assert preset_of(limits) == name


@pytest.mark.parametrize("name", ["identity", "../limits", "preferred-abc"])
def test_nothing_but_kept_models_is_handed_out(owner: httpx.Client, name: str) -> None:
    assert owner.get(f"/model/{name}").status_code == 404
