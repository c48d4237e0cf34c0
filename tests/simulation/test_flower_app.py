"""`fedappeal simulate --app`: any ClientApp in our engine, with a run's folder and report."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord

from fedappeal.cli.main import main
from fedappeal.clientapp import volunteer
from fedappeal.record.lines import MODEL
from fedappeal.record.reader import Record
from fedappeal.system.files import read_safetensors
from strategies import MaxFL
from tests.client.numpy_app import numpy_app
from tests.client.test_volunteer import federation, model_of, run
from tests.simulation.test_resume import killed_after, left_by

CODE = """
import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from tests.client.numpy_app import initial, numpy_app

app = numpy_app()

def begin():
    return initial()

def many():
    return [np.full(1, float(k)) for k in range(12)]

def wrong():
    return "weights"

def needs(more):
    return many()

by_place = ClientApp()

noting = ClientApp()

@noting.train()
def train(message: Message, context: Context) -> Message:
    reply = app(message, context)
    before = context.state.get("note", {"bytes": b"", "many": []})
    note = {"bytes": before["bytes"] + bytes([255]), "many": [*before["many"], bytes(1)], "share": 0.1}
    context.state["note"], context.state["numbers"] = ConfigRecord(note), MetricRecord({"n": [1, 2]})
    return reply

@noting.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    return app(message, context)

@by_place.train()
def train(message: Message, context: Context) -> Message:
    values = [array.numpy()[0] for array in message.content["arrays"].values()]
    assert [int(value) % 100 for value in values] == list(range(12)), values
    arrays = ArrayRecord([np.array([value + 100.0]) for value in values])
    return Message(RecordDict({"arrays": arrays, "m": MetricRecord({"num-examples": 1})}), reply_to=message)

@by_place.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    values = [array.numpy()[0] for array in message.content["arrays"].values()]
    assert [int(value) % 100 for value in values] == list(range(12)), values
    return Message(RecordDict({"m": MetricRecord({"loss": 1.0, "num-examples": 1})}), reply_to=message)
"""


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "simulated_app.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "simulated_app"


def simulate(*words: object) -> int | str | None:
    return command("simulate", *words)


def command(*words: object) -> int | str | None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["fedappeal", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
    return ended.value.code


def test_it_is_the_run_of_the_same_clients_under_flowers_start(code: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    app = ("--app", f"{code}:app", "--arrays", f"{code}:initial", "--clients", 7, "--strategy", "maxfl")
    how = ("--rounds", 8, "--mandatory-rounds", 5, "--on-empty-round", "keep", "--set", "solo.steps=2")
    assert simulate(*app, *how, "--set", "app.lr=0.1", "--out", out) == 0
    grid, _ = federation([volunteer(numpy_app(), solo__steps=2) for _ in range(7)])
    strategy = MaxFL(min_clients=7, mandatory_rounds=5, on_empty_round="keep")
    result, watch = run(strategy, grid, 8, train_config=ConfigRecord({"lr": 0.1}))
    model, _ = read_safetensors(out / MODEL)
    by_name = {name: array.numpy() for name, array in result.arrays.items()}
    assert {name: list(values) for name, values in model.items()} == {n: list(v) for n, v in by_name.items()}
    assert np.any(model_of(result))
    rounds = Record(out).history
    assert [line["joined"] for line in rounds] == [r.count("joined") for r in watch.records]
    assert rounds[-1]["gm_appeal"] == result.evaluate_metrics_clientapp[8]["gm_appeal"]


@pytest.mark.parametrize("app", ["app", "noting"])
def test_one_that_was_killed_is_resumed_to_the_bit(
    code: str, app: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.recorder.SECONDS_APART", 0.0)
    monkeypatch.setattr("server.recorder.LARGEST_SHARE", 0)
    words: tuple[object, ...] = (
        "--app",
        f"{code}:{app}",
        "--arrays",
        f"{code}:begin",
        "--clients",
        7,
        "--strategy",
        "maxfl",
    )
    words += ("--rounds", 6, "--mandatory-rounds", 3, "--on-empty-round", "keep", "--set", "solo.steps=2")
    assert simulate(*words, "--out", tmp_path / "whole") == 0
    with monkeypatch.context() as patch:
        killed_after(patch, 3)
        assert simulate(*words, "--out", tmp_path / "killed") == 1
    assert len(Record(tmp_path / "killed").history) == 4
    assert command("resume", tmp_path / "killed", "--allow", code) == 0
    left, whole = left_by(tmp_path / "killed"), left_by(tmp_path / "whole")
    for one in (left, whole):
        del one["memory"]  # its names are hashes of the run's key
    assert left == whole
    assert len(whole["history"]) == 6
    assert len(whole["requirements.jsonl"]) == 7


def test_an_app_that_reads_arrays_by_place_finds_them_in_their_order(code: str, tmp_path: Path) -> None:
    app = ("--app", f"{code}:by_place", "--arrays", f"{code}:many", "--clients", 2, "--strategy", "fedavg")
    out = tmp_path / "run"
    assert simulate(*app, "--rounds", 2, "--participation", "always", "--out", out) == 0
    model, _ = read_safetensors(out / MODEL)
    assert {name: values.tolist() for name, values in model.items()} == {str(k): [200.0 + k] for k in range(12)}


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--app", "simulated_app:app"], "arrays = '' is not allowed with app"),
        (["--app", "simulated_app:app", "--arrays", "simulated_app:wrong"], "returned str, not an ArrayRecord"),
        (["--app", "simulated_app:app", "--arrays", "simulated_app:needs"], "needs() missing 1 required"),
        (["--app", "simulated_app:none", "--arrays", "simulated_app:many"], "cannot be imported"),
        (["--app", "simulated_app:many", "--arrays", "simulated_app:many"], "failed"),
    ],
)
def test_what_is_not_allowed_is_one_line_and_nothing_is_written(
    code: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[Any], line: str
) -> None:
    out = tmp_path / "run"
    assert simulate(*words, "--out", out) == 2
    said = capsys.readouterr().err
    assert line in said
    assert said.count("\n") == 1
    assert not out.exists()
