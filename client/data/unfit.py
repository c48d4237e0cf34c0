"""Errors of a client's own data: in full for its owner, a category for the server."""

from fedappeal.protocol.keys import DataProblem
from fedappeal.settings.config import ConfigError


class Unfit(ValueError):
    """Something wrong with the data, not yet said of which data."""

    def __init__(self, problem: DataProblem, message: str) -> None:
        super().__init__(message)
        self.problem = problem


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
