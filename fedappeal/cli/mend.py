"""What a run's folder needs before the run continues: no other process in it, no damaged file."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedappeal.record.folder import RunFolder, Usable, without_memory
from fedappeal.views.terminal.shown import complain


@contextmanager
def mended_folder(path: Path, usable: Usable = without_memory) -> Iterator[RunFolder]:
    """Hold a run's folder while its damaged files are put aside, with a line on standard error for each.

    Args:
        path: the folder.
        usable: as in `server.checkpoints.newest_usable`.

    Raises:
        ConfigError: another process runs the run, or no checkpoint can be used.
    """
    from server.continuation import mended  # Flower, which takes a second

    folder = RunFolder.open(path)
    with folder.alone():
        mended(folder, complain, usable)
        yield folder
