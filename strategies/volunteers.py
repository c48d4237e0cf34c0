"""The volunteers' round loop: a Flower strategy whose clients may join, sit out or leave.

A strategy of this project is a subclass with a few small methods (see `Algorithm`); sampling in waves, waiting,
checking, evaluation, state and hooks are here once. It works in two ways:

* ``start`` runs the whole loop: roll call, rounds, evaluation, hooks;
* Flower's own four methods (``configure_train`` and so on) work with any `Grid` that only knows node ids.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedappeal.protocol import keys
from fedappeal.protocol.config import ConfigError, Scalar
from fedappeal.protocol.keys import SEEN, Decision
from fedappeal.protocol.rounds import default_mandatory_rounds
from strategies.algorithm import Algorithm
from strategies.divergence import DIVERGED, Divergence
from strategies.fold import NotFinite, Refused, finite
from strategies.hooks import Hooks, RoundRecord
from strategies.loop import Loop
from strategies.members import Member, Members
from strategies.replies import read_evaluate, read_train
from strategies.sampling import sampling_order
from strategies.shared import check_shared

log = logging.getLogger("fedappeal")

_NAMES = {Decision.JOINED: "joined", Decision.SAT_OUT: "sat-out", Decision.LEFT: "left"}


class VolunteerStrategy(Algorithm, Strategy):
    """Base of all strategies: the rounds of volunteers around an `Algorithm`; see `Shared` for the settings.

    Raises:
        ConfigError: for a setting that is not allowed.
    """

    def __init__(
        self,
        *,
        clients_per_round: int | None = None,
        min_available_nodes: int = 1,
        start_timeout: float = 300.0,
        round_timeout: float = 60.0,
        seed: int = 0,
        mandatory_rounds: int | None = None,
        empty_pool: Literal["ask-all", "keep"] = "ask-all",
        evaluate_every: int = 1,
        measure_leavers: bool = True,
    ) -> None:
        self.clients_per_round = clients_per_round
        self.min_available_nodes = min_available_nodes
        self.start_timeout = start_timeout
        self.round_timeout = round_timeout
        self.seed = seed
        self.mandatory_rounds = mandatory_rounds
        self.empty_pool = empty_pool
        self.evaluate_every = evaluate_every
        self.measure_leavers = measure_leavers
        check_shared(self)
        self.members = Members()
        self._gone: set[str] = set()
        self._divergence = Divergence()
        self.pool_empty = False
        self.finished = ""
        """Why the run is over before its last round; empty while it is not."""
        self.num_rounds = 0
        """Rounds of the run, known once `start` was called."""
        self.record = RoundRecord(0)

    # -- what is carried from round to round ---------------------------------------------------------

    def state(self) -> RecordDict:
        """Return all that is carried from round to round, for a checkpoint."""
        rounds, clients = self._divergence.state()
        carried: dict[str, Scalar | list[str]] = {
            "gone": sorted(self._gone),
            "pool-empty": int(self.pool_empty),
            "finished": self.finished,
            "diverging-rounds": rounds,
            "diverging-clients": clients,
        }
        return RecordDict({"volunteers": ConfigRecord(carried)})  # type: ignore[arg-type]

    def restore(self, state: RecordDict) -> None:
        """Take up what `state` returned."""
        carried = state.config_records["volunteers"]
        self._gone = set(carried["gone"])  # type: ignore[arg-type]
        self.pool_empty = bool(carried["pool-empty"])
        self.finished = str(carried["finished"])
        # A checkpoint of an earlier version has neither.
        rounds, clients = carried.get("diverging-rounds", 0), carried.get("diverging-clients", [])
        self._divergence.restore(int(rounds), clients)  # type: ignore[arg-type]

    # -- Flower's four methods -----------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Open a round and return the messages of its first wave."""
        self._enrol_bare_nodes(grid)
        self.open_round(server_round, arrays)
        order = self.order(server_round)
        wave = order[: self.wanted(len(order))]
        return [m for _, m in self.train_messages(wave, arrays, config, self.round_timeout)]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Fold the mixed replies of a round; None for the model where nobody joined."""
        for message in replies:
            node = message.metadata.src_node_id
            self.take(self.members.of_node(node) or Member(str(node), node), message)
        arrays = self.close_round()
        numbers = {k: self.record.count(k) for k in ("joined", "sat-out", "left", "failed", "surplus")}
        return arrays, MetricRecord({**numbers, **self.record.metrics})

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the messages that ask every client how the model serves it."""
        self._enrol_bare_nodes(grid)
        return [m for _, m in self.evaluate_messages(server_round, arrays, config, self.round_timeout)]

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Average what clients measured, unweighted; None where nobody answered."""
        answers = []
        for message in replies:
            node = message.metadata.src_node_id
            member = self.members.of_node(node) or Member(str(node), node)
            try:
                answers.append((member, read_evaluate(message)))
            except Refused as error:
                log.warning("round %d: evaluation of %s left out: %s", server_round, member.client_id, error)
        return MetricRecord(dict(self.measured(answers))) if answers else None

    def summary(self) -> None:
        """Log the settings that differ between runs."""
        log.info(
            "%s: clients-per-round %s, round-timeout %g s, seed %d",
            type(self).__name__,
            self.clients_per_round or "all",
            self.round_timeout,
            self.seed,
        )

    # -- the whole loop ------------------------------------------------------------------------------

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: object = None,
        *,
        hooks: Hooks | None = None,
        roll_call_config: ConfigRecord | None = None,
        arrays: ArrayRecord | None = None,
        first_round: int = 1,
    ) -> Result:
        """Run the federation.

        Args:
            grid: Flower's grid.
            initial_arrays: w_0; clients warm up their requirement from it.
            num_rounds: number of the last round.
            timeout: not used; ``round_timeout`` is the deadline of each exchange.
            train_config: the local rule's settings, sent with every TRAIN.
            evaluate_config: sent with every EVALUATE.
            evaluate_fn: not supported: the clients evaluate.
            hooks: told what happens.
            roll_call_config: what the roll call carries besides w_0.
            arrays: the model to go on from (a resumed run); None: ``initial_arrays``.
            first_round: the first round to run.

        Returns:
            Flower's result: the last model and the metrics by round.

        Raises:
            RollCallError: if too few clients came.
        """
        if evaluate_fn is not None:
            raise ConfigError("evaluate_fn is not supported: clients evaluate; use hooks for anything else")
        self.summary()
        self.members = Members()
        self.num_rounds = num_rounds
        loop = Loop(self, grid, initial_arrays, hooks or Hooks(), roll_call_config or ConfigRecord())
        return loop.run(
            first_round,
            num_rounds,
            initial_arrays if arrays is None else arrays,
            train_config or ConfigRecord(),
            evaluate_config or ConfigRecord(),
        )

    # -- one round -----------------------------------------------------------------------------------

    def _enrol_bare_nodes(self, grid: Grid) -> None:
        for node in grid.get_node_ids():
            if self.members.of_node(node) is None:
                self.members.enrol(Member(str(node), node))
        self.members.set_online(grid.get_node_ids())

    def order(self, server_round: int) -> list[Member]:
        """Return the connected seen clients that have not left, in the order in which the round asks them."""
        pool = {m.client_id: m for m in self.members.online(SEEN) if m.client_id not in self._gone}
        return [pool[client_id] for client_id in sampling_order(self.seed, server_round, list(pool))]

    def enrolled(self, member: Member) -> None:
        """Take note of a client that answered the roll call: one that had left may have changed its mind."""
        if not member.left:
            self._gone.discard(member.client_id)

    def somebody_may_return(self) -> bool:
        """Whether a seen client is known that has not left for good."""
        return any(client not in self._gone for client in self.members.of_role(SEEN))

    def wanted(self, available: int) -> int:
        """Number of joiners a round is looking for, of so many clients that can be asked."""
        return min(self.clients_per_round or available, available)

    def open_round(self, server_round: int, arrays: ArrayRecord, mandatory: bool | None = None) -> None:
        """Begin a round: nothing folded, nobody counted.

        Args:
            server_round: counted from 1.
            arrays: the global model that is sent.
            mandatory: whether clients are asked not to opt out; None: by the number of the round, and by whether
                anybody joined the last one.
        """
        if mandatory is None:
            first = self.mandatory_rounds
            first = default_mandatory_rounds(self.num_rounds) if first is None else first
            mandatory = server_round <= first or (self.pool_empty and self.empty_pool == "ask-all")
        self.record = RoundRecord(server_round, mandatory=mandatory)
        self.gather(arrays)

    def train_messages(
        self, wave: Sequence[Member], arrays: ArrayRecord, config: ConfigRecord, ttl: float
    ) -> list[tuple[Member, Message]]:
        """Return the TRAIN messages of one wave; ``ttl`` in seconds."""
        record = self.record
        sent: dict[str, Scalar] = {
            keys.LOCAL_RULE: self.local_rule,
            **config,  # type: ignore[dict-item]
            **self.train_settings(),
            keys.SERVER_ROUND: record.server_round,
            keys.MANDATORY: int(record.mandatory),
        }
        to_all, records = ConfigRecord(dict(sent)), {keys.ARRAYS: arrays, **self.train_records()}
        messages = []
        for member in wave:
            own = self.client_settings(member)
            told = ConfigRecord({**sent, **own}) if own else to_all
            messages.append((member, self.message(member, MessageType.TRAIN, records, told, ttl)))
        return messages

    def evaluate_messages(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, ttl: float
    ) -> list[tuple[Member, Message]]:
        """Return the EVALUATE messages to every connected client; ``ttl`` in seconds."""
        members = [m for m in self.members.online() if self.measure_leavers or m.client_id not in self._gone]
        sent = {keys.SPLIT: keys.TEST_SPLIT, **config, **self.evaluate_settings(), keys.SERVER_ROUND: server_round}
        return self.questions(members, arrays, ConfigRecord(sent), ttl)

    def questions(
        self, members: Sequence[Member], arrays: ArrayRecord, config: ConfigRecord, ttl: float
    ) -> list[tuple[Member, Message]]:
        """Return EVALUATE messages; ``config`` holds all that they carry, ``ttl`` in seconds."""
        return [(m, self.message(m, MessageType.EVALUATE, {keys.ARRAYS: arrays}, config, ttl)) for m in members]

    def message(
        self, member: Member, kind: str, records: Mapping[str, ArrayRecord], told: ConfigRecord, ttl: float
    ) -> Message:
        """Return one message of this round; ``told`` is its config, ``ttl`` in seconds."""
        content = RecordDict({**records, keys.CONFIG: told})
        group = str(told[keys.SERVER_ROUND])
        return Message(content, member.node_id, kind, ttl=max(ttl, 0.001), group_id=group)

    def take(self, member: Member, message: Message) -> None:
        """Check one reply and fold it, or count why not."""
        record = self.record
        try:
            reply = read_train(message, self.reply_records)
            decision = _NAMES[reply.decision]
            if reply.decision is Decision.LEFT:
                self._gone.add(member.client_id)
            elif reply.decision is Decision.JOINED:
                if self.clients_per_round and record.count("joined") >= self.clients_per_round:
                    decision = "surplus"
                else:
                    self.accept(member, reply)
            record.decisions[member.client_id] = decision
            self._divergence.note(member.client_id, finite=True)
        except Refused as error:
            self.failed(member, str(error))
            if isinstance(error, NotFinite):
                self._divergence.note(member.client_id, finite=False)

    def failed(self, member: Member, reason: str) -> None:
        """Count a client whose reply is left out or did not come, and say why."""
        self.record.decisions[member.client_id] = "failed"
        self.record.failures[member.client_id] = reason
        log.warning("round %d: %s left out: %s", self.record.server_round, member.client_id, reason)

    def close_round(self) -> ArrayRecord | None:
        """End the round; return the next global model, None where nobody joined."""
        self.pool_empty = self.record.count("joined") == 0
        arrays, metrics = self.conclude()
        self.record.metrics |= metrics
        # All clients are listed only where it matters: of a large federation that takes time, in every round.
        everybody = set(self.members.of_role(SEEN)) - self._gone if self._divergence.suspected else set()
        if self._divergence.close_round(self.record.count("joined"), everybody):
            self.finished = self.finished or DIVERGED
        if arrays is not None and not finite(arrays):
            # Finite claims can still be absurd: the federation must not be lost to one of them.
            log.warning("round %d: the new model is not finite; the old one stays", self.record.server_round)
            self.record.metrics["not_finite"] = 1.0
            return None
        return arrays
