"""The ClientApp: what a client answers to the roll call, to TRAIN and to EVALUATE.

The same app runs in the long-lived process, under a stock ``flower-supernode`` and in both simulators. A reply
that is not a join carries no model; no reply carries rho_k or data.
"""

import logging
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

import fedappeal
from client.arithmetic import UNMEASURED, Evaluation
from client.byzantine import attacks, falsified
from client.gradient import check_asked, margin
from client.participant import Participant
from client.personalised import adaptation
from client.privacy import protected
from client.registry import participant_of
from client.requirement import Requirement
from client.training import Job, trained
from client.work import LocalWork
from fedappeal.protocol import keys
from fedappeal.protocol.config import ConfigError
from fedappeal.protocol.keys import Decision
from fedappeal.protocol.packing import Arrays, content_hash
from strategies.maxfl import appeal_weight
from strategies.maxfl_adagd import appeal_factor

app = ClientApp()
log = logging.getLogger("fedappeal.client")

Metrics = dict[str, int | float | list[int] | list[float]]


@dataclass(frozen=True)
class _Received:
    """The model of the latest message: in one process, many clients are sent the same one."""

    record: ArrayRecord
    layout: str
    arrays: Arrays
    hash: str


_latest: _Received | None = None


def _model(message: Message, participant: Participant) -> tuple[Arrays, str]:
    """Return the model that was sent, by name, and its content hash.

    Raises:
        ValueError: if it is not this task's model.
    """
    global _latest
    own = participant.layout.hash
    layout = str(message.content[keys.CONFIG].get(keys.LAYOUT, own))
    if layout != own:
        raise ValueError(
            f"layout {layout} of the model that was sent does not match this client's {own} "
            f"(task {participant.config.task}, model {participant.config.model})"
        )
    record = message.content.get(keys.ARRAYS)
    if not isinstance(record, ArrayRecord):
        raise ValueError(f"message has no ArrayRecord '{keys.ARRAYS}'")
    if _latest is None or _latest.record is not record or _latest.layout != own:
        _latest = _Received(record, own, participant.layout.unpack(record), content_hash(record))
    return _latest.arrays, _latest.hash


def _reply(message: Message, metrics: Metrics, records: Mapping[str, ArrayRecord] | None = None) -> Message:
    return Message(RecordDict({keys.METRICS: MetricRecord(metrics), **(records or {})}), reply_to=message)


