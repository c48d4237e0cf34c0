"""One client of one run, as far as it decides: requirement, judgement, policy, goodwill, limits, memory.

What it decides on is trained and measured by the `Learner` that it holds. What it does with a message is in
`client.answers`.
"""

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from client.blend import Blend, Way, blends, floating
from client.learner import RULES, Job, Learner, LocalWarmUp, Sent, check_offered
from client.limits.guard import Guard
from client.requirement import checked_requirement, read_requirement, stored_requirement
from client.settings import NodeSettings
from client.state import preferred
from client.state.memory import OWN, PERSONAL, RunMemory
from client.terms import Terms
from client.training.sgd import SGD
from fedappeal.core.algorithm import ClientSide, personal_of, priority_of
from fedappeal.core.local_rule import LocalRule, Store
from fedappeal.core.places import place_of
from fedappeal.core.policy import Past, Situation
from fedappeal.core.requirement import Evaluation, Look, Requirement, choose
from fedappeal.protocol import keys
from fedappeal.protocol.keys import Decision
from fedappeal.protocol.packing import Arrays
from fedappeal.settings.config import ConfigError, RunConfig, Scalar
from fedappeal.settings.rounds import BEST
from fedappeal.settings.training import LocalTrainingSettings
from fedappeal.tasks.examples import FEWEST, FEWEST_HALVED

log = logging.getLogger("fedappeal.client")
Judge = Callable[[Arrays, Sent, str, Way], Evaluation]
ADAPTATION = "adaptation"
"""Purpose of the local training after which a client would use a model."""


class Measurement(NamedTuple):
    """What a client measured: the key of an `Evaluation`.

    Attributes:
        sent: which model; the round counts where it is measured with the round's noise, else it is 0.
        split: on which data.
        precision: of the forward passes.
        after: the local training or the blend before it, by its name; empty: none.
    """

    sent: Sent
    split: str
    precision: str
    after: str


@dataclass(frozen=True)
class ModelOutlook:
    """The outlook of one TRAIN; see `fedappeal.core.policy.Outlook`.

    Attributes:
        participant: the client.
        arrays: the model that was sent, with what is the client's own.
        sent: which one it is.
    """

    participant: "Participant"
    arrays: Arrays
    sent: Sent

    def held_out(self) -> Evaluation:
        """Return the sent model's evaluation on the client's test data."""
        return self.participant.judge(self.arrays, self.sent, keys.TEST_SPLIT)

    def alone(self, rounds: int) -> Evaluation:
        """Return the evaluation after some rounds of training alone from this model.

        It trains by the run's steps and learning rate, without momentum and weight decay.
        """
        client = self.participant
        steps = rounds * client.config.training.steps(client.examples)
        return client.judge(self.arrays, self.sent, keys.TEST_SPLIT, client.tuning(steps))


