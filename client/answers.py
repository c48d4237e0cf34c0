"""What a client does with each kind of message: the roll call, TRAIN and EVALUATE.

A reply that is not a join carries no model; no reply carries rho_k or data.
"""

import logging
import math
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any, NamedTuple, cast

from flwr.app import ArrayRecord, ConfigRecord, Context, Message

from client.blend import Blend, Way
from client.data.refused import OwnDataRefused
from client.joined_round import JoinedRound, check_sent
from client.learner import HALVES, PERSONAL, SPLITS, NotReady, Sent, check_offered, check_rule
from client.limits.privacy import protected_records
from client.named import NO_STRATEGY, check_plugins, named_strategy
from client.outcome import ANSWERED, DECISIONS, DECLINED, EVALUATED, JOINED, LEFT, SAT_OUT, Metrics, Outcome
from client.participant import ModelOutlook, Participant
from client.settings import NodeSettings
from client.state.activity import Judged, judged_of
from client.state.own_key import proof_of
from client.state.preferred import record_name
from client.state.signs import note_training
from client.terms import rule_of
from fedappeal.core.algorithm import ClientSide, PersonalModels, check_use, personal_of, priority_of, reports
from fedappeal.core.plugins import Allowed
from fedappeal.core.policy import Situation
from fedappeal.core.requirement import UNMEASURED, Evaluation, Measured, MeasuredOnce, Requirement
from fedappeal.protocol import keys
from fedappeal.protocol.keys import Decision
from fedappeal.protocol.packing import Arrays, Layout, model_of
from fedappeal.settings.config import ConfigError, RunConfig
from fedappeal.settings.rounds import MOST_ROUNDS
from fedappeal.system import versions

log = logging.getLogger("fedappeal.client")
AWAY = "its policy was away: it did not look at the model"


def values_of(record: ConfigRecord) -> Mapping[str, Any]:
    """Return a record as a dict: a record takes several times as long to read."""
    return dict(record.items())


class Examination(NamedTuple):
    """How an EVALUATE has clients use and judge a model.

    Attributes:
        algorithm: its strategy.
        personal: how clients of that use a model.
        steps: of tuning, before they judge.
    """

    algorithm: ClientSide
    personal: PersonalModels
    steps: int


def examination_of(run: RunConfig, strategy: ClientSide, allowed: Allowed, config: Mapping[str, Any]) -> Examination:
    """Return the strategy, use and tuning steps of an EVALUATE; arguments and errors as of `named_strategy`."""
    algorithm = named_strategy(run, strategy, allowed, config)[0] if keys.STRATEGY in config else NO_STRATEGY
    personal = personal_of(algorithm)
    steps = run.tuning_steps if (of_strategy := personal.tuning_steps()) is None else of_strategy
    return Examination(algorithm, personal, int(config.get(keys.TUNING_STEPS, steps)))


@dataclass(frozen=True)
class Question:
    """One message, as its answer reads it.

    Attributes:
        message: the message.
        context: of the client.
        unpack: returns a model's arrays by name and its content hash.
        read_config: `values_of`, or what remembers the latest.
        examine: `examination_of`, or what remembers the latest.
    """

    message: Message
    context: Context
    unpack: Callable[[ArrayRecord, Layout], tuple[Arrays, str]]
    read_config: Callable[[ConfigRecord], Mapping[str, Any]] = values_of
    examine: Callable[[RunConfig, ClientSide, Allowed, Mapping[str, Any]], Examination] = examination_of

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """What the message tells besides models.

        Raises:
            ConfigError: it has no such record.
        """
        config = self.message.content.get(keys.CONFIG)
        if not isinstance(config, ConfigRecord):
            raise ConfigError(f"message has no ConfigRecord '{keys.CONFIG}'")
        return self.read_config(config)

    @property
    def run_key(self) -> str:
        """The key of the run that a message is of.

        Empty where another's ServerApp does not say.
        """
        return str(self.config.get(keys.RUN_KEY, ""))

    def server_round(self, missing: int = 0) -> int:
        """Return the round of the message; where it names none, ``missing``.

        Raises:
            ConfigError: it is none that a run can reach: policies may look at each round before.
        """
        number = int(self.config.get(keys.SERVER_ROUND, missing))
        if not 0 <= number <= MOST_ROUNDS:
            raise ConfigError(f"{keys.SERVER_ROUND} = {number} is not allowed: 0 to {MOST_ROUNDS}")
        return number

    def model(self, client: Participant) -> tuple[Arrays, str]:
        """Return the model that was sent, by name, and its content hash.

        Raises:
            ConfigError: if it is not this client's model, or may not be asked about.
        """
        expected = client.learner.expects
        if (layout := str(self.config.get(keys.LAYOUT, expected.hash))) != expected.hash:
            raise ConfigError(
                f"layout {layout} of the model that was sent does not match this client's {expected.hash} "
                f"(task {client.config.task}, model {client.config.model})"
            )
        try:
            arrays, model = self.unpack(model_of(self.message.content), expected)
        except ValueError as error:
            raise ConfigError(str(error)) from None
        if client.guard is not None:
            client.guard.check_question(self.message, model)
        return arrays, model


