"""One run of the server: builds the strategy, runs its rounds, fills the run's folder."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid

from fedappeal.core.algorithm import priority_of
from fedappeal.core.local_rule import LocalRule
from fedappeal.core.places import place
from fedappeal.protocol import keys
from fedappeal.protocol.foreign_text import one_line
from fedappeal.protocol.metric import column
from fedappeal.protocol.packing import Arrays, Layout, array_record
from fedappeal.record.columns import CARD as CARD_COLUMNS
from fedappeal.record.columns import shown_in
from fedappeal.record.folder import KIND, SUBMITTED, RunFolder, new_path, schedule_rounds
from fedappeal.record.lines import MODEL
from fedappeal.record.reader import Record
from fedappeal.settings.config import ConfigError, RunConfig, Scalar
from fedappeal.system.files import CARD, read_safetensors, write_safetensors
from fedappeal.tasks.flower_app import FlowerApp
from fedappeal.tasks.share import ALL, parts_of, share_of
from fedappeal.tasks.table_scale import standardises
from fedappeal.tasks.task import Task
from fedappeal.trained.card import ModelCard
from server.build import Plugins
from server.checkpoints import Checkpoint, mend_files
from server.identities import identities_of
from server.recorder import NO_MEMORY, ClientMemory, Recorder
from strategies.rounds.loop import Loop
from strategies.rounds.round import Hooks, Setup
from strategies.rounds.rounds import Rounds
from strategies.rounds.shared import RATE
from strategies.rounds.sums.last_good import ROLLED_BACK_TO

log = logging.getLogger("fedappeal")

Evaluate = Callable[[int, Arrays], Mapping[str, float]]
"""Evaluates a model on the server: given the round and the named arrays, it returns numbers for the history."""


def checked_initial_arrays(config: RunConfig, task: Task, rule: type[LocalRule]) -> Arrays:
    """Return the shared part of w_0 by name, checked.

    Errors where the run's clients could not train it.

    Where a file holds it and all of it travels, no torch is imported: that takes seconds, and clients check it.

    Args:
        config: the run's settings.
        task: the run's task.
        rule: how clients train.

    Raises:
        ConfigError: if the file cannot be read, or clients would train arrays of their own by a rule that cannot.
    """
    if isinstance(task, FlowerApp):
        return task.initial_arrays()
    whole = share_of(task) == ALL
    if config.initial_model and whole:
        return read_safetensors(Path(config.initial_model))[0]
    from fedappeal.tasks.share import initial_arrays

    if not whole and not rule.keeps_personal:
        personal = parts_of(task.initial_model(config.seed), share_of(task)).personal_trained
        if personal:
            raise ConfigError(
                f"share = '{share_of(task)}' is not allowed with local-rule = '{rule.name}': all trained parameters "
                f"have to travel, and '{personal[0]}' would stay with the clients"
            )
    return initial_arrays(task, config.seed, config.initial_model)


def run(
    grid: Grid,
    plugins: Plugins,
    watch: Hooks | None = None,
    durable: bool = True,
    memory: ClientMemory = NO_MEMORY,
    *,
    task: Task | None = None,
    data_dir: Path | None = None,
    evaluate: Evaluate | None = None,
    runtime: Mapping[str, Scalar] = MappingProxyType({}),
    nodes: Sequence[int] = (),
) -> None:
    """Run, or continue, the run that the settings describe.

    Args:
        grid: Flower's grid.
        plugins: the settings, and the plug-ins that they name.
        watch: told of each round after it is on the disk.
        durable: whether there is a checkpoint after each round, and it is to survive a power cut; else there is one
            about every second, and after the last round.
        memory: what the clients remember, where it ends with this process.
        task: the run's task; None: it is loaded.
        data_dir: the server's folder of data sets, for a task whose initial model lies in it; None: the default.
        evaluate: evaluates each evaluated model on the server as well.
        runtime: what the folder records of it once no other process has the run; empty: that stays as it is.
        nodes: node ids of the task's clients, in order, where the caller made them all.

    Raises:
        ConfigError: for settings that do not fit; RollCallError: if too few clients came.
    """
    config = plugins.config
    path = Path(config.out or new_path(config)).absolute()
    if config.resume:
        folder = RunFolder.open(path)
    else:
        folder = RunFolder.create(path, plugins.all_settings(), {KIND: SUBMITTED})
    with folder.alone(), _failure_recorded(folder):
        if runtime:
            folder.record(runtime=dict(runtime))
        if config.resume:
            config = config.model_copy(update={"schedule_rounds": schedule_rounds(folder, config.rounds)})
            plugins = replace(plugins, config=config)
        plugins.check()
        task, strategy = task or plugins.load_task(data_dir), plugins.build()
        # An app's model keeps its names and their order, and its run has no configuration of ours.
        of_app = isinstance(task, FlowerApp)
        app_config = task.config if isinstance(task, FlowerApp) else {}
        arrays = checked_initial_arrays(config, task, plugins.rule)
        layout = Layout.of(arrays)
        strategy.check_model(layout.names)
        asks = priority_of(strategy).asks
        setup = Setup(
            shared=plugins.shared_settings(),
            metric=task.metric,
            other_metrics=task.other_metrics,
            granted_nodes=frozenset(node for k, node in enumerate(nodes) if asks(k, config.clients)),
            layout=layout,
            configured=not of_app,
        )
        rounds = Rounds(strategy, setup)
        initial = layout.pack(arrays) if config.pack and not of_app else array_record(arrays)
        del arrays  # as large as the model, for as long as the run takes
        config_record = ConfigRecord({keys.RUN_KEY: folder.run_key, keys.LAYOUT: layout.hash})
        folder.identify({"task-fingerprint": task.fingerprint, keys.LAYOUT: layout.hash})
        folder.record(metric=task.metric.as_record())
        start = Checkpoint(0, initial, initial, rounds.state())
        if folder.begun:
            start = _restored_checkpoint(folder, config, rounds, start, memory)

        def central(number: int, record: ArrayRecord) -> MetricRecord:
            assert evaluate is not None
            return MetricRecord(dict(evaluate(number, layout.unpack(record))))

        scheduled = {} if config.constant_learning_rate else {RATE: config.learning_rate}
        hooks = watch or Hooks()
        recorder = Recorder(folder, rounds, start.initial, config.rounds, plugins, hooks, durable, memory)
        try:
            result = Loop(
                rounds,
                grid,
                start.initial,
                config.rounds,
                train_config=ConfigRecord({**app_config, **config_record, **scheduled}),
                evaluate_config=ConfigRecord({**app_config, **config_record}),
                evaluate_fn=central if evaluate else None,
                hooks=recorder,
                roll_call_config=ConfigRecord(
                    {**config_record, **roll_call_settings(plugins, task), **rounds.told_once()}
                ),
                arrays=start.arrays,
                first_round=start.server_round + 1,
                schedule_rounds=config.schedule_rounds,
                identities=identities_of(folder.path, folder.run_key),
            ).run()
        except BaseException:
            recorder.save()  # the last round, where it is over and the next one has not begun
            raise
        last = rounds.record.server_round or start.server_round
        card = run_card(task, config, folder, last, layout.names)
        values: dict[str, Scalar] = {"round": card.round, "task": config.task, CARD: card.to_json()}
        write_safetensors(folder.path / MODEL, layout.unpack(result.arrays), values)
        folder.event("finished", round=last, reason=rounds.finished)


@contextmanager
def _failure_recorded(folder: RunFolder) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        folder.event("failed", reason=one_line(f"{error}{place(error)}"))
        raise


def _restored_checkpoint(
    folder: RunFolder, config: RunConfig, rounds: Rounds, start: Checkpoint, memory: ClientMemory
) -> Checkpoint:
    """Return the checkpoint to continue from, and undo what came later.

    ``start`` where there is none.
    """
    usable = mend_files(folder, log.warning, memory.check)
    if usable.checkpoint is not None:
        start = usable.checkpoint
        layout = rounds.setup.layout
        assert layout is not None  # `run` has set it
        try:
            layout.unpack(start.initial)
            layout.unpack(start.arrays)
            rounds.restore(start.state)
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"file '{usable.file}' does not fit the run: {error}") from None
    memory.restore(start.server_round)
    folder.forget_after(start.server_round)
    folder.record_resumption(start.server_round, config)
    folder.event("resumed", round=start.server_round)
    return start


def roll_call_settings(plugins: Plugins, task: Task) -> dict[str, Scalar]:
    """Return the roll call's entries besides run key and layout."""
    strategy, survey = plugins.strategy, plugins.strategy.survey
    foreign = (f"{kind}\t{provenance.name}\t{provenance}" for kind, provenance in plugins.foreign())
    return {
        keys.FINGERPRINT: task.fingerprint,
        keys.PROTOCOL_VERSION: keys.PROTOCOL,
        keys.PLUGINS: "\n".join(foreign),
        keys.NEEDS_LOSS: int(strategy.needs_losses),
        keys.NEEDS_WEIGHT: int(strategy.needs_weight),
        keys.NEEDS_APPEAL: int(strategy.needs_appeal),
        keys.NEEDS_TRAIN_SPLIT: int(survey is not None and survey.needed(plugins.settings_of(strategy))),
    }


def run_card(task: Task, config: RunConfig, folder: RunFolder, server_round: int, names: Iterable[str]) -> ModelCard:
    """Return the model card after a run's last round.

    Of the model to which the run went back in it, if it did.

    Args:
        task: the run's task.
        config: the run's settings.
        folder: the run's folder, whose history has the figures.
        server_round: the last round.
        names: names of the arrays that the file holds.
    """
    first, primary, *other_columns = (column.key for column in shown_in(CARD_COLUMNS, task.metric))
    names_shown = [first, primary, *map(column, task.other_metrics), *other_columns]
    lines = {line["round"]: line for line in Record(folder.path).history}
    last = lines.get(server_round, {})
    if ROLLED_BACK_TO in last:
        server_round = int(last[ROLLED_BACK_TO])
        last = lines.get(server_round, {})
    return ModelCard.of(
        task,
        config,
        round=server_round,
        run_key=folder.run_key,
        shared=ALL if share_of(task) == ALL else tuple(names),
        **({"tables": standardises(task)} if Record(folder.path).config["runtime"].get(KIND) == SUBMITTED else {}),
        figures={name: float(last[name]) for name in names_shown if last.get(name) is not None},
        measured_on="test data of the seen clients, a mean over clients",
    )
