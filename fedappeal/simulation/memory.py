"""What a simulated run's clients remember, in its folder: of each checkpoint's round.

``memory-0.safetensors`` holds what clients remember before the first round: their requirements, which do not change
any more; where it is damaged, clients make them again. ``memory-ROUND.safetensors`` holds what has changed since. It
is written before the checkpoint of its round, and that of a round without a checkpoint is deleted after it: a kill at
any moment leaves each checkpoint with the memory of the same round. Arrays that are files (`own_models`) are in it by
their names; such a file was written before it, and is deleted once the memory of no kept round names it.
``requirements.jsonl`` has each client's rho_k: only a simulation may know it.
"""

import json
import logging
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context

from client.learner import Sent
from client.participant import Measurement, Participant
from client.requirement import read_requirement
from client.roster import Participants
from client.state.memory import RunMemory, client_of_partition
from client.state.store import ContextStore
from client.training.models import BFLOAT16, FLOAT32
from client.volunteer import own_state
from fedappeal.core.requirement import Evaluation
from fedappeal.protocol.foreign_text import parse_json
from fedappeal.protocol.metric import Metric
from fedappeal.record.folder import RunFolder
from fedappeal.record.lines import OWN_MODELS, REQUIREMENTS, rewrite, seal_lines
from fedappeal.record.reader import Record
from fedappeal.settings.config import ConfigError
from fedappeal.simulation.in_process_grid import FIRST_NODE, VirtualClients
from fedappeal.simulation.own_models import file_of, names_in, not_shared
from fedappeal.system.files import read_safetensors, read_values, set_aside, write_safetensors
from server.checkpoints import FlowerRecord, flatten_records, restore_records
from server.recorder import ClientMemory

log = logging.getLogger("fedappeal")

_SEEN_WITHIN, _LOOK = 60.0, 0.5
"""Seconds in which a file that a worker wrote is seen in a shared folder: a network's folders show it late."""
_TEXT = "text"
"""Name of the array that holds all that is no array: a file's metadata may not be long."""


def _file(path: Path, server_round: int) -> Path:
    return path / f"memory-{server_round}.safetensors"


def measured_text(key: Measurement) -> str:
    """Return a measurement's key as a text: ``train``, ``test bfloat16 TRAINING``."""
    return " ".join(filter(None, (key.split, "" if key.precision == FLOAT32 else key.precision, key.after)))


def measured_key(sent: Sent, text: str) -> Measurement:
    """Return the measurement's key of a text of `measured_text`."""
    split, _, rest = text.partition(" ")
    precision, after = (BFLOAT16, rest[len(BFLOAT16) + 1 :]) if rest.startswith(BFLOAT16) else (FLOAT32, rest)
    return Measurement(sent, split, precision, after)


def _evaluations_of(client: Participant) -> list[Any]:
    """Return a client's evaluations of the latest model.

    The client's number, the model and its round, and the evaluations by what they are of.
    """
    sent = next(iter(client.measured)).sent
    values = {measured_text(key): (e.loss, e.score, dict(e.others)) for key, e in client.measured.items()}
    return [client.node.partition_id, sent.model, sent.server_round, values]


@dataclass(frozen=True)
class _Remembered:
    """A round's file: records by client and name, and the last model's evaluations."""

    records: Mapping[str, FlowerRecord]
    judged: list[Any]


def read_memory(path: Path, server_round: int) -> _Remembered:
    """Return the clients' memory after a round; 0 for before the first.

    Raises:
        ConfigError: it is not there, or damaged.
    """
    file = _file(path, server_round)
    arrays, _ = read_safetensors(file)
    try:
        text = parse_json(arrays.pop(_TEXT).tobytes())
        judged = [(int(place), str(model), int(noise), dict(e)) for place, model, noise, e in text["judged"]]
        records = restore_records(arrays, text["records"])
        for name in names_in(records.values()):
            read_values(file_of(path, name))
        for first, others in text.get("alike", {}).items():  # records that clients share are in the file once
            name = first.partition("/")[2]
            records |= {f"{int(place)}/{name}": records[first] for place in others}
        return _Remembered(records, judged)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"file '{file}' cannot be read: {type(error).__name__}: {error}") from None


