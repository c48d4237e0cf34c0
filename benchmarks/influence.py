"""Clients that collude against a bounded run: the tables of docs/influence.md, a run a row of `--out`.

python -m benchmarks.influence --out influence.jsonl                      runs what is missing, and prints the tables
python -m benchmarks.influence --out influence.jsonl --strategy fedavg    one strategy

The attackers know all updates of the round, the honest ones too. Each sends, for every record of its reply:

flip    its own update times -1.9
alie    the honest updates' mean less 1.5 standard deviations, coordinate by coordinate (Baruch et al., NeurIPS 2019)
ipm     the honest updates' mean backwards, 1.9 times as long as their median (Xie et al., UAI 2019)
known   as long as their median, against their mean, at 87 degrees to the common direction: no limit is crossed
"""

import argparse
import logging
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean, median_low
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import ArrayRecord, Message
from numpy.typing import NDArray

from benchmarks.resumed import resumed
from client.participation.byzantine import attackers
from fedappeal.protocol import keys
from fedappeal.protocol.packing import array_record, view
from fedappeal.settings.config import RunConfig
from fedappeal.system.versions import recorded_versions
from strategies.rounds.exchange.members import Member
from strategies.rounds.round import Round
from strategies.rounds.round_steps import RoundSteps

if TYPE_CHECKING:
    from strategies.rounds.sums.influence import Bounds

Vector = NDArray[np.float64]

CLIENTS = 10
SEEDS = range(5)
DATA = {"skewed": {"partition": "dirichlet", "dirichlet-alpha": 0.3}, "iid": {"partition": "iid"}}
COMMON = {
    **{"task": "digits", "clients": CLIENTS, "rounds": 20, "participation": "always", "mandatory-rounds": -1},
    **{"judge-on": "train", "adaptation-steps": 0, "goodwill": -1},
}
STRATEGIES: dict[str, dict[str, Any]] = {
    **{name: {} for name in ("fedavg", "fedprox", "fedadam", "maxfl", "afl", "term", "mwfed", "scaffold", "fednova")},
    **{name: {} for name in ("mifa", "fedau", "oracle", "ditto", "perfedavg", "pfedme", "fedalign")},
    "qfedavg": {"rounds": 40},
    **{name: {"rounds": 200, f"{name}.on-missing": "proceed"} for name in ("adagd", "maxfl-adagd")},
}
SLOW = ("perfedavg", "pfedme")
"""Run with one seed: their server averages as FedAvg's does."""
ATTACKS = ("flip", "alie", "ipm", "known")
WITHOUT = "without"
"""The same run without the attackers: they answer no TRAIN."""
CLEAN = "clean"
_KEYS = ("strategy", "data", "influence", "attackers", "attack", "seed")


class Collusion:
    """Clients that answer together at the end of each round of a strategy.

    Args:
        strategy: any; its `take` and `close_round` are replaced.
        attack: one of `ATTACKS`, `WITHOUT` or `CLEAN`.
        clients: numbers of the attackers.
    """

    def __init__(self, strategy: RoundSteps, attack: str, clients: frozenset[int]) -> None:
        self._attack, self._clients, self._strategy = attack, clients, strategy
        self._take, self._close = strategy.take, strategy.close_round
        self._waiting: list[tuple[Member, Message]] = []
        strategy.take, strategy.close_round = self._hold, self._end  # type: ignore[method-assign]

    def _hold(self, round: Round, member: Member, message: Message) -> None:
        self._waiting.append((member, message))

    def _colludes(self, member: Member) -> bool:
        return self._attack != CLEAN and int(member.client_id.rpartition("-")[2]) in self._clients

    def _end(self, round: Round) -> "ArrayRecord | None":
        replies, self._waiting = self._waiting, []
        if self._attack in ATTACKS:
            for name in {name for _, message in replies for name, record in message.content.items()}:
                with_it = [(member, message) for member, message in replies if name in message.content.keys()]  # noqa: SIM118
                if all(isinstance(message.content[name], ArrayRecord) for _, message in with_it):
                    self._replace(round, name, with_it)
        for member, message in replies:
            if self._attack != WITHOUT or not self._colludes(member):
                self._take(round, member, message)
        return self._close(round)

    def _replace(self, round: Round, name: str, replies: Sequence[tuple[Member, Message]]) -> None:
        """Put the attack in place of the attackers' record of that name."""
        rule = self._strategy.LocalRule
        start = round.model if name == keys.ARRAYS and not (rule is not None and rule.sends_update) else None
        honest = [_flat(message.content[name], start) for member, message in replies if not self._colludes(member)]
        if not honest:
            return
        for member, message in replies:
            if self._colludes(member):
                record = message.content[name]
                assert isinstance(record, ArrayRecord)
                common = _common_direction(round.bounds, record) if name == keys.ARRAYS else None
                update = attack(self._attack, _flat(record, start), np.stack(honest), common)
                message.content[name] = _record_of(update, record, start)


