"""The owner's approval of runs.

It says what identifies a run, what its owner has said of it, and the answer until then. Each run is a record in
the state folder, under the hash of what identifies the run: its SuperLink, its settings, what its roll call says
of task, model and code, and which app of the owner's answers. A change of any of it is another run, and asks again. A
ServerApp that asks for no roll call asks by its first message.
"""

import hashlib
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from flwr.app import ConfigRecord, MessageType

from client.outcome import DECLINED, WAITING, Outcome
from client.process.owner import RETURNED, store_of
from client.settings import ASKED, NodeSettings
from client.state.memory import client_identity
from client.state.own_key import proof_of, superlink_of
from client.state.store import DiskStore
from fedappeal.core.local_rule import StoredRecord
from fedappeal.protocol import keys
from fedappeal.protocol.foreign_text import printable
from fedappeal.settings.config import ConfigError, RunConfig, Scalar
from fedappeal.system.locks import changing

if TYPE_CHECKING:  # status and page need no model
    from client.answers import Question

_PREFIX = "approval-"
_NOT_COMPARED = frozenset({"out", "resume", "schedule-rounds", keys.RUN_KEY, keys.NONCE})
"""Settings of the server's folder, and what is another in each run."""
_MOST = 64
"""Runs that are remembered as asking; and names of a run under one hash."""
_LONGEST, _LONGEST_VALUE = 2000, 200
"""Characters of a run's description, and of each setting in it."""
_UNTOLD = {keys.PLUGINS: "not said"}
"""What messages tell of a run's code, that are no roll call."""
WHY = {
    keys.WAITING: "waits for its owner's approval",
    keys.DECLINED: "its owner takes approved runs alone (approve = listed)",
}
"""Why a run is not answered, by the word for it on the wire."""


def held_back(node: NodeSettings, question: "Question", kind: str, code: str = "") -> Outcome | None:
    """Return the client's answer where its owner has not approved the run.

    None where the message may be answered.

    Args:
        node: the owner's settings.
        question: the message.
        kind: its type.
        code: what would answer, where that is an app; a bundle's with its hash.
    """
    context = question.context
    store, superlink = DiskStore(Path(node.state_dir)), superlink_of(context.state)
    settings, run_id = _hash(context.run_config), str(context.run_id)
    identity = {"superlink": superlink, "settings": settings, "code": code}
    told = question.message.content.get(keys.CONFIG)
    if not isinstance(told, ConfigRecord):
        told = ConfigRecord()
    is_roll_call = kind == MessageType.QUERY
    word, what = (keys.WAITING, WAITING) if node.approve == ASKED else (keys.DECLINED, DECLINED)
    if not is_roll_call:
        of_run = (values for values in _records(store).values() if run_id in str(values["runs"]).split())
        if same := [values for values in of_run if identity.items() <= values.items()]:
            return None if any(values["approved"] for values in same) else Outcome(what, WHY[word])
    name = _PREFIX + _hash({**identity, "told": _hash(told) if is_roll_call else ""})
    values: dict[str, Scalar] = {"runs": "", "approved": False, "at": time.time()}
    values |= {**identity, "what": _description(superlink, question, told if is_roll_call else _UNTOLD, code)}
    with changing(store.folder):
        record = store.read(name)
        values |= record.values if record else {}
        known, run_key = str(values["runs"]).split(), str(told.get(keys.RUN_KEY, ""))
        if new := [run for run in (run_id, run_key) if keys.is_run_key(run) and run not in ("", *known)]:
            store.write(name, StoredRecord({**values, "runs": " ".join([*known, *new][-_MOST:])}))
            waiting = sorted((v["at"], n) for n, v in _records(store).items() if not v["approved"])
            for _, oldest in waiting[:-_MOST]:
                store.delete(oldest)
    if values["approved"]:
        return None
    if not is_roll_call:
        return Outcome(what, WHY[word])
    client_id = client_identity(node, store)
    proof = proof_of(told, client_id, store.folder, context.state)
    info = ConfigRecord({keys.CLIENT_ID: client_id, keys.APPROVAL: word, **proof})
    return Outcome(what, WHY[word], records={keys.INFO: info})


