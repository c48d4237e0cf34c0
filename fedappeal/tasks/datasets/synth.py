r"""SYNTH(alpha, beta): FedProx's synthetic clients (Li et al. 2018, section 5.1), and FedALIGN's noisy ones.

Client k draws its own model and its own inputs, of 60 features and 10 labels::

    u_k ~ N(0, alpha^2),  W_k and b_k ~ N(u_k, 1);   B_k ~ N(0, beta^2),  v_k ~ N(B_k, 1)
    x ~ N(v_k, diag(j^-1.2)),   y = argmax(W_k x + b_k)

alpha and beta are standard deviations, as in FedProx's own program; at 1 it makes no difference. A client holds
50 + lognormal(4, 2) examples, or ``synth.examples``.

FedALIGN (section 4) makes non-priority clients from "a global dataset" and two forms of noise: labels that are
wrong, and irrelevant examples from independent distributions. Its supplement, which has the numbers, is not at hand;
this is our reading. The last ``synth.noisy`` seen clients are such clients. The i-th of J, from 1, has noise
``nu = 2 * synth.noise * (i - 1/2) / J``, so that the mean over them is ``synth.noise``. Its examples are fresh draws
from the other seen clients' distributions, in proportion to what these hold; a share nu of them gets one of the
nine wrong labels, or the next one (``synth.noise-form``); and nu times as many irrelevant ones come on top, from a
SYNTH(alpha, beta) client of its own.

All of it is a pure function of the settings and the data's seed.
"""

import math
from typing import Annotated, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedappeal.core.plugins import PluginSettings
from fedappeal.protocol.draws import generator
from fedappeal.settings.config import ConfigError, CountOrZero, NonNegative
from fedappeal.tasks.examples import Features, Labels
from fedappeal.tasks.labelled import LOADED, NaturalTask
from fedappeal.tasks.partitions.assign import fewest_examples, total_clients

FEATURES = 60
CLASSES = 10
FEWEST = 50
"""Examples of a client besides the lognormal draw."""
MEAN = FEWEST + round(math.exp(4.0 + 2.0**2 / 2))
"""Mean examples of a client."""

_DEVIATIONS = np.arange(1, FEATURES + 1) ** -0.6
"""Square roots of diag(j^-1.2)."""


class Law(NamedTuple):
    """A client's distribution: W ``(60, 10)``, b ``(10,)`` and its inputs' mean v ``(60,)``."""

    weight: NDArray[np.float64]
    bias: NDArray[np.float64]
    centre: NDArray[np.float64]

    @classmethod
    def drawn(cls, rng: np.random.Generator, alpha: float, beta: float) -> "Law":
        """Draw one."""
        u, b = rng.normal(0.0, alpha), rng.normal(0.0, beta)
        return cls(rng.normal(u, 1.0, (FEATURES, CLASSES)), rng.normal(u, 1.0, CLASSES), rng.normal(b, 1.0, FEATURES))

    def examples(self, rng: np.random.Generator, count: int) -> tuple[Features, Labels]:
        """Draw examples."""
        x = rng.normal(self.centre, _DEVIATIONS, (count, FEATURES))
        return x.astype(np.float32), (x @ self.weight + self.bias).argmax(axis=1)


