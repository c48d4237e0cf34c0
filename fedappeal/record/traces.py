"""A client's traces in a run's folder.

They are the rounds that it joined, and the models that descend from its updates.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Any

from fedappeal.protocol.foreign_text import printable
from fedappeal.record.decisions import unpack_decisions
from fedappeal.record.lines import INITIAL, OWN_MODELS
from fedappeal.record.reader import Record
from fedappeal.settings.config import ConfigError
from fedappeal.system.files import read_values
from fedappeal.trained.card import card_in

JOINED = "joined"
"""The decision of a client whose update counts; of any other word the model holds nothing."""
ROLLED_BACK_TO = "rolled_back_to"
"""Column of the history: the round whose model the run went back to."""
_MOST_NAMED = 20
_LONGEST = 500


def traces(path: Path, client: str) -> Iterator[str]:
    """Yield what a run's folder holds of a client, a line a thing.

    Raises:
        ConfigError: the folder holds no run, or the run has no such client; a file cannot be read.
    """
    record = Record(path)
    record.check()
    rounds = _rounds(record, client)
    joined = [number for number, word in rounds.items() if word == JOINED]
    holding = holding_rounds(record.history, joined)
    others = {word: [n for n, other in rounds.items() if other == word] for word in dict.fromkeys(rounds.values())}
    yield f"client          {client}"
    yield f"joined          {_ranges(joined)} ({len(joined)} of the {len(rounds)} rounds that asked it)"
    yield from (f"{printable(word, 15):15} {_ranges(numbers)}" for word, numbers in others.items() if word != JOINED)
    yield "weight          of its updates: not recorded"
    files = {file: _round_of(file) for file in sorted(path.glob("*.safetensors"))}
    for file, number in files.items():
        if number is None:
            yield f"not known       {file.name}: it says no round"
        else:
            held = "descends from" if number in holding else "holds nothing of"
            yield f"{held:15} its updates: {file.name} (round {number})"
    if own_models := list(path.glob(f"{OWN_MODELS}/*")):
        yield f"not known       {OWN_MODELS}/: {len(own_models)} files of simulated clients, by their numbers"
    if initial := record.config.get("settings", {}).get("initial-model"):
        yield f"began from      {printable(initial, _LONGEST)}: what that holds of it, its own run's folder says"
    yield "elsewhere       copies, exports and runs that began from these models are not known here"
    yield from record.damage.values()


def holding_rounds(history: Iterable[Mapping[str, Any]], joined: Iterable[int]) -> set[int]:
    """Return the rounds after which the model descends from an update of a client.

    All from the first round on that it joined, unless the run went back to an earlier model.

    Args:
        history: a line a round, in order.
        joined: rounds in which its update counted.
    """
    counted, holding, before = set(joined), set[int](), 0
    for line in history:
        number, back = int(line["round"]), line.get(ROLLED_BACK_TO)
        if (int(back) in holding) if back is not None else (number in counted or before in holding):
            holding.add(number)
        before = number
    return holding


def _rounds(record: Record, client: str) -> dict[int, str]:
    """Return what a client decided in each round that asked it."""
    rounds, known = dict[int, str](), {str(line["client"]) for line in record.events if "client" in line}
    for line in record.participation:
        for decision in unpack_decisions(line):
            known.add(str(decision.get("client-id")))
            if decision.get("client-id") == client:
                rounds[int(decision["round"])] = str(decision.get("decision"))
    if client not in known:
        names = ", ".join(sorted(known)[:_MOST_NAMED]) + (", ..." if len(known) > _MOST_NAMED else "")
        raise ConfigError(f"client = '{printable(client)}' is not allowed: a client of this run ({names or 'none'})")
    return rounds


def _round_of(file: Path) -> int | None:
    """Return the round after which a file's model was the run's.

    0 where it was before the first. None where the file does not say.
    """
    if file.name.startswith(Path(INITIAL).stem):
        return 0
    with suppress(ConfigError, KeyError, TypeError, ValueError):
        values = read_values(file)
        return int(values["round"]) if "round" in values else card_in(values, file).round
    return None


def _ranges(numbers: Iterable[int]) -> str:
    """Return rounds as a text: ``1-3, 7``."""
    groups = (list(group) for _, group in groupby(enumerate(sorted(numbers)), lambda pair: pair[1] - pair[0]))
    spans = [(group[0][1], group[-1][1]) for group in groups]
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in spans) or "none"
