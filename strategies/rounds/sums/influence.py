"""Bounds on what one client may do to the model, against what the cohort does: ``influence = bounded``.

A client k joins with a weight a_k and an update u_k (its model less the one that was sent; another array of a reply
is an update as it stands). With m_a and m_u the cohort's medians of weights and of norms, each record its own::

    a_k <- m_a                        where a_k > A m_a            A: influence-weight
    u_k <- u_k m_u / |u_k|            where |u_k| > m_u
    a_k <- m_a m_u / |u_k|            where a_k |u_k| > m_a m_u    the longest record's m_u / |u_k|
    u_k <- 0                          where <u_k, c> < 0           c: the record's common direction so far
    k is left out                     where |u_k| > 2 N m_u        N: influence-norm

So no client moves the sum farther than the median client does: one with twice the weight counts twice only where its
update is half as long. What is beyond a limit counts as the median does, not as the limit: the limits can be wide
enough for honest clients, and an attack that leaves them gains nothing by it. An update far beyond counts for
nothing: its direction is no honest client's. The medians are of the latest values of the latest clients, as they
were sent: one client is one value, whatever it sends and however often. A reply within the limits of the rounds
before (A and N medians) counts at once. One beyond a limit, or that comes before three clients' values are known,
waits for the round's end, and is measured by this round's values too (beyond 256 MiB the first that came waits no
longer). All is done in logarithms, where no weight overflows; the median of an even number is the lower one.

A record's common direction is the mean of its updates that counted, a client one, over the rounds: each round halves
the share of those before. The rule is of the family of FLTrust (Cao et al., NDSS 2021), whose server takes the
direction from data of its own, and of centred clipping (Karimireddy et al., ICML 2021), whose history it uses.
Clipping about a centre was no better than by length: on skewed data an honest update is as far from the centre as an
attack. Where more than a third of a round's updates point against the common direction, it is forgotten.
docs/influence.json has figures of other rules.
"""

import copy
import math
from bisect import bisect_left, insort
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median_low
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedappeal.protocol import keys
from fedappeal.protocol.packing import Sums, array_record, content_bytes, flower_array, record_of_arrays, view
from strategies.rounds.reply import Refused, Reply
from strategies.rounds.sums.weighted_sum import WeightedSum

if TYPE_CHECKING:
    from flwr.app import ArrayRecord


_BLOCK = 1 << 15


def zeros_like(model: "ArrayRecord") -> "ArrayRecord":
    """Return a model of zeros in the layout of another."""
    return array_record({name: np.zeros_like(view(array)) for name, array in model.items()})


def squared_distance(one: "ArrayRecord", other: "ArrayRecord | None") -> float:
    """Return ``||w - w_k||^2`` of two models, summed in float64, block by block.

    Arrays that are not floating point (counters) do not count.

    Args:
        one: a model.
        other: a model with the same arrays; None: zeros.
    """
    total = 0.0
    with np.errstate(over="ignore"):  # of float64 models: infinity makes a step 0, which is right
        for _, _, gap in _gaps(one, other, one):
            total += float(gap @ gap)
    return total


def _gaps(
    update: "ArrayRecord", start: "ArrayRecord | None", names: Iterable[str]
) -> Iterator[tuple[str, slice, NDArray[np.float64]]]:
    """Yield ``w_k - w`` of the floating-point arrays block by block: the array's name, the block, its values."""
    for name in names:
        values = view(update[name]).reshape(-1)
        if not np.issubdtype(values.dtype, np.floating):
            continue
        before = None if start is None else view(start[name]).reshape(-1)
        for begin in range(0, values.size, _BLOCK):
            block = slice(begin, begin + _BLOCK)
            yield name, block, np.subtract(values[block], 0.0 if before is None else before[block], dtype=np.float64)


def log_norm(update: "ArrayRecord", start: "ArrayRecord | None") -> float:
    """Return the logarithm of an update's l2 norm; minus infinity for 0; arguments as `squared_distance`."""
    squared = squared_distance(update, start)
    return 0.5 * math.log(squared) if squared else -math.inf