@dataclass
class SavedMemory(ClientMemory):
    """The clients' memory of a simulated run, in files.

    Attributes:
        folder: the run's.
        grid: holds the clients' contexts.
        participants: what the process has of the clients besides; None: workers have it, and what clients had
            measured is measured again.
        evaluate_every: the run's setting.
        metric: the task's.
        resumable: whether the memory is written; else it only deletes own models that no client has any more.
    """

    folder: RunFolder
    grid: VirtualClients
    participants: Participants | None
    evaluate_every: int
    metric: Metric
    resumable: bool = True
    _files: dict[int, set[str]] = field(default_factory=dict)
    _first: dict[int, dict[str, Any]] = field(default_factory=dict)
    _evaluations: list[Any] = field(default_factory=list)

    def restore(self, server_round: int) -> None:
        """Restore the clients' memory after a round; 0 for before the first.

        Raises:
            ConfigError: if the memory of that round is not there.
        """
        if server_round or _file(self.folder.path, 0).exists():
            self._restore_first()
        if server_round:
            self._evaluations = self._read(server_round)
            if self._measured_as_last(server_round):
                self._evaluations = [(place, "", 0, {}) for place, *_ in self._evaluations]

    def check(self, server_round: int) -> None:
        """Check that what clients remembered after a round can be read."""
        read_memory(self.folder.path, server_round)

    def _restore_first(self) -> None:
        """Restore the clients' memory before round 1.

        Where that is damaged, they make it again.
        """
        self._first = {}
        try:
            self._read(0)
            self._first = self._states()
        except ConfigError as error:
            file = _file(self.folder.path, 0)
            aside = set_aside(file).name if file.exists() else ""
            self.folder.event("damaged", file=file.name, aside=aside, reason=str(error))
            log.warning("%s: the clients make their requirements again", error)

    def enrolled(self, server_round: int) -> None:
        """Save the memory before round 1, or restore the last evaluations."""
        if server_round == 1:
            self._first = {}
            self.save(0)
            self._first = self._states()
            if self.resumable:
                self._write_requirements()
            return
        if not _file(self.folder.path, 0).exists():  # it was damaged, and the clients have made it again
            self.save(0)
            self._first = self._states()
        if self.participants is None:
            return
        self.participants.clear()
        for place, model, noise_round, measured in self._evaluations:
            participant, sent = self.participants.of(self.grid.context(FIRST_NODE + place)), Sent(model, noise_round)
            participant.measured = {
                measured_key(sent, text): Evaluation(loss, score, self.metric, others)
                for text, (loss, score, others) in measured.items()
            }

    def save(self, server_round: int) -> None:
        """Write the clients' memory after a round.

        Raises:
            ConfigError: a worker's files are not in this folder.
        """
        names = self._own_models()
        if not self.resumable:
            self._files = {server_round: names}
            return
        self._files[server_round] = names
        parts: dict[str, FlowerRecord] = {}
        alike: dict[tuple[str, int], list[int]] = {}
        for node, context in self.grid.contexts.items():
            before, place = self._first.get(node, {}), node - FIRST_NODE
            for name, record in context.state.items():
                if before.get(name) is record:
                    continue
                places = alike.setdefault((name, id(record)), [])
                if not places:
                    parts[f"{place}/{name}"] = record
                places.append(place)
        arrays, records = flatten_records(parts)
        several = {f"{first}/{name}": others for (name, _), (first, *others) in alike.items() if others}
        clients = self.participants.kept_participants() if self.participants is not None else ()
        judged = sorted(
            (_evaluations_of(client) for client in clients if client.measured), key=lambda of_client: of_client[0]
        )
        text = json.dumps({"records": records, "alike": several, "judged": judged}).encode()
        arrays[_TEXT] = np.frombuffer(text, np.uint8)
        write_safetensors(_file(self.folder.path, server_round), arrays, {"round": server_round}, durable=False)

    def keep_only(self, rounds: Collection[int]) -> None:
        """Delete the memory of other rounds, except that before the first."""
        files = {_file(self.folder.path, server_round) for server_round in (0, *rounds)}
        for file in set(self.folder.path.glob("memory-*.safetensors")) - files:
            file.unlink()
        self._files = {server_round: self._files_of(server_round) for server_round in (0, *rounds)}
        named = set[str]().union(*self._files.values())
        for file in (self.folder.path / OWN_MODELS).glob("*.safetensors"):
            if file.name not in named:
                file.unlink()

    def _files_of(self, server_round: int) -> set[str]:
        """Return the names of the files that a round's memory names."""
        if server_round in self._files:
            return self._files[server_round]
        with suppress(ConfigError):  # of an earlier process; what cannot be read needs no files
            return names_in(read_memory(self.folder.path, server_round).records.values())
        return set()

    def _own_models(self) -> set[str]:
        """Return the names of the files that clients' contexts name now; errors as in `save`."""
        folder = self.folder.path / OWN_MODELS
        names = names_in(record for context in self.grid.contexts.values() for record in context.state.values())
        if names and not any(self._files.values()):
            log.info("the clients' own models are in '%s': memory has no room for them", folder)
        began = time.monotonic()
        while missing := {name for name in names if not (folder / name).exists()}:
            if time.monotonic() - began > _SEEN_WITHIN:
                raise not_shared(folder / min(missing))
            time.sleep(_LOOK)
        return names

    def _states(self) -> dict[int, dict[str, Any]]:
        return {node: dict(context.state) for node, context in self.grid.contexts.items()}

    def _measured_as_last(self, server_round: int) -> bool:
        """Whether a round's model was evaluated only as the run's last."""
        every, last = self.evaluate_every, Record(self.folder.path).config["settings"]["rounds"]
        return server_round == last and not (every and server_round % every == 0)

    def _read(self, server_round: int) -> list[Any]:
        """Restore a round's file; return the clients' evaluations of the last model.

        Raises:
            ConfigError: it is not there, or damaged.
        """
        remembered = read_memory(self.folder.path, server_round)
        try:
            for path, record in remembered.records.items():
                place, _, name = path.partition("/")
                self._context(int(place)).state[name] = record
            for number, *_ in remembered.judged:
                self._context(number)
        except (KeyError, TypeError, ValueError) as error:
            file = _file(self.folder.path, server_round)
            raise ConfigError(f"file '{file}' cannot be read: {type(error).__name__}: {error}") from None
        return remembered.judged

    def _context(self, place: int) -> Context:
        node = FIRST_NODE + place
        if node not in self.grid.get_node_ids():
            raise ValueError(f"the run has no client {place}")
        return self.grid.context(node)

    def _write_requirements(self) -> None:
        lines = []
        for node, context in self.grid.contexts.items():
            store = ContextStore(own_state(context.state))
            key = RunMemory(store, self.folder.run_key).requirement
            if key and (requirement := read_requirement(store, key)) is not None:
                client = client_of_partition(node - FIRST_NODE)
                lines.append({"client-id": client, "requirement": requirement.rho, "of": requirement.of})
        rewrite(self.folder.path / REQUIREMENTS, seal_lines(lines), durable=False)
