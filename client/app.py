"""The ClientApp: what a client answers to the roll call, to TRAIN and to EVALUATE.

The same app runs in the long-lived process, under a stock ``flower-supernode`` and in both simulators. A reply
that is not a join carries no model; no reply carries rho_k or data.
"""

import logging
import sys
from collections.abc import Mapping
from functools import partial
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from client.data.columns import OwnDataRefused
from client.learner import Adaptation
from client.limits.privacy import Protection, protected
from client.participant import ADAPTATION, ModelOutlook, Participant
from client.participation.byzantine import attacks, false_claims, falsify, falsify_enrolment
from client.roster import Participants, node_of
from client.state.activity import note_judged
from client.state.own_key import proof_of
from client.state.preferred import record_name
from client.state.signs import note_training
from client.turn import NO_STRATEGY, Turn, check_plugins, named_rule, named_strategy
from fedappeal.core.local_rule import LocalRule, LocalTrainingSettings
from fedappeal.core.policy import Situation
from fedappeal.core.requirement import UNMEASURED, Measured
from fedappeal.protocol import keys
from fedappeal.protocol.keys import Decision
from fedappeal.protocol.packing import Arrays, content_hash, model_of
from fedappeal.settings.config import ConfigError
from fedappeal.settings.rounds import MOST_ROUNDS
from fedappeal.system import versions
from fedappeal.system.latest import Latest

log = logging.getLogger("fedappeal.client")

Metrics = dict[str, int | float | list[int] | list[float]]


def _reply(message: Message, metrics: Metrics, records: Mapping[str, ArrayRecord] | None = None) -> Message:
    return Message(RecordDict({keys.METRICS: MetricRecord(metrics), **(records or {})}), reply_to=message)


def _config(message: Message) -> Mapping[str, Any]:
    config = message.content.get(keys.CONFIG)
    if not isinstance(config, ConfigRecord):
        raise ConfigError(f"message has no ConfigRecord '{keys.CONFIG}'")
    return config


def _check_sent(participant: Participant, rule: LocalRule, training: LocalTrainingSettings) -> None:
    """Check that the owner's limits let the result of a training be sent."""
    if participant.guard is not None:
        examples, is_own = participant.data.counts[0], bool(participant.node.data)
        participant.guard.check_sent(rule, training, examples, is_own)


def client_app(participants: Participants) -> ClientApp:
    """Return a ClientApp whose clients are these participants."""
    return _app(_Answers(participants))


def _app(answers: "_Answers") -> ClientApp:
    app = ClientApp()
    app.query()(answers.roll_call)
    app.train()(answers.train)
    app.evaluate()(answers.evaluate)
    return app


