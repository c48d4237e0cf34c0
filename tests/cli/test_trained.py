"""`fedappeal export` and `fedappeal predict`, on a run's own model."""

import csv
import errno
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from fedappeal.api.trained import FILES
from fedappeal.cli.main import main
from fedappeal.record.reader import Record
from fedappeal.runs.plan import RunPlan
from fedappeal.settings.config import RunConfig
from fedappeal.simulation.engine import simulate
from fedappeal.simulation.options import Simulation
from fedappeal.tasks import load_task
from fedappeal.trained import read_card
from tests.plugin_folder import write_module

CONFIG = RunConfig.parse(
    {"clients": 3, "rounds": 2, "local-steps": 40, "solo.steps": 5, "strategy": "fedavg", "partition": "iid"}
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a short run."""
    path = tmp_path_factory.mktemp("runs") / "first"
    simulate(CONFIG, RunPlan.of(CONFIG, path).folder({}), Simulation(mode="sequential"))
    return path


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., list[str]]:
    """Run the command in an empty folder; return what it prints, or the one line with which it ends."""

    def type_it(*arguments: object, code: int = 0) -> list[str]:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["fedappeal", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        assert (ended.value.code or 0) == code, printed
        assert bool(printed.err) == bool(code), printed
        if code:
            assert printed.out == "", "something was printed before the refusal"
            assert len(printed.err.splitlines()) == 1, printed.err
        return (printed.err or printed.out).splitlines()

    return type_it


Command = Callable[..., list[str]]


def test_a_runs_model_has_a_card_with_the_runs_figures(run: Path) -> None:
    card, last = read_card(run / "model.safetensors"), Record(run).history[-1]
    assert (card.task, card.model, card.strategy, card.round) == ("digits", "mlp", "fedavg", 2)
    assert card.run_key == json.loads((run / "config.json").read_text())["run-key"]
    assert card.figures == {name: last[name] for name in ("gm_appeal", "accuracy", "preferred_accuracy", "loss")}
    assert card.measured_on == "test data of the seen clients, a mean over clients"
    assert card.requirement_met is None


def test_predictions_of_the_clients_test_images_have_the_runs_own_accuracy(
    run: Path, tmp_path: Path, command: Command
) -> None:
    task = load_task(CONFIG.task_settings())
    accuracies = []
    for client in range(3):
        data = task.load(client).test
        pixels = np.round((data.x.numpy() * task.std + task.mean) * 255).astype(np.uint8)  # type: ignore[union-attr, attr-defined]
        for row, (image, label) in enumerate(zip(pixels[:, 0], data.y.tolist(), strict=True)):  # type: ignore[union-attr]
            path = tmp_path / f"client{client}" / str(label) / f"{row}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(path)
        lines = command("predict", run, "--data", f"client{client}", "--output", f"{client}.csv")
        with open(tmp_path / f"{client}.csv", newline="") as file:
            rows = list(csv.DictReader(file))
        assert len(rows) == len(data)
        right = [row["label"] == row["given"] == row["example"].split("/")[0] for row in rows]
        accuracies.append(sum(right) / len(right))
        assert lines == [
            f"examples    {len(data)}",
            f"accuracy    {100 * accuracies[-1]:.1f} %",
            f"its card    accuracy {100 * Record(run).history[-1]['accuracy']:.1f} % on test data of the seen "
            "clients, a mean over clients, which it was not trained on",
            f"predictions {client}.csv",
        ]
    assert np.mean(accuracies) == pytest.approx(Record(run).history[-1]["accuracy"], abs=0.005)


def test_predictions_are_printed_or_written_as_json_lines(run: Path, tmp_path: Path, command: Command) -> None:
    np.savez(tmp_path / "mine.npz", x=np.full((2, 8, 8), 3, np.uint8))
    first, second, *summary = command("predict", run / "model.safetensors", "--data", "mine.npz")
    number, label, probability = first.split()
    assert number == "0"
    assert second.split() == ["1", label, probability]
    assert summary == ["examples    2", "accuracy    not measured: it holds no array y"]
    command("predict", run, "--data", "mine.npz", "--output", "p.jsonl", "--device", "cpu")
    told = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()]
    assert [line["example"] for line in told] == ["0", "1"]
    assert {line["label"] for line in told} == {label}
    assert told[0]["probability"] == pytest.approx(float(probability), abs=5e-4)
    assert "given" not in told[0]


def test_a_wrong_label_is_shown_beside_the_right_one(run: Path, tmp_path: Path, command: Command) -> None:
    x = np.full((1, 8, 8), 3, np.uint8)
    np.savez(tmp_path / "a.npz", x=x)
    label = int(command("predict", run, "--data", "a.npz")[0].split()[1])
    np.savez(tmp_path / "b.npz", x=np.concatenate([x, x]), y=[label, (label + 1) % 10])
    right, wrong, *summary = command("predict", run, "--data", "b.npz")
    assert "is" not in right
    assert wrong.endswith(f"(is {(label + 1) % 10})")
    assert summary[:2] == ["examples    2", "accuracy    50.0 %"]


def test_an_export_that_a_full_disk_does_not_take_is_one_line(
    run: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("os.fsync", full)
    line = "fedappeal: output = 'new/m.safetensors' cannot be written: No space left on device"
    assert command("export", run, "--to", "safetensors", "--output", "new/m.safetensors", code=2) == [line]


def test_an_export_is_called_after_its_run_and_predicts_the_same(
    run: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ONNX itself, whose writer takes seconds to import, has tests of its own."""
    assert command("export", run, "--to", "safetensors") == [
        "mlp of digits, fedavg, round 2: first.safetensors",
        "input   float32 (n, 1, 8, 8)",
        "scaled  (pixel / 16 - 0.3053) / 0.376",
        "output  10 logits",
    ]
    np.savez(tmp_path / "a.npz", x=np.arange(64).reshape(1, 8, 8) // 4)
    assert command("predict", run, "--data", "a.npz") == command("predict", "first.safetensors", "--data", "a.npz")
    written = []
    monkeypatch.setitem(FILES, "onnx", (".onnx", lambda trained, path: written.append((trained.card.model, path))))
    command("export", run / "model.safetensors", "--to", "onnx", "--output", "new/m.onnx")
    assert written == [("mlp", Path("new/m.onnx"))]


def test_a_model_of_ones_own_is_rebuilt_where_the_call_allows_its_package(tmp_path: Path, command: Command) -> None:
    write_module(tmp_path, "nets")
    name = ("--model", "nets:Net", "--clients", 2, "--rounds", 1, "--mandatory-rounds", 1, "--out", "own")
    command("simulate", "--strategy", "fedavg", *name)
    np.savez(tmp_path / "a.npz", x=np.zeros((2, 1, 8, 8), np.float32))
    assert "examples    2" in command("predict", "own", "--data", "a.npz", "--allow", "nets", "--allow", ".")
    (line,) = command("predict", "own", "--data", "a.npz", code=2)
    assert "model = 'nets:Net' is not allowed: code that it names runs only with --allow nets --allow ." in line
    (line,) = command("resume", "own", "--rounds", 2, code=2)
    assert "holds a run of model 'nets:Net': code that it names runs only with --allow nets" in line
    command("resume", "own", "--rounds", 2, "--allow", "nets", "--allow", ".")
    assert len(Record(tmp_path / "own").history) == 2


@pytest.mark.parametrize("ending", [".csv", ".parquet"])
def test_a_table_is_predicted_as_its_rows_in_an_npz_are(
    ending: str, run: Path, tmp_path: Path, command: Command
) -> None:
    x = np.random.default_rng(1).integers(0, 17, (300, 64))
    np.savez(tmp_path / "a.npz", x=x.reshape(-1, 8, 8).astype(np.uint8), y=np.arange(300) % 10)
    pixels = [f"p{k}" for k in range(64)]
    frame = pd.DataFrame(x, columns=pixels)
    shuffled = frame[pixels[::-1]].assign(kind=np.arange(300) % 10, date="today")
    write = {".csv": pd.DataFrame.to_csv, ".parquet": pd.DataFrame.to_parquet}[ending]
    write(shuffled, tmp_path / f"mine{ending}", index=False)
    write(frame, tmp_path / f"plain{ending}", index=False)
    labelled = command("predict", run, "--data", "a.npz")
    choice = ("--features", ",".join(pixels), "--label", "kind")
    assert command("predict", run, "--data", f"mine{ending}", *choice) == labelled
    plain = command("predict", run, "--data", f"plain{ending}")
    assert plain[-1] == "accuracy    not measured: no column of labels is named (label)"
    assert [line.split()[1] for line in plain[:300]] == [line.split()[1] for line in labelled[:300]]


def test_what_is_not_allowed_is_one_line_and_writes_nothing(run: Path, tmp_path: Path, command: Command) -> None:
    (tmp_path / "a.npz").write_bytes(b"")
    header = ",".join(f"p{k}" for k in range(64))
    (tmp_path / "b.csv").write_text(f"{header}\n")
    begins = tmp_path / "begins"
    (begins / "own-models").mkdir(parents=True)
    (begins / "own-models" / "a.safetensors").touch()
    (begins / "config.json").write_bytes((run / "config.json").read_bytes())
    (tmp_path / "a.csv").write_text(f"{header}\n{','.join('?' if k == 3 else '1' for k in range(64))}\n")
    before = sorted(tmp_path.iterdir())
    model = run / "model.safetensors"
    for arguments, line in (
        (("export", run), "missing option '--to'"),
        (("export", run, "--to", "pt"), "to = 'pt' is not allowed: onnx, safetensors, huggingface, adapter"),
        (
            ("export", "nothing", "--to", "onnx"),
            "'nothing' is not there: give a run's folder, or a file .safetensors",
        ),
        (("export", tmp_path, "--to", "onnx"), "holds no model.safetensors: it is not a run's folder"),
        (
            ("export", model, "--to", "safetensors", "--output", model),
            "is not allowed: it is read here; name another",
        ),
        (
            ("export", model, "--to", "onnx", "--output", run / "checkpoint.safetensors"),
            "checkpoint.safetensors' is not allowed: it is a file of the run in its folder; name another file",
        ),
        (
            ("predict", run, "--data", "a.csv", "--output", tmp_path / "a.csv"),
            "a.csv' is not allowed: it is read here",
        ),
        (
            ("predict", run, "--data", "a.npz", "--scale-from", "b.csv", "--output", "b.csv"),
            "output = 'b.csv' is not allowed: it is read",
        ),
        (("predict", run, "--data", "a.csv", "--output", run / "policies.jsonl"), "it is a file of the run"),
        (("report", run, "--output", run / ".lock"), "it is a file of the run"),
        (("compare", run, "--to", "json", "--output", begins / "config.json"), "it is a file of the run"),
        (
            ("export", run, "--to", "safetensors", "--output", begins / "own-models" / "a.safetensors"),
            "it is a file of the run",
        ),
        (("compare", run, "--to", "json", "--output", run / "config.json"), "it is a file of the run"),
        (
            ("export", run, "--to", "onnx", "--output", "a.npz/m"),
            "'a.npz/m' is not allowed: no file can be made in '",
        ),
        (("export", run, "--to", "onnx", "--output", "."), "output = '.' is not allowed: it is a folder"),
        (("export", run / "checkpoint.safetensors", "--to", "onnx"), "has no card, which says of which task"),
        (("predict", run), "missing option '--data'"),
        (("predict", run, "--data", "nowhere"), "data = 'nowhere' is not allowed: no such file or folder"),
        (("predict", run, "--data", "a.npz"), "data = 'a.npz' is not allowed: not an .npz that can be read"),
        (("predict", run, "--data", "a.npz", "--output", "p.txt"), "output = 'p.txt' is not allowed: a file .csv or"),
        (("predict", run, "--data", "a.npz", "--device", "gpu"), "device = 'gpu' is not allowed"),
        (("predict", run, "--data", "a.npz", "--label", "y"), "'a.npz' is not allowed: features and label are of a"),
        (
            ("predict", run, "--data", "a.csv", "--output", "p.csv"),
            "row 1 (line 2), column p3: '?' is no finite number",
        ),
        (("predict", run, "--data", "a.csv", "--label", "q"), "it has no column q (its header: p0, p1"),
        (("predict", run, "--data", "a.csv", "--features", "p1,p1"), "features = 'p1,p1' is not allowed: 'p1' is"),
        (("predict", run, "--data", "b.csv"), "'b.csv' is not allowed: it has no rows"),
        (("export", run, "--to", "huggingface"), "to = 'huggingface' is not allowed: the model is none of"),
        (("export", run, "--to", "adapter", "--output", "a.npz"), "output = 'a.npz' is not allowed: it is there"),
    ):
        (said,) = command(*arguments, code=2)
        assert line in said.lower() if line.startswith("missing") else line in said, said
    assert sorted(tmp_path.iterdir()) == before
