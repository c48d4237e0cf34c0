"""Caches a SQL-backed SuperLink's look-ups for a quarter of a second.

At every request for an object Flower looks up the node's key, ends expired tasks and looks up the run, in a
transaction that writes. Within a quarter of a second the answers are the same. A SuperLink in memory does all that in
microseconds and is left alone.

So a run that has just ended takes replies for up to `REMEMBERED` seconds more. One that a database restored from a
backup lacks counts as ended.
"""

import time
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

from flwr.server.superlink.linkstate import SqlLinkState
from sqlalchemy import event

from fedappeal.flower.processes import replace_name
from fedappeal.flower.versions import fleet_handlers

REMEMBERED = 0.25
"""Seconds for which an answer is remembered."""
LOCKED_FOR = 60.0
"""Seconds for which one writer waits for another; after Flower's 5 a busy machine ends runs: "database is locked"."""

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Remembered(Generic[K, V]):
    """A cache whose answers are valid for `REMEMBERED` seconds.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.forget()

    def get(self, key: K, ask: Callable[[], V], lasting: Callable[[V], bool]) -> V:
        """Return the answer for a key; ``lasting``: whether an answer may be remembered."""
        if self._clock() >= self._until:
            self.forget()
        answers = self._answers  # an answer that was asked for before `forget` goes with it
        if key in answers:
            return answers[key]
        answer = ask()
        if lasting(answer):
            answers[key] = answer
        return answer

    def forget(self) -> None:
        """Forget all answers."""
        self._answers, self._until = dict[K, V](), self._clock() + REMEMBERED


def _wait_longer(connection: Any, _: object) -> None:
    connection.execute(f"PRAGMA busy_timeout = {1000 * LOCKED_FOR:.0f}")


def cache_database(state: Any) -> None:
    """Cache a database link state's look-ups.

    A link state in memory is left as it is.
    """
    if not isinstance(state, SqlLinkState):
        return
    engine: Any = state._engine
    event.listen(engine, "connect", _wait_longer)
    engine.dispose()  # connections that are there are made anew
    nodes: Remembered[bytes, int | None] = Remembered()
    runs: Remembered[tuple[int, tuple[str, ...]], str | None] = Remembered()
    handlers = fleet_handlers()
    node_id_of, delete_node, check = state.get_node_id_by_public_key, state.delete_node, handlers.check_abort

    def node_id(public_key: bytes) -> int | None:
        return nodes.get(public_key, lambda: node_id_of(public_key), lambda node: node is not None)

    def delete(owner_aid: str, node_id: int) -> None:
        try:
            delete_node(owner_aid, node_id)
        finally:
            nodes.forget()

    def of_known_run(run_id: int, abort_status_list: list[str], of: Any) -> str | None:
        try:
            problem: str | None = check(run_id, abort_status_list, of)
        except KeyError:  # clients were in a run that is newer than a database restored from a backup
            problem = "Run is not known."
        return problem

    def check_abort(run_id: int, abort_status_list: list[str], of: Any) -> str | None:
        key = (run_id, tuple(abort_status_list))
        return runs.get(key, lambda: of_known_run(run_id, abort_status_list, of), lambda problem: problem is None)

    replace_name(state, "get_node_id_by_public_key", node_id)
    replace_name(state, "delete_node", delete)
    replace_name(handlers, "check_abort", check_abort)
