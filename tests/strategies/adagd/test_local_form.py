"""The local form beside a program of its own in float64: decisions, D and model, over forms and resume."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedappeal.protocol.draws import Minibatches
from fedappeal.record.folder import RunFolder
from fedappeal.record.lines import MODEL
from fedappeal.record.reader import Record
from fedappeal.runs.plan import RunPlan
from fedappeal.settings.config import ConfigError, RunConfig
from fedappeal.settings.training import LocalTrainingSettings
from fedappeal.simulation.engine import simulate
from fedappeal.simulation.options import Simulation
from fedappeal.system.files import read_safetensors
from fedappeal.tasks import load_task
from server.build import run_plugins
from server.checkpoints import settings_to_resume
from strategies import AdaGD, MaxFLAdaGD
from strategies.adagd.algorithm import Gathered
from strategies.adagd.strategy import Gradient

Values = NDArray[np.float64]

SETTINGS: dict[str, Any] = {
    **{"task": "digits", "model": "logistic", "clients": 6, "rounds": 9, "local-steps": 5, "batch-size": 8},
    **{"learning-rate": 0.2, "judge-on": "train", "adaptation-steps": 0, "max-train-examples": 60, "seed": 4},
    **{"min-examples": 30, "requirement": "fixed", "fixed.loss": 0.9, "evaluate-every": 3},
}
ADAGD = {"strategy": "adagd", "adagd.precision": 0.3}
MAXFL = {"strategy": "maxfl-adagd", "maxfl-adagd.precision": 0.3}
EPOCHS = {"local-steps": 0, "local-epochs": 1}
FALLING = {"lr-schedule": "linear", "momentum": 0.5}


@dataclass
class Program:
    """Softmax regression from w_0 by the local form, written from its equations alone, in float64.

    Attributes:
        w: the model, one vector: the weights of shape ``(classes, pixels)``, then the biases.
        left: clients that have left for good.
        decisions: by round and client, 1 joined, -1 left.
        cases: by round.
        predicted: the size of D by round.
    """

    config: RunConfig
    w: Values = field(init=False)
    left: set[int] = field(default_factory=set)
    decisions: list[dict[str, int]] = field(default_factory=list)
    cases: list[int] = field(default_factory=list)
    predicted: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        task = load_task(self.config.task_settings())
        self.data = []
        for client in range(self.config.clients):
            train = task.load(client).train
            self.data.append((train.x.numpy().reshape(len(train), -1).astype(np.float64), train.y.numpy()))
        state = task.initial_model(self.config.seed).state_dict()
        self.w = np.concatenate([value.numpy().reshape(-1).astype(np.float64) for value in state.values()])
        self.classes = 10

    def loss(self, w: Values, x: Values, y: NDArray[np.int64]) -> tuple[float, Values]:
        """Mean cross-entropy, and its gradient."""
        pixels = x.shape[1]
        weights, biases = w[: self.classes * pixels].reshape(self.classes, pixels), w[self.classes * pixels :]
        logits = x @ weights.T + biases
        logits -= logits.max(axis=1, keepdims=True)
        shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        rows = np.arange(len(y))
        value = float(-np.log(shares[rows, y]).mean())
        shares[rows, y] -= 1
        return value, np.concatenate([(shares.T @ x / len(y)).reshape(-1), shares.mean(axis=0)])

    def rate(self, number: int) -> float:
        """The learning rate of a round: constant, or from the full one to a tenth."""
        if self.config.lr_schedule == "constant":
            return self.config.learning_rate
        return self.config.learning_rate * (1 - 0.9 * (number - 1) / (self.config.rounds - 1))

    def taken_off(self, client: int, number: int) -> tuple[Values, int]:
        """What local steps take off the model, and how many they are."""
        x, y = self.data[client]
        steps = self.config.local_steps or self.config.local_epochs * -(-len(y) // self.config.batch_size)
        of = self.config.seed, f"client-{client:04d}", number, len(y), steps, self.config.batch_size
        w, pace = self.w.copy(), np.zeros_like(self.w)
        for batch in np.asarray(Minibatches(*of)):
            pace = self.config.momentum * pace + self.loss(w, x[batch], y[batch])[1]
            w -= self.rate(number) * pace
        return self.w - w, steps

    def factor(self, loss: float) -> float:
        """MaxFL's weight, 1 at the requirement; 1 throughout under ADA-GD."""
        if self.config.strategy == "adagd":
            return 1.0
        gap = loss - float(self.config.section("fixed")["loss"])
        return 4 / (1 + np.exp(-gap)) / (1 + np.exp(gap))

    def rounds(self) -> Iterator[bool]:
        """Play round after round; yields whether the run goes on."""
        epsilon = float(self.config.section(self.config.strategy)["precision"])
        for number in range(1, self.config.rounds + 1):
            decided, inside, outside, joined = {}, [], [], 0
            for client, (x, y) in enumerate(self.data):
                if client in self.left:
                    continue
                loss = self.loss(self.w, x, y)[0]
                decided[f"client-{client:04d}"] = -1 if loss <= epsilon else 1
                if loss <= epsilon:
                    self.left.add(client)
                    continue
                joined += 1
                off, steps = self.taken_off(client, number)
                is_inside = loss - np.linalg.norm(off) / steps <= 2 * epsilon
                (inside if is_inside else outside).append(self.factor(loss) * off)
            self.decisions.append(decided)
            self.predicted.append(len(inside))
            if not joined or not outside:
                self.cases.append(3)
                yield False
                return
            mean = np.mean(outside, axis=0)
            if inside:  # the part of the mean that is orthogonal to all in D, by least squares
                span = np.array(inside).T
                mean = mean - span @ np.linalg.lstsq(span, mean, rcond=None)[0]
            self.cases.append(1 if inside else 2)
            self.w = self.w - mean
            yield True


