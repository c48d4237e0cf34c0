"""Behaviours by which a client is not available in some rounds: it declines them unseen.

A client that is not available sits the round out without looking at the model, in mandatory rounds too; it still
answers evaluations. Whether it is available is a function of the run's seed, the client-id and the round, so that
simulated and deployed clients, and runs that are resumed, agree.
"""

import math
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

import numpy as np

from client.participation.behaviour import Behaviour
from fedappeal.core.plugins import PluginSettings
from fedappeal.protocol.draws import draw_seed, generator
from fedappeal.protocol.keys import is_client_id
from fedappeal.settings.config import ConfigError, Count, CountOrZero, PositiveShare, Share
from fedappeal.settings.model import local_path

MAX_TRACE = 16 * 2**20
"""Bytes of a trace."""


class Bernoulli(Behaviour):
    """Be available in each round with the same probability, whatever was before."""

    name = "bernoulli"

    class Settings(PluginSettings):
        """The behaviour's settings."""

        available: Share = 0.5
        """probability of being available"""

    def available(self, seed: int, client_id: str, server_round: int) -> bool:
        """Draw it."""
        draw = generator(seed, "bernoulli", client=client_id, server_round=server_round).random()
        return draw < float(self.settings.available)


_START = 0, False
PLACES = 2**17
"""Clients whose place in their chain is remembered, at most 60 MB; of others the chain is followed from its start."""


@lru_cache(maxsize=PLACES)
def _place(seed: int, client_id: str, goes: float, returns: float) -> list[tuple[int, bool]]:
    """Return what holds the round that was asked for last, and whether the client was available in it."""
    return [_START]


class Markov(Behaviour):
    """Be available for a while and away for a while: a Markov chain of two states."""

    name = "markov"

    class Settings(PluginSettings):
        """The behaviour's settings."""

        goes: PositiveShare = 0.1
        """probability that an available client is away in the next round"""
        returns: PositiveShare = 0.3
        """probability that one that is away is back in the next round"""

    def available(self, seed: int, client_id: str, server_round: int) -> bool:
        """Follow the chain from round 1, whose state is drawn from the chain's long-run shares."""
        goes, returns = float(self.settings.goes), float(self.settings.returns)
        latest = _place(seed, client_id, goes, returns)
        (place, here) = latest[0] if latest[0][0] <= server_round else _START
        draws = np.random.PCG64(draw_seed(seed, "markov", client=client_id)).advance(place)
        for draw in np.random.Generator(draws).random(server_round - place):
            if not place:
                here = bool(draw < returns / (goes + returns))
            else:
                here = bool(draw >= goes) if here else bool(draw < returns)
            place += 1
        latest[0] = place, here
        return here


class Diurnal(Behaviour):
    """Be available with a probability that rises and falls over a day of rounds."""

    name = "diurnal"

    class Settings(PluginSettings):
        """The behaviour's settings."""

        mean: Share = 0.5
        """mean probability of being available"""
        swing: Share = 0.4
        """how far it rises and falls, within 0 and 1"""
        period: Count = 24
        """rounds of a day"""
        spread: Share = 1.0
        """over which share of a day clients' noons are spread"""

    def available(self, seed: int, client_id: str, server_round: int) -> bool:
        """Draw it with the round's probability."""
        draw = generator(seed, "diurnal", client=client_id, server_round=server_round).random()
        return draw < self.probability(seed, client_id, server_round)

    def probability(self, seed: int, client_id: str, server_round: int) -> float:
        """Return the probability that the client is available in a round.

        ``mean + swing * cos(2 pi (round / period - noon_k))`` within 0 and 1, with noon_k drawn once.
        """
        settings = self.settings
        noon = settings.spread * generator(seed, "diurnal-noon", client=client_id).random()
        swung = settings.swing * math.cos(2 * math.pi * (server_round / settings.period - noon))
        return float(min(max(settings.mean + swung, 0.0), 1.0))


class Trace(Behaviour):
    """Be available in the rounds that a file names."""

    name = "trace"
    owner_alone: ClassVar[tuple[str, ...]] = ("file",)

    class Settings(PluginSettings):
        """The behaviour's settings."""

        file: str = ""
        """a line each: client-id (or *), first and last round, by commas"""
        repeat: CountOrZero = 0
        """rounds after which the trace begins again; 0: never"""

    def available(self, seed: int, client_id: str, server_round: int) -> bool:
        """Look it up; a client without a line, under its own name or ``*``, is never available."""
        repeat = int(self.settings.repeat)
        place = (server_round - 1) % repeat + 1 if repeat else server_round
        spans = self._spans()
        return any(first <= place <= last for first, last in spans.get(client_id, spans.get("*", ())))

    def check(self) -> None:
        """Check the file.

        Raises:
            ConfigError: one line: none is named, it cannot be read, or is not of the form.
        """
        if not self.settings.file:
            raise ConfigError(
                "trace.file is missing: a file with a line each: client-id (or *), first and last round"
            )
        self._spans()

    def _spans(self) -> dict[str, tuple[tuple[int, int], ...]]:
        path = local_path(str(self.settings.file), "trace.file")
        try:
            state = path.stat()
            return read_trace(path, state.st_mtime_ns, state.st_size)
        except OSError as error:
            raise ConfigError(f"trace.file = '{path}' cannot be read: {error.strerror}") from None


@lru_cache(maxsize=4)
def read_trace(path: Path, changed: int, size: int) -> dict[str, tuple[tuple[int, int], ...]]:
    """Return the rounds of each client: first and last of each span.

    Args:
        path: the file.
        changed: when it was; another time is another file.
        size: its bytes.

    Raises:
        ConfigError: one line: too long, or not of the form.
        OSError: it cannot be read.
    """
    name = f"trace.file = '{path}'"
    if not path.is_file() or size > MAX_TRACE:
        raise ConfigError(f"{name} is not allowed: a file of up to {MAX_TRACE:,} bytes")
    spans: dict[str, list[tuple[int, int]]] = {}
    with path.open("rb") as file:
        lines = file.read(MAX_TRACE).decode("utf-8", "replace").splitlines()
    for number, line in enumerate(lines, start=1):
        if not (text := line.strip()) or text.startswith("#"):
            continue
        parts = [part.strip() for part in text.split(",")]
        rounds = [int(part) for part in parts[1:] if part.isascii() and part.isdigit() and len(part) < 10]
        good = len(parts) == 3 and len(rounds) == 2 and 1 <= rounds[0] <= rounds[1]
        if not good or not (parts[0] == "*" or is_client_id(parts[0])):
            raise ConfigError(f"{name}, line {number}: expected client-id (or *), first and last round, by commas")
        spans.setdefault(parts[0], []).append((rounds[0], rounds[1]))
    return {client: tuple(of_client) for client, of_client in spans.items()}
