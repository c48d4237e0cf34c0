"""A SuperLink for the user who starts it: Flower's own, and other users of this machine are kept out.

python -P -m fedappeal.federation.own_superlink [options of `flower-superlink`]
"""

import os
import sys
from collections.abc import Sequence

from fedappeal.flower.processes import QUIET
from fedappeal.system.socket_owner import NotTold, is_told
from fedappeal.system.tuning import quick_imports

NOT_GUARDED = (
    "this system does not say whose a connection is (Linux does): other users of this machine reach the SuperLink's "
    "ports and can run code as you"
)
"""What is said where other users cannot be kept out."""


def run_own_superlink(arguments: Sequence[str], *, resumes: bool = False, allow: Sequence[str] = ()) -> None:
    """Run a SuperLink whose loopback ports serve this user's processes only.

    Args:
        arguments: options of `flower-superlink`.
        resumes: whether to continue the runs of its database that were under way when it ended.
        allow: packages whose code these may name.

    Raises:
        ConfigError: options that cannot be guarded; before anything is started.
        NotTold: if this is Linux and does not say whose a connection is.
    """
    guarded = is_told()
    for name, value in {**QUIET, "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1"}.items():
        os.environ.setdefault(name, value)
    with quick_imports():  # Flower reads the environment then
        from fedappeal.federation.one_superlink import run_one_superlink

    run_one_superlink(arguments, guarded=guarded, resumes=resumes, allow=allow)


def main() -> None:
    """Run the SuperLink with this process's command line."""
    with quick_imports():
        from fedappeal.flower.superlink.monotonic_time import begin_monotonic_time
        from fedappeal.settings.config import ConfigError

    begin_monotonic_time()
    try:
        run_own_superlink(sys.argv[1:])
    except (ConfigError, NotTold) as error:
        sys.exit(f"fedappeal: {error}")


if __name__ == "__main__":
    main()