def ran(path: Path, settings: Mapping[str, Any], mode: str) -> Path:
    config = RunConfig.parse({**SETTINGS, **settings})
    simulate(config, RunPlan.of(config, path).folder({}), Simulation(mode, threads=1))
    return path


def assert_as_by_hand(path: Path, hand: Program) -> None:
    record = Record(path)
    numbers = {"joined": 1, "sat-out": 0, "left": -1}
    decisions: dict[int, dict[str, int]] = {}
    for line in record.decisions:
        decisions.setdefault(line["round"], {})[line["client-id"]] = numbers[line["decision"]]
    assert [decisions[n] for n in sorted(decisions)] == hand.decisions
    assert [line.get("case") for line in record.history] == hand.cases
    assert [line["leaving"] for line in record.history] == hand.predicted
    model = read_safetensors(path / MODEL)[0]
    found = np.concatenate([model[name].reshape(-1) for name in ("output.weight", "output.bias")])
    np.testing.assert_allclose(found, hand.w, atol=1e-6)


@pytest.mark.parametrize("mode", ["sequential", "layers", "vmap"])
@pytest.mark.parametrize("settings", [ADAGD, MAXFL, {**ADAGD, **EPOCHS}, {**ADAGD, **FALLING}], ids=str)
def test_runs_do_what_a_program_in_float64_does(settings: dict[str, Any], mode: str, tmp_path: Path) -> None:
    hand = Program(RunConfig.parse({**SETTINGS, **settings}))
    assert [*hand.rounds()]
    assert {1, 2} <= {*hand.cases}, hand.cases
    assert_as_by_hand(ran(tmp_path / "run", settings, mode), hand)


def test_a_resumed_run_does_too(tmp_path: Path) -> None:
    hand = Program(RunConfig.parse({**SETTINGS, **ADAGD}))
    assert [*hand.rounds()]
    path = ran(tmp_path / "run", {**ADAGD, "rounds": 4, "schedule-rounds": 9}, "layers")
    simulate(settings_to_resume(path, 9), RunFolder.open(path), Simulation.of_runtime(Record(path).config["runtime"]))
    assert_as_by_hand(path, hand)


