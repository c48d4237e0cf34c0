"""MLflow: a real local store in a file, read back by MLflow itself; no server."""

from pathlib import Path
from typing import Any

import pytest

import fedappeal
from fedappeal.record.lines import MODEL
from fedappeal.record.reader import Record
from tests.later import Later

mlflow = Later("mlflow")
QUICK: dict[str, Any] = {"model": "logistic", "clients": 3, "rounds": 3, "local_steps": 2, "requirement": "fixed"}


def test_a_local_store_holds_rounds_settings_tags_and_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    run = fedappeal.simulate(
        "maxfl", out="run", track="mlflow", quiet=True, set={"mlflow.experiment": "mine"}, **QUICK
    )
    given = {"mlflow.experiment": "mine"}
    fedappeal.load(run.path, track="mlflow", set=given).resume(rounds=5)

    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'mlflow.db'}")
    (found,) = client.search_runs([client.get_experiment_by_name("mine").experiment_id])
    assert found.info.status == "FINISHED"
    assert found.info.run_name == "run"
    history = Record(run.path).history
    columns = {key for line in history for key, value in line.items() if isinstance(value, int | float)} - {"round"}
    assert set(found.data.metrics) == columns
    for column in columns:
        logged = sorted((each.step, each.value) for each in client.get_metric_history(found.info.run_id, column))
        assert logged == [(line["round"], line[column]) for line in history if column in line], column
    settings = {key: str(value) for key, value in Record(run.path).config["settings"].items()}
    changed = {"rounds", "schedule-rounds"}  # by the continuation; parameters stay as the run began
    assert {k: v for k, v in found.data.params.items() if k not in changed} == {
        k: v for k, v in settings.items() if k not in changed
    }
    tags = found.data.tags
    assert (tags["strategy"], tags["task"], tags["seed"]) == ("maxfl", "digits", "0")
    assert "version-torch" in tags
    (artefact,) = client.list_artifacts(found.info.run_id)
    assert artefact.path == MODEL
    copy = client.download_artifacts(found.info.run_id, MODEL, str(tmp_path))
    assert Path(copy).read_bytes() == (run.path / MODEL).read_bytes()
