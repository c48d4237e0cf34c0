"""An owner's file on the volunteer's page: each kept model says what it makes of it, and the file is gone then."""

import io
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from client.page import trial
from client.page.app import BODIES, TRIAL, volunteer_app
from client.state.preferred import keep
from client.state.store import DiskStore
from fedappeal.settings.config import RunConfig
from fedappeal.tasks import load_task
from fedappeal.tasks.share import initial_arrays
from fedappeal.trained.card import ModelCard
from fedappeal.web.serving import PagePlace, serve_page
from tests.views.live.browser import chromium, needs_chromium, new_page
from tests.warm import run

__all__ = ["chromium"]
CONFIG = RunConfig(task="digits", model="logistic")


def keep_one_that_says(folder: Path, digit: int, run: str, which: str) -> None:
    """Keep a model whose answer to every image is one digit: its weights are 0, and its bias is that digit's."""
    task = load_task(CONFIG.task_settings())
    arrays = {name: np.zeros_like(array) for name, array in initial_arrays(task, 0).items()}
    [bias] = [array for array in arrays.values() if array.shape == (10,)]
    bias[digit] = 5.0
    told: dict[str, Any] = {"figures": {}, "measured_on": "", "which": which}
    keep(DiskStore(folder), arrays, ModelCard.of(task, CONFIG, round=4, run_key=run, **told))


@pytest.fixture(autouse=True)
def warm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "subprocess", SimpleNamespace(**{**vars(subprocess), "run": run}))


@pytest.fixture
def picture() -> bytes:
    out = io.BytesIO()
    Image.new("L", (8, 8), 40).save(out, "PNG")
    return out.getvalue()


@pytest.fixture
def models(tmp_path: Path) -> Path:
    keep_one_that_says(tmp_path, 3, "first", "global")
    keep_one_that_says(tmp_path, 7, "second", "solo")
    return tmp_path


@pytest.fixture
def owner(models: Path) -> Iterator[httpx.Client]:
    with serve_page(volunteer_app(models), PagePlace(0), bodies=BODIES) as page:
        headers = {"Authorization": f"Bearer {page.token}", "Origin": f"http://{page.address}"}
        with httpx.Client(base_url=f"http://{page.address}", headers=headers, timeout=120) as client:
            yield client


def test_each_kept_model_answers_and_the_file_is_gone_afterwards(
    owner: httpx.Client, picture: bytes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    said = owner.post(TRIAL, params={"name": "mine.PNG"}, content=picture).json()
    share = np.exp(5) / (np.exp(5) + 9)
    assert [(each["title"], each["problem"]) for each in said["models"]] == [
        ("own model of maxfl on digits, round 4", ""), ("shared model of maxfl on digits, round 4", "")
    ]  # fmt: skip
    for each, digit in zip(said["models"], "73", strict=True):
        [answer] = each["answers"]
        assert answer["label"] == digit
        assert answer["probability"] == pytest.approx(share, abs=1e-3)
    assert list(temporary.iterdir()) == []


def test_what_is_no_picture_or_too_large_is_one_line(owner: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = owner.post(TRIAL, params={"name": "x.py"}, content=b"print()")
    assert (refused.status_code, refused.json()["said"]) == (
        400, "a file .png, .jpg, .jpeg, .bmp, .csv, .parquet, .jsonl is needed"
    )  # fmt: skip
    too_large = owner.post(TRIAL, content=bytes(trial.MOST_BYTES + 1))
    assert too_large.status_code == 413
    said = owner.post(TRIAL, params={"name": "../../x.png"}, content=b"no image").json()
    for each in said["models"]:
        assert each["answers"] == []
        assert "your file" in each["problem"]
        assert "fedappeal-trial" not in each["problem"]


def test_without_a_model_nothing_is_started(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no model is kept on this device yet"):
        trial.try_models(tmp_path, "x.png", b"")


@needs_chromium
def test_an_owner_chooses_a_file_and_sees_both_answers(models: Path, picture: bytes, chromium: Any) -> None:
    file = models / "mine.png"
    file.write_bytes(picture)
    with serve_page(volunteer_app(models), PagePlace(0), bodies=BODIES) as served, new_page(chromium) as visited:
        page: Any = visited.page
        page.goto(served.url)
        page.get_by_label("Use them").set_input_files(str(file))
        page.locator("#answers article").nth(1).wait_for()
        assert [text.split(" ")[0] for text in page.locator("#answers li").all_inner_texts()] == ["7", "3"]
        assert page.text_content("#tried") == "mine.png"
        assert visited.problems == []
