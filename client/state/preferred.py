"""The models that a client prefers: a file a run, the latest also as ``preferred``."""

from contextlib import suppress

from client.state.store import DiskStore
from fedappeal.core.local_rule import Store, StoredRecord
from fedappeal.protocol.keys import RUN_KEY
from fedappeal.protocol.packing import Arrays
from fedappeal.settings.config import ConfigError, Scalar
from fedappeal.system.files import CARD
from fedappeal.trained.card import ModelCard, card_in

LATEST = "preferred"
KEPT_RUNS = 20
"""Runs whose preferred model is kept; the oldest are forgotten."""


def record_name(run_key: str) -> str:
    """Return the record's name of a run's preferred model; the run-key may be empty."""
    return f"{LATEST}-{run_key}" if run_key else LATEST


def keep(store: Store, arrays: Arrays, card: ModelCard) -> None:
    """Keep a run's preferred model.

    Args:
        store: where the client remembers; on a disk, the models of earlier runs stay beside it.
        arrays: the model.
        card: says of which run, and which model it is.
    """
    values: dict[str, Scalar] = {"which": card.which, RUN_KEY: card.run_key, CARD: card.to_json()}
    record, name = StoredRecord(values, arrays), record_name(card.run_key)
    store.write(LATEST, record)
    if isinstance(store, DiskStore) and name != LATEST:
        store.write(name, record)
        # This run's counts as the newest: a device's clock may have been set back.
        for old in [run_name for run_name in _newest_first(store) if run_name != name][KEPT_RUNS - 1 :]:
            store.delete(old)


def describe_preferred(store: DiskStore) -> list[str]:
    """Return a line for each preferred model that is kept.

    The newest run's comes first. The line of a damaged one says so.
    """
    names = _newest_first(store)
    if record_name(str(store.readable_values(LATEST).get(RUN_KEY, ""))) not in names:
        names.insert(0, LATEST)  # of a version that kept one alone
    return [line for name in names if (line := _line(store, name))]


def kept_models(store: DiskStore) -> dict[str, ModelCard]:
    """Return the cards of the models that are kept, by the record's name.

    The newest run's comes first. Damaged ones are left out.
    """
    cards: dict[str, ModelCard] = {}
    for name in _newest_first(store) or [LATEST]:
        with suppress(ConfigError):
            if (values := store.values(name)) is not None:
                cards[name] = card_in(values, store.path(name))
    return cards


def _newest_first(store: DiskStore) -> list[str]:
    names = [name for name in store.names() if name.startswith(f"{LATEST}-")]
    return sorted(names, key=store.written_at, reverse=True)


def _line(store: DiskStore, name: str) -> str:
    path = store.path(name)
    try:
        values = store.values(name)
        if values is None or RUN_KEY not in values:
            return ""  # a file of another kind, such as an export
        if CARD not in values:
            return f"prefers    the {values.get('which', '')} model (run {values[RUN_KEY]}): {path}"
        card = card_in(values, path)
    except ConfigError as error:
        return f"damaged    the model that this client prefers: {error}"
    figures = ", ".join(f"{figure} {value:.4f}" for figure, value in card.figures.items())
    met = f", requirement {'met' if card.requirement_met else 'not met'}" if card.which == "global" else ""
    return (
        f"prefers    the {card.which} model (run {card.run_key or '(no key)'}, {card.date[:10]}, {card.strategy} on "
        f"{card.task}, round {card.round}; {figures}{met}): {path}"
    )
