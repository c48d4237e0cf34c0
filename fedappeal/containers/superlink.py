"""The SuperLink as a container shows it: Flower's own, with a log that a person can read.

    python -m fedappeal.containers.superlink [options of `flower-superlink`]

Its log has short plain lines with the time. Its Control API is for other containers, in a network of their own, so
the kernel here cannot say whose a connection is: that network is what keeps others out.
"""

import os
import sys

from fedappeal.federation.one_superlink import run_one_superlink
from fedappeal.flower.superlink.superlink_log import PLAIN, log_refusals, readable_log
from fedappeal.system.json_log import LOG_FORMAT, chosen_formatter


def main() -> None:
    """Run the SuperLink."""
    os.umask(0o077)
    if log_format := os.environ.get("LOG_FORMAT"):
        os.environ[LOG_FORMAT] = log_format
    readable_log(chosen_formatter(PLAIN))
    log_refusals()
    run_one_superlink(sys.argv[1:], guarded=False)


if __name__ == "__main__":
    main()