def shortened_model(model: "ArrayRecord", start: "ArrayRecord | None", factor: float) -> "ArrayRecord":
    """Return ``start + factor * (model - start)``, in the layout of the model; whole numbers are rounded.

    Args:
        model: any model.
        start: a model with the same arrays; None: zeros.
        factor: 0 to 1.
    """
    if factor == 1.0:
        return model
    out = {}
    for name, array in model.items():
        values = view(array)
        mixed = np.multiply(values, factor, dtype=np.float64)
        if start is not None:
            mixed += np.multiply(view(start[name]), 1.0 - factor, dtype=np.float64)
        if not np.issubdtype(values.dtype, np.floating):
            mixed = np.rint(mixed)
        out[name] = flower_array(mixed.astype(values.dtype))
    return record_of_arrays(out)


FEWEST = 3
"""Clients of which one alone cannot choose the median."""
KEPT, OLD = 64, 10
"""Number of the latest clients whose values stay, and of rounds after which they go where `FEWEST` are newer."""
HELD, HELD_BYTES = 4, 256 << 20
"""Replies that wait at most, or bytes of replies where that is more. Only beyond does what counts depend on the order
in which replies come."""
_ENTRY, _NUMBER = 256, 40
"""Bytes of a name among a reply's metrics, beside its letters, and of a number, at most."""
FAR = 2.0
"""An update longer than this many times its limit counts for nothing."""
HISTORY = 0.5
"""Share of the rounds before in the common direction."""
MOST_AGAINST = 1 / 3
"""Share of a round's updates that may point against the common direction."""
WEIGHT = "weight"
_TOLERANCE = 1e-9
"""Tolerance of a logarithm: a value at a limit is not cut for a rounding."""


def capped_values(values: Sequence[float], factor: float) -> list[float]:
    """Return values of at least 0, each at most ``factor`` times their lower median."""
    most = factor * median_low(values) if values else 0.0
    return [min(value, most) for value in values]


