"""A dry run of a run's own plug-ins: a few tiny rounds that find mistakes.

Three clients of the run's task train a few steps: packed as models travel in deployed runs, the same broken off and
taken up again from its checkpoint, and with one array a layer, side by side where that is possible. A large model is
trained by one client in one round, and the run's other plug-ins are tried on a small one.
"""

import logging
import tempfile
import tomllib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedappeal.core.places import reason, with_place
from fedappeal.core.plugins import is_ours
from fedappeal.protocol.metric import ACCURACY
from fedappeal.protocol.packing import Arrays
from fedappeal.record.columns import check_names
from fedappeal.record.folder import RunFolder
from fedappeal.record.lines import MODEL
from fedappeal.runs.plan import RunPlan, simulate_plan
from fedappeal.settings.config import ConfigError, RunConfig
from fedappeal.simulation.options import AUTO, SEQUENTIAL, Simulation
from fedappeal.system.files import read_safetensors
from fedappeal.system.tuning import give_back_memory
from fedappeal.system.wording import plural
from fedappeal.tasks.fit import check_fit
from fedappeal.tasks.share import initial_arrays
from fedappeal.tasks.task import Task
from server.build import NO_OBJECTS, Objects, Plugins, run_plugins
from strategies.rounds.round import RoundRecord

