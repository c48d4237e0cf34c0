"""The registry, one's own tasks, and what a task agrees on between processes."""

import subprocess
import sys
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest
import torch

from fedappeal.core.plugins import ALL, Allowed
from fedappeal.settings.config import ConfigError, TaskSettings
from fedappeal.tasks import TASKS, load_task
from fedappeal.tasks.task import ClientData, Split, Task

ROOT = Path(__file__).parents[2]

OWN = """
import torch
from fedappeal.core.plugins import PluginSettings
from fedappeal.tasks.examples import ClientData, Split
from fedappeal.tasks.task import Task

class Line(Task):
    class Settings(PluginSettings):
        slope: float = 1.0
        points: int = 2
    input_shape = (1,)
    num_classes = 2
    def initial_model(self, seed):
        return torch.nn.Linear(1, 2)
    def load(self, client):
        split = Split(torch.full((self.own.points, 1), self.own.slope), torch.arange(self.own.points) % 2)
        return ClientData(split, split)

def steep(settings, data_dir):
    return Line(settings.with_plugins([("line.slope", 9.0)]), data_dir)

def broken(settings, data_dir):
    raise RuntimeError("first\\nsecond")

def wrong(settings, data_dir):
    return 3

number = 3
"""


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "own_line_task.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    monkeypatch.delitem(sys.modules, "own_line_task", raising=False)
    return "own_line_task"


def settings(**values: object) -> TaskSettings:
    return TaskSettings.model_validate(values)


def test_names_and_checks_need_no_torch() -> None:
    out = python(
        "import sys\n"
        "from fedappeal.settings.config import TaskSettings\n"
        "from fedappeal.tasks import TASKS, load_task\n"
        "load_task(TaskSettings()).check()\n"
        "load_task(TaskSettings(task='synth')).check()\n"
        "for name in ('emnist', 'emnist-balanced', 'cifar10', 'sent140'):\n"
        "    load_task(TaskSettings(task=name)).fingerprint\n"
        "print(TASKS.names(), sorted({'torch', 'sklearn', 'flwr_datasets'} & set(sys.modules)))"
    )
    assert out.split("\n")[0] == f"{TASKS.names()} []"
    images = ["digits", "fmnist", "emnist", "emnist-balanced", "cifar10"]
    assert TASKS.names() == [*images, "sent140", "synth", "movielens", "chem97", "debian"]


def test_two_processes_agree() -> None:
    chosen = "dict(clients=5, unseen_clients=2, flip_share=0.4, dirichlet_alpha=0.3, seed=11)"
    out = python(
        "from fedappeal.settings.config import TaskSettings\n"
        "from fedappeal.tasks import load_task\n"
        f"task = load_task(TaskSettings(**{chosen}))\n"
        "weights = sum(p.double().sum().item() for p in task.initial_model(11).parameters())\n"
        "print(task.fingerprint, weights, *(task.load(k).fingerprint for k in range(7)))"
    )
    task = load_task(TaskSettings(clients=5, unseen_clients=2, flip_share=0.4, dirichlet_alpha=0.3, seed=11))
    weights = sum(p.double().sum().item() for p in task.initial_model(11).parameters())
    prints = [task.load(k).fingerprint for k in range(7)]
    assert out.split() == [task.fingerprint, str(weights), *prints]
    assert len(set(prints)) == 7


def test_the_fingerprint_names_what_must_agree() -> None:
    def fingerprint(**values: object) -> str:
        return load_task(settings(**values)).fingerprint

    base = fingerprint()
    assert len(base) == 16
    assert int(base, 16) >= 0
    assert base == fingerprint() == fingerprint(model="logistic")
    changes = [
        {"task": "fmnist"},
        {"seed": 1},
        {"clients": 9},
        {"unseen_clients": 1},
        {"partition": "iid"},
        {"dirichlet_alpha": 0.6},
        {"train_share": 0.7},
        {"flip_share": 0.3},
        {"flip_on": "train"},
    ]
    assert len({base, *(fingerprint(**change) for change in changes)}) == len(changes) + 1


def test_data_fingerprints_see_every_part() -> None:
    one = Split(torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64))
    flipped = Split(torch.zeros(2, 3), torch.ones(2, dtype=torch.int64))
    reshaped = Split(torch.zeros(2, 3, 1), torch.zeros(2, dtype=torch.int64))
    pairs = [(one, one), (one, flipped), (flipped, one), (reshaped, one)]
    assert len({ClientData(*pair).fingerprint for pair in pairs}) == 4
    clone = Split(one.x.clone(), one.y.clone())
    assert ClientData(one, clone).fingerprint == ClientData(one, one).fingerprint


