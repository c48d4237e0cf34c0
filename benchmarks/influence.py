"""Clients that collude against a bounded run: the tables of docs/influence.md, a strategy an arm.

The attackers know all updates of the round, the honest ones too. Each sends, for every record of its reply:

flip    its own update times -1.9
alie    the honest updates' mean less 1.5 standard deviations, coordinate by coordinate (Baruch et al., NeurIPS 2019)
ipm     the honest updates' mean backwards, 1.9 times as long as their median (Xie et al., UAI 2019)
known   as long as their median, against their mean, at 87 degrees to the common direction: no limit is crossed

*without* and *clean* are the honest clients' accuracy with the attackers away (they answer no TRAIN) and honest; an
attack has the points lost against *without*, on average and at most over the seeds.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from statistics import fmean, median_low
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.run import Figures, Row, small

if TYPE_CHECKING:
    from flwr.app import ArrayRecord, Message

Vector = NDArray[np.float64]

CLIENTS, SEEDS = 10, range(5)
SETTINGS: dict[str, Any] = {
    **{"task": "digits", "clients": CLIENTS, "participation": "always", "mandatory_rounds": -1},
    **{"judge_on": "train", "adaptation_steps": 0, "goodwill": -1, "threads": 1, "quiet": True},
}
DATA: Mapping[str, Any] = {"skewed": {"partition": "dirichlet", "dirichlet_alpha": 0.3}, "iid": {"partition": "iid"}}
STRATEGIES = ("fedavg", "fedprox", "fedadam", "maxfl", "afl", "term", "mwfed", "scaffold", "fednova", "mifa", "fedau")
STRATEGIES += ("oracle", "ditto", "perfedavg", "pfedme", "fedalign", "qfedavg", "adagd", "maxfl-adagd")
TIMES = {"qfedavg": 2, "adagd": 10, "maxfl-adagd": 10}
"""The rounds that some strategies need, in those of the others."""
SLOW = ("perfedavg", "pfedme")
"""Run with one seed: their server averages as FedAvg's does."""
ATTACKS = ("flip", "alie", "ipm", "known")
WITHOUT, CLEAN = "without", "clean"


class Collusion:
    """What makes a strategy one against whose rounds some clients answer together; goes before its class."""

    attack_name: str
    colluding: frozenset[int]

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._waiting: list[tuple[Any, Message]] = []

    def take(self, round: Any, member: Any, message: "Message") -> None:
        """Keep a reply until all are there."""
        self._waiting.append((member, message))

    def close_round(self, round: Any) -> Any:
        """Put the attack in place of the attackers' records, and take all replies."""
        from flwr.app import ArrayRecord

        replies, self._waiting = self._waiting, []
        if self.attack_name in ATTACKS:
            for name in {name for _, message in replies for name in message.content}:
                senders = [(member, message.content) for member, message in replies if name in message.content]
                if all(isinstance(content[name], ArrayRecord) for _, content in senders):
                    self._replace(round, name, senders)
        for member, message in replies:
            if self.attack_name != WITHOUT or not self._colludes(member):
                super().take(round, member, message)  # type: ignore[misc]
        return super().close_round(round)  # type: ignore[misc]

    def _colludes(self, member: Any) -> bool:
        return self.attack_name != CLEAN and int(member.client_id.rpartition("-")[2]) in self.colluding

    def _replace(self, round: Any, name: str, senders: Sequence[tuple[Any, Any]]) -> None:
        from fedappeal.protocol import keys

        rule = self.LocalRule  # type: ignore[attr-defined]
        start = round.model if name == keys.ARRAYS and not (rule is not None and rule.sends_update) else None
        honest = [_flat(content[name], start) for member, content in senders if not self._colludes(member)]
        for member, content in senders if honest else ():
            if self._colludes(member):
                record, common = content[name], None
                if name == keys.ARRAYS and round.bounds is not None and (mean := round.bounds.direction.vectors):
                    common = np.concatenate([np.asarray(mean[layer], np.float64) for layer in record])
                update = attack(self.attack_name, _flat(record, start), np.stack(honest), common)
                content[name] = _record_of(update, record, start)


