"""Clients that collude against a bounded run: searches their attacks for the worst, a strategy an arm.

The attackers know all updates of the round, the honest ones too. In each record of its reply, or in one, each sends:

flip    its own update times -1.9
alie    the honest updates' mean less 1.5 standard deviations, coordinate by coordinate (Baruch et al., NeurIPS 2019)
ipm     the honest updates' mean backwards, 1.9 times as long as their median (Xie et al., UAI 2019)
known   as long as their median, against their mean, at 87 degrees to the common direction: no limit is crossed
long    the same 1.9 times as long: it is cut to the median, which it raises
steep   as known, at 73 degrees
still   the honest updates' mean, a hundredth as long

It claims what is true, or a multiple of the honest clients' median (influence.toml). *without* and *clean* are the
honest clients' accuracy with the attackers away (they answer no TRAIN) and honest. An attack has the points lost
against *without*, on average and at most over the seeds: each on the first two, the two worst on all five.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import islice
from statistics import fmean, median_low
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from benchmarks.runner import BenchRow, Figures, design_of, small

if TYPE_CHECKING:
    from flwr.app import ArrayRecord, Message

Vector = NDArray[np.float64]

SEEDS, TRIED, WORST = range(5), 2, 2
DESIGN = design_of(__file__)
CLIENTS = int(DESIGN["settings"]["clients"])
WITHOUT, CLEAN = "without", "clean"


class Attack(NamedTuple):
    """The replies that attackers send.

    Attributes:
        update: see above; `WITHOUT` and `CLEAN` are none.
        record: the one that is replaced; empty: all.
        claim: in medians of the honest clients' claims; 0: what is true.
    """

    update: str
    record: str = ""
    claim: float = 0.0

    @property
    def key(self) -> str:
        """The attack's key in figures: ``known-claims-1.95``."""
        return "-".join(filter(None, (self.update, self.record, f"claims-{self.claim:g}" * bool(self.claim))))


def claims_of(strategy: str) -> tuple[str, Sequence[float]]:
    """Return what a strategy goes by, and the multiples that attackers claim."""
    name, multiples = DESIGN["claims"].get(strategy, DESIGN["claims"]["examples"])
    return name, multiples


def attacks(strategy: str) -> list[Attack]:
    """Return the attacks that are tried on a strategy."""
    claims, records = claims_of(strategy)[1], DESIGN["records"].get(strategy, ())
    tried = [Attack(update) for update in ("flip", "alie", "ipm", "known", "steep")]
    tried += [Attack("known", claim=claim) for claim in claims]
    tried += [Attack(update, claim=claim) for claim in (claims or (0.0,))[-1:] for update in ("long", "still")]
    return tried + [Attack(update, record) for record in records for update in ("alie", "ipm", "known", "still")]


class Collusion:
    """A mixin, before a round's `Intake`, in which some clients agree on their replies."""

    attack: Attack
    colluding: frozenset[int]
    goes_by: str
    round: Any

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._waiting: list[tuple[Any, Message]] = []

    def take(self, member: Any, message: "Message") -> None:
        """Keep a reply until all replies are there."""
        self._waiting.append((member, message))

    def close(self) -> "ArrayRecord | None":
        """Put the attack in place of the attackers' records and claims, take all replies, and close the round."""
        from flwr.app import ArrayRecord

        replies, self._waiting = self._waiting, []
        if self.attack.update not in (WITHOUT, CLEAN):
            for name in {name for _, message in replies for name in message.content}:
                senders = [(member, message.content) for member, message in replies if name in message.content]
                if not all(isinstance(content[name], ArrayRecord) for _, content in senders):
                    self._claim([(member, content[name]) for member, content in senders])
                elif self.attack.record in ("", name):
                    self._replace(name, senders)
        for member, message in replies:
            if self.attack.update != WITHOUT or not self._colludes(member):
                super().take(member, message)  # type: ignore[misc]
        return super().close()  # type: ignore[misc, no-any-return]

    def _colludes(self, member: Any) -> bool:
        return self.attack.update != CLEAN and int(member.client_id.rpartition("-")[2]) in self.colluding

    def _claim(self, senders: Sequence[tuple[Any, Any]]) -> None:
        name = self.goes_by
        honest = [abs(metrics[name]) for member, metrics in senders if not self._colludes(member)]
        for member, metrics in senders:
            if self._colludes(member):
                if self.attack.claim and honest:
                    claim = self.attack.claim * median_low(honest)
                    allowed = {"num-examples": max(1, int(claim)), "appeal-weight": min(0.25, claim)}
                    metrics[name] = allowed.get(name, claim)
                if (told := getattr(self.round.carry, "told", None)) is not None:
                    metrics["loss"] = told  # FedALIGN takes in who claims F(w)

    def _replace(self, name: str, senders: Sequence[tuple[Any, Any]]) -> None:
        starts = {member: self._start(name, member) for member, _ in senders}
        updates = {member: _flat(content[name], starts[member]) for member, content in senders}
        honest = [update for member, update in updates.items() if not self._colludes(member)]
        for member, content in senders if honest else ():
            if self._colludes(member):
                record, common, bounds = content[name], None, self.round.bounds
                if bounds is not None and (mean := bounds.directions[name].vectors):
                    common = np.concatenate([np.asarray(mean[layer], np.float64) for layer in record])
                update = attack(self.attack.update, updates[member], np.stack(honest), common)
                content[name] = _record_of(update, record, starts[member])

    def _start(self, name: str, member: Any) -> "ArrayRecord | None":
        """Return the model from which a client's record is an update.

        Of SCAFFOLD's changes, where c_i is at zero.
        """
        from fedappeal.protocol.packing import array_record

        if name == "arrays":
            bounds = self.round.bounds
            return self.round.model if bounds is None else bounds.start  # type: ignore[no-any-return]
        control = getattr(self._algorithm, "_controls", {}).get(member.client_id)  # type: ignore[attr-defined]
        return control and array_record({layer: -values for layer, values in control.items()})


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
    if name == "still":
        return np.asarray(mean / 100)
    if common is None:
        return _of_length(-mean, usual)
    ahead = _of_length(common, 1.0)
    slope, length = {"known": (0.05, 1.0), "long": (0.05, 1.9), "steep": (0.3, 1.0)}[name]
    return _of_length(_of_length(-mean + (mean @ ahead) * ahead, 1.0) + slope * ahead, length * usual)


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


