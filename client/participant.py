"""One client of one run: its requirement, how it judges models, its decision, the model that it prefers.

Everything here is the client's own side of a message; what a message looks like is in `client.app`.
"""

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from client.learner import Adaptation, JudgedModel, Learner, LocalWarmUp
from client.requirement import made, read_requirement, stored_requirement
from client.state import preferred
from client.training.models import FLOAT32, arrays_of
from client.training.sgd import SGD
from fedappeal.core.algorithm import ClientSide
from fedappeal.core.local_rule import LocalRule
from fedappeal.core.places import place_of
from fedappeal.core.policy import Past, Situation
from fedappeal.core.requirement import Evaluation, Requirement
from fedappeal.protocol import keys
from fedappeal.protocol.keys import Decision
from fedappeal.protocol.packing import Arrays
from fedappeal.settings.config import ConfigError, Scalar
from fedappeal.tasks.examples import FEWEST
from fedappeal.tasks.share import ALL
from fedappeal.trained.card import ModelCard

log = logging.getLogger("fedappeal.client")
ADAPTATION = "adaptation"
"""Purpose of the local training after which a client would use a model."""


@dataclass(frozen=True)
class ModelOutlook:
    """The outlook of one TRAIN; see `fedappeal.core.policy.Outlook`.

    Attributes:
        participant: the client.
        arrays: the model that was sent, with what is the client's own.
        model: its content hash.
    """

    participant: "Participant"
    arrays: Arrays
    model: str

    def held_out(self) -> Evaluation:
        """See `Outlook`."""
        return self.participant.judge(self.arrays, self.model, keys.TEST_SPLIT)

    def alone(self, rounds: int) -> Evaluation:
        """See `Outlook`; by the run's steps and learning rate, without momentum and weight decay."""
        examples = self.participant.data.counts[0]
        steps = rounds * self.participant.equipment.run_training.steps(examples)
        return self.participant.judge(self.arrays, self.model, keys.TEST_SPLIT, steps)