# -- the roll call ---------------------------------------------------------------------------------------


def check_version(config: Mapping[str, Any]) -> None:
    """Check that client and run speak the same protocol.

    Raises:
        ConfigError: they do not.
    """
    if (spoken := int(config.get(keys.PROTOCOL_VERSION, keys.PROTOCOL))) != keys.PROTOCOL:
        raise ConfigError(
            f"this client speaks protocol {keys.PROTOCOL} (fedappeal {versions.FEDAPPEAL}), the run {spoken}"
        )


def own_data_refusal(error: OwnDataRefused, node: NodeSettings, question: Question) -> Outcome:
    """Return the answer to the roll call of a client whose own data do not fit the run."""
    proof = proof_of(question.config, error.client_id, node.state_folder, question.context.state)
    info = ConfigRecord({keys.CLIENT_ID: error.client_id, keys.DATA_REFUSED: error.problem.value, **proof})
    return Outcome(DECLINED, error.problem.text, records={keys.INFO: info})


def enrol(client: Participant, question: Question) -> Outcome:
    """Tell the client's id and role, and make its requirement ready.

    Raises:
        ConfigError: it cannot take part.
    """
    config, learner, run_key = question.config, client.learner, question.run_key
    check_plugins(str(config.get(keys.PLUGINS, "")), client.terms.allowed)
    if learner.fingerprint and (task := str(config.get(keys.FINGERPRINT, ""))) and task != learner.fingerprint:
        raise ConfigError(
            f"this client's task '{client.config.task}' has fingerprint {learner.fingerprint}, the run's has {task}: "
            "task and partition settings must be the same"
        )
    if keys.STRATEGY in config:
        named_strategy(client.config, client.strategy, client.terms.allowed, config)  # settings as here
    client.discloses.check_run(config)
    if config.get(keys.NEEDS_TRAIN_SPLIT, 0):
        check_offered(learner, f"strategy = '{client.config.strategy}'", SPLITS)
    if client.config.share not in ("auto", "all"):
        check_offered(learner, f"share = '{client.config.share}'", PERSONAL)
    if client.chooses:
        check_offered(learner, f"use = '{client.config.use}'", HALVES)
    personal = personal_of(client.strategy)
    for adapting in (personal.adaptation(), personal.use() if client.config.holds_out else None):
        if adapting is not None:
            check_rule(learner, adapting[0])
    seen = client.node.is_seen(client.config.clients)
    if seen:
        check_sent(client, client.terms.rule, client.config.training)
    arrays, _ = question.model(client)
    with suppress(NotReady):  # it is ready in a later round
        client.begin_run(run_key, client.complete(arrays, run_key))
    info = client.terms.introduction(learner.fingerprint).copy()
    info.update(
        {
            keys.CLIENT_ID: client.client_id,
            keys.ROLE: keys.SEEN if seen else keys.UNSEEN,
            keys.PRIORITY: int(client.priority()),
            keys.LEFT_RUN: int(client.memory(run_key).has_left(sys.maxsize)),
            **proof_of(config, client.client_id, client.node.state_folder, question.context.state),
        }
    )
    return Outcome(ANSWERED, told={keys.NUM_EXAMPLES: client.examples}, records={keys.INFO: info})