def attack(name: str, update: Vector, honest: Vector, common: Vector | None) -> Vector:
    """Return the update that an attacker sends.

    Args:
        name: the attack's.
        update: what it would send honestly, shape ``(d,)``.
        honest: the others' updates, shape ``(m, d)``.
        common: the common direction of the rounds before; None where there is none.
    """
    mean = honest.mean(0)
    usual = median_low(np.linalg.norm(honest, axis=1).tolist())
    if name == "flip":
        return -1.9 * update
    if name == "alie":
        return np.asarray(mean - 1.5 * honest.std(0))
    if name == "ipm":
        return _of_length(-mean, 1.9 * usual)
    if common is None:
        return _of_length(-mean, usual)
    ahead = _of_length(common, 1.0)
    return _of_length(_of_length(-mean + (mean @ ahead) * ahead, 1.0) + 0.05 * ahead, usual)


def _of_length(vector: Vector, length: float) -> Vector:
    return np.asarray(vector * (length / max(float(np.linalg.norm(vector)), 1e-30)))


def _flat(record: Any, start: "ArrayRecord | None") -> Vector:
    from fedappeal.protocol.packing import view

    begins = {name: 0.0 if start is None else view(start[name]) for name in record}
    return np.concatenate([(view(array).astype(np.float64) - begins[name]).ravel() for name, array in record.items()])


def _record_of(update: Vector, like: "ArrayRecord", start: "ArrayRecord | None") -> "ArrayRecord":
    from fedappeal.protocol.packing import array_record, view

    arrays, at = {}, 0
    for name, array in like.items():
        values = view(array)
        part = update[at : at + values.size].reshape(values.shape)
        arrays[name] = (part + (0.0 if start is None else view(start[name]))).astype(values.dtype)
        at += values.size
    return array_record(arrays)


def honest_accuracy(
    strategy: str, attack_name: str, settings: Mapping[str, Any], attackers: int
) -> tuple[float, float]:
    """Simulate a run; return the honest clients' mean accuracy in per cent, and the most that the median loss rose.

    The latter is the highest ratio of a round's median loss to the lowest of the rounds before.
    """
    import fedappeal
    from client.participation.byzantine import attackers as drawn
    from fedappeal.core.registry import STRATEGIES as REGISTRY

    colluding, base = drawn(settings["seed"], CLIENTS, attackers / CLIENTS), REGISTRY.load(strategy)
    kind = type(base.__name__, (Collusion, base), {"attack_name": attack_name, "colluding": colluding})
    with TemporaryDirectory() as folder:
        template = kind(**({"on_missing": "proceed"} if strategy.endswith("adagd") else {}))
        clients = fedappeal.simulate(template, **SETTINGS, **settings, out=f"{folder}/run").clients
    last = clients[clients["round"] == settings["rounds"]]
    honest = [int(client.rpartition("-")[2]) not in colluding for client in last["client"]]
    losses = clients.groupby("round")["loss"].quantile(0.5, interpolation="lower")
    return 100 * last["accuracy"][honest].mean(), (losses / losses.cummin().shift()).max()


def colluded(strategy: str, data: str, attackers: int, seeds: range, rounds: int) -> Figures:
    """Return what the honest clients lose by each attack, in points of accuracy; see above."""
    kinds = [("bounded", name) for name in (WITHOUT, CLEAN, *ATTACKS)] + [("off", name) for name in (CLEAN, "flip")]
    scores: dict[tuple[str, str], list[float]] = {kind: [] for kind in kinds}
    highest = 0.0
    for seed in seeds[: 1 if strategy in SLOW or small() else None]:
        settings = {**DATA[data], "seed": seed, "rounds": rounds * TIMES.get(strategy, 1)}
        for kind in kinds:
            accuracy, rise = honest_accuracy(strategy, kind[1], {**settings, "influence": kind[0]}, attackers)
            scores[kind].append(accuracy)
            highest = highest if kind[1] in ATTACKS else max(highest, rise)
    figures: dict[str, float] = {}
    for (influence, name), values in scores.items():
        title = name if influence == "bounded" else f"{name}, off"
        losses = [alone - value for alone, value in zip(scores["bounded", WITHOUT], values, strict=True)]
        figures |= (
            {title: fmean(losses), f"{title}, most": max(losses)} if name in ATTACKS else {title: fmean(values)}
        )
    return {**figures, "loss rose": highest}


ROWS = {
    f"influence/{data}-{attackers}": Row(
        {name: partial(colluded, name, data, attackers, seeds) for name in STRATEGIES}, rounds=20, repetitions=1
    )
    for data, attackers, seeds in (("skewed", 2, SEEDS), ("skewed", 1, SEEDS[:2]), ("iid", 2, SEEDS[:2]))
}