_SETTINGS: Mapping[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
_TINY, _ONCE, _SMALL = (_SETTINGS[kind] for kind in ("tiny", "once", "small"))
CONDITIONS: Sequence[Mapping[str, Any]] = _SETTINGS["conditions"]
"""What a strategy has to stand."""
CLIENTS, ROUNDS, BREAK = 3, _TINY["rounds"], 2
"""Most clients and rounds of a dry run, and the round after which one is broken off."""
LARGE = 16 << 20
"""Bytes of a model above which it is trained once, in one round; all else is tried on a small one."""
_NO_WEIGHT = 1e-9
_FAULTY = ("finish", "update", "carried", "weight", "add", "report", "decide", "make", "reply", "train")
"""Methods one of which is meant where an error came through no line of the author's."""


def check_plugins(plan: RunPlan, device: str) -> None:
    """Check a run's own plug-ins in dry runs; fedappeal's own need none.

    Args:
        plan: the run.
        device: where the clients train.

    Raises:
        ConfigError: a line for each thing that is wrong, with file and line.
    """
    if lines := list(dict.fromkeys(_mistakes(plan, device))):
        raise ConfigError("\n".join(lines))


def for_submission(plan: RunPlan) -> RunPlan:
    """Return the run on a task whose data every machine has.

    On its own task, where that is the author's and here.

    Raises:
        ConfigError: the author's task has a metric that `check_names` refuses.
    """
    if not is_ours(plan.plugins.task):
        task: Any = Task
        with suppress(Exception):  # its data may be elsewhere
            task = plan.task
            task.check()
            task.load(0)
            return plan
        names: Any = ACCURACY, ()
        with suppress(Exception):
            names = task.metric, task.other_metrics
        check_names(*names)
    return replace(plan, plugins=_plugins_of(plan.config.model_copy(update=_SMALL)))


def _plugins_of(config: RunConfig, given: Objects = NO_OBJECTS) -> Plugins:
    """Return a changed run's plug-ins, without settings of plug-ins it no longer names."""
    run = run_plugins(config, given)
    names = {plugin.settings_name() for plugin in (*run.plugins, run.task) if hasattr(plugin, "settings_name")}
    of_named = tuple((key, value) for key, value in config.plugins if key.partition(".")[0] in names)
    return replace(run, config=config.model_copy(update={"plugins": of_named}))


def _mistakes(plan: RunPlan, device: str) -> Iterator[str]:
    """Yield faults of plug-ins until one kind of them has some."""
    run, task = plan.plugins, plan.task
    if not is_ours(type(task)) or run.model is not None or ":" in plan.config.model:
        try:
            check_fit(task, plan.config.seed)
            check_names(task.metric, task.other_metrics)
        except Exception as error:
            line, author = reason(error), type(task) if run.model is None else run.model
            methods = line.partition(" ")[0], "initial_model", "forward", "__init__"
            yield with_place(line, author, *methods)
            return
    policies = [name for name, policy in run.policies.items() if not is_ours(policy)]
    others = any(not is_ours(plugin) for plugin in (run.strategy, run.rule, run.requirement))
    owns_model = not is_ours(type(task)) or run.model is not None
    given, config = run.given, plan.config
    size = sum(parameter.nbytes for parameter in task.initial_model(config.seed).parameters())
    if size > LARGE:
        if owns_model:
            log = logging.getLogger("fedappeal")
            log.warning("checking: the model of %.0f MB is trained for one round", size / 1e6)
            lines = list(DryRun(config, task, "always", device, given, _ONCE).findings())
            give_back_memory()  # of a large model five copies wait for the garbage collector
            yield from lines
            if lines or not (others or policies):
                return
        small = replace(plan, plugins=_plugins_of(config.model_copy(update=_SMALL), replace(given, task=None)))
        task, given, config, owns_model = small.task, small.plugins.given, small.config, False
    for policy in [*(["always"] if others or owns_model else []), *policies]:
        dry = DryRun(config, task, policy, device, given)
        lines = list(dry.findings())
        yield from lines
        if lines:
            return


@dataclass(frozen=True)
class DryRun:
    """A run in small.

    Attributes:
        config: the run's settings.
        task: its task, as it is.
        policy: the policy of all clients.
        device: where they train.
        given: objects in place of names, which are never looked for by their names.
        more: settings that differ from those of other dry runs.
    """

    config: RunConfig
    task: Task
    policy: str
    device: str
    given: Objects = NO_OBJECTS
    more: Mapping[str, Any] = field(default_factory=dict)

    def findings(self) -> Iterator[str]:
        """Yield a line for each thing that is wrong; of a large model that is run once, what one round shows."""
        whole = self.outcome()
        yield from whole.lines
        if whole.lines:
            return
        if not whole.joined and self.more != _ONCE:
            logging.getLogger("fedappeal").warning(
                "participation = '%s': no client would join after the mandatory round, in %d rounds of a dry run",
                *(self.policy, ROUNDS - 1),
            )
        trains = self.policy == "always" and not whole.kept
        if trains and alike(whole.model, initial_arrays(self.task, self.config.seed)):
            if whole.weightless:
                yield (
                    f"strategy = '{self.config.strategy}' gives all clients the weight 0, so the model stays the "
                    "initial one: their losses are far from what they require; scale the labels or the loss"
                )
                return
            rounds = plural(self.more.get("rounds", ROUNDS), "round")
            yield self._with_place(f"the model is still the initial one after {rounds} that all clients joined")
            return
        if self.more == _ONCE:
            return
        resumed = self.outcome(broken=True)
        yield from resumed.lines
        if not resumed.lines and not alike(whole.model, resumed.model):
            yield self._differing(whole.model)
            return
        yield from self.outcome(pack=False, mode=AUTO).lines

    def differences(self) -> Iterator[str]:
        """Yield how runs that must agree differ or fail.

        Conformance, of models without dropout.

        Alike to 1e-6: one array a layer, side by side, broken off and continued. Others only have to run.
        """
        run = self._plugins()
        for more in CONDITIONS:
            needs_all = run.strategy.needs_everybody and "clients_per_round" in more
            if needs_all or (run.unbounded and "influence" in more):
                continue
            dry = replace(self, more=more)
            text, whole = ", ".join(f"{key} = {value}" for key, value in more.items()) or "all clients", dry.outcome()
            ways: dict[str, dict[str, Any]] = {
                "one array a layer": {"pack": False},
                "side by side": {"mode": AUTO},
                "continued": {"broken": True},
                "extended": {"extended": True},
            }
            yield from (f"{text}: {line}" for line in whole.lines)
            for way, how in ways.items() if not whole.lines else ():
                other = dry.outcome(**how)
                yield from (f"{text}, {way}: {line}" for line in other.lines)
                if not other.lines and not alike(whole.model, other.model, 1e-6):
                    yield self._with_place(f"{text}, {way}: the model differs by more than 1e-6")

    def _plugins(self) -> Plugins:
        return run_plugins(self.config, self.given)

    def _differing(self, whole: Arrays) -> str:
        """Return why a run that is taken up from a checkpoint ends in another model."""
        if not all(alike(whole, self.outcome().model) for _ in range(3)):  # two may agree by chance
            return self._with_place("two runs of one seed end in two models: a draw without the run's seed")
        return self._with_place(
            "a run that is taken up from its checkpoint ends in another model: what the plug-in remembers from round "
            "to round is not in carried() and take_up(), or situation.history"
        )

    def outcome(
        self, *, pack: bool = True, broken: bool = False, extended: bool = False, mode: str = SEQUENTIAL
    ) -> "DryRunOutcome":
        """Run it once.

        ``broken``: taken up again after round `BREAK`; ``extended``: begun with that many rounds.
        """
        values = {**_TINY, "clients": min(CLIENTS, self.config.clients), "participation": self.policy, "pack": pack}
        values |= self.more
        values |= {"rounds": BREAK} if extended else {}
        given = replace(self.given, task=self.task)
        config = given.named(self.config.model_copy(update=values)).with_plugins([("solo.steps", 2)])
        simulation, records, lines = Simulation(mode, self.device), list[RoundRecord](), list[str]()

        def on_round(record: RoundRecord) -> None:
            records.append(record)
            if broken and record.server_round == BREAK == len(records):
                raise _BrokenOff

        with tempfile.TemporaryDirectory(prefix="fedappeal-dry-") as folder, _in_silence():
            try:
                run = _plugins_of(config, given)
                plan = RunPlan(run, Path(folder, "run"))
                if extended:
                    simulate_plan(plan, simulation, on_round=on_round)
                    longer = run.config.continued(ROUNDS)
                    plan = replace(plan, plugins=replace(run, config=longer), resumes=True)
                try:
                    simulate_plan(plan, simulation, on_round=on_round)
                except _BrokenOff:
                    simulate_plan(plan, simulation, RunFolder.open(plan.path), on_round=on_round)
            except (Exception, SystemExit) as error:
                return DryRunOutcome([self._with_place(reason(error))], {})
            for record in records:
                lines += [self._with_place(failure) for failure in record.failures.values()]
                if record.metrics.get("not_finite") and not is_ours(run.strategy):
                    lines.append(self._with_place(f"strategy {run.strategy.name}: the new model holds NaN or inf"))
            if not lines and self.policy == "always" and not any(record.count("joined") for record in records):
                lines.append(self._with_place("no client joined, though all wanted to"))
            stays = any(record.kept for record in records)
            joined = any(record.count("joined") for record in records if not record.mandatory)
            weights = [weight for record in records if (weight := record.metrics.get("appeal_weight")) is not None]
            weightless = bool(weights) and max(weights) < _NO_WEIGHT
            model = {} if lines else read_safetensors(plan.path / MODEL)[0]
            return DryRunOutcome(lines, model, stays, joined, weightless)

    def _with_place(self, line: str) -> str:
        """Return a line with its place in the author's code, unless it names one."""
        run = self._plugins()
        classes = [kind for kind in (*run.plugins, run.task, run.model) if isinstance(kind, type)]
        plugins = [plugin for plugin in classes if not is_ours(plugin)]
        return with_place(line, plugins[0], *_FAULTY) if plugins else line


@dataclass(frozen=True)
class DryRunOutcome:
    """The outcome of one dry run.

    Attributes:
        lines: one for each thing that is wrong.
        model: the last model by name, where nothing is wrong.
        kept: whether the strategy kept the model in a round; one that gathers over rounds does, for example.
        joined: whether a client joined in a round in which it might opt out.
        weightless: whether the strategy weighs by appeal, and all weights are too small to move the model.
    """

    lines: list[str]
    model: Arrays
    kept: bool = False
    joined: bool = False
    weightless: bool = False


class _BrokenOff(Exception):
    """The end of a run that is to be taken up again."""


@contextmanager
def _in_silence() -> Iterator[None]:
    logger = logging.getLogger("fedappeal")
    before, logger.disabled = logger.disabled, True
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logger.disabled = before


def alike(one: Arrays, other: Arrays, tolerance: float = 0.0) -> bool:
    """Whether two models agree, in each layer within a share of its largest value."""
    return one.keys() == other.keys() and all(
        np.allclose(other[name], array, rtol=0.0, atol=tolerance * float(np.abs(array).max(initial=1e-30)))
        for name, array in one.items()
    )