# -- TRAIN -----------------------------------------------------------------------------------------------


def train(client: Participant, question: Question) -> Outcome:
    """Decide, and train where the decision is to join.

    Raises:
        ConfigError: what is asked for is not allowed, or cannot be done here.
    """
    config, run_key = question.config, question.run_key
    algorithm, instructions = named_strategy(client.config, client.strategy, client.terms.allowed, config)
    client.discloses.check(algorithm.needs_losses, algorithm.needs_weight, algorithm.needs_appeal)
    server_round = question.server_round(missing=-1)

    def told(decision: Decision, more: Metrics = MappingProxyType({})) -> Metrics:
        # What every reply says is no strategy's to change.
        return {**more, keys.NUM_EXAMPLES: client.examples, keys.DECISION: int(decision)}

    if client.memory(run_key).has_left(server_round):
        return Outcome(LEFT, told=told(Decision.LEFT))
    if not client.policy.available(client.config.seed, client.client_id, server_round):
        return Outcome(SAT_OUT, AWAY, told=told(Decision.SAT_OUT))

    shared, model = question.model(client)
    sent, arrays = Sent(model, server_round), client.complete(shared, run_key, server_round)
    try:
        requirement = client.requirement(run_key)
    except NotReady as error:
        return Outcome(SAT_OUT, str(error), told=told(Decision.SAT_OUT))
    evaluation = judged = UNMEASURED
    use: Way = None
    if client.policy.needs_loss or reports(algorithm) or client.chooses:
        tuning = client.tuning_before(personal_of(algorithm).tuning_steps() or 0)
        # Most policies and reports read what the client judges by, and nothing else.
        on_training = partial(client.judge, arrays, sent, keys.TRAIN_SPLIT, tuning)
        evaluation = cast(Evaluation, MeasuredOnce(on_training))
        use, worth = _use(client, algorithm, arrays, sent, run_key, server_round)
        judged = worth or client.judge(arrays, sent, client.learner.judged_split, use or tuning)
    priority = client.priority(priority_of(algorithm).granted(instructions))
    situation = Situation(
        server_round=server_round,
        evaluation=evaluation,
        mandatory=bool(config.get(keys.MANDATORY, 0)),
        priority=priority,
        told=instructions,
        outlook=ModelOutlook(client, arrays, Sent(model)),
        judged=judged,
    )
    decision, pays = client.decide(situation, requirement, run_key, model)
    if decision is not Decision.JOINED:
        seen_by_owner = _owners_view(client, judged, requirement, run_key)
        return Outcome(DECISIONS[decision], judged=seen_by_owner, told=told(decision))

    training = client.config.training.changed_by(config)
    measured = Measured(evaluation, requirement.rho, requirement.met(judged), priority, instructions, judged)
    rule = rule_of(client.config, algorithm, client.terms.allowed, config)
    check_use(type(algorithm), type(rule), client.config)
    start = use.of(arrays) if isinstance(use, Blend) else arrays
    content = question.message.content
    joined = JoinedRound(client, pays, rule, content, start, server_round, run_key, training, instructions, measured)
    seen_by_owner = _owners_view(client, judged, requirement, run_key)
    if client.store.durable and client.node.state_folder:
        note_training(client.node.state_folder)
    claims = algorithm.report(measured) if client.node.report_weight else {}
    update = protected_records(client, question.message, rule.reply(joined))
    tells = told(decision, {**client.learner.told(), **claims})
    return Outcome(JOINED, "", seen_by_owner, tells, update, measured, requirement)


def _use(
    client: Participant, algorithm: ClientSide, arrays: Arrays, sent: Sent, run_key: str, before: int
) -> tuple[Way, Evaluation | None]:
    """Return what a client does with a model before it uses it, and what that is worth; None: not measured yet."""
    adapting = client.use_of(algorithm)
    return client.best(arrays, sent, run_key, before, adapting) if client.chooses else (adapting, None)


def _owners_view(client: Participant, judged: Evaluation, requirement: Requirement, run_key: str) -> Judged | None:
    """Return what the client measured before it decided, for its owner to see; a simulator's has none."""
    if not client.store.durable:
        return None
    return judged_of(judged, requirement, client.learner.judged_split, client.goodwill(run_key), client.policy.name)