class Participant:
    """One client of one run.

    Attributes:
        config: the run's settings.
        node: the owner's.
        store: where it remembers; a simulator hands in another one with each message.
        client_id: stable id.
        terms: what it shares with others of equal settings.
        learner: trains and measures.
        judges_by: measures the models that it is sent: its learner, or that in another precision.
        strategy: the run's, as far as it is a client's.
        policy: decides.
        discloses: what its owner lets replies tell.
        guard: its owner's limits; None: there are none.
        measured: what it measured of the latest model that it judged.
    """

    def __init__(
        self, config: RunConfig, node: NodeSettings, store: Store, client_id: str, terms: Terms, learner: Learner
    ) -> None:
        self.config, self.node, self.store, self.client_id = config, node, store, client_id
        self.terms, self.learner, self.judges_by = terms, learner, learner
        self.strategy, self.policy = terms.strategy(), terms.policy(client_id)
        self.discloses = terms.discloses
        self._required = terms.requirement_kind()
        self.guard: Guard | None = None
        self.measured: dict[Measurement, Evaluation] = {}
        self._trained = False
        """Whether the client keeps other arrays of its own since the latest question began."""

    @property
    def examples(self) -> int:
        """Number of its training examples."""
        return self.learner.examples(keys.TRAIN_SPLIT)

    def memory(self, run_key: str) -> RunMemory:
        """Return what this client remembers of a run."""
        return RunMemory(self.store, run_key)

    # -- local training, within the owner's limits -----------------------------------------------------

    def limited(self, job: Job) -> Job:
        """Return a job that the owner's limits allow, with their deadline.

        Raises:
            LimitReached: they do not allow it.
        """
        if self.guard is None:
            return job
        self.guard.check_training(job.rule, job.training, self.examples)
        return replace(job, deadline=self.guard.deadline)

    def plain_training(self, settings: Mapping[str, Scalar]) -> LocalTrainingSettings:
        """Return settings of plain steps: these, and the run's, without momentum and weight decay."""
        return self.config.training.changed_by({"momentum": 0.0, "weight-decay": 0.0, **settings})

    def tuning(self, steps: int) -> Job | None:
        """Return that many steps of plain SGD before a measurement, as a job.

        None for no step.
        """
        return Job(SGD(), self.plain_training({"local-steps": steps}), "tuning") if steps else None

    def tuning_before(self, steps: int) -> Job | None:
        """Return the tuning before a judgement, as `tuning`.

        Raises:
            ConfigError: the run has adaptation steps for that.
        """
        self.config.check_tuning(steps)
        return self.tuning(steps)

    def adaptation(self, rule: LocalRule, settings: Mapping[str, Scalar]) -> Job:
        """Return the local training by which this client adapts a model."""
        if type(rule) is not SGD and not self.learner.follows(rule):
            check_offered(self.learner, f"local-rule = '{rule.name}'", RULES)
        return Job(rule, self.plain_training(settings), ADAPTATION)

    def use_of(self, algorithm: ClientSide) -> Job | None:
        """Return the local training after which this client would use a model that it is sent.

        The papers' clients judge the model as it is sent.
        """
        if not self.config.holds_out:
            return None
        adapting = personal_of(algorithm).use()
        return self._own_steps if adapting is None else self.adaptation(*adapting)

    @cached_property
    def _own_steps(self) -> Job | None:
        """The run's adaptation steps, as a job; None: none."""
        steps = self.config.adaptation_steps
        return self.adaptation(SGD(), {"local-steps": steps}) if steps else None

    def best(
        self,
        arrays: Arrays,
        sent: Sent,
        run_key: str,
        before: int,
        adapting: Job | None,
        judge: Judge | None = None,
    ) -> tuple[Way, Evaluation]:
        """Return what this client does with a model before it uses it, and what it is worth: `use = best`.

        Args:
            arrays: the model, with what is the client's own.
            sent: which one it is.
            run_key: which run.
            before: the client's own model is that from before this round.
            adapting: its own steps; None: none.
            judge: measures; None: as the client judges.
        """
        own_round, own = self.memory(run_key).kept(OWN, before)
        ways: list[Way] = [None, *([adapting] if adapting else []), *blends(own, own_round)]
        measure, parts = judge or self.judge, self.learner.judged_parts
        sizes = [self.learner.examples(part) for part in parts]
        looks = [Look([measure(arrays, sent, part, way) for part in parts], sizes) for way in ways]
        place, judged = choose(looks)
        return ways[place], judged

    @property
    def chooses(self) -> bool:
        """Whether this client uses the best of what it has; it needs data that are held out for that."""
        return self.config.use == BEST and self.learner.holds_out

    def used(self, arrays: Arrays, way: Way) -> Arrays:
        """Return a model as this client uses it."""
        if way is None:
            return arrays
        return way.of(arrays) if isinstance(way, Blend) else self.learner.train(arrays, self.limited(way))

    # -- what travels, and what stays --------------------------------------------------------------------

    def complete(self, shared: Arrays, run_key: str, before: int = 0) -> Arrays:
        """Return the arrays that were sent, and this client's own where some do not travel.

        Args:
            shared: what was sent.
            run_key: which run.
            before: the client's own are those from before this round; 0: as they were at the start.
        """
        self._trained = False
        if not self.learner.personal:
            return shared
        personal = self.memory(run_key).kept(PERSONAL, before)[1]
        return {**(personal or self.learner.initial(self.learner.personal)), **shared}

    def keep(self, arrays: Arrays, run_key: str, server_round: int) -> None:
        """Remember what of a trained model stays with this client, and what it may blend with later ones."""
        memory, learner = self.memory(run_key), self.learner
        if learner.personal:
            memory.keep(PERSONAL, server_round, {name: arrays[name] for name in learner.personal})
        if self.chooses:
            memory.keep(OWN, server_round, floating({name: arrays[name] for name in learner.expects.names}))
        if learner.personal or self.chooses:
            self.measured, self._trained = {}, True

    # -- requirement -------------------------------------------------------------------------------------

    def begin_run(self, run_key: str, initial: Arrays) -> Requirement:
        """Make the requirement ready for a run that starts from the model ``initial`` (w_0).

        Raises:
            LimitReached: where the owner's limits have no room for the run.
        """
        # Of simulated clients all begin with the same w_0; a client of its own need not hold it for longer.
        layout, pack = self.learner.expects, self.terms.pack if self.store.durable else self.terms.packed
        packed, initial_hash = pack(layout, initial)
        if self.guard is not None:
            self.guard.make_room(self.store, run_key, packed, own_models=2 * self.chooses)
            self.guard.begin_run(run_key, packed)
        if self.store.durable:
            self._say_how_it_judges()
        key = self.terms.requirement_key(self.learner, initial_hash, self.client_id)
        most = self.guard.limits.max_steps if self.guard is not None else 0
        warm_up = LocalWarmUp(self.learner, self.config, initial, self.limited, most)
        requirement = stored_requirement(self.store, key, lambda: checked_requirement(self._required, warm_up))
        self.memory(run_key).requirement = key
        return requirement

    def _say_how_it_judges(self) -> None:
        """Tell the owner what is not as the run, or an earlier setting, lets expect."""
        if self.config.holds_out and not self.learner.holds_out:
            count = self.examples
            why = f"are fewer than {FEWEST}" if count < FEWEST else "have too many equal inputs"
            log.info(
                "%d training examples %s: this client holds none out, and judges by its training loss", count, why
            )
        elif self.config.cross_fits and not self.learner.halves:
            log.info(
                "the held-out examples are fewer than %d, have too many equal inputs, or are not measured in halves: "
                "this client judges by all of them what it has chosen by them",
                FEWEST_HALVED,
            )
        if self.learner.holds_out and self.node.fixed_requirement is not None:
            log.warning(
                "fixed-requirement = %g is compared with the loss on held-out data in this run, not with the "
                "training loss (judge-on = %s)",
                self.node.fixed_requirement,
                self.config.judge_on,
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
        return self.begin_run(run_key, self.learner.initial((*self.learner.expects.names, *self.learner.personal)))

    # -- one round ---------------------------------------------------------------------------------------

    def judge(self, arrays: Arrays, sent: Sent, split: str, after: Way = None) -> Evaluation:
        """Evaluate a model on this client's data; what was measured of the latest model is remembered.

        Args:
            arrays: the model.
            sent: which one it is.
            split: ``train``, ``held-out``, one of its halves, or ``test``.
            after: what is done with it before; None: nothing.
        """
        return self.judge_with(self.judges_by, arrays, sent, split, after)

    def judge_with(self, learner: Learner, arrays: Arrays, sent: Sent, split: str, after: Way) -> Evaluation:
        """Return what a learner measures; the rest as in `judge`."""
        # A measurement without noise is the same in every round.
        of = sent if self.config.loss_mode == "training" else Sent(sent.model)
        if self.measured and next(iter(self.measured)).sent != of:
            self.measured = {}
        name = "" if after is None else after.name
        key = Measurement(of, split, learner.precision, name)
        if key in self.measured:
            return self.measured[key]
        splits = [split]
        if after is not None:
            arrays, sent = self.used(arrays, after), Sent("", sent.server_round)
            if isinstance(after, Job) and after.purpose == ADAPTATION:
                # What is asked next of the same model; it is trained once.
                judged = self.learner.judged_parts if self.chooses else (self.learner.judged_split,)
                splits = list(dict.fromkeys((split, keys.TEST_SPLIT, *judged)))
        for one in splits:
            self.measured[Measurement(of, one, learner.precision, name)] = learner.measure(arrays, one, sent)
        evaluation = self.measured[key]
        if self._trained:  # with arrays from before that training: a later question has others of its own
            self.measured = {}
        return evaluation

    def priority(self, granted: bool | None = None) -> bool:
        """Whether this client has priority: as the server grants it, else as it asks."""
        if granted is not None:
            return granted
        return self.node.priority or priority_of(self.strategy).asks(self.node.partition_id, self.config.clients)

    def decide(
        self, situation: Situation, requirement: Requirement, run_key: str, model: str
    ) -> tuple[Decision, str]:
        """Return what this client's policy decides, and the model that its goodwill pays for; empty: none.

        A round that it joins on request although the model does not meet its requirement is paid for, before anything
        is trained. The decision is remembered where the policy reads its past.

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
        if self.policy.needs_history:
            ahead = situation.outlook if self.policy.looks_ahead else None
            held_out = ahead.held_out().loss if ahead is not None else math.nan
            wishes = self.policy.wishes(situation)
            this_round = Past(server_round, decision, situation.loss, held_out, wishes, situation.mandatory)
            memory.keep_past((*past, this_round))
        if decision is Decision.LEFT:
            memory.leave(server_round)
        on_request = mandatory and not met and self.policy.mandatory  # no other policy joins for being asked to
        return decision, model if on_request and goodwill > 0 and decision is Decision.JOINED else ""

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

    @property
    def gives_goodwill(self) -> bool:
        """Whether this client joins a limited number of rounds on request."""
        return self.policy.mandatory and self.node.goodwill_in(self.config.goodwill) > 0

    def goodwill(self, run_key: str) -> tuple[int, int] | None:
        """Return a run's rounds joined on request, and how many this client gives.

        None where it gives no limited number.
        """
        if not self.gives_goodwill:
            return None
        return self.memory(run_key).goodwill_spent, self.node.goodwill_in(self.config.goodwill)

    # -- the model that it prefers -----------------------------------------------------------------------

    def keep_preferred(
        self,
        arrays: Arrays,
        requirement: Requirement,
        on_test: Evaluation,
        run_key: str,
        server_round: int,
        use: Way = None,
    ) -> str:
        """Keep the preferred model with its card; return which one it is (MaxFL, section 5).

        The global model is kept as the client uses it: by ``use``, as it was measured.
        """
        met, metric = requirement.met(on_test), on_test.metric
        which = "global" if met or not requirement.solo else "solo"
        if which == "global":
            arrays = self.used(arrays, use)
        preferred_arrays, figures = arrays, {metric.name: on_test.score, "loss": on_test.loss, **on_test.others}
        if which == "solo":
            preferred_arrays, figures = requirement.solo, {metric.name: requirement.solo_score}
        facts = {"which": which, "figures": figures, "requirement_met": met, "run_key": run_key}
        facts |= {"measured_on": "test data of this client", "round": server_round, "names": preferred_arrays}
        preferred.keep(self.store, preferred_arrays, self.learner.card(self.config, **facts))
        return which

    def preferred_score(self, evaluation: Evaluation, requirement: Requirement) -> float | None:
        """Return the test score of the preferred model.

        None where the client has no solo model.
        """
        if not requirement.solo:
            return None
        return evaluation.score if requirement.met(evaluation) else requirement.solo_score
