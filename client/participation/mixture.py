"""A run's policies: one for all clients, or shares by a seeded draw."""

from dataclasses import dataclass

from client.participation.behaviour import parts_of
from fedappeal.protocol.draws import generator
from fedappeal.settings.config import ConfigError, RunConfig

TOLERANCE = 1e-9
"""Largest distance of the sum of the shares from 1."""


@dataclass(frozen=True)
class Mixture:
    """Policies by name, each with the share of clients that has it.

    Attributes:
        shares: ``(name, share)``, in the order of the text; the shares add up to 1.
    """

    shares: tuple[tuple[str, float], ...]

    @classmethod
    def parse(cls, text: str) -> "Mixture":
        """Return the policies that a setting names: ``appeal``, ``appeal+rest`` or ``appeal=0.7,always=0.3``.

        Raises:
            ConfigError: for another form, a policy named twice, or shares that do not add up to 1.
        """
        if "=" not in text:
            return cls(((text.strip(), 1.0),))
        shares: dict[str, float] = {}
        for part in text.split(","):
            name, _, number = (piece.strip() for piece in part.partition("="))
            try:
                share = float(number)
            except ValueError:
                share = -1.0
            if not name or not 0 <= share <= 1 or name in shares:
                raise ConfigError(
                    f"participation = {text!r} is not allowed: NAME=SHARE,NAME=SHARE,... with shares in [0, 1], "
                    "each name once"
                )
            shares[name] = share
        if abs(sum(shares.values()) - 1) > TOLERANCE:
            raise ConfigError(
                f"participation = {text!r} is not allowed: its shares add up to {sum(shares.values()):g}, not to 1"
            )
        return cls(tuple(shares.items()))

    @classmethod
    def of_run(cls, config: RunConfig, assumed: str) -> "Mixture":
        """Return a run's policies; ``assumed``: what its strategy's paper assumes."""
        return cls.parse(assumed if config.participation == "auto" else config.participation)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the policies."""
        return tuple(name for name, _ in self.shares)

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the policies and of their behaviours, each once."""
        return tuple(dict.fromkeys(part for name in self.names for part in parts_of(name)))

    def of(self, seed: int, client_id: str) -> str:
        """Return a client's policy: a pure function of the run's seed and the client-id."""
        if len(self.shares) == 1:
            return self.shares[0][0]
        draw, reached = generator(seed, "participation", client=client_id).random(), 0.0
        for name, share in self.shares:
            reached += share
            if draw < reached:
                return name
        return next(name for name, share in reversed(self.shares) if share > 0)
