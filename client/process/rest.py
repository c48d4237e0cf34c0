"""Whether a serving client rests now, looked up at most twice a second; its owner can read why."""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from client.limits.guard import Guard
from client.limits.rest_reasons import RESTING, Surroundings, why_resting
from fedappeal.settings.config import ConfigError
from fedappeal.system.files import replace_file

_EVERY = 0.5


@dataclass
class Rest:
    """Says why a client rests.

    Attributes:
        pause_file: whose presence is the owner's pause; None: there is no state folder.
        guard: knows the limits.
        around: where the client stands.
        clock: seconds, monotonic.
    """

    pause_file: Path | None
    guard: Guard
    around: Surroundings
    clock: Callable[[], float] = time.monotonic
    _latest: tuple[float, str] = field(default=(float("-inf"), ""), init=False)

    def __post_init__(self) -> None:
        self._note("")  # an earlier process may have left one

    def why(self) -> str:
        """Return why the client rests, in one line; empty: it does not."""
        if self.pause_file is not None and self.pause_file.exists():
            return f"nothing is worked on until {self.pause_file} is gone"
        looked, why = self._latest
        if self.clock() - looked >= _EVERY:
            before, why = why, self._limit(why)
            self._latest = self.clock(), why
            if why != before:
                self._note(why)
        return why

    def _limit(self, before: str) -> str:
        try:
            return why_resting(self.guard.limits_now(), self.around, self.guard.moved_today)
        except ConfigError:  # a damaged file is said where a message is answered
            return before

    def _note(self, why: str) -> None:
        if self.pause_file is None:
            return
        file = self.pause_file.with_name(RESTING)
        with suppress(OSError):  # a full disk: the client's rest matters more than that it can be read why
            if why:
                replace_file(file, f"{why}\n".encode(), durable=False, mode=0o600)
            else:
                file.unlink(missing_ok=True)