def test_a_split_is_checked() -> None:
    told = r"one row an example: x \(3, 1\), y \(2,\)"
    with pytest.raises(ValueError, match=told):
        Split(torch.zeros(3, 1), torch.zeros(2, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"x/mask \(\)"):
        Split({"mask": torch.tensor(1.0)}, torch.zeros(2))


def test_ones_own_task_is_found_in_the_current_folder(own: str) -> None:
    chosen = settings(task=f"{own}:Line")
    load_task(chosen).check()
    task = load_task(chosen)
    assert task.name == "line"
    assert len(task.load(0).train) == 2
    assert task.fingerprint != load_task(settings(task=f"{own}:Line", seed=1)).fingerprint


def test_ones_own_task_has_settings_of_its_own(own: str) -> None:
    def line(attribute: str = "Line", **given: object) -> Task:
        return load_task(TaskSettings.parse({"task": f"{own}:{attribute}", **given}))

    plain, chosen = line(), line(**{"line.slope": 2.5, "line.points": 5})
    assert plain.load(0).train.x.tolist() == [[1.0], [1.0]]
    assert chosen.load(0).train.x.tolist() == [[2.5]] * 5
    assert line("steep").load(0).train.x.tolist() == [[9.0], [9.0]]
    assert len({task.fingerprint for task in (plain, chosen, line(**{"line.slope": 2.5}))}) == 3
    assert plain.fingerprint == line(**{"line.slope": 1, "synth.noise": 0.1, "maxfl.server-lr": 0.3}).fingerprint
    for given, expected in (
        ({"line.slop": 1}, "unknown setting 'line.slop'; did you mean 'line.slope'?"),
        ({"line.points": "many"}, "line.points = 'many' is not allowed: input should be a valid integer"),
    ):
        with pytest.raises(ConfigError) as caught:
            line(**given)
        assert str(caught.value).startswith(expected)
        assert "\n" not in str(caught.value)


def test_ones_own_package_has_to_be_allowed(own: str) -> None:
    chosen = settings(task=f"{own}:Line")
    for use in (lambda *named: load_task(*named).check(), load_task):
        use(chosen, None, Allowed.of([own]))
        with pytest.raises(ConfigError, match=rf"has not allowed the package '{own}' \(--allow {own}\)"):
            use(chosen, None, Allowed.of(["another"]))
    assert load_task(settings(), None, Allowed.of([])).name == "digits"


def test_an_installed_task_is_found_by_its_entry_point(own: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "fedappeal.core.plugins.entry_points",
        lambda group: EntryPoints([EntryPoint("straight", f"{own}:Line", group)]).select(group="fedappeal.tasks"),
    )
    assert TASKS.names() == [*TASKS.built_in, "straight"]
    monkeypatch.syspath_prepend(str(Path.cwd()))
    assert load_task(settings(task="straight")).name == "line"


def test_the_task_in_the_docs_runs_as_printed(own: str) -> None:
    printed = (ROOT / "docs" / "tasks.md").read_text().partition("```python\n")[2].partition("```")[0]
    Path(f"{own}.py").write_text(printed)
    chosen = TaskSettings.parse({"task": f"{own}:Slope", "set": "slope.step=0.2"})
    load_task(chosen).check()
    task = load_task(chosen)
    x, y = task.load(3).train.x, task.load(3).train.y
    torch.testing.assert_close(y, 0.6 * x)
    assert task.metrics(0 * y, y) == {"abs-error": pytest.approx(y.abs().mean().item())}
    assert task.loss(0 * y, y, "sum").item() == pytest.approx(len(y) * task.loss(0 * y, y).item())
    assert task.initial_model(0)(x).shape == (20, 1)


def test_settings_stand_under_the_names_that_runs_use() -> None:
    assert [TASKS.load(name).name for name in TASKS.built_in] == list(TASKS.built_in)


@pytest.mark.parametrize(
    ("attribute", "expected"),
    [
        ("broken", "task = 'own_line_task:broken' failed: RuntimeError: first second"),
        ("wrong", "task = 'own_line_task:wrong' is not allowed: it returned int, not a fedappeal.tasks.task.Task"),
        ("number", "task = 'own_line_task:number' is not allowed: number is not callable"),
        ("nothing", "task = 'own_line_task:nothing' cannot be imported: AttributeError: "),
        ("", "write your own as package.module:Name"),
    ],
)
def test_what_is_wrong_with_ones_own_task_is_one_line(own: str, attribute: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_task(settings(task=f"{own}:{attribute}"))
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("use", [lambda settings: load_task(settings).check(), load_task])
@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"task": "cifar"}, "task = 'cifar' is not allowed: digits, fmnist, emnist, emnist-balanced, "),
        ({"task": "cifar"}, "(did you mean 'cifar10'?)"),
        ({"task": "no_such_module_at_all:task"}, "cannot be imported: ModuleNotFoundError"),
        (
            {"task": "synth", "partition": "iid"},
            "partition = 'iid' is not allowed for task = 'synth': its data comes client by client (natural, auto)",
        ),
    ],
)
def test_errors_come_before_anything_starts(use: object, values: dict[str, object], expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        use(settings(**values))  # type: ignore[operator]
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "use", [lambda settings: load_task(settings).check(), lambda settings: load_task(settings).load(0)]
)
@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"clients": 180}, "clients = 180 is not allowed: the data set's 1797 examples are enough for 179"),
        (
            {"partition": "natural"},
            "partition = 'natural' is not allowed for task = 'digits': its data set does not say which client holds",
        ),
    ],
)
def test_a_data_set_that_cannot_be_shared_out_so(use: object, values: dict[str, object], expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        use(settings(**values))  # type: ignore[operator]
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_partition_that_is_meant_by_auto() -> None:
    assert load_task(settings()).partition == "dirichlet"
    assert load_task(settings(task="synth")).partition == "natural"
    assert load_task(settings(partition="iid")).partition == "iid"
    assert load_task(settings()).fingerprint == load_task(settings(partition="dirichlet")).fingerprint


def test_loss_and_accuracy_by_hand() -> None:
    task = load_task(settings())
    logits = torch.tensor([[0.0, 0.0], [0.0, torch.tensor(3.0).log()], [2.0, 0.0]])
    y = torch.tensor([0, 1, 1])
    each = task.loss(logits, y, reduction="none")
    expected = torch.tensor([2.0, 4 / 3, 1 + 2.718281828**2]).log()
    torch.testing.assert_close(each, expected)
    torch.testing.assert_close(task.loss(logits, y), expected.mean())
    torch.testing.assert_close(task.loss(logits, y, reduction="sum"), expected.sum())
    assert task.metrics(logits, y) == {"accuracy": pytest.approx(2 / 3)}


@pytest.mark.parametrize(
    "name",
    ["fedappeal.system.files:replace_file", "fedappeal.tasks:load_task", "fedappeal.tasks:Path", "client.app:app"],
)
def test_only_a_task_of_ours_is_called(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedappeal.system.files.replace_file", lambda *given: pytest.fail("called"))
    module, no_task = name.partition(":")[0], "it is no subclass of fedappeal.tasks.task.Task"
    for allowed, why in ((Allowed.of([]), f"'{module}' holds none that a run may name"), (ALL, no_task)):
        with pytest.raises(ConfigError) as caught:
            load_task(settings(task=name), None, allowed)
        assert str(caught.value) == f"task = '{name}' is not allowed: {why}"


def test_a_task_is_not_reached_through_another_module(own: str) -> None:
    for name in (f"{own}:torch.nn.Linear", "fedappeal.core.plugins:os.system"):
        with pytest.raises(ConfigError, match=r"is a module of its own: write it before the colon$"):
            load_task(settings(task=name), None)
        with pytest.raises(ConfigError, match=r"one name behind the colon$|holds none that a run may name$"):
            load_task(settings(task=name), None, Allowed.of([own]))


@pytest.mark.parametrize("task", ["digits", "synth", "chem97"])
def test_the_data_seed_draws_people_and_the_runs_seed_the_model(task: str) -> None:
    def data(**seeds: int) -> list[str]:
        made = load_task(settings(task=task, clients=4, unseen_clients=1, flip_share=0.5, min_examples=20, **seeds))
        return [made.load(k).fingerprint for k in range(5)]

    base = data(seed=1)
    assert data(seed=1, data_seed=1) == data(seed=2, data_seed=1) == base
    assert data(seed=1, data_seed=0) == data(seed=0) != base
    first, second = (load_task(settings(task=task, seed=seed, data_seed=1)).initial_model(seed) for seed in (1, 2))
    assert not torch.equal(next(first.parameters()), next(second.parameters()))


@pytest.mark.parametrize(
    ("error", "ends"),
    [
        ("FileNotFoundError('no archive')", r"FileNotFoundError: no archive \(own_line_task.py:\d+\)$"),
        ("TypeError('takes one')", r"TypeError: takes one \(.*:\d+\); its __init__ takes what its base's takes, "),
    ],
)
def test_a_class_that_cannot_be_made_is_named_as_the_setting(own: str, error: str, ends: str) -> None:
    Path(f"{own}.py").write_text(f"{OWN}\nclass Far(Line):\n    def __init__(self, *given):\n        raise {error}\n")
    with pytest.raises(ConfigError, match=f"^task = '{own}:Far' cannot be made: {ends}"):
        load_task(settings(task=f"{own}:Far"))


def test_the_data_seed_must_agree() -> None:
    before, other = (load_task(settings(data_seed=seed)).fingerprint for seed in (-1, 0))
    assert before == "0ca898bda2a0f630" != other, "runs of versions without a data seed go on"
