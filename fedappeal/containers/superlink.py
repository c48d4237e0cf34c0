"""The SuperLink as a container shows it: Flower's own, with a log that a person can read.

    python -m fedappeal.containers.superlink [options of `flower-superlink`]

Its log has short plain lines with the time.
"""

import os

from fedappeal.flower.superlink_log import log_refusals, readable_log, run_superlink


def main() -> None:
    """Be the SuperLink."""
    os.umask(0o077)
    readable_log()
    log_refusals()
    run_superlink()


if __name__ == "__main__":
    main()