class Participant(Learner):
    """One client of one run."""

    _owes: tuple[int, str] | None = None

    # -- requirement ---------------------------------------------------------------------------------

    def begin_run(self, run_key: str, initial: Arrays) -> Requirement:
        """Make the requirement ready for a run that starts from the model ``initial`` (w_0).

        Raises:
            LimitReached: where the owner's limits have no room for the run.
        """
        # Of simulated clients all begin with the same w_0; a client of its own need not hold it for longer.
        packed, initial_hash = (self.equipment.pack if self.store.durable else self.equipment.packed)(initial)
        if self.guard is not None:
            self.guard.make_room(self.store, run_key, packed)
            self.guard.begin_run(run_key, packed)
        if self.store.durable:
            self._say_how_it_judges()
        key = self.equipment.requirement_key(self.data, initial_hash, self.client_id)
        warm_up = LocalWarmUp(self, initial)
        requirement = stored_requirement(self.store, key, lambda: made(self._required, warm_up))
        self.memory(run_key).requirement = key
        return requirement

    def _say_how_it_judges(self) -> None:
        """Tell the owner what is not as the run, or an earlier setting, lets expect."""
        if self.config.holds_out and self.judged_split == keys.TRAIN_SPLIT:
            count = self.data.counts[0]
            why = f"are fewer than {FEWEST}" if count < FEWEST else "have too many equal inputs"
            log.info(
                "%d training examples %s: this client holds none out, and judges by its training loss", count, why
            )
        elif self.config.holds_out and self.node.fixed_requirement is not None:
            log.warning(
                "fixed-requirement = %g is compared with the loss on held-out data in this run, not with the "
                "training loss (judge-on = held-out)",
                self.node.fixed_requirement,
            )

    def requirement(self, run_key: str) -> Requirement:
        """Return this run's requirement; without a roll call, from the task's initial model."""
        if self.node.fixed_requirement is not None:  # at once, where the owner has set it since the roll call
            return Requirement(self.node.fixed_requirement)
        key = self.memory(run_key).requirement
        if key and (stored := read_requirement(self.store, key)) is not None:
            return stored
        if self.config.initial_model:
            # The run has a w_0 of its own, from which the requirement follows: only a roll call brings it.
            raise ConfigError(f"this client has forgotten its requirement for run {run_key}: start it again")
        return self.begin_run(run_key, arrays_of(self._initial, (*self.parts.shared, *self.parts.personal)))

    # -- one round -----------------------------------------------------------------------------------

    def use_of(self, algorithm: ClientSide) -> Adaptation | None:
        """Return the local training after which this client would use a model that it is sent.

        The papers' clients judge the model as it is sent.
        """
        if not self.config.holds_out:
            return None
        steps = self.config.adaptation_steps
        plain: tuple[LocalRule, Mapping[str, Scalar]] | None = (SGD(), {"local-steps": steps}) if steps else None
        if (adapting := algorithm.use() or plain) is None:
            return None
        rule, settings = adapting
        return Adaptation.of(rule, self.plain_training(settings), ADAPTATION)

    def judge(
        self,
        arrays: Arrays,
        model: str,
        split: str,
        tuning_steps: int = 0,
        adaptation: Adaptation | None = None,
        server_round: int = 0,
        precision: str = "",
    ) -> Evaluation:
        """Evaluate a model on this client's data, after local training where asked.

        Args:
            arrays: the model.
            model: its content hash; what was measured of the latest model is remembered.
            split: ``train``, ``held-out`` or ``test``.
            tuning_steps: steps of the run's SGD before the measurement.
            adaptation: other local training before it, in place of these steps.
            server_round: whose noise it is, where ``loss-mode = training`` measures with dropout on.
            precision: of the forward passes; empty: this client's.
        """
        if adaptation is None and tuning_steps:
            adaptation = Adaptation.of(SGD(), self.plain_training({"local-steps": tuning_steps}), "tuning")
        if (latest := (model, server_round if self.config.loss_mode == "training" else 0)) != self.judged[:2]:
            self.judged = JudgedModel(*latest, {})
        precision = precision or self.precision
        precision_key = () if precision == FLOAT32 else (precision,)
        key = " ".join(map(str, (split, *precision_key, *(() if adaptation is None else (adaptation,)))))
        if key not in (evaluations := self.judged.evaluations):
            shared = "" if self.parts.personal else model
            splits = {split: key}
            if adaptation is not None:
                arrays, shared = self.adapted(arrays, adaptation), ""
                if adaptation.purpose == ADAPTATION:  # what is asked next of the same model; it is trained once
                    further = keys.TEST_SPLIT, self.judged_split
                    splits |= {name: key.replace(split, name, 1) for name in further}
            for name, stored_key in splits.items():
                evaluations[stored_key] = self.measured(arrays, name, shared, server_round, precision=precision)
        return evaluations[key]

    def priority(self, granted: bool | None = None) -> bool:
        """Whether this client has priority: as the server grants it, else as it asks."""
        if granted is not None:
            return granted
        return self.node.priority or self.strategy.asks_priority(self.node.partition_id, self.config.clients)

    def decide(self, situation: Situation, requirement: Requirement, run_key: str, model: str) -> Decision:
        """Decide by this client's policy; remember what it costs, and the decision where the policy reads its past.

        A round that it joins on request although the model does not meet its requirement is paid for by goodwill.

        Args:
            situation: what is known of the round; the rest of it, and whether the client accepts that it is
                mandatory, is found here.
            requirement: what this client requires.
            run_key: which run.
            model: content hash of the model that was sent.
        """
        memory, goodwill = self.memory(run_key), self.node.goodwill_in(self.config.goodwill)
        server_round, judged = situation.server_round, situation.judged
        mandatory = situation.mandatory and memory.accepts(server_round, model, goodwill)
        met = requirement.met(judged)
        past = memory.past(server_round) if self.policy.needs_history else ()
        situation = replace(
            situation,
            requirement=requirement.rho,
            met=met,
            mandatory=mandatory,
            history=past,
            advantage=requirement.advantage(judged),
        )
        decision = self.decision(situation, requirement)
        on_request = mandatory and not met and self.policy.mandatory  # no other policy joins for being asked to
        self._owes = (server_round, model) if on_request and goodwill > 0 and decision is Decision.JOINED else None
        if self.policy.needs_history:
            ahead = situation.outlook if self.policy.looks_ahead else None
            held_out = ahead.held_out().loss if ahead is not None else math.nan
            wishes = self.policy.wishes(situation)
            this_round = Past(server_round, decision, situation.loss, held_out, wishes, situation.mandatory)
            memory.keep_past((*past, this_round))
        return decision

    def pay(self, run_key: str) -> None:
        """Write down the goodwill that the latest decision costs; nothing is trained before."""
        if self._owes is not None:
            self.memory(run_key).pay(*self._owes)
            self._owes = None

    @property
    def gives_goodwill(self) -> bool:
        """Whether this client joins a limited number of rounds on request."""
        return self.policy.mandatory and self.node.goodwill_in(self.config.goodwill) > 0

    def goodwill(self, run_key: str) -> tuple[int, int] | None:
        """Return the rounds of a run joined on request, and how many this client gives; None: no number."""
        if not self.gives_goodwill:
            return None
        return self.memory(run_key).goodwill_spent, self.node.goodwill_in(self.config.goodwill)

    def available(self, server_round: int) -> bool:
        """Whether this client answers a round, or declines it without looking at the model."""
        return self.policy.available(self.config.seed, self.client_id, server_round)

    def decision(self, situation: Situation, requirement: Requirement) -> Decision:
        """Return what this client's policy decides.

        Args:
            situation: what the policy reads.
            requirement: what this client requires.

        Raises:
            ConfigError: the policy returned something else.
        """
        decision = self.policy.decide(situation)
        if not isinstance(decision, Decision):
            name = type(self.policy).__name__
            raise ConfigError(
                f"policy {name} returned {decision!r}: Decision.JOINED, SAT_OUT or LEFT is allowed"
                f"{place_of(type(self.policy), 'decide')}"
            )
        return decision

    # -- the model that it prefers -------------------------------------------------------------------

    def keep_preferred(
        self,
        arrays: Arrays,
        requirement: Requirement,
        on_test: Evaluation,
        run_key: str,
        server_round: int,
        use: Adaptation | None = None,
    ) -> str:
        """Keep the preferred model with its card; return which one it is (MaxFL, section 5).

        The global model is kept as the client uses it: after the steps of ``use``, by which it was measured.
        """
        met, metric = requirement.met(on_test), self.task.metric.name
        which = "global" if met or not requirement.solo else "solo"
        if which == "global" and use is not None:
            arrays = self.adapted(arrays, use)
        preferred_arrays, figures = arrays, {metric: on_test.score, "loss": on_test.loss, **on_test.others}
        if which == "solo":
            preferred_arrays, figures = requirement.solo, {metric: requirement.solo_score}
        facts = {"which": which, "figures": figures, "requirement_met": met}
        facts |= {"measured_on": "test data of this client"}
        facts |= {"shared": tuple(sorted(preferred_arrays)) if self.parts.fixed else ALL}
        card = ModelCard.of(self.task, self.config, round=server_round, run_key=run_key, **facts)
        preferred.keep(self.store, preferred_arrays, card)
        return which

    def preferred_score(self, evaluation: Evaluation, requirement: Requirement) -> float | None:
        """Test score of the preferred model; None where the client has no solo model."""
        if not requirement.solo:
            return None
        return evaluation.score if requirement.met(evaluation) else requirement.solo_score