class Synth(NaturalTask):
    """SYNTH(alpha, beta): synthetic clients with linear models of their own, some of them noisy."""

    class Settings(PluginSettings):
        """Settings of SYNTH."""

        alpha: NonNegative = 1.0
        """how much clients' models differ"""
        beta: NonNegative = 1.0
        """how much clients' inputs differ"""
        examples: CountOrZero = 0
        """examples a client; 0: drawn, 50 or more"""
        noisy: CountOrZero = 0
        """number of noisy clients, the last of the seen: they hold the others' kind of data"""
        noise: Annotated[float, Field(ge=0, le=0.5)] = 0.25
        """their mean share of wrong labels and of irrelevant examples, spread from 0 to twice"""
        noise_form: Literal["uniform", "shifted"] = "uniform"
        """a wrong label: any of the other nine, or systematically the next one (y -> y + 1)"""

    own: Settings
    input_shape = (FEATURES,)
    num_classes = CLASSES
    default_model = "logistic"

    def check(self) -> None:
        """Check the settings.

        Raises:
            ConfigError: too many noisy clients, or fewer examples than ``min-examples``.
        """
        if self.own.noisy >= self.settings.clients:
            raise ConfigError(
                f"synth.noisy = {self.own.noisy} is not allowed: fewer than clients = {self.settings.clients}, "
                f"because noisy clients hold the others' kind of data"
            )
        least, fewest = fewest_examples(self.settings), self.own.examples or FEWEST
        if fewest < least:
            name = "synth.examples" if self.own.examples else "task = 'synth'"
            raise ConfigError(f"{name}: {fewest} examples a client are not allowed at min-examples = {least}")

    def read(self) -> list[tuple[Features, Labels]]:
        """Draw each client's examples.

        Raises:
            ConfigError: as `check`.
        """
        self.check()
        clean = self.settings.clients - self.own.noisy
        sizes = [self.size(k) for k in range(total_clients(self.settings))]
        data = [self._clean(k, size) for k, size in enumerate(sizes)]
        laws = [self.law(f"client-{k}") for k in range(clean)] if self.own.noisy else []
        for k, level in enumerate(self.noise_levels(), start=clean):
            data[k] = self._noisy(k, float(level), laws, sizes[:clean], sizes[k])
        return data

    def size_of(self, client: int) -> int | None:
        """Return a client's number of examples; None if some clients are noisy.

        Noisy clients hold others' kind of data.
        """
        return self.size(client) if self._each_alone else None

    def data_bytes(self, client: int) -> int:
        """Return the estimated bytes of a client's examples.

        Where some are noisy, of all clients'.
        """
        an_example = LOADED * (4 * FEATURES + 8)
        if self._each_alone:
            return an_example * self.size(client)
        each, total = self.own.examples or MEAN, total_clients(self.settings)
        return total * (an_example * each + 8 * (FEATURES + 1) * (CLASSES + 1))

    def read_client(self, client: int) -> tuple[Features, Labels]:
        """Draw one client's examples; where some are noisy, all clients' at once.

        Raises:
            ConfigError: as `check`.
        """
        if not self._each_alone:
            return super().read_client(client)
        self.check()
        return self._clean(client, self.size(client))

    @property
    def _each_alone(self) -> bool:
        """Whether examples are drawn client by client: none is noisy, and no subclass reads otherwise."""
        return not self.own.noisy and type(self).read is Synth.read

    def _clean(self, client: int, count: int) -> tuple[Features, Labels]:
        """Return a client's examples from its own law."""
        rng = self._draws("synth-examples", client)
        return self.law(f"client-{client}").examples(rng, count)

    def noise_levels(self) -> NDArray[np.float64]:
        """Return nu of each noisy client, shape ``(noisy,)``, rising; their mean is ``noise``."""
        count = self.own.noisy
        return 2.0 * self.own.noise * (np.arange(count) + 0.5) / max(count, 1)

    def law(self, name: str) -> Law:
        """Draw the distribution of a name, such as ``client-3``."""
        return Law.drawn(self._draws("synth-law", name), self.own.alpha, self.own.beta)

    def _draws(self, purpose: str, client: int | str) -> np.random.Generator:
        """Return a fresh generator for one draw of a client's data."""
        return generator(self.settings.resolved_data_seed, purpose, client=str(client))

    def size(self, client: int) -> int:
        """Return a client's number of examples, without irrelevant ones: the setting, or drawn."""
        if self.own.examples:
            return self.own.examples
        return FEWEST + int(self._draws("synth-size", client).lognormal(4.0, 2.0))

    def _noisy(
        self, client: int, level: float, laws: list[Law], sizes: list[int], count: int
    ) -> tuple[Features, Labels]:
        """Return a noisy client's examples: ``count`` from other clients' laws, ``level * count`` irrelevant ones."""
        rng = self._draws("synth-noise", client)
        shares = rng.multinomial(count, np.array(sizes) / sum(sizes))
        parts = [law.examples(rng, int(share)) for law, share in zip(laws, shares, strict=True)]
        wrong = rng.permutation(count)[: round(level * count)]
        y = np.concatenate([labels for _, labels in parts])
        drawn = rng.integers(1, CLASSES, len(wrong))  # whichever form it is: what is drawn next is the same
        y[wrong] = (y[wrong] + (1 if self.own.noise_form == "shifted" else drawn)) % CLASSES
        irrelevant = self.law(f"irrelevant-{client}").examples(rng, round(level * count))
        return np.concatenate([*(x for x, _ in parts), irrelevant[0]]), np.concatenate([y, irrelevant[1]])
