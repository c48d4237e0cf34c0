"""docs/extending.md and docs/plugins.md: each file printed there does what the pages say."""

import importlib
import math
import os
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Context, RecordDict
from numpy.typing import NDArray

from client.roster import Participants
from client.training.task_learner import TaskLearners
from fedappeal.core.algorithm import PersonalModels, Priority
from fedappeal.core.plugins import Allowed
from fedappeal.core.policy import Past, Situation
from fedappeal.core.registry import LOCAL_RULES, POLICIES, REQUIREMENTS, STRATEGIES
from fedappeal.core.requirement import Evaluation
from fedappeal.protocol import keys
from fedappeal.protocol.keys import Decision
from fedappeal.protocol.packing import Arrays
from fedappeal.record.lines import MODEL
from fedappeal.record.reader import Record
from fedappeal.runs.plan import RunPlan, swept_plans, unused_lines
from fedappeal.settings.config import ConfigError, RunConfig, plugin_settings
from fedappeal.settings.training import LocalTrainingSettings
from fedappeal.simulation.engine import choose_mode, simulate
from fedappeal.simulation.options import Simulation
from fedappeal.tasks import TASKS, load_task
from server.build import run_plugins
from strategies.rounds.algorithm import Influence, Survey
from strategies.rounds.exchange.members import Member, Members
from strategies.rounds.reply import Reply
from strategies.rounds.round import Round, RoundRecord
from strategies.rounds.strategy import rounds_of
from tests import warm
from tests.docs.pages import DOCS, plugins, write_plugins
from tests.grid import MemoryGrid, Volunteer, run
from tests.problems import local_problem

TEXT = "".join((DOCS / page).read_text() for page in ("extending.md", "plugins.md"))
REFERENCE = (DOCS / "reference.md").read_text().partition("## What an author of a plug-in sees")[2]
PLUGINS = ("fedyogi:FedYogi", "stubborn:Stubborn", "sam:SAM", "ambitious:Ambitious", "slope:Slope")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_plugins(tmp_path_factory.mktemp("page"))