def attack(name: str, own: Vector, honest: Vector, common: Vector | None) -> Vector:
    """Return the update that an attacker sends.

    Args:
        name: the attack's.
        own: what it would send honestly, shape ``(d,)``.
        honest: the others' updates, shape ``(m, d)``.
        common: the common direction of the rounds before; None where there is none.
    """
    mean = honest.mean(0)
    usual = median_low(np.linalg.norm(honest, axis=1).tolist())
    if name == "flip":
        return -1.9 * own
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


def _common_direction(bounds: "Bounds | None", like: ArrayRecord) -> Vector | None:
    if bounds is None or not bounds.direction.vectors:
        return None
    return np.concatenate([np.asarray(bounds.direction.vectors[name], np.float64) for name in like])


def _flat(record: Any, start: ArrayRecord | None) -> Vector:
    begins = {name: 0.0 if start is None else view(start[name]) for name in record}
    return np.concatenate([(view(array).astype(np.float64) - begins[name]).ravel() for name, array in record.items()])


def _record_of(update: Vector, like: ArrayRecord, start: ArrayRecord | None) -> ArrayRecord:
    arrays, at = {}, 0
    for name, array in like.items():
        values = view(array)
        part = update[at : at + values.size].reshape(values.shape)
        arrays[name] = (part + (0.0 if start is None else view(start[name]))).astype(values.dtype)
        at += values.size
    return array_record(arrays)


def rows(only: str) -> Iterator[dict[str, Any]]:
    """Yield the runs: strategy, data, bounds, number of attackers, attack, seed."""
    for data, number, seeds in (("skewed", 2, SEEDS), ("skewed", 1, SEEDS[:2]), ("iid", 2, SEEDS[:2])):
        both = [("off", CLEAN), ("off", "flip")] if (data, number) == ("skewed", 2) else []
        for strategy in [only] if only else STRATEGIES:
            for seed in seeds[:1] if strategy in SLOW else seeds:
                for influence, attack_name in (*(("bounded", name) for name in (CLEAN, WITHOUT, *ATTACKS)), *both):
                    yield _row(strategy, data, influence, number, attack_name, seed)


def _row(*values: Any) -> dict[str, Any]:
    return dict(zip(_KEYS, values, strict=True))


