"""Weights & Biases: a run of a project, online or offline."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from fedappeal.core.plugins import PluginSettings
from fedappeal.record.reader import FAILED
from fedappeal.views.tracking.tracker import TrackedRun, Tracker


class WandB(Tracker):
    """Weights & Biases: a run of the project `fedappeal`; offline its files lie under RUN/wandb."""

    name = "wandb"
    extra = "wandb"
    needs = ("wandb",)

    class Settings(PluginSettings):
        """The place of the run's record."""

        project: str = Field("fedappeal", min_length=1)
        """name of the project"""
        entity: str = ""
        """user or team; empty: W&B's default"""
        mode: Literal["auto", "online", "offline"] = "auto"
        """auto: WANDB_MODE, else online"""

    def begin(self, run: TrackedRun) -> str:
        """Make a run with settings and tags, or continue one."""
        import wandb

        quiet = wandb.Settings(console="off", silent=True, disable_git=True, disable_code=True, x_disable_stats=True)
        self._run: Any = wandb.init(
            project=self.settings.project,
            entity=self.settings.entity or None,
            mode=None if self.settings.mode == "auto" else self.settings.mode,
            dir=run.folder,
            id=run.id or None,
            resume="must" if run.id else None,
            name=run.name,
            config={**run.settings, "tags": dict(run.tags)},
            tags=[f"{key}:{run.tags[key]}" for key in ("strategy", "task", "seed")],
            settings=quiet,
            reinit="create_new",  # several runs of a sweep at once
        )
        return str(self._run.id)

    def round(self, number: int, metrics: Mapping[str, float]) -> None:
        """Log all columns at once, not with the next round's; the step is the round."""
        self._run.log(dict(metrics), step=number, commit=True)

    def model(self, path: Path) -> None:
        """Log the model as an artefact."""
        import wandb

        artifact = wandb.Artifact(f"model-{self._run.id}", type="model")
        artifact.add_file(str(path))
        self._run.log_artifact(artifact)

    def end(self, how: str) -> None:
        """Finish the run; only one that failed has an exit code."""
        self._run.finish(exit_code=int(how == FAILED))