def test_with_nobody_about_to_leave_a_round_is_an_equal_average(tmp_path: Path) -> None:
    never = {"adagd.precision": 1e-9, "participation": "always", "max-train-examples": 30}
    paths = [ran(tmp_path / name, {**never, "strategy": name}, "layers") for name in ("adagd", "fedavg")]
    one, other = (read_safetensors(path / MODEL)[0] for path in paths)
    assert {
        len(part)
        for part in (
            load_task(RunConfig.parse({**SETTINGS, **never}).task_settings()).load(k).train for k in range(6)
        )
    } == {30}
    for name, values in one.items():
        np.testing.assert_allclose(values, other[name], atol=1e-6)


def test_line_4_looks_one_local_step_ahead_and_case_1_averages() -> None:
    gathered = Gathered(1.0, threshold=0.5, local=True)
    along, across, slanted = np.array([4.0, 0.0]), np.array([0.0, 2.0]), np.array([2.0, 4.0])
    assert gathered.add(1.5, along, steps=4)  # 1.5 - 4 / 4
    assert not gathered.add(1.5, along * 0.9, steps=4)
    gathered = Gathered(1.0, threshold=0.5, local=True)
    assert [
        gathered.add(1.5, along, steps=4),
        gathered.add(3.0, across, steps=4),
        gathered.add(3.0, slanted, steps=4),
    ] == [
        True,
        False,
        False,
    ]
    case, direction = gathered.move()
    assert case == 1
    assert direction is not None
    np.testing.assert_allclose(direction, [0.0, -3.0], atol=1e-12)  # the mean of two, without `along`; not clipped


@pytest.mark.parametrize("strategy", [AdaGD, MaxFLAdaGD])
def test_which_form_it_is(strategy: type[AdaGD]) -> None:
    name = strategy.name
    assert (strategy(local_steps=3).settings.form, strategy(local_steps=3).settings.precision) == ("local", 0.02)
    for given in ({"step_size": 0.1}, {"gradient_steps": 2}, {"gradient_batch": 8}, {"form": "one-gradient"}):
        made = strategy(**given)
        assert (made.settings.form, made.settings.precision, made.settings.step_size) == ("one-gradient", 0.3, 0.1)
    with pytest.raises(ConfigError, match=rf"^{name}\.local-steps is missing: how many steps clients take"):
        strategy()
    for key, value in (("step-size", 0.1), ("gradient-steps", 2), ("gradient-batch", 8)):
        with pytest.raises(
            ConfigError, match=rf"^{name}\.{key} = {value} is not allowed with form = 'local': 'one-gradient'$"
        ):
            strategy(form="local", local_steps=3, **{key.replace("-", "_"): value})


def test_an_owners_limits_count_what_is_trained() -> None:
    training = LocalTrainingSettings(learning_rate=0.1, batch_size=16, local_steps=7)
    local, paper = (AdaGD.LocalRule(AdaGD.Settings.parse({"form": form})) for form in ("local", "one-gradient"))
    assert (local.gradients(7), local.examples(training), local.asks_gradients()) == (7, 16, False)
    assert (paper.gradients(7), paper.examples(training), paper.asks_gradients()) == (1, 0, True)
    local.check(training.model_copy(update={"momentum": 0.5}))
    assert not Gradient.knows_momentum


def test_the_heading_says_what_clients_send() -> None:
    def notes(**settings: Any) -> list[str]:
        config = RunConfig.parse({"strategy": "adagd", **settings})
        return AdaGD.notes(config, run_plugins(config).settings_of(AdaGD))

    assert notes() == ["adagd's local form, beyond its theorem"]
    assert notes(**{"adagd.form": "one-gradient"}) == ["one gradient a round"]
    assert notes(**{"adagd.gradient-steps": 4}) == []