def run(row: dict[str, Any]) -> dict[str, Any]:
    """Simulate a run; return the honest clients' mean accuracy in the last round, in per cent, and more."""
    import torch

    from fedappeal.record.reader import Record
    from fedappeal.runs.plan import RunPlan
    from fedappeal.simulation.engine import simulate
    from fedappeal.simulation.options import Simulation

    torch.set_num_threads(1)
    chosen_settings = {**COMMON, **DATA[row["data"]], **STRATEGIES[row["strategy"]]}
    config = RunConfig.parse({**chosen_settings, **{key: row[key] for key in ("strategy", "influence", "seed")}})
    colluding = attackers(config.seed, CLIENTS, row["attackers"] / CLIENTS)
    made: list[Collusion] = []

    def opened(strategy: RoundSteps, number: int, arrays: ArrayRecord) -> Round:
        if not made:
            made.append(Collusion(strategy, row["attack"], colluding))
        return open_round(strategy, number, arrays)

    open_round = RoundSteps.open_round
    RoundSteps.open_round = opened  # type: ignore[method-assign]
    try:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "run"
            simulate(config, RunPlan.of(config, path).folder({}), Simulation(threads=1, resumable=False))
            history, measured = Record(path).history, Record(path).measurements
    finally:
        RoundSteps.open_round = open_round  # type: ignore[method-assign]
    last = dict(zip(measured[-1]["client-ids"], measured[-1]["accuracy"], strict=True))
    honest = [score for client, score in last.items() if int(client.rpartition("-")[2]) not in colluding]
    medians = [median_low(loss for loss in line["loss"] if loss is not None) for line in measured]
    best = [min(medians[:k]) for k in range(1, len(medians))]
    return {
        "accuracy": 100 * fmean(honest),
        "highest_loss_ratio": max((now / low for now, low in zip(medians[1:], best, strict=True)), default=1.0),
        "rolled_back": sum(line.get("rolled_back", 0) for line in history),
        "bounded": fmean(line.get("bounded", 0.0) for line in history),
        "settings": chosen_settings,
        "versions": recorded_versions(),
    }


def tables(found: Sequence[dict[str, Any]]) -> None:
    """Print what the honest clients lose by each attack against the run without the attackers, in points."""
    scores = {_key(row): row["accuracy"] for row in found}
    columns = [("bounded", WITHOUT), ("bounded", CLEAN), ("off", CLEAN), ("off", "flip")]
    columns += [("bounded", name) for name in ATTACKS]
    for data, number in dict.fromkeys((row["data"], row["attackers"]) for row in found):
        print(f"\n**{data}, {number} of {CLIENTS}**\n")
        print("| strategy | without | clean | clean, off | flip, off |" + "".join(f" {name} |" for name in ATTACKS))
        print("|---" * (5 + len(ATTACKS)) + "|")
        for strategy in STRATEGIES:
            cells = []
            for influence, attack_name in columns:
                pairs = [
                    (scores[key], scores[alone])
                    for seed in SEEDS
                    if (key := _key(_row(strategy, data, influence, number, attack_name, seed))) in scores
                    and (alone := _key(_row(strategy, data, "bounded", number, WITHOUT, seed))) in scores
                ]
                cells.append(_cell(pairs, attack_name in ATTACKS))
            if any(cell != "-" for cell in cells):
                print(f"| `{strategy}` | {' | '.join(cells)} |")
    if healthy := [row for row in found if row["attack"] in (CLEAN, WITHOUT)]:
        worst = max(healthy, key=lambda row: float(row["highest_loss_ratio"]))
        print(
            f"\n{len(healthy)} healthy runs: {sum(row['rolled_back'] for row in healthy):.0f} roll-backs; the median "
            f"loss is at most {worst['highest_loss_ratio']:.3g} times the best before ({worst['strategy']})"
        )


def _cell(pairs: Sequence[tuple[float, float]], lost: bool) -> str:
    """Return the mean accuracy, or the mean and the largest loss against the run without the attackers."""
    if not pairs:
        return "-"
    if not lost:
        return f"{fmean(score for score, _ in pairs):.1f}"
    losses = [alone - score for score, alone in pairs]
    return f"{fmean(losses):.1f} ({max(losses):.1f})"


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in _KEYS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--strategy", default="", choices=["", *STRATEGIES])
    options = parser.parse_args()
    logging.getLogger("fedappeal").setLevel(logging.ERROR)
    tables(resumed(options.out, rows(options.strategy), run))


if __name__ == "__main__":
    main()