@pytest.fixture
def mine(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Imports a module of the page's package by its name."""
    monkeypatch.syspath_prepend(str(folder))

    def load(name: str) -> ModuleType:
        return importlib.import_module(f"mine.{name}")

    yield load
    for name in [name for name in sys.modules if name.partition(".")[0] == "mine"]:
        del sys.modules[name]


def test_each_plugin_is_one_file_of_less_than_60_lines() -> None:
    printed = plugins()
    assert {f"mine/{plugin.partition(':')[0]}.py" for plugin in PLUGINS} <= set(printed)
    assert all(len(text.splitlines()) < 60 for text in printed.values())


# -- the strategy --------------------------------------------------------------------------------------


def model(*values: float) -> ArrayRecord:
    return ArrayRecord({"w": Array(np.array(values, dtype=np.float32))})


def values(record: ArrayRecord) -> list[float]:
    return [float(value) for value in record["w"].numpy()]


def round_from(before: ArrayRecord, *replies: tuple[ArrayRecord, float]) -> Round:
    """A round with these models and numbers of examples."""
    made = Round(before, Members(), RoundRecord(1))
    for arrays, examples in replies:
        made.sum.add(arrays, examples)
    return made


def test_a_client_counts_by_the_root_of_its_examples(mine: Any) -> None:
    # 9 and 4 examples count 3 to 2.
    clients: dict[int, Any] = {10: Volunteer("a", local=5.0, examples=9), 11: Volunteer("b", local=10.0, examples=4)}
    _, watch = run(mine("root").Root(), MemoryGrid(clients), 1)
    assert watch.models == [[pytest.approx((3 * 5 + 2 * 10) / 5)]]


def test_a_client_counts_by_the_loss_that_it_was_asked_for(mine: Any) -> None:
    losses = {"a": 1.0, "b": 3.0, "c": -1.0}
    clients: dict[int, Any] = {
        10 + k: Volunteer(name, local=4.0 * k, evaluation={keys.LOSS: loss})
        for k, (name, loss) in enumerate(losses.items())
    }
    strategy = mine("worse").Worse()
    _, watch = run(strategy, MemoryGrid(clients), 1)
    assert watch.models == [[pytest.approx((1 * 0 + 3 * 4) / 4)]]
    assert watch.records[0].decisions == {"a": "joined", "b": "joined", "c": "failed"}
    assert watch.records[0].failures == {"c": "it did not say its loss"}
    assert strategy.survey.needed(strategy.settings)


def test_fedyogi_takes_the_steps_of_the_paper(mine: Any) -> None:
    # beta1 = beta2 = 1/2, tau = 1, eta = 2. Round 1: the mean update is D = (1, 4), from examples 1 and 3.
    # m = D/2, v = (1, 1 + 16/2) = (1, 9), w = 2 m / (sqrt v + 1) = (1/2, 1).
    strategy = mine("fedyogi").FedYogi(server_lr=2.0, beta1=0.5, beta2=0.5, tau=1.0)
    first = strategy.update(round_from(model(0, 0), (model(4, 1), 1), (model(0, 5), 3)))
    assert values(first) == pytest.approx([1 / 2, 1])
    # Round 2: D = (4, 2), m = (1/4 + 2, 1 + 1), v = (1 + 16/2, 9 - 4/2) = (9, 7): where D^2 is below v, v falls.
    second = strategy.update(round_from(first, (model(1 / 2 + 4, 1 + 2), 1)))
    assert values(second) == pytest.approx([1 / 2 + 2 * 2.25 / 4, 1 + 2 * 2 / (7**0.5 + 1)])


def test_fedyogis_moments_are_in_the_checkpoint(mine: Any) -> None:
    make = mine("fedyogi").FedYogi
    one, other = make(), make()
    assert values(one.update(round_from(model(0), (model(1), 1)))) != [0.0]
    rounds_of(other).restore(rounds_of(one).state())
    third = make()
    rounds_of(third).restore(rounds_of(make()).state())
    again = (model(1.0), (model(3.0), 1.0))
    expected = values(one.update(round_from(*again)))
    assert values(other.update(round_from(*again))) == expected
    assert values(third.update(round_from(*again))) != expected


def test_a_step_that_is_not_finite_leaves_fedyogis_moments_alone(mine: Any) -> None:
    strategy = mine("fedyogi").FedYogi(server_lr=1e38, beta1=0.0, beta2=0.0)
    huge = np.finfo(np.float32).max
    with np.errstate(over="ignore", invalid="ignore"):
        assert not np.isfinite(values(strategy.update(round_from(model(-huge), (model(huge), 1))))).all()
    assert strategy.carried() == {"m": {}, "v": {}}


def test_the_pages_test_holds(mine: Any) -> None:
    mine("test_fedyogi").test_a_step_is_the_papers()


# -- the policy ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("losses", "joins"),
    [
        ([3.0], True),
        ([3.0, 4.0], True),
        ([3.0, 2.0, 1.0], True),
        ([3.0, 1.0, 2.0], False),
        ([1.0, 3.0, 2.0], False),
        ([2.0, 2.0, 1.0], False),
        ([1.0, 4.0, 3.0, 2.0], True),
        ([4.0, 3.0, math.nan], False),
    ],
)
def test_stubborn_joins_where_the_loss_fell_twice(mine: Any, losses: list[float], joins: bool) -> None:
    past = tuple(Past(n, Decision.JOINED, loss) for n, loss in enumerate(losses[:-1], start=1))
    now = {"server_round": len(losses), "evaluation": Evaluation(losses[-1], 0.5), "history": past}
    policy = mine("stubborn").Stubborn()
    assert policy.decide(Situation(**now)) is (Decision.JOINED if joins else Decision.SAT_OUT)
    assert policy.decide(Situation(**now, mandatory=True)) is Decision.JOINED


# -- the local rule ------------------------------------------------------------------------------------


