"""Before a run continues: damaged files are put aside, and named; half-written ones are deleted."""

from collections.abc import Callable

from fedappeal.record.lines import EVENTS, HISTORY, MEASUREMENTS, PARTICIPATION, POLICIES, mend_lines
from fedappeal.record.run_folder import RunFolder, Usable, without_memory
from fedappeal.system.files import delete_unfinished, set_aside
from server.checkpoints import Found, newest_usable, take_back
from server.initial_files import damaged_initials


def mended(folder: RunFolder, say: Callable[[str], None], usable: Usable = without_memory) -> Found:
    """Put a run's damaged files aside, and return the checkpoint after which it continues.

    What a killed process left half-written is deleted. The caller has the folder alone.

    Args:
        folder: the run's.
        say: told one line of each damaged file; the run's events record it too.
        usable: as in `newest_usable`.

    Raises:
        ConfigError: no checkpoint can be used; then nothing is changed.
    """
    found = newest_usable(folder.path, usable)
    delete_unfinished(folder.path)
    for name in (EVENTS, POLICIES, HISTORY, PARTICIPATION, MEASUREMENTS):
        if (mending := mend_lines(folder.path / name)) is not None:
            aside, reason = mending
            folder.event("damaged", file=name, aside=aside.name, reason=reason)
            whole = f"the run continues without these lines, and the whole file is kept as '{aside.name}'"
            say(f"file '{folder.path / name}' is damaged ({reason}): {whole}")
    for path, reason in damaged_initials(folder.path).items():
        kept = set_aside(path).name
        folder.event("damaged", file=path.name, aside=kept, reason=reason)
        say(f"{reason}: the next checkpoint writes it again, and the damaged file is kept as '{kept}'")
    for unusable, aside in zip(found.newer, take_back(found), strict=True):
        file = unusable.file
        folder.event("damaged", file=file.name, aside=aside.name, reason=unusable.reason, round=found.server_round)
        say(
            f"{unusable.reason}: the run continues after round {found.server_round}, from '{found.file.name}'; "
            f"the checkpoint that cannot be used is kept as '{aside.name}'"
        )
    return found