def under_attack(strategy: str, attack: Attack, colluding: frozenset[int]) -> Any:
    """Return the class of a strategy's rounds' intakes, in which some clients attack."""
    from strategies.rounds.intake import Intake

    attributes = {"attack": attack, "colluding": colluding, "goes_by": claims_of(strategy)[0]}
    return type("ColludingIntake", (Collusion, Intake), attributes)


def honest_accuracy(
    strategy: str, attack: Attack, settings: Mapping[str, Any], attackers: int
) -> tuple[float, float]:
    """Simulate a run; return the honest clients' mean accuracy, and the median loss's largest rise.

    The accuracy is in per cent.

    The latter is the highest ratio of a round's median loss to the lowest of the rounds before. Without attackers,
    ADA-GD does not wait for them; FedALIGN's priority clients are honest.
    """
    import fedappeal
    from fedappeal.core.registry import STRATEGIES as REGISTRY
    from fedappeal.simulation.attackers import attackers as drawn

    colluding = drawn(settings["seed"], CLIENTS, attackers / CLIENTS)
    own = {}
    if strategy == "fedalign":
        honest_ids = islice((k for k in range(CLIENTS) if k not in colluding), CLIENTS // 2)
        own["priority_ids"] = ",".join(f"client-{k:04d}" for k in honest_ids)
    if strategy.endswith("adagd"):  # the form of the published figures, for which it has its rounds
        own |= {"form": "one-gradient", "on_missing": "proceed" if attack.update == WITHOUT else "wait"}
    template = REGISTRY.load(strategy)(**own) if own else strategy
    intake = under_attack(strategy, attack, colluding)
    with TemporaryDirectory() as folder, patch("strategies.rounds.rounds.Intake", intake):
        clients = fedappeal.simulate(template, **DESIGN["settings"], **settings, out=f"{folder}/run").clients
    last = clients[clients["round"] == clients["round"].max()]
    honest = [int(client.rpartition("-")[2]) not in colluding for client in last["client"]]
    losses = clients.groupby("round")["loss"].quantile(0.5, interpolation="lower")
    return 100 * last["accuracy"][honest].mean(), (losses / losses.cummin().shift()).max()


def attack_losses(strategy: str, data: str, attackers: int, seeds: range, rounds: int) -> Figures:
    """Return the honest clients' loss by each attack, in points of accuracy.

    See above.
    """
    seeds = seeds[: 1 if small() else None]
    scores: dict[tuple[str, Attack], list[float]] = {}
    highest = 0.0

    def run(influence: str, attack: Attack, seeds: Sequence[int]) -> list[float]:
        """Run on further seeds; return the points lost on each so far."""
        nonlocal highest
        of_attack = scores.setdefault((influence, attack), [])
        for seed in seeds:
            settings = {**DESIGN["data"][data], "seed": seed, "influence": influence}
            settings["rounds"] = rounds * DESIGN["times"].get(strategy, 1)
            accuracy, rise = honest_accuracy(strategy, attack, settings, attackers)
            of_attack.append(accuracy)
            highest = highest if attack.update not in (WITHOUT, CLEAN) else max(highest, rise)
        return [alone - score for alone, score in zip(scores["bounded", Attack(WITHOUT)], of_attack, strict=False)]

    figures: dict[str, float] = {}
    for influence, update in (("bounded", WITHOUT), ("bounded", CLEAN), ("off", CLEAN)):
        run(influence, Attack(update), seeds)
        figures[update if influence == "bounded" else f"{update}-off"] = fmean(scores[influence, Attack(update)])
    lost = {("off", Attack("flip")): run("off", Attack("flip"), seeds)}
    tried = {attack: run("bounded", attack, seeds[:TRIED]) for attack in attacks(strategy)}
    for attack in sorted(tried, key=lambda attack: -fmean(tried[attack]))[:WORST]:
        tried[attack] = run("bounded", attack, seeds[TRIED:])
    lost |= {("bounded", attack): points for attack, points in tried.items()}
    for (influence, attack), points in lost.items():
        key = attack.key + "-off" * (influence == "off")
        figures |= {key: fmean(points), f"{key}-most": max(points), f"{key}-seeds": len(points)}
    return {**figures, "loss rose": highest}


ROWS = {
    f"influence/{data}-{attackers}": BenchRow(
        {name: partial(attack_losses, name, data, attackers, seeds) for name in DESIGN["strategies"]},
        rounds=20,
        repetitions=1,
    )
    for data, attackers, seeds in (("skewed", 2, SEEDS), ("skewed", 1, SEEDS[:2]), ("iid", 2, SEEDS[:2]))
}
