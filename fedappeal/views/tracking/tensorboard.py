"""TensorBoard: event files in the run's folder."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedappeal.core.plugins import PluginSettings
from fedappeal.protocol.foreign_text import as_markdown
from fedappeal.record.columns import CARD, templates
from fedappeal.settings.model import local_path
from fedappeal.views.tracking.tracker import TrackedRun, Tracker


class TensorBoard(Tracker):
    """TensorBoard: event files under RUN/tensorboard; `tensorboard --logdir runs` shows all runs."""

    name = "tensorboard"
    extra = "tensorboard"
    needs = ("torch", "tensorboard")

    class Settings(PluginSettings):
        """The folder of the event files."""

        folder: str = ""
        """folder of the event files, one below it a run; empty: RUN/tensorboard"""

    def begin(self, run: TrackedRun) -> str:
        """Open an event file; a continued run has one more in the same folder."""
        from torch.utils.tensorboard import SummaryWriter
        from torch.utils.tensorboard import summary as summaries

        chosen = self.settings.folder
        folder = run.folder / "tensorboard"
        if chosen:
            folder = local_path(chosen, "tensorboard.folder").absolute() / run.name
        make: Any = SummaryWriter  # neither it nor `hparams` has types
        self._writer = make(str(folder), purge_step=run.after + 1 if run.after else None)
        if not run.id:
            # As `add_hparams` does, in the run's own folder in place of one more.
            hparams: Any = summaries.hparams
            figures = {column.key: 0.0 for column in templates(CARD) if "{" not in column.key}
            for summary in hparams(dict(run.settings), figures):
                self._writer.file_writer.add_summary(summary)
            rows = "\n".join(f"| {key} | {as_markdown(value)} |" for key, value in run.tags.items())
            self._writer.add_text("tags", f"| tag | value |\n|---|---|\n{rows}", 0)
        return str(folder)

    def round(self, number: int, metrics: Mapping[str, float]) -> None:
        """Write a scalar a column; the step is the round."""
        for column, value in metrics.items():
            self._writer.add_scalar(column, value, number, new_style=True)
        self._writer.flush()

    def model(self, path: Path) -> None:
        """Write where the model lies: TensorBoard keeps no files of others."""
        self._writer.add_text("model", str(path), 0)

    def end(self, how: str) -> None:
        """Write how the run ended, and close the file."""
        self._writer.add_text("ended", how, 0)
        self._writer.close()
