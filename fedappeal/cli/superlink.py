"""`fedappeal superlink`: a SuperLink whose Control port is for the user who starts it."""

import os
import sys
from collections.abc import Sequence

from fedappeal.federation.own_superlink import NOT_GUARDED, run_own_superlink
from fedappeal.system.json_log import LOG_FORMAT, TEXT
from fedappeal.system.socket_owner import NotTold, is_told
from fedappeal.views.terminal.shown import complain


def start_superlink(arguments: Sequence[str], log_format: str = TEXT) -> None:
    """Be a SuperLink until a signal ends it.

    Args:
        arguments: options of `flower-superlink`.
        log_format: how it logs, and the ServerApps that it starts.

    Raises:
        ConfigError: options that cannot be guarded; before anything is started.
    """
    if log_format != TEXT:
        os.environ[LOG_FORMAT] = log_format
    try:
        if not is_told():
            complain(NOT_GUARDED)
        run_own_superlink(arguments)
    except NotTold as error:
        complain(error)
        sys.exit(1)