# -- EVALUATE --------------------------------------------------------------------------------------------


def evaluate(client: Participant, question: Question) -> Outcome:
    """Report how well the model serves this client; at the end, keep the preferred.

    Raises:
        ConfigError: what is asked for is not allowed, or cannot be done here.
    """
    config, learner, run_key = question.config, client.learner, question.run_key
    server_round, run = question.server_round(), client.config
    split = str(config.get(keys.SPLIT, keys.TEST_SPLIT))
    if split in (keys.TRAIN_SPLIT, keys.HELD_OUT_SPLIT):
        client.discloses.check(train_split=True)
    shared, model = question.model(client)
    sent, arrays = Sent(model, server_round), client.complete(shared, run_key, server_round + 1)
    try:
        requirement = client.requirement(run_key)
    except NotReady as error:
        return Outcome(EVALUATED, str(error), told={keys.NUM_EXAMPLES: learner.examples(split)})

    # A strategy that a message alone names may remember in itself: each client makes its own.
    examine = question.examine if "strategy" in run.model_fields_set else examination_of
    algorithm, personal, steps = examine(run, client.strategy, client.terms.allowed, config)
    survey = keys.STRATEGY not in config and split != keys.TEST_SPLIT  # of the model as it is sent
    use: Way = None
    worth: Evaluation | None = None
    if not survey:
        use, worth = _use(client, algorithm, arrays, sent, run_key, server_round + 1)
    tuning = None if survey else client.tuning_before(steps)

    judge = partial(client.judge, arrays, sent)
    measured = judge(split, tuning)
    on_test = measured if split == keys.TEST_SPLIT and use is None else judge(keys.TEST_SPLIT, use or tuning)
    metric, appealed = measured.metric, requirement.met(on_test)
    scores = {metric.name: measured.score}
    told = {
        keys.NUM_EXAMPLES: learner.examples(split),
        keys.LOSS: measured.loss,
        keys.APPEALED: int(appealed),
        **measured.others,
    }
    tells_train_loss = run.report_train_loss and client.discloses.loss
    if client.node.answer_train_split and (run.evaluate_train or tells_train_loss):
        judged = worth or judge(client.learner.judged_split, use or tuning)
        told[keys.APPEALED_HELD_OUT if run.holds_out else keys.APPEALED_TRAIN] = int(requirement.met(judged))
        if tells_train_loss:
            told[keys.TRAIN_LOSS] = judge(keys.TRAIN_SPLIT, tuning).loss
    adapted = None
    if (adapting := personal.adaptation()) is not None:
        adapted = judge(split, client.adaptation(*adapting))
    elif own_model := personal.own_model(client.store, run_key, server_round + 1):
        adapted = client.judges_by.measure({**arrays, **own_model}, split, Sent(""))
    elif (use is not None or client.chooses) and not personal.keeps_models:
        adapted = judge(split, use)
    if adapted is not None:
        scores[keys.ADAPTED + metric.name] = adapted.score
        told[keys.ADAPTED_LOSS] = adapted.loss
    if (preferred := client.preferred_score(on_test, requirement)) is not None:
        scores[keys.PREFERRED + metric.name] = preferred
        if math.isfinite(on_test.score - requirement.solo_score):
            told[keys.SERVED] = int(metric.reaches(on_test.score, requirement.solo_score))
    # A metric that this client's data do not have, such as the AUC of one class, is not told.
    told |= {key: score for key, score in scores.items() if math.isfinite(score)}
    durable = client.store.durable
    if config.get(keys.FINAL, 0) and durable:  # a simulator's memory ends with the run
        which = client.keep_preferred(arrays, requirement, on_test, run_key, server_round, use)
        file = f"{client.node.state_dir}/{record_name(run_key)}.safetensors"
        place = f", kept in {file}" if client.node.state_dir else ""
        log.info("the run is over: this client prefers the %s model%s", which, place)
    seen_by_owner = judged_of(on_test, requirement, keys.TEST_SPLIT) if durable else None
    return Outcome(EVALUATED, judged=seen_by_owner, told=client.discloses.of_evaluation(told))