@app.query()
def roll_call(message: Message, context: Context) -> Message:
    """Say who this client is, and make its requirement ready."""
    config = message.content[keys.CONFIG]
    participant = participant_of(context)
    if (theirs := str(config.get(keys.VERSION, fedappeal.__version__))) != fedappeal.__version__:
        raise ConfigError(f"this client runs fedappeal {fedappeal.__version__}, the run needs {theirs}")
    if (task := str(config.get(keys.FINGERPRINT, ""))) and task != participant.task.fingerprint:
        raise ConfigError(
            f"this client's task '{participant.config.task}' has fingerprint {participant.task.fingerprint}, "
            f"the run's has {task}: task and partition settings must be the same"
        )
    if config.get(keys.NEEDS_LOSS, 0) and not participant.reports_loss:
        raise ConfigError("report-loss = False is not allowed in this run: its strategy needs the clients' losses")
    arrays, _ = _model(message, participant)
    run_key = str(config.get(keys.RUN_KEY, ""))
    participant.begin_run(run_key, arrays)
    info = ConfigRecord(
        {
            keys.CLIENT_ID: participant.client_id,
            keys.ROLE: keys.SEEN if participant.node.is_seen(participant.config.clients) else keys.UNSEEN,
            keys.PRIORITY: int(participant.priority(None)),
            keys.LEFT_RUN: int(participant.has_left(run_key, sys.maxsize)),
            keys.TASK: participant.task.name,
            keys.FINGERPRINT: participant.task.fingerprint,
            keys.VERSION: fedappeal.__version__,
        }
    )
    metrics = MetricRecord({keys.NUM_EXAMPLES: len(participant.data.train)})
    return Message(RecordDict({keys.INFO: info, keys.METRICS: metrics}), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Decide, and train where the decision is to join."""
    participant = participant_of(context)
    config = message.content[keys.CONFIG]
    check_asked(participant.config, config)
    server_round = int(config[keys.SERVER_ROUND])  # type: ignore[arg-type]
    run_key = str(config.get(keys.RUN_KEY, ""))
    metrics: Metrics = {keys.NUM_EXAMPLES: len(participant.data.train)}
    if participant.has_left(run_key, server_round):
        return _reply(message, metrics | {keys.DECISION: int(Decision.LEFT)})

    arrays, model = _model(message, participant)
    requirement = participant.requirement(run_key)
    tuning_steps = int(config.get(keys.TUNING_STEPS, 0))  # type: ignore[arg-type]
    attacking = attacks(participant.config, participant.node.partition_id)
    measured = UNMEASURED
    if attacking or participant.decides_by_loss or keys.TUNING_STEPS in config or keys.REPORT in config:
        measured = participant.judge(arrays, model, keys.TRAIN_SPLIT, tuning_steps, server_round=server_round)
    decision = Decision.JOINED if attacking else participant.decide(measured, requirement, config)
    if decision is Decision.LEFT:
        participant.leave(run_key, server_round)
    metrics[keys.DECISION] = int(decision)
    if decision is not Decision.JOINED:
        return _reply(message, metrics)

    work = LocalWork.of(config, context.run_config)
    factor = appeal_factor(measured.loss, requirement.rho) if keys.LEAVING_LOSS in config else 1.0
    job = Job(participant, message.content, arrays, server_round, run_key, work, factor)
    rule = str(config.get(keys.LOCAL_RULE, "sgd"))
    train_locally = protected(participant, rule, lambda message, _: _reply(message, metrics, trained(rule, job)))
    if keys.TUNING_STEPS in config:
        metrics[keys.APPEAL_WEIGHT] = appeal_weight(measured.loss, requirement.rho)
    metrics |= _reports(participant, measured, requirement, config)
    reply = train_locally(message, context)
    if attacking and reply.has_content():
        return falsified(reply, message, participant.config, participant.client_id, measured.loss, requirement.rho)
    return reply


def _reports(
    participant: Participant, measured: Evaluation, requirement: Requirement, config: Mapping[str, object]
) -> Metrics:
    """Return what the server asked a joined reply to report besides.

    Raises:
        ConfigError: if it asked for a loss, and this client reports none.
    """
    reports: Metrics = {}
    for name in filter(None, str(config.get(keys.REPORT, "")).split(",")):
        if name == keys.LOSS:
            if not participant.reports_loss:
                raise ConfigError("report-loss = False is not allowed in this run: its strategy needs the losses")
            reports[name] = measured.measure(str(config.get(keys.MATCH_ON, "loss")))
        elif name == keys.PRIORITY:
            reports[name] = int(participant.priority(config.get(keys.PRIORITY)))  # type: ignore[arg-type]
        elif name == keys.SATISFIED:
            reports[name] = int(measured.loss < requirement.rho)
        elif name == keys.MARGIN:
            reports[name] = margin(participant.config, measured.loss, requirement.rho)
        else:
            raise ValueError(f"{keys.REPORT} = '{name}' is not known to this client")
    return reports


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Report how well the model serves this client; at a run's end, keep the model it prefers."""
    participant = participant_of(context)
    config = message.content[keys.CONFIG]
    run_key = str(config.get(keys.RUN_KEY, ""))
    server_round = int(config.get(keys.SERVER_ROUND, 0))  # type: ignore[arg-type]
    split = str(config.get(keys.SPLIT, keys.TEST_SPLIT))
    tuning_steps = int(config.get(keys.TUNING_STEPS, 0))  # type: ignore[arg-type]
    arrays, model = _model(message, participant)
    requirement = participant.requirement(run_key)

    judge = partial(participant.judge, arrays, model, server_round=server_round)
    measured, on_test = judge(split, tuning_steps), judge(keys.TEST_SPLIT, tuning_steps)
    appealed = on_test.loss < requirement.rho
    metrics: Metrics = {
        keys.NUM_EXAMPLES: len(participant.data.test if split == keys.TEST_SPLIT else participant.data.train),
        keys.ACCURACY: measured.accuracy,
        keys.APPEALED: int(appealed),
    }
    tells_train_loss = participant.config.report_train_loss and participant.reports_loss
    if participant.config.evaluate_train or tells_train_loss:
        on_train = judge(keys.TRAIN_SPLIT, tuning_steps)
        metrics[keys.APPEALED_TRAIN] = int(on_train.loss < requirement.rho)
        if tells_train_loss:
            metrics[keys.TRAIN_LOSS] = on_train.loss
    if participant.reports_loss:
        metrics[keys.LOSS] = measured.loss
    if (adapting := adaptation(config, context.run_config)) is not None:
        adapted = judge(split, adaptation=adapting)
        metrics[keys.ADAPTED_ACCURACY] = adapted.accuracy
        if participant.reports_loss:
            metrics[keys.ADAPTED_LOSS] = adapted.loss
    if (preferred := participant.preferred_accuracy(on_test, requirement)) is not None:
        metrics[keys.PREFERRED_ACCURACY] = preferred
    if config.get(keys.FINAL, 0) and participant.store.durable:  # a simulator's memory ends with the run
        which = participant.keep_preferred(arrays, requirement, appealed, run_key)
        kept = f", kept in {participant.node.state_dir}/preferred.safetensors" if participant.node.state_dir else ""
        log.info("the run is over: this client prefers the %s model%s", which, kept)
    return _reply(message, metrics)
