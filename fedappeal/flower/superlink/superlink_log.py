"""The log of a SuperLink in this process: one that a person can read.

Five things of Flower's are put right: when a run has ended, each client's word that it received the last message is
logged as an error, though it is none; a client whose calls are refused before they are looked at (its clock is
wrong, or its signature) is not logged at all; a client that reaches the port writes a line with each call; one that
is refused, and tries again and again, writes an error each time; and calls that are made again and again are logged
as what happened is (they are for ``FLWR_LOG_LEVEL=DEBUG``).
"""

import logging
import os
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable

import grpc  # type: ignore[import-untyped, unused-ignore]
from flwr.server.superlink.fleet.grpc_rere import node_auth_server_interceptor as authentication
from flwr.supercore.logger import FLOWER_LOGGER, ConsoleHandler

from fedappeal.system.validity import Validity

_TERMINATOR = "_unary_unary_rpc_terminator"
_AGAIN_AFTER = 60.0
_SAME_ERROR_AFTER = 600.0
"""Seconds in which a refused client tries again a hundred times."""
_MOST_KEPT = 1000
REFUSED = "a client is refused: "
"""How an error about a client begins that is a line of its own, without the call's name."""
_CONFIRMED_LATE = re.compile("Confirm-?Message-?Received.*Run is finished", re.IGNORECASE)
"""The call by its name over gRPC, by its path over HTTP."""
_CALL = re.compile(r"\[(Fleet\.|/flwr\.proto\.Fleet/|/v1/fleet/)[\w-]+\]")
_DAY = 24 * 3600.0
_REPEATED = re.compile(
    r"ControlServicer\.List|\[(Fleet\.|/flwr\.proto\.Fleet/|/v1/fleet/)(?!(un)?register|(de)?activate)", re.IGNORECASE
)
"""Calls that are made with each message, or whenever a command or a page looks."""
MOST_LINES = 200
"""Lines a minute about one call of the Fleet API."""
PLAIN = logging.Formatter("%(asctime)s %(levelname)s %(message)s", datefmt="%H:%M:%S")
MEANINGS = {
    "Invalid timestamp": "a client is refused: its clock is more than 5 s ahead of this machine's, or 305 s behind",
    "Invalid signature": "a client is refused: what it sends is not signed with the key that it names",
    "Missing authentication metadata": "a client is refused: it does not sign what it sends",
}
"""What Flower's reasons for a refusal mean."""


class _Lately:
    """The latest texts, each with the time when it was new."""

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self._seconds, self._clock, self._said = seconds, clock, dict[str, float]()
        self._lock = threading.Lock()  # calls are logged in several threads

    def is_new(self, text: str) -> bool:
        """Return whether a text was not new in these last seconds; remember it then."""
        now = self._clock()
        with self._lock:
            if now - self._said.get(text, -self._seconds) < self._seconds:
                return False
            self._said.pop(text, None)
            self._said[text] = now
            if len(self._said) > _MOST_KEPT:
                del self._said[next(iter(self._said))]
        return True


class ReadableCalls(logging.Filter):
    """A log filter for lines about calls.

    The line with which every run ends per client is dropped, and an error that was logged in the last ten minutes.
    What is no event is for debugging. `MOST_LINES` a minute pass of each call of the Fleet API, which strangers can
    make without end.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock, self._since, self._lines = clock, clock(), Counter[str]()
        self._lately = _Lately(_SAME_ERROR_AFTER, clock)

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to log a record; change one of a repeated call to level DEBUG."""
        text = record.getMessage()
        if _CONFIRMED_LATE.search(text):
            return False
        if record.levelno == logging.INFO and _REPEATED.match(text):
            record.levelno, record.levelname = logging.DEBUG, "DEBUG"
        call = _CALL.match(text)
        if call is None:
            return True
        return self._has_room(call[0], record) and (record.levelno < logging.ERROR or self._is_new(record))

    def _has_room(self, call: str, record: logging.LogRecord) -> bool:
        """Count a line about a call; a minute's last says that more follow."""
        if self._clock() - self._since >= _AGAIN_AFTER:
            self._since = self._clock()
            self._lines.clear()
        self._lines[call] += 1
        if self._lines[call] == MOST_LINES:
            more = "(more lines about this call are left out for up to a minute)"
            record.msg, record.args = f"{record.getMessage()} {more}", ()
        return self._lines[call] <= MOST_LINES

    def _is_new(self, record: logging.LogRecord) -> bool:
        """Whether an error was not logged lately; one about a refused client becomes a warning of ours."""
        text = record.getMessage()
        _, is_refused, why = text.partition(REFUSED)
        if is_refused:
            record.msg, record.args = REFUSED + why.rstrip("'"), ()  # over HTTP it is quoted
            record.levelno, record.levelname = logging.WARNING, "WARNING"
        return self._lately.is_new(text)


class RateLimitedLog:
    """A log of warnings, each at most once a minute.

    What is refused tries again and again.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._lately = _Lately(_AGAIN_AFTER, clock)

    def warn(self, text: str) -> None:
        """Log a text, unless it was in the last minute."""
        if self._lately.is_new(text):
            FLOWER_LOGGER.warning(text)


def readable_log(formatter: logging.Formatter = PLAIN) -> None:
    """Make Flower's logger print lines without colours, by default ``HH:MM:SS WARNING text``."""
    FLOWER_LOGGER.addFilter(ReadableCalls())
    level = os.environ.get("FLWR_LOG_LEVEL", "INFO").upper()
    if level != "DEBUG":
        logging.getLogger("uvicorn.access").addFilter(lambda record: False)
    for handler in list(FLOWER_LOGGER.handlers):
        if isinstance(handler, ConsoleHandler):
            FLOWER_LOGGER.removeHandler(handler)
    plain = logging.StreamHandler(sys.stdout)
    plain.setLevel(level)
    plain.setFormatter(formatter)
    FLOWER_LOGGER.addHandler(plain)


def log_refusals(clock: Callable[[], float] = time.monotonic) -> None:
    """Make this process's SuperLink log refused clients, each reason once a minute."""
    refuse, log = getattr(authentication, _TERMINATOR), RateLimitedLog(clock)

    def logged(reason: str) -> grpc.RpcMethodHandler:
        log.warn(MEANINGS.get(reason, REFUSED + reason))
        return refuse(reason)

    setattr(authentication, _TERMINATOR, logged)


def warn_of_ends(certificates: Iterable[tuple[str, Validity]], every: float = _DAY) -> threading.Event:
    """Warn in this process's log, now and each day, of certificates that end within 30 days; return what ends it.

    Args:
        certificates: what each is called, with its dates.
        every: seconds between two warnings.
    """
    ended = threading.Event()

    def warn() -> None:
        while True:
            for name, validity in certificates:
                if text := validity.warning(name):
                    FLOWER_LOGGER.warning(text)
            if ended.wait(every):
                return

    threading.Thread(target=warn, name="certificates", daemon=True).start()
    return ended