@dataclass
class Medians:
    """Logarithms of the latest clients' weights and norms.

    Attributes:
        latest: by quantity and client the number of the round in which it came, counted here, and the value.
    """

    latest: dict[str, dict[str, tuple[int, float]]] = field(default_factory=dict)
    _round: int = 0
    _ordered: dict[str, list[float]] = field(default_factory=dict)

    def note(self, client: str, values: Mapping[str, float]) -> None:
        """Take a client's values in, in place of its last ones.

        0 and infinity say nothing of the others, and are left out.
        """
        for name, value in values.items():
            of_clients, ordered = self.latest.setdefault(name, {}), self._ordered.setdefault(name, [])
            if not math.isfinite(value):
                continue
            if client in of_clients:
                del ordered[bisect_left(ordered, of_clients.pop(client)[1])]
            of_clients[client] = self._round, value
            insort(ordered, value)

    def end_round(self) -> None:
        """Keep the latest `KEPT` clients; of the oldest round perhaps some, whose values are spread as all were."""
        self._round += 1
        for name, of_clients in self.latest.items():
            rounds: dict[int, list[str]] = {}
            for _, client, number in sorted(
                (value, client, number) for client, (number, value) in of_clients.items()
            ):
                rounds.setdefault(number, []).append(client)
            kept: list[str] = []
            for number, clients in sorted(rounds.items(), reverse=True):
                if self._round - number > OLD and len(kept) >= FEWEST:
                    break
                count = min(KEPT - len(kept), len(clients))
                kept += [clients[(2 * i + 1) * len(clients) // (2 * count)] for i in range(count)]
            self._restore(name, {client: of_clients[client] for client in reversed(kept)})

    def enough(self, names: Iterable[str]) -> bool:
        """Whether there is a median of each of these that one client cannot choose."""
        return all(len(self.latest.get(name, {})) >= FEWEST for name in names)

    def of(self, name: str) -> float:
        """Return the lower median of a quantity; infinity where no client has sent any."""
        return ordered[(len(ordered) - 1) // 2] if (ordered := self._ordered.get(name)) else math.inf

    def state(self) -> dict[str, Any]:
        """Return what is carried from round to round."""
        state: dict[str, Any] = {"round": self._round} if self.latest else {}
        for name, of_clients in self.latest.items():
            rounds, values = zip(*of_clients.values(), strict=True) if of_clients else ((), ())
            lists = {"clients": list(of_clients), "values": list(values), "rounds": list(rounds)}
            state |= {f"{name}/{what}": of_each for what, of_each in lists.items()}
        return state

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up what `state` returned, or an earlier version did, which knew no rounds."""
        self.latest, self._ordered = {}, {}
        for name in [key.removesuffix("/clients") for key in state if key.endswith("/clients")]:
            clients, values = state[f"{name}/clients"], state[f"{name}/values"]
            rounds = state.get(f"{name}/rounds", [0] * len(clients))
            self._restore(name, dict(zip(clients, zip(rounds, values, strict=True), strict=True)))
        numbers = (number for of_clients in self.latest.values() for number, _ in of_clients.values())
        self._round = state.get("round", 1 + max(numbers, default=-1))

    def _restore(self, name: str, of_clients: dict[str, tuple[int, float]]) -> None:
        self.latest[name], self._ordered[name] = of_clients, sorted(value for _, value in of_clients.values())


@dataclass
class MeasuredReply:
    """A joined reply, with the logarithms of its weight and norms.

    The norms are of its updates. ``within`` says whether it is within the bounds, ``early`` whether it is measured
    before the round's end.
    """

    reply: Reply
    values: Mapping[str, float]
    within: bool = False
    early: bool = False


@dataclass
class Direction:
    """The common direction of one record's updates in the rounds so far.

    Attributes:
        vectors: one vector an array of the record, by name; empty while there is none.
    """

    vectors: "Sums" = field(default_factory=dict)

    def opposes(self, record: "ArrayRecord", start: "ArrayRecord | None") -> bool:
        """Whether an update points against the common direction: ``<w_k - w, c> < 0``, summed in float64.

        Arguments as `log_norm`; whole numbers do not count. It does not where the product overflows.
        """
        total = 0.0
        with np.errstate(over="ignore", invalid="ignore"):
            for name, block, gap in _gaps(record, start, self.vectors):
                total += float(gap @ self.vectors[name][block])
        return total < 0.0

    def take_up(self, counted: WeightedSum, against: int) -> None:
        """End a round: take in the mean of the updates that counted.

        Args:
            counted: the updates, one a client; those against the direction count as zero.
            against: the number of those.
        """
        if against > MOST_AGAINST * counted.count:
            self.vectors = {}
        elif counted.count:
            scale = (1.0 - HISTORY) / counted.count
            sums = counted.differences().items()
            self.vectors = {name: HISTORY * self.vectors.get(name, 0.0) + scale * total for name, total in sums}


@dataclass
class Bounds:
    """The bounds of one round.

    Attributes:
        medians: of the rounds before; this round's values go into them at its end.
        directions: of the rounds before, by record; so do this round's updates.
        model: the model that was sent; a record of another layout is bounded in length alone.
        start: what replies' arrays are updates from: the model; None: they are updates themselves.
        weight: A; ``norm``: N.
        leaves_out: whether a client far beyond its limit is left out; else its update counts as the median one.
        cut: clients whose weight or update was beyond its limit.
        against: clients of which an update pointed against its common direction.
    """

    medians: Medians
    directions: Mapping[str, Direction]
    model: "ArrayRecord"
    start: "ArrayRecord | None"
    weight: float
    norm: float
    leaves_out: bool = True
    cut: set[str] = field(default_factory=set)
    against: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._now = copy.deepcopy(self.medians)
        self._counted: dict[str, WeightedSum] = {}
        self._opposed = Counter[str]()
        self._sent: dict[str, Mapping[str, float]] = {}
        self._waiting: deque[MeasuredReply] = deque()
        self._waiting_bytes = 0

    def admit(self, reply: Reply, log_weight: float, unit: float = 1.0) -> list[MeasuredReply]:
        """Take in a joined reply; return the replies that count from now on.

        The reply has to fit the model. What is returned is for `bounded`.

        Args:
            reply: as it was sent.
            log_weight: logarithm of its weight; minus infinity for 0.
            unit: how long its model's update may be beside another's.
        """
        values = {WEIGHT: log_weight, keys.ARRAYS: log_norm(reply.arrays, self.start) - math.log(unit)}
        values |= {name: log_norm(record, None) for name, record in reply.records.items()}
        self._sent[reply.member.client_id] = values
        self._now.note(reply.member.client_id, values)
        # By the rounds before alone: what counts must not depend on the order in which replies come.
        if self.medians.enough(values) and self._within(values, self.medians):
            return [MeasuredReply(reply, values, within=True)]
        self._waiting.append(MeasuredReply(reply, values))
        self._waiting_bytes += _reply_bytes(reply)
        counted = []
        while len(self._waiting) > HELD and self._waiting_bytes > HELD_BYTES:
            counted.append(replace(self._waiting.popleft(), early=True))
            self._waiting_bytes -= _reply_bytes(counted[-1].reply)
        return counted

    def release(self) -> list[MeasuredReply]:
        """Return the replies that have waited for the end of the round, for `bounded`, by client."""
        released, self._waiting, self._waiting_bytes = self._waiting, deque(), 0
        return sorted(released, key=lambda sent: sent.reply.member.client_id)

    def counted_reply(self, sent: MeasuredReply) -> Reply:
        """Return a reply as it counts.

        Raises:
            Refused: if an update is longer than 2 N medians, or there is no median yet and no room to wait.
        """
        reply, client = sent.reply, sent.reply.member.client_id
        medians = self.medians if sent.within else self._now
        if sent.early and not medians.enough(sent.values):
            raise Refused("too few updates to compare its own with, and no memory to wait for more")
        if not self._within(sent.values, medians):
            self.cut.add(client)
        for name, value in sent.values.items():
            if name != WEIGHT and self.leaves_out and _cut(value, medians.of(name), FAR * self.norm) < 1.0:
                most = f"{FAR * self.norm:.3g} times the clients' median"
                raise Refused(f"its update ({name}) is longer than {most} (influence-norm)")
        factors = self._factors(sent.values, medians)
        arrays = self._shortened(client, keys.ARRAYS, reply.arrays, factors)
        records = {name: self._shortened(client, name, record, factors) for name, record in reply.records.items()}
        return replace(reply, arrays=arrays, records=records, counts=factors[WEIGHT], sent=reply.arrays)

    def _shortened(
        self, client: str, name: str, record: "ArrayRecord", factors: Mapping[str, float]
    ) -> "ArrayRecord":
        """Return a record as it counts, and add it to those of which the common direction is made."""
        start, factor = self.start if name == keys.ARRAYS else None, factors[name]
        if name not in self._counted:
            self._counted[name] = WeightedSum(start or zeros_like(self.model))
        try:
            self._counted[name].check(record)
        except Refused:  # what the strategy makes of another layout is its own concern
            return shortened_model(record, start, factor)
        if self.directions[name].opposes(record, start):
            self.against.add(client)
            self._opposed[name] += 1
            factor = 0.0
        bounded = shortened_model(record, start, factor)
        self._counted[name].add(bounded, 1.0)
        return bounded

    def leaves_alone(self, joined: Collection[str], others: int) -> bool:
        """Whether a client that had to be cut would move the model nearly alone.

        That is alone or with one other, where there are others.

        Args:
            joined: clients that joined, and were not refused.
            others: clients that sat out or were refused.
        """
        few = 0 < len(joined) < FEWEST <= len(joined) + others
        return few and bool((self.cut | self.against) & set(joined))

    def close(self) -> None:
        """End the round: what was sent counts in the medians from now on."""
        for client, values in self._sent.items():
            self.medians.note(client, values)
        self.medians.end_round()
        for name, counted in self._counted.items():
            self.directions[name].take_up(counted, self._opposed[name])

    def _within(self, values: Mapping[str, float], medians: Medians) -> bool:
        """Whether the weight is within A medians, and each length within N."""
        factors = {name: self.weight if name == WEIGHT else self.norm for name in values}
        return all(_cut(value, medians.of(name), factors[name]) == 1.0 for name, value in values.items())

    def _factors(self, values: Mapping[str, float], medians: Medians) -> dict[str, float]:
        """Return the factor with which the weight counts, and each record's update."""
        factors = {name: _cut(value, medians.of(name), 1.0) for name, value in values.items() if name != WEIGHT}
        # The longest update in medians, at most one: a logarithm.
        longest = max(min(0.0, values[name] - medians.of(name)) for name in factors)
        middle, weight = medians.of(WEIGHT), values[WEIGHT]
        factors[WEIGHT] = min(_cut(weight, middle, self.weight), _cut(weight + longest, middle, 1.0))
        return factors


def _reply_bytes(reply: Reply) -> int:
    """Bytes that a reply takes in memory, about."""
    numbers = sum(
        _ENTRY + len(name.encode()) + _NUMBER * (len(value) if isinstance(value, list) else 1)
        for name, value in reply.metrics.items()
    )
    return numbers + sum(map(content_bytes, (reply.arrays, *reply.records.values())))


def _cut(value: float, middle: float, factor: float) -> float:
    """Return the factor that brings a number down to the median.

    1 where the number is within ``factor`` medians. The number and the median are given as logarithms.
    """
    return 1.0 if value <= math.log(factor) + middle + _TOLERANCE else math.exp(middle - value)
