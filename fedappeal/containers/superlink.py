"""The SuperLink as a container shows it: Flower's own, with a log that a person can read.

    python -m fedappeal.containers.superlink [options of `flower-superlink`]

Its log has short plain lines with the time. Its Control API is for other containers, in a network of their own, so
the kernel here cannot say whose a connection is: that network is what keeps others out.

Killed, and started again by Docker, it continues the runs that were under way. Told to end (`docker compose down`),
it does not: the next `docker compose up` begins a run of its own.
"""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedappeal.federation.continuing import to_continue
from fedappeal.federation.one_superlink import run_one_superlink
from fedappeal.flower.superlink.superlink_process import Ports
from fedappeal.system.json_log import LOG_FORMAT
from fedappeal.system.process_end import end_as_interrupt


def main() -> None:
    """Run the SuperLink."""
    os.umask(0o077)
    if log_format := os.environ.get("LOG_FORMAT"):
        os.environ[LOG_FORMAT] = log_format
    allow = [name for name in os.environ.get("ALLOW", "").split(",") if name.strip()]
    try:
        with end_as_interrupt(), noted_end(Ports.of(sys.argv[1:]).database) as was_killed:
            run_one_superlink(sys.argv[1:], guarded=False, resumes=was_killed, allow=allow)
    except KeyboardInterrupt:
        signal.raise_signal(signal.SIGTERM)  # at once: threads of Flower's may hang


@contextmanager
def noted_end(database: Path | None) -> Iterator[bool]:
    """Yield whether the last process with this database was killed; note that this one was not, if it ends well."""
    if database is None:
        yield False
        return
    running = database.with_name(f"{database.name}.running")
    was_killed, ends_well = running.exists(), False
    running.touch()
    try:
        yield was_killed
        ends_well = True
    except (SystemExit, KeyboardInterrupt) as ended:
        ends_well = not getattr(ended, "code", 0)
        raise
    finally:
        if ends_well:
            running.unlink(missing_ok=True)
            to_continue(database).unlink(missing_ok=True)


if __name__ == "__main__":
    main()