def asking(folder: Path) -> dict[str, tuple[bool, str]]:
    """Return whether each run that asked is approved, and what it is, by each of its names.

    A server chooses its run's name: where several have one, those that wait are said.
    """
    said: dict[str, dict[bool, list[str]]] = {}
    records = _records(DiskStore(folder)).values() if folder.is_dir() else ()
    for values in records:
        for run in str(values["runs"]).split():
            whats = said.setdefault(run, {}).setdefault(bool(values["approved"]), [])
            whats += [] if values["what"] in whats else [str(values["what"])]
    return {run: (False not in whats, "; and ".join(whats.get(False) or whats[True])) for run, whats in said.items()}


def approve(folder: Path, run: str) -> str:
    """Approve a run that asked; return what was done, in one line.

    Args:
        folder: the client's state.
        run: a name of the run; or its approval's, where several runs have that name.

    Raises:
        ConfigError: no such run has asked, or several have.
    """
    store = store_of(folder)
    with changing(folder):
        named = {name: v for name, v in _records(store).items() if run in (name, *str(v["runs"]).split())}
        asked = {name: values for name, values in named.items() if not values["approved"]}
        whats = {str(values["what"]): name for name, values in (asked or named).items()}
        if asked and len(whats) > 1:
            each = "; ".join(f"{name} ({what})" for what, name in whats.items())
            raise ConfigError(f"run = '{run}' is not allowed: several runs ask by that name; approve one of {each}")
        if not named:
            waiting = ", ".join(name for name, (approved, _) in asking(folder).items() if not approved) or "none"
            raise ConfigError(f"run = '{run}' is not allowed: a run that has asked for approval ({waiting})")
        for name, values in asked.items():
            store.write(name, StoredRecord({**values, "approved": True}))
    (folder / RETURNED).touch(mode=0o600)
    return f"approved: {next(iter(whats))}; a running client says so at once (a stock SuperNode: once restarted)"


def _records(store: DiskStore) -> dict[str, dict[str, Scalar]]:
    """Return what is remembered of each run that asked, the latest last.

    A damaged record is left out, and its run asks again.
    """
    names = [name for name in store.names() if name.startswith(_PREFIX)]
    records = {name: values for name in names if (values := store.readable_values(name))}
    return dict(sorted(records.items(), key=lambda record: float(record[1]["at"])))


def _hash(values: Mapping[str, object]) -> str:
    told = {key: value for key, value in values.items() if key not in _NOT_COMPARED}
    return hashlib.sha256(json.dumps(told, sort_keys=True, default=repr).encode()).hexdigest()[:32]


def _description(superlink: str, question: "Question", told: Mapping[str, object], code: str) -> str:
    """Return the description of a run by which its owner decides.

    It says where the run is from, its code, and the settings that are not the defaults.
    """
    defaults = {key: field.default for key, field in RunConfig.by_key().items()}
    run = question.context.run_config
    changed = {k: v for k, v in run.items() if k not in _NOT_COMPARED and v != defaults.get(k) and k != "task"}
    plugins = " ".join(str(told.get(keys.PLUGINS, "")).split())
    code = code or (plugins and _quoted_text(plugins, _LONGEST // 2)) or "fedappeal's own"
    # The code first, whose words no server chose; a setting of the same name does not take its place.
    said = [f"code = {code}", f"task = {_quoted_text(run.get('task', 'not said'))}"]
    said += [f"{_quoted_text(key)} = {_quoted_text(value)}" for key, value in changed.items() if key != "code"]
    of = f" of {superlink}" if superlink else ""
    return printable(f"a run{of}: {', '.join(said)}", _LONGEST)


def _quoted_text(text: object, longest: int = _LONGEST_VALUE) -> str:
    """Return a server's text, in quotation marks where it could pass for several settings."""
    line = printable(text, longest)
    return json.dumps(line, ensure_ascii=False) if {",", "=", '"'} & set(line) else line