class _Answers:
    """Answers of this process's clients to the roll call, TRAIN and EVALUATE."""

    def __init__(self, participants: Participants) -> None:
        self._participants = participants
        self._unpacked = Latest(lambda record, layout: (layout.unpack(record), content_hash(record)))
        self._training_settings = Latest(LocalTrainingSettings.of)

    def __reduce__(self) -> str:
        """Pickle as the process's own app: Flower's simulation sends it with each message.

        Raises:
            TypeError: participants that a program made stay in its process.
        """
        if self is not _answers:
            raise TypeError("a ClientApp with participants of its own cannot be sent to another process")
        return "_answers"

    def _model(self, message: Message, participant: Participant) -> tuple[Arrays, str]:
        """Return the model that was sent, by name, and its content hash.

        Raises:
            ConfigError: if it is not this task's model, or may not be asked about.
        """
        expected = participant.layout.hash
        layout = str(_config(message).get(keys.LAYOUT, expected))
        if layout != expected:
            raise ConfigError(
                f"layout {layout} of the model that was sent does not match this client's {expected} "
                f"(task {participant.config.task}, model {participant.config.model})"
            )
        try:
            arrays, model = self._unpacked(model_of(message.content), participant.layout)
        except ValueError as error:
            raise ConfigError(str(error)) from None
        if participant.guard is not None:
            participant.guard.check_question(message, model)
        return arrays, model

    def roll_call(self, message: Message, context: Context) -> Message:
        """Tell the client's id and role, and make its requirement ready."""
        config = _config(message)
        if (spoken := int(config.get(keys.PROTOCOL_VERSION, keys.PROTOCOL))) != keys.PROTOCOL:
            raise ConfigError(
                f"this client speaks protocol {keys.PROTOCOL} (fedappeal {versions.FEDAPPEAL}), the run {spoken}"
            )
        try:
            participant = self._participants.of(context, message)
        except OwnDataRefused as error:
            folder = node_of(context.node_config).state_folder
            proof = proof_of(config, error.client_id, folder, context.state)
            info = ConfigRecord({keys.CLIENT_ID: error.client_id, keys.DATA_REFUSED: error.problem.value, **proof})
            return Message(RecordDict({keys.INFO: info}), reply_to=message)
        check_plugins(str(config.get(keys.PLUGINS, "")), participant.equipment.allowed)
        fingerprint = participant.equipment.fingerprint
        if (task := str(config.get(keys.FINGERPRINT, ""))) and task != fingerprint:
            raise ConfigError(
                f"this client's task '{participant.config.task}' has fingerprint {fingerprint}, the run's has "
                f"{task}: task and partition settings must be the same"
            )
        participant.discloses.check_run(config)
        seen = participant.node.is_seen(participant.config.clients)
        if seen:
            rule = participant.equipment.run_rule
            _check_sent(participant, rule, participant.equipment.run_training)
            if participant.node.clipping_norm:
                Protection.of(participant.config, participant.node).check(rule, participant.layout)
        arrays, _ = self._model(message, participant)
        run_key = str(config.get(keys.RUN_KEY, ""))
        participant.begin_run(run_key, participant.complete(arrays, run_key))
        client_id, folder = participant.client_id, participant.node.state_folder
        info = participant.equipment.introduction.copy()
        info.update(
            {
                keys.CLIENT_ID: client_id,
                keys.ROLE: keys.SEEN if seen else keys.UNSEEN,
                keys.PRIORITY: int(participant.priority()),
                keys.LEFT_RUN: int(participant.memory(run_key).has_left(sys.maxsize)),
                **proof_of(config, client_id, folder, context.state),
            }
        )
        metrics = MetricRecord({keys.NUM_EXAMPLES: participant.data.counts[0]})
        reply = Message(RecordDict({keys.INFO: info, keys.METRICS: metrics}), reply_to=message)
        falsify_enrolment(participant.config, participant.node.partition_id, reply)
        return reply

    def train(self, message: Message, context: Context) -> Message:
        """Decide, and train where the decision is to join."""
        participant = self._participants.of(context, message)
        config = _config(message)
        algorithm, instructions = named_strategy(participant, config)
        participant.discloses.check_train(algorithm)
        server_round, run_key = _round(config, missing=-1), str(config.get(keys.RUN_KEY, ""))
        metrics: Metrics = {keys.NUM_EXAMPLES: participant.data.counts[0]}
        if participant.memory(run_key).has_left(server_round):
            return _reply(message, metrics | {keys.DECISION: int(Decision.LEFT)})
        attacking = attacks(participant.config, participant.node.partition_id)
        if not attacking and not participant.available(server_round):
            return _reply(message, metrics | {keys.DECISION: int(Decision.SAT_OUT)})

        shared, model = self._model(message, participant)
        arrays = participant.complete(shared, run_key, server_round)
        requirement = participant.requirement(run_key)
        evaluation = judged = UNMEASURED
        judged_split = participant.judged_split
        if attacking or participant.policy.needs_loss or algorithm.reports:
            judge = partial(participant.judge, arrays, model, server_round=server_round)
            steps, use = algorithm.tuning_steps(), participant.use_of(algorithm)
            evaluation = judge(keys.TRAIN_SPLIT, steps)
            judged = judge(judged_split, steps, use)
        priority, decision = participant.priority(algorithm.granted(instructions)), Decision.JOINED
        if not attacking:
            mandatory = bool(config.get(keys.MANDATORY, 0))
            situation = Situation(
                server_round=server_round,
                evaluation=evaluation,
                mandatory=mandatory,
                priority=priority,
                told=instructions,
                outlook=ModelOutlook(participant, arrays, model),
                judged=judged,
            )
            decision = participant.decide(situation, requirement, run_key, model)
        if decision is Decision.LEFT:
            participant.memory(run_key).leave(server_round)
        metrics[keys.DECISION] = int(decision)
        rule = training = None
        if decision is Decision.JOINED:
            rule = named_rule(participant, algorithm, config)
            training = self._training_settings(config, context.run_config)
            rule.check(training)
            _check_sent(participant, rule, training)
            participant.pay(run_key)
        if participant.store.durable:  # for its owner to see; a simulator's clients have none
            goodwill, policy = participant.goodwill(run_key), participant.policy.name
            note_judged(context.state, judged, requirement, judged_split, goodwill, policy)
            if rule is not None and participant.node.state_folder:
                note_training(participant.node.state_folder)
        if rule is None or training is None:
            return _reply(message, metrics)
        measured = Measured(evaluation, requirement.rho, requirement.met(judged), priority, instructions, judged)
        turn = Turn(participant, message.content, arrays, server_round, run_key, training, instructions, measured)
        claims = algorithm.report(measured) if participant.node.report_weight else {}
        if attacking:
            claims = false_claims(participant.config, algorithm, claims, measured, requirement)
        metrics = {**claims, **metrics}  # what every reply says is no strategy's to change
        train_locally = protected(participant, rule, lambda message, _: _reply(message, metrics, rule.reply(turn)))
        reply = train_locally(message, context)
        if attacking and reply.has_content():
            sent = None if rule.sends_update else model_of(message.content)
            falsify(participant.config, participant.client_id, server_round, reply, sent)
        return reply

    def evaluate(self, message: Message, context: Context) -> Message:
        """Report how well the model serves this client; at the end, keep the preferred."""
        participant = self._participants.of(context, message)
        config = _config(message)
        run_key = str(config.get(keys.RUN_KEY, ""))
        server_round = _round(config)
        split = str(config.get(keys.SPLIT, keys.TEST_SPLIT))
        tuning_steps = int(config.get(keys.TUNING_STEPS, 0))
        participant.discloses.check_split(split)
        shared, model = self._model(message, participant)
        arrays = participant.complete(shared, run_key, server_round + 1)
        requirement = participant.requirement(run_key)

        judge = partial(participant.judge, arrays, model, server_round=server_round)
        algorithm = named_strategy(participant, config)[0] if keys.STRATEGY in config else None
        survey = algorithm is None and split != keys.TEST_SPLIT  # of the model as it is sent
        use = None if survey else participant.use_of(algorithm or NO_STRATEGY)
        measured, on_test = judge(split, tuning_steps), judge(keys.TEST_SPLIT, tuning_steps, use)
        appealed = requirement.met(on_test)
        if participant.store.durable:
            note_judged(context.state, on_test, requirement, keys.TEST_SPLIT)
        metrics: Metrics = {
            keys.NUM_EXAMPLES: participant.count(split),
            participant.task.metric.name: measured.score,
            keys.LOSS: measured.loss,
            keys.APPEALED: int(appealed),
            **measured.others,
        }
        run = participant.config
        tells_train_loss = run.report_train_loss and participant.discloses.loss
        if participant.node.answer_train_split and (run.evaluate_train or tells_train_loss):
            judged = judge(participant.judged_split, tuning_steps, use)
            metrics[keys.APPEALED_HELD_OUT if run.holds_out else keys.APPEALED_TRAIN] = int(requirement.met(judged))
            if tells_train_loss:
                metrics[keys.TRAIN_LOSS] = judge(keys.TRAIN_SPLIT, tuning_steps).loss
        adapted = None
        if algorithm is not None and (adapting := algorithm.adaptation()) is not None:
            rule, steps = adapting
            adapted = judge(split, adaptation=Adaptation.of(rule, participant.plain_training(steps), ADAPTATION))
        elif algorithm is not None and (
            own_model := algorithm.own_model(participant.store, run_key, server_round + 1)
        ):
            adapted = participant.measured({**arrays, **own_model}, split, precision=participant.precision)
        elif use is not None and not (algorithm is not None and algorithm.has_own_models):
            adapted = judge(split, adaptation=use)
        if adapted is not None:
            metrics[keys.ADAPTED + participant.task.metric.name] = adapted.score
            metrics[keys.ADAPTED_LOSS] = adapted.loss
        if (preferred := participant.preferred_score(on_test, requirement)) is not None:
            metrics[keys.PREFERRED + participant.task.metric.name] = preferred
            metrics[keys.SERVED] = int(participant.task.metric.reaches(on_test.score, requirement.solo_score))
        if config.get(keys.FINAL, 0) and participant.store.durable:  # a simulator's memory ends with the run
            which = participant.keep_preferred(arrays, requirement, on_test, run_key, server_round, use)
            file = f"{participant.node.state_dir}/{record_name(run_key)}.safetensors"
            place = f", kept in {file}" if participant.node.state_dir else ""
            log.info("the run is over: this client prefers the %s model%s", which, place)
        return _reply(message, participant.discloses.of_evaluation(metrics))


def _round(config: Mapping[str, Any], missing: int = 0) -> int:
    """Return the round of a message; where it names none, ``missing``.

    Raises:
        ConfigError: it is none that a run can reach: policies may look at each round before.
    """
    number = int(config.get(keys.SERVER_ROUND, missing))
    if not 0 <= number <= MOST_ROUNDS:
        raise ConfigError(f"{keys.SERVER_ROUND} = {number} is not allowed: 0 to {MOST_ROUNDS}")
    return number


participants = Participants()
"""The clients of a process that is a client, under a SuperLink or in Flower's simulation."""
_answers = _Answers(participants)
app = _app(_answers)
