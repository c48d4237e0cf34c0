"""MLflow: a run of an experiment, in a local store or on a server."""

import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from fedappeal.core.plugins import PluginSettings
from fedappeal.record.reader import FAILED, FINISHED, INTERRUPTED
from fedappeal.views.tracking.tracker import TrackedRun, Tracker

_STATUS = {FINISHED: "FINISHED", INTERRUPTED: "KILLED", FAILED: "FAILED"}
_MOST_PARAMS = 100
"""Parameters of one request, by MLflow's own limit."""
_LONGEST = 6000


class MLflow(Tracker):
    """MLflow: a run of the experiment `fedappeal`, by default in the file mlflow.db of this folder."""

    name = "mlflow"
    extra = "mlflow"
    needs = ("mlflow", "sqlalchemy", "alembic")

    class Settings(PluginSettings):
        """The place of the run's record."""

        uri: str = ""
        """address of the store; empty: MLFLOW_TRACKING_URI, else sqlite:///mlflow.db"""
        experiment: str = Field("fedappeal", min_length=1)
        """name of the experiment"""

    def begin(self, run: TrackedRun) -> str:
        """Make a run with settings and tags, or continue one."""
        from mlflow import MlflowClient

        logging.getLogger("mlflow.store.db").setLevel(logging.WARNING)  # a new store is no news
        uri = self.settings.uri or os.environ.get("MLFLOW_TRACKING_URI") or "sqlite:///mlflow.db"
        self._client: Any = MlflowClient(tracking_uri=uri)
        self._id = run.id or self._new_run_id(run)
        if run.id:
            self._client.update_run(self._id, status="RUNNING")
        self._log_settings(run)
        return self._id

    def round(self, number: int, metrics: Mapping[str, float]) -> None:
        """Log all columns in one request; the step is the round."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        self._client.log_batch(self._id, [Metric(key, value, now, number) for key, value in metrics.items()])

    def model(self, path: Path) -> None:
        """Log the model as an artefact."""
        self._client.log_artifact(self._id, str(path))

    def end(self, how: str) -> None:
        """Set the run's status."""
        self._client.set_terminated(self._id, _STATUS[how])

    def _new_run_id(self, run: TrackedRun) -> str:
        name = self.settings.experiment
        present = self._client.get_experiment_by_name(name)
        experiment = present.experiment_id if present else self._client.create_experiment(name)
        made = self._client.create_run(experiment, tags=dict(run.tags), run_name=run.name)
        return str(made.info.run_id)

    def _log_settings(self, run: TrackedRun) -> None:
        """Log the missing settings; changed ones become tags.

        Parameters stay when a run is continued.
        """
        from mlflow.entities import Param, RunTag

        recorded = self._client.get_run(self._id).data.params
        texts = {key: str(value)[:_LONGEST] for key, value in run.settings.items()}
        fresh = [Param(key, value) for key, value in texts.items() if key not in recorded]
        for first in range(0, len(fresh), _MOST_PARAMS):
            self._client.log_batch(self._id, params=fresh[first : first + _MOST_PARAMS])
        if changed := [RunTag(key, value) for key, value in texts.items() if recorded.get(key, value) != value]:
            self._client.log_batch(self._id, tags=changed)