def test_sam_is_the_papers_step(mine: Any) -> None:
    """Least squares in NumPy: grad L(w) = 2/n X^T (X w - y), on a minibatch a step."""
    rng, rho, rate = np.random.default_rng(0), 0.3, 0.05
    x, y = rng.normal(size=(20, 4)), rng.normal(size=20)
    batches = np.stack([rng.permutation(20)[:8] for _ in range(6)])
    start = rng.normal(size=4)

    def gradient(w: NDArray[np.float64], batch: NDArray[np.int64]) -> NDArray[np.float64]:
        result: NDArray[np.float64] = 2 / len(batch) * x[batch].T @ (x[batch] @ w - y[batch])
        return result

    expected = start.copy()
    for batch in batches:
        up = gradient(expected, batch)
        expected = expected - rate * gradient(expected + rho * up / np.linalg.norm(up), batch)

    net = torch.nn.Linear(4, 1, bias=False).double()
    with torch.no_grad():
        net.weight.copy_(torch.from_numpy(start)[None])
    rule = mine("sam").SAM(mine("sam").SAM.Settings(rho=rho))
    training = LocalTrainingSettings(learning_rate=rate, batch_size=8, local_steps=len(batches))

    def loss(out: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return ((out[:, 0] - target) ** 2).mean()

    rule.train(net, local_problem(loss, torch.from_numpy(x), torch.from_numpy(y), batches, training))
    assert net.weight.detach().numpy()[0] == pytest.approx(expected, abs=1e-12)
    plain = start.copy()
    for batch in batches:
        plain = plain - rate * gradient(plain, batch)
    assert np.abs(plain - expected).max() > 1e-3, "the test would not tell SAM from SGD"


def test_sam_refuses_momentum(mine: Any) -> None:
    with pytest.raises(ConfigError, match=r"momentum = 0\.9 is not allowed with local-rule = 'sam'"):
        mine("sam").SAM().check(LocalTrainingSettings(learning_rate=0.1, batch_size=1, momentum=0.9))


# -- the requirement -----------------------------------------------------------------------------------


class Alone:
    """A client whose solo model has a loss of 2 and an accuracy of 0.75."""

    def train(self, steps: int, learning_rate: float) -> Arrays:
        self.asked = (steps, learning_rate)
        return {"w": np.zeros(1)}

    def judged_loss(self, arrays: Arrays) -> float:
        return 2.0

    def test_score(self, arrays: Arrays) -> float:
        return 0.75


def test_ambitious_asks_for_a_share_of_the_solo_loss(mine: Any) -> None:
    kind, client = mine("ambitious").Ambitious, Alone()
    requirement = kind(kind.Settings(share=0.9, steps=7)).make(client)
    assert requirement.rho == pytest.approx(1.8)
    assert requirement.solo_score == 0.75
    assert client.asked == (7, 0.1)


# -- runs ----------------------------------------------------------------------------------------------


def commands(start: str) -> list[list[str]]:
    """The page's commands that start so, as words."""
    return [line.split() for line in TEXT.splitlines() if line.startswith(start)]


def given(words: list[str]) -> dict[str, Any]:
    """The settings of a printed command."""
    settings: dict[str, Any] = {}
    for option, value in zip(words[2::2], words[3::2], strict=True):
        settings |= plugin_settings(value) if option == "--set" else {option.removeprefix("--"): value}
    return settings


@pytest.mark.usefixtures("mine")
def test_every_printed_run_can_be_started_and_uses_all_its_settings() -> None:
    printed = commands("fedappeal simulate ")
    assert len(printed) == len(PLUGINS) - 1, "the page on tasks has its own"
    for words in printed:
        plans = swept_plans(given(words))
        assert len(plans) == 1
        assert unused_lines(plans) == []


@pytest.mark.usefixtures("mine")
def test_fedyogi_is_the_same_in_both_modes(tmp_path: Path) -> None:
    settings = {"strategy": "mine.fedyogi:FedYogi", "task": "mine.slope:Slope", "clients": 3, "rounds": 3, "seed": 1}
    config = RunConfig.parse(settings)
    accuracy = []
    for mode in ("batched", "sequential"):
        run = RunPlan.of(config, tmp_path / mode).folder({})
        simulate(config, run, Simulation(mode, threads=1))
        accuracy.append([line["loss"] for line in Record(run.path).history])
    assert accuracy[0] == pytest.approx(accuracy[1], rel=1e-4)


@pytest.mark.usefixtures("mine")
def test_a_rule_without_a_batched_form_is_named(tmp_path: Path) -> None:
    config = RunConfig.parse({"strategy": "fedavg", "local-rule": "mine.sam:SAM"})
    mode, why = choose_mode(run_plugins(config), Simulation(), load_task(config.task_settings()))
    assert mode == "sequential"
    assert "sam" in why


def run_in(folder: Path, *words: str) -> str:
    """Run a command of this Python in a folder; return what it prints."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = warm.run([sys.executable, *words], cwd=folder, env=env, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_all_five_together_on_the_command_line(folder: Path, tmp_path: Path) -> None:
    options = "--strategy mine.fedyogi:FedYogi --participation mine.stubborn:Stubborn=0.5,always=0.5 "
    options += "--local-rule mine.sam:SAM --requirement mine.ambitious:Ambitious --task mine.slope:Slope "
    options += "--set fedyogi.server-lr=0.05 --set sam.rho=0.1 --clients 4 --rounds 3 --mandatory-rounds 0"
    out = tmp_path / "run"
    run_in(folder, str(Path(sys.executable).parent / "fedappeal"), "simulate", *options.split(), "--out", str(out))
    rounds = Record(out).history
    assert len(rounds) == 3
    assert rounds[0]["joined"] == 4
    assert not any("failures" in line for line in rounds)
    assert (out / MODEL).exists()


# -- names, and who allows them ------------------------------------------------------------------------


@pytest.mark.usefixtures("mine")
def test_entry_points_give_short_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    points = tomllib.loads(plugins()["pyproject.toml"])["project"]["entry-points"]
    info = tmp_path / "mine-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 0.1.0\n")
    groups = [
        [f"[{group}]", *(f"{name} = {value}" for name, value in names.items())] for group, names in points.items()
    ]
    lines = [line for group in groups for line in group]
    (info / "entry_points.txt").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(str(tmp_path))
    found = []
    for registry in (STRATEGIES, POLICIES, LOCAL_RULES, REQUIREMENTS, TASKS):
        (name,) = points[registry.group]
        assert name in registry.names()
        found.append(registry.load(name, Allowed.of(["mine"])))  # type: ignore[attr-defined]
        with pytest.raises(ConfigError, match="has not allowed the package 'mine'"):
            registry.load(name, Allowed.of([]))  # type: ignore[attr-defined]
    assert [f"{each.__module__.removeprefix('mine.')}:{each.__name__}" for each in found] == list(PLUGINS)


@pytest.mark.usefixtures("mine")
def test_a_client_that_does_not_allow_the_package_says_so_as_printed() -> None:
    run = RunConfig.parse({"strategy": "mine.fedyogi:FedYogi", "clients": 1}).as_config()
    context = Context(1, 2, {"partition-id": 0, "device": "cpu", "allow": ""}, RecordDict(), run)
    with pytest.raises(ConfigError) as refused:
        Participants(TaskLearners()).of(context)
    assert f"\n{refused.value}\n" in TEXT


OBJECTS = re.compile(r"^\| of an? `(\w+)` \|.*?\n\n", re.MULTILINE | re.DOTALL)
"""A table of an object's attributes."""


def test_the_tables_of_objects_have_all_that_an_author_sees() -> None:
    reply = Reply(Member("client-0000", 1), Decision.JOINED, 1, {}, model(0))
    seen = {
        "Round": dir(Round(model(0), Members(), RoundRecord(1))),
        "Situation": dir(Situation()),
        "Reply": dir(reply),
        **{part.__name__: list(vars(part)) for part in (Survey, Influence, PersonalModels, Priority)},
    }
    tables = {table[1]: table[0] for table in OBJECTS.finditer(REFERENCE)}
    for kind, names in seen.items():
        cells = re.findall(r"^\| (`.*?) \|", tables[kind], re.MULTILINE)
        shown = {name for cell in cells for name in re.findall(r"`([a-z_]+)(?:\([a-z_, ]*\))?`", cell)}
        assert shown == {name for name in names if name[0] != "_"}


def test_what_the_tables_name_is_there() -> None:
    from fedappeal.core.algorithm import ClientSide
    from fedappeal.core.local_rule import LocalRule
    from fedappeal.core.policy import Policy
    from strategies.rounds.algorithm import Algorithm
    from strategies.rounds.strategy import Strategy

    _, *sections = re.split("^### ", OBJECTS.sub("", REFERENCE), flags=re.MULTILINE)
    for base, section in zip((Strategy, Policy, LocalRule), sections, strict=True):
        rows = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
        names = [name for row in rows for name in re.findall(r"`([A-Za-z_]+)(?:\(.*?\))?`", row)]
        assert names
        assert [name for name in names if not hasattr(base, name)] == []
    told = set(re.findall(r"([a-z_]+)\(", "".join(re.findall(r"^\| (`.*?) \|", sections[0], re.MULTILINE))))
    contract = {name for part in (Algorithm, ClientSide) for name, value in vars(part).items() if is_method(value)}
    assert contract - told == set(), "the reference has the whole contract of a strategy"


def is_method(value: object) -> bool:
    """Whether a class's entry is a method of its contract."""
    name = getattr(value, "__name__", "_")
    return isinstance(value, FunctionType | classmethod) and not name.startswith("_")
