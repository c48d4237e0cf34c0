"""Why a client's own data are refused: for its owner, and for the server."""

import re
from pathlib import Path

from fedappeal.data.columns import Unfit
from fedappeal.protocol.keys import DataProblem
from fedappeal.settings.config import ConfigError


class OwnDataError(Unfit, ConfigError):
    """Data that a client cannot use.

    The message names files and values: it is for the owner, not for the server.

    Attributes:
        problem: all that the server may learn.
    """


class OwnDataRefused(ConfigError):
    """A client's own data do not fit a run; the message holds nothing of them.

    Attributes:
        client_id: the client.
        problem: what is wrong.
    """

    def __init__(self, client_id: str, problem: DataProblem) -> None:
        super().__init__(f"{problem.text} (the client's log says why)")
        self.client_id = client_id
        self.problem = problem


_FUNCTION = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


def is_function(data: str) -> bool:
    """Whether data of this name is a function ``package.module:load``, and no file."""
    return bool(_FUNCTION.fullmatch(data)) and not Path(data).exists()
