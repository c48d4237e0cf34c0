"""The volunteer's page in a process of its own, in a real browser: each button, first wide, then narrow."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from client.limits.limits import read_limits
from client.page.beside import page_beside
from client.process.owner import PAUSED, key_name
from client.state.activity import Activity, Judged
from client.state.memory import RunMemory
from client.state.preferred import keep
from client.state.signs import note_event, working
from client.state.store import DiskStore
from fedappeal.core.local_rule import StoredRecord
from fedappeal.settings.config import RunConfig
from fedappeal.system.locks import only_process
from fedappeal.tasks import load_task
from fedappeal.trained.card import ModelCard
from tests.views.live.browser import chromium, fits, narrow, needs_chromium, new_page
from tests.warm import WARM

__all__ = ["chromium"]

MARKUP = "<img src=x onerror=alert(1)>"
RUN = {"strategy": "maxfl", "task": "digits"}


def judged(score: float, split: str, round_: int) -> Judged:
    met, spent = score > 0.8, min(round_, 4)
    test = {"metric": "accuracy", "score": score, "alone": 0.65, "share": True} if split == "test" else {}
    goodwill = {"spent": spent, "goodwill": 20, "policy": "appeal"} if split == "held-out" else {}
    return Judged(1 - score, 0.2, "loss", split, met, **test, **goodwill)  # type: ignore[arg-type]


def remember(folder: Path) -> None:
    """Write what a client remembers after three runs: one over, one that it left, one that goes on."""
    store, clock = DiskStore(folder), [1_795_520_000.0]
    activity = Activity(folder, lambda: clock[0])
    store.write("identity", StoredRecord({"client-id": "garden-pi"}))
    config = RunConfig()
    task = load_task(config.task_settings())
    for key, rounds in (("first", 30), ("second", 6), ("third", 12)):
        run = RUN if key != "second" else {"strategy": "fedavg", "task": MARKUP}
        RunMemory(store, key).requirement = "requirement-1"
        for number in range(1, rounds + 1):
            clock[0] += 20
            score = 0.951 - 0.5 * 0.8**number
            what = "joined" if score > 0.8 or number % 2 else "sat out"
            what = "left for good" if (key, number) == ("second", 6) else what
            done = {"sat out": "sat-out", "left for good": "left"}.get(what, what)
            before = judged(score, "held-out", number)
            facts = {"bytes_down": 400_000, "bytes_up": 400_000, "seconds": 0.4, "server_round": number}
            why = f"{before.compared}; policy appeal"
            activity.answered(key, run, done=done, decided=(what, why), judged=before, **facts)  # type: ignore[arg-type]
            last = (key, number) == ("first", 30)
            after = judged(score, "test", number)
            activity.answered(key, run, done="evaluated", server_round=number, judged=after, final=last)
    RunMemory(store, "second").leave(6)
    told: dict[str, Any] = {"figures": {"accuracy": 0.95}, "measured_on": "test", "requirement_met": True}
    card = ModelCard.of(task, config, round=30, run_key="first", **told)
    keep(store, {"w": np.ones(1000, np.float32)}, card)
    (folder / "anna.pub").write_text("ecdsa-sha2-nistp384 AAAA laptop of anna\n")
    name = key_name(str(folder / "anna.key"))
    store.write("identity", StoredRecord({"client-id": "garden-pi", "name": name}))
    note_event(folder, "started", "")
    note_event(folder, "connected", "connected")


@contextmanager
def visiting(
    chromium: Any, folder: Path, capfd: pytest.CaptureFixture[str], limits: str
) -> Iterator[tuple[Any, Any, str]]:
    """Serve the page of a client that runs, and open it; yields page, visit and address."""
    with only_process(folder), page_beside(folder, 0, limits), new_page(chromium) as visited:
        said = ""
        while "your page" not in said:
            said += capfd.readouterr().out
        url = re.search(r"http://\S+", said)[0]  # type: ignore[index]
        page: Any = visited.page
        page.goto(url)
        yield page, visited, url


def confirm(page: Any, name: str) -> str:
    """Press a button that asks first, say yes, and return what it asked."""
    page.get_by_role("button", name=name).click()
    question = str(page.locator("#question").text_content())
    page.locator("#yes").click()
    return question


@needs_chromium
def test_an_owner_reads_what_it_gets_and_uses_each_button(
    chromium: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("client.page.beside.subprocess", WARM)
    remember(tmp_path)
    with visiting(chromium, tmp_path, capfd, "max-seconds=5") as (page, visited, url):
        page.get_by_text("accuracy on your test data: shared 91.7 %, mine alone 65.0 %").wait_for()
        page.get_by_text("waits for the next message of maxfl on digits").wait_for()
        assert page.get_by_role("img").get_attribute("aria-label").endswith("now 91.7 %, alone 65.0 %")
        assert page.locator("#decisions tr").count() == 20
        assert "held-out loss 0.0834, required below 0.2000: met; policy appeal" in page.text_content("#decisions")
        assert "goodwill: 4 of 20 rounds spent" in page.text_content("#measure")
        assert page.text_content("h1") == "laptop of anna"
        assert "Costs" not in page.text_content("body")
        assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d", page.text_content("#decisions td"))
        mismatched = [
            button.get_attribute("aria-label")
            for button in page.locator("[aria-label]:is(button, a)").all()
            if not button.get_attribute("aria-label").startswith(button.inner_text())
        ]
        assert mismatched == [], "who speaks what is written there reaches it"
        fits(page, "volunteer", 1400)
        assert page.locator(".bad:visible").count() == 0, "nothing is red that is no fault"
        assert "fedappeal client" not in page.text_content("body")
        assert page.locator("main img").count() == 0, "texts of others are texts"

        page.get_by_role("button", name="Pause").click()
        page.get_by_text("paused: nothing is worked on").wait_for()
        page.get_by_role("button", name="Resume").click()
        page.locator("#status", has_text="waits for the next message").wait_for()
        assert not (tmp_path / PAUSED).exists()
        with working(tmp_path, "round 13, maxfl on digits"):
            page.get_by_text("works on round 13, maxfl on digits").wait_for()

        with page.expect_download() as download:
            page.get_by_role("link", name="Take the model: shared model").click()
        assert Path(download.value.path()).read_bytes() == (tmp_path / "preferred-first.safetensors").read_bytes()

        narrow(page, "volunteer")
        assert page.get_by_role("button", name=re.compile("^Leave")).count() == 1, "one run can still ask"
        assert "trains for it no more; 10 rounds" in confirm(page, "Leave for good: maxfl on digits")
        page.get_by_text("left for good, as its owner said", exact=True).wait_for()
        page.get_by_role("button", name="Come back").click()
        page.get_by_text("back: runs that were left may ask").wait_for()
        assert not RunMemory(DiskStore(tmp_path), "second").has_left(7)

        for name in ("light", "as much as possible", "normal"):
            assert "It replaces all limits" in confirm(page, name)
            page.locator(f"[aria-pressed=true]:text-is('{name}')").wait_for()
        page.get_by_role("button", name="at night on mains").click()
        page.get_by_role("button", name="Cancel").click()
        assert read_limits(tmp_path).hours == ""
        page.get_by_text("More: all limits").click()
        page.get_by_text("5 counts, by --limits").wait_for()
        page.locator("[name=hours]").fill("22-6")
        page.get_by_role("button", name="Keep these limits").click()
        page.get_by_text("limits kept").wait_for()
        assert read_limits(tmp_path).hours == "22-6"

        assert "1 kept model (" in confirm(page, "Erase")
        page.get_by_text("No run has asked this device").wait_for()
        assert DiskStore(tmp_path).names() == ["identity"]
        assert not visited.problems
    with pytest.raises(httpx.ConnectError):
        httpx.get(url)
