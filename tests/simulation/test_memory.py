"""What simulated clients remember: one record of what many of them share, in memory and in the run's folder."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client.learner import Job, Sent
from client.participant import Measurement
from client.training.models import BFLOAT16, FLOAT32
from client.training.sgd import SGD
from fedappeal.protocol.foreign_text import parse_json
from fedappeal.record.folder import RunFolder
from fedappeal.record.reader import Record
from fedappeal.runs.plan import RunPlan
from fedappeal.settings.config import RunConfig
from fedappeal.settings.training import LocalTrainingSettings
from fedappeal.simulation.engine import simulate
from fedappeal.simulation.memory import measured_key, measured_text, read_memory
from fedappeal.simulation.options import Simulation
from fedappeal.system.files import read_safetensors, write_safetensors

CLIENTS = 6
SETTINGS: dict[str, Any] = {
    **{"task": "digits", "model": "logistic", "clients": CLIENTS, "rounds": 1, "local-steps": 2, "solo.steps": 2},
}


def written(folder: Path, **settings: Any) -> tuple[RunFolder, dict[str, Any]]:
    """Run one round; return the folder, and the text of what clients remembered before it."""
    config = RunConfig.parse({**SETTINGS, **{key.replace("_", "-"): value for key, value in settings.items()}})
    run = RunPlan.of(config, folder).folder({})
    simulate(config, run, Simulation("layers"))
    arrays, _ = read_safetensors(run.path / "memory-0.safetensors")
    return run, parse_json(arrays["text"].tobytes())


def test_what_clients_share_is_written_once_and_read_for_each(tmp_path: Path) -> None:
    run, text = written(tmp_path / "run", requirement="fixed", **{"fixed.loss": 0.75})
    others = list(range(1, CLIENTS))
    assert list(text["alike"].values()) == [others, others]  # the requirement, and which it is in this run
    assert len(parse_json(text["records"])) == 2
    records = read_memory(run.path, 0).records
    assert len(records) == 2 * CLIENTS
    for name in (path.partition("/")[2] for path in text["alike"]):
        assert len({id(records[f"{k}/{name}"]) for k in range(CLIENTS)}) == 1
    lines = Record(run.path).requirements
    assert [(line["client-id"], line["requirement"]) for line in lines] == [
        (f"client-{k:04d}", 0.75) for k in range(CLIENTS)
    ]


def test_what_differs_is_written_for_each(tmp_path: Path) -> None:
    run, text = written(tmp_path / "run", requirement="solo")
    assert text["alike"] == {}
    records = read_memory(run.path, 0).records
    assert len(records) == 3 * CLIENTS  # the requirement, its solo model, and which it is in this run
    rho = {record["rho"] for path, record in records.items() if "/requirement-" in path and ".arrays" not in path}
    assert len(rho) == CLIENTS


@pytest.mark.parametrize("requirement", ["fixed", "solo"])
def test_a_file_without_what_is_shared_is_one_of_an_earlier_version(tmp_path: Path, requirement: str) -> None:
    run, text = written(tmp_path / "run", requirement=requirement)
    file = run.path / "memory-0.safetensors"
    arrays, values = read_safetensors(file)
    own = {path: record for path, record in parse_json(text["records"]).items() if path.startswith("0/")}
    del text["alike"]
    arrays["text"] = np.frombuffer(json.dumps({**text, "records": json.dumps(own)}).encode(), np.uint8)
    write_safetensors(file, arrays, values)
    assert read_memory(run.path, 0).records.keys() == own.keys()


def test_what_was_measured_is_a_text_as_in_folders_of_earlier_versions() -> None:
    training = LocalTrainingSettings(learning_rate=0.1, batch_size=8, local_steps=5)
    sent, after = Sent("0123456789abcdef", 3), Job(SGD(), training, "adaptation").name
    assert after.startswith("Adaptation(rule=(<class 'client.training.sgd.SGD'>, PluginSettings()), training=LocalTr")
    assert after.endswith(", purpose='adaptation')")
    for key, text in (
        (Measurement(sent, "train", FLOAT32, ""), "train"),
        (Measurement(sent, "test", BFLOAT16, ""), "test bfloat16"),
        (Measurement(sent, "held-out", FLOAT32, after), f"held-out {after}"),
        (Measurement(sent, "held-out", BFLOAT16, after), f"held-out bfloat16 {after}"),
    ):
        assert (measured_text(key), measured_key(sent, text)) == (text, key)
