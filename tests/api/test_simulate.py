"""Runs from a program: what they are, what they take, how they continue."""

import json
import math
import re
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedappeal
from client.participation.policies import Always
from client.training.sgd import SGD
from fedappeal.cli.option_groups import ResumeOptions
from fedappeal.cli.start import resume_run
from fedappeal.core.policy import Policy, Situation
from fedappeal.core.requirement import Requirement, RequirementKind, WarmUp
from fedappeal.protocol.keys import Decision
from fedappeal.record.reader import Record
from fedappeal.runs.plan import RunPlan
from fedappeal.settings.config import ConfigError, RunConfig, TaskSettings
from fedappeal.simulation.engine import simulate as simulate_folder
from fedappeal.simulation.options import Simulation
from fedappeal.simulation.process_wide import simulation_threads
from fedappeal.tasks.datasets.digits import Digits
from fedappeal.tasks.task import Task
from strategies import FedAvg, MaxFL
from strategies.fedalign import FedALIGN
from strategies.rounds.strategy import rounds_of
from tests.api.blobs import QUICK, Net, in_folder, losses, pairs, side

__all__ = ["in_folder"]
pytestmark = pytest.mark.usefixtures("in_folder")


def test_a_run_is_what_the_command_line_runs() -> None:
    run = fedappeal.simulate("maxfl", "digits", clients=4, **QUICK)
    config = RunConfig.parse(
        {"strategy": "maxfl", "clients": 4, "rounds": 3, "local-steps": 2, "batch-size": 8, "solo.steps": 3}
    )
    folder = RunPlan.of(config, Path("other")).folder({})
    simulate_folder(config, folder, Simulation())
    assert losses(run) == [line["loss"] for line in Record(folder.path).history]
    assert run.config.section("solo")["steps"] == 3
    assert re.fullmatch(r"\d{8}-\d{6}-[0-9a-f]{4}-maxfl-digits", run.path.name)


def test_history_clients_and_summary() -> None:
    run = fedappeal.simulate("maxfl", model=Net, data=pairs(3), mandatory_rounds=0, **QUICK)
    assert run.history["round"].tolist() == [1, 2, 3]
    clients = run.clients
    assert clients.columns.tolist() == ["round", "client", "decision", "loss", "accuracy", "appealed", "requirement"]
    assert clients["client"].tolist() == [f"client-000{k}" for k in range(3)] * 3
    assert set(clients["decision"]) <= {"joined", "sat-out"}
    last = clients[clients["round"] == 3]
    assert last["loss"].mean() == pytest.approx(losses(run)[-1])
    assert ((last["loss"] < last["requirement"]) == (last["appealed"] == 1)).all()
    found = run.summary()
    assert (found["rounds"], found["of"], found["finished"]) == (3, 3, True)
    assert found["asked"] == 9
    assert repr(run).startswith("Run(maxfl on own, seed 0, 3 of 3 rounds, gm appeal ")
    assert str(run.path) in run._repr_html_()
    assert run.finished


def test_a_history_has_units_and_a_sweeps_too() -> None:
    units = fedappeal.simulate("fedavg", model=Net, data=pairs(), unseen_clients=1, **QUICK).history.attrs["units"]
    expected = {"joined": "clients", "accuracy": "share", "unseen_accuracy": "share", "loss": "number"}
    assert {key: units[key] for key in expected} == expected
    assert (units["bytes_up"], units["seconds"]) == ("bytes", "seconds")
    runs = fedappeal.sweep("fedavg", model=Net, data=pairs(), seed=[0, 1], **QUICK)
    assert runs.history.attrs["units"]["accuracy"] == "share"


def test_the_model_predicts_as_the_history_says() -> None:
    data = pairs(3)
    run = fedappeal.simulate("fedavg", model=Net, data=data, **QUICK)
    model = run.model()
    assert isinstance(model, Net)
    assert not model.training
    right = [float((model(x).argmax(dim=1) == y).double().mean()) for _, (x, y) in data]
    assert run.history["accuracy"].iloc[-1] == pytest.approx(sum(right) / 3)


# -- own models ----------------------------------------------------------------------------------------


def test_a_class_is_called_for_the_seed_and_an_instances_weights_are_the_start() -> None:
    instance = Net()
    before = {name: t.clone() for name, t in instance.state_dict().items()}
    common: dict[str, Any] = {"strategy": "fedavg", "data": pairs(2), **QUICK}
    by_class = [losses(fedappeal.simulate(model=Net, seed=seed, **common)) for seed in (1, 1, 2)]
    assert by_class[0] == by_class[1] != by_class[2]
    given = [losses(fedappeal.simulate(model=instance, **common)) for _ in range(2)]
    assert given[0] == given[1]
    assert all(torch.equal(before[name], t) for name, t in instance.state_dict().items())
    start = Net()
    start.load_state_dict(before)
    assert losses(fedappeal.simulate(model=lambda: start, **common)) == given[0]


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (3, "model = 3 is not allowed: a torch.nn.Module, its class, a function"),
        (lambda: 3, "it made int, no torch.nn.Module"),
        (nn.Linear, "model = Linear failed: TypeError"),
        ("vgg", "model = 'vgg' is not allowed"),
    ],
)
def test_what_is_no_model_is_one_line(model: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        fedappeal.simulate(model=model, data=pairs())
    assert not Path("runs").exists()


def test_an_own_model_on_a_known_tasks_data() -> None:
    run = fedappeal.simulate(
        "fedavg", "digits", clients=3, model=lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), **QUICK
    )
    assert run.config.task == "digits"
    assert run.history["accuracy"].iloc[-1] > 0.1
    assert len(list(run.model().parameters())) == 2
    with pytest.raises(ConfigError, match="calling the model failed"):
        fedappeal.simulate("fedavg", "digits", clients=3, model=Net, **QUICK)


def test_a_known_tasks_own_settings_count_beside_an_own_model(recwarn: pytest.WarningsRecorder) -> None:
    quick = QUICK | {"set": {"synth.beta": 0.0, "solo.steps": 3}}
    model = nn.Linear(60, 10)
    run = fedappeal.simulate("fedavg", "synth", clients=3, model=model, **quick)
    assert [str(each.message) for each in recwarn if issubclass(each.category, UserWarning)] == []
    other = fedappeal.simulate("fedavg", "synth", clients=3, model=model, **QUICK)
    assert losses(run) != losses(other)


def test_what_stays_with_the_clients_has_its_initial_values_in_the_model() -> None:
    start = Net()
    run = fedappeal.simulate("fedavg", model=start, data=pairs(2), share="hidden.*", evaluate=side(9, 1), **QUICK)
    model = run.model()
    assert isinstance(model, Net)
    assert torch.equal(model.output.weight, start.output.weight)
    assert not torch.equal(model.hidden.weight, start.hidden.weight)


# -- strategies, and other plug-ins --------------------------------------------------------------------


def test_a_strategy_object_is_a_template() -> None:
    template = MaxFL(server_lr=0.25, clients_per_round=2, seed=4)
    common: dict[str, Any] = {"model": Net, "data": pairs(), **QUICK}
    first = fedappeal.simulate(template, **common)
    assert rounds_of(template).finished == ""
    assert rounds_of(template).members.available() == []
    named = fedappeal.simulate(
        "maxfl", clients_per_round=2, seed=4, **common | {"set": {"maxfl.server_lr": 0.25, "solo.steps": 3}}
    )
    assert losses(first) == losses(fedappeal.simulate(template, **common)) == losses(named)
    assert first.config.section("maxfl")["server-lr"] == 0.25
    assert (first.config.clients_per_round, first.config.seed) == (2, 4)


def test_other_threads_than_a_simulation_of_this_process_are_refused_before_the_folder(tmp_path: Path) -> None:
    with simulation_threads(2), pytest.raises(ConfigError, match="threads = 1 is not allowed: 2, as another"):
        fedappeal.simulate(model=Net, data=pairs(), out=tmp_path / "run", threads=1, **QUICK)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"clients_per_round": 3}, "clients_per_round is given twice: 3 beside MaxFL(clients_per_round=2)"),
        (
            {"set": {"maxfl.server_lr": 1.0}},
            "maxfl.server-lr is given twice: 1.0 in set, beside MaxFL(server_lr=0.25)",
        ),
        ({"set": {"maxfl.stabilizer": 1.0}}, "maxfl.stabilizer = 1.0 is not allowed beside an object that has 0.001"),
        ({"set": {"stabilizer": 1.0}}, "set = {'stabilizer': ...} is not allowed: 'NAME.KEY'"),
        ({"set": [1]}, "set = [1] is not allowed: a dict of settings of plug-ins"),
        ({"set": ()}, "set = () is not allowed: a dict of settings of plug-ins"),
        ({"set": {1: 2}}, "set = {'1': ...} is not allowed: 'NAME.KEY'"),
        ({"out": 3}, "out = 3 is not allowed: a path is"),
        ({"out": 0}, "out = 0 is not allowed: a path is"),
        ({"out": "a\0b"}, "out = 'a\\x00b' is not allowed: a path is"),
        ({"ronds": 3}, "unknown setting 'ronds'; did you mean 'rounds'?"),
        ({"resume": True}, "unknown setting 'resume'"),
        (
            {"requirement": Net},
            "requirement = <class 'tests.api.blobs.Net'> is not allowed: a name, or a subclass of",
        ),
        ({"device": "cuda:7"}, "device = 'cuda:7' is not allowed"),
        ({"on_round": 3}, "on_round = 3 is not allowed: a callable is"),
        ({"evaluate": 3}, "evaluate is not allowed: the central test set is a int"),
        ({"threads": 2.5}, "threads = 2.5 is not allowed: 0 (as PyTorch has it) or more"),
        ({"threads": "2"}, "threads = '2' is not allowed"),
        ({"threads": 2**31}, "threads = 2147483648 is not allowed"),
        ({"data_dir": 3}, "data_dir = 3 is not allowed: a path is"),
        ({"mode": "fast"}, "mode = 'fast' is not allowed"),
    ],
)
def test_what_is_given_twice_or_wrongly_is_one_line(settings: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        fedappeal.simulate(MaxFL(server_lr=0.25, clients_per_round=2), model=Net, data=pairs(), **settings)
    assert not Path("runs").exists()


def test_an_epsilon_that_is_a_function_runs() -> None:
    strategy = FedALIGN(epsilon=lambda t: 1.0 / t)
    run = fedappeal.simulate(strategy, model=Net, data=pairs(), **QUICK)
    with pytest.raises(ConfigError, match=re.escape("fedappeal.load(path, strategy=...) takes it")):
        fedappeal.load(run.path, model=Net, data=pairs()).resume(rounds=4)
    again = fedappeal.load(run.path, model=Net, data=pairs(), strategy=strategy, quiet=True)
    assert again.resume(rounds=4).history["epsilon"].tolist() == [1.0, 1 / 2, 1 / 3, 1 / 4]


def test_a_setting_that_no_plug_in_of_the_run_uses_is_said() -> None:
    with pytest.warns(UserWarning, match=r"maxfl\.server-lr is not used by this run"):
        fedappeal.simulate("fedavg", model=Net, data=pairs(), **QUICK | {"set": {"maxfl.server_lr": 1.0}})


class Loyal(Policy):
    """Always joins."""

    needs_loss = False  # else its clients train in other batches, with other dropout

    def decide(self, situation: Situation) -> Decision:
        return Decision.JOINED


class Modest(RequirementKind):
    """Twice the initial loss."""

    def make(self, client: WarmUp) -> Requirement:
        return Requirement(2.0)


class MyFedAvg(FedAvg):
    """FedAvg under a name of its own."""


class MyDigits(Digits):
    """Digits under a name of its own."""


class MySGD(SGD):
    """SGD under a name of its own."""


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have the classes above stand in ``__main__``, as a notebook's do."""
    for kind in (Loyal, Modest, MyFedAvg, MyDigits, MySGD):
        monkeypatch.setattr(sys.modules["__main__"], kind.__name__, kind, raising=False)
        monkeypatch.setattr(kind, "__module__", "__main__")
    return


class WrongPolicy(Loyal):
    """A slip of its author's."""

    def decide(self, situation: Situation) -> Decision:
        return situation.nothing  # type: ignore[attr-defined, no-any-return]


class WrongRequirement(Modest):
    """A slip of its author's."""

    def make(self, client: WarmUp) -> Requirement:
        return client.nothing  # type: ignore[attr-defined, no-any-return]


class WrongStrategy(FedAvg):
    """A slip of its author's."""

    def update(self, round: Any) -> Any:
        return round.nothing


@pytest.mark.parametrize(
    "own",
    [
        {"participation": WrongPolicy},
        {"requirement": WrongRequirement, "strategy": "maxfl"},
        {"strategy": WrongStrategy},
        {"strategy": WrongStrategy()},
        {"strategy": type("Local", (FedAvg,), {"__doc__": "Found by no name."})(), "participation": WrongPolicy},
    ],
    ids=["policy", "requirement", "strategy", "strategy object", "policy beside an object"],
)
def test_a_slip_beside_own_data_is_found_before_the_run(own: dict[str, Any]) -> None:
    """What was passed as an object is never looked for by its name."""
    quick = {key: value for key, value in QUICK.items() if key != "set"}
    with pytest.raises(ConfigError, match=r"has no attribute 'nothing' \(.*test_simulate.py:\d+\)$"):
        fedappeal.simulate(**{"strategy": "fedavg", **own}, model=Net, data=pairs(), out="run", **quick)
    assert not Path("run").exists()


@pytest.mark.usefixtures("notebook")
def test_classes_that_a_notebook_defines_go_by_their_names_there() -> None:
    own: dict[str, Any] = {"participation": {Loyal: 0.5, "always": 0.5}, "requirement": Modest, "local_rule": MySGD}
    quick = {key: value for key, value in QUICK.items() if key != "set"}
    run = fedappeal.simulate(MyFedAvg, MyDigits, clients=3, **own, **quick)
    config = run.config
    assert (config.strategy, config.task) == ("__main__:MyFedAvg", "__main__:MyDigits")
    assert (config.requirement, config.local_rule) == ("__main__:Modest", "__main__:MySGD")
    assert config.participation == "__main__:Loyal=0.5,always=0.5"
    assert set(run.clients["requirement"]) == {2.0}
    plain = fedappeal.simulate("fedavg", "digits", clients=3, participation=Always, requirement="fixed", **quick)
    assert losses(run) == losses(plain)
    with pytest.raises(ConfigError, match=r"runs only with --allow __main__$"):
        fedappeal.load(run.path, quiet=True).resume(rounds=4)
    assert fedappeal.load(run.path, quiet=True, allow=["__main__"]).resume(rounds=4).rounds == 4
    by_object = fedappeal.simulate(MyFedAvg(), model=Net, data=pairs(), **quick)
    with pytest.raises(ConfigError, match=re.escape("fedappeal.load(path, strategy=...) takes it")):
        fedappeal.load(by_object.path, model=Net, data=pairs()).resume(rounds=5)
    again = fedappeal.load(by_object.path, model=Net, data=pairs(), strategy=MyFedAvg(), quiet=True)
    assert again.resume(rounds=5).rounds == 5


def test_classes_inside_a_function_are_objects_or_refused() -> None:
    class Inner(FedAvg):
        """A strategy."""

    class InnerTask(Digits):
        """A task."""

    class Kind(RequirementKind):
        """A kind of requirement."""

    run = fedappeal.simulate(Inner, InnerTask, clients=3, **QUICK)
    assert run.config.strategy == "inner"
    with pytest.raises(ConfigError, match="Kind is not allowed: define the class at the top of a module"):
        fedappeal.simulate("fedavg", requirement=Kind)


# -- task objects --------------------------------------------------------------------------------------


class Halves(Task):
    """A task of two clients with settings in the constructor."""

    num_classes = 2

    def initial_model(self, seed: int) -> nn.Module:
        from fedappeal.tasks.models import seeded

        with seeded(seed):
            return Net()

    def load(self, client: int) -> fedappeal.ClientData:
        train, test = pairs()[client]
        return fedappeal.ClientData(fedappeal.Split(*train), fedappeal.Split(*test))


def test_a_task_object_brings_its_settings() -> None:
    task = Halves(TaskSettings(clients=2))
    run = fedappeal.simulate("fedavg", task, **QUICK)
    assert run.config.clients == 2
    with pytest.raises(ConfigError, match="clients is given twice: 3 beside a Halves with 2"):
        fedappeal.simulate("fedavg", task, clients=3)
    assert losses(run) == losses(fedappeal.simulate("fedavg", model=Net, data=pairs(2), **QUICK))
    with pytest.raises(ConfigError, match=r"fedappeal\.load\(path, task=\.\.\.\) takes it"):
        fedappeal.load(run.path).model()
    assert isinstance(fedappeal.load(run.path, task=task).model(), Net)
    with pytest.raises(ConfigError, match="task is not that of the run"):
        fedappeal.load(run.path, task=Halves(TaskSettings(clients=2, unseen_clients=1)))


# -- evaluation on the server, and hooks ---------------------------------------------------------------


def test_a_function_evaluates_after_each_evaluated_round() -> None:
    seen: list[tuple[int, bool]] = []

    def measured(number: int, model: nn.Module) -> dict[str, float]:
        seen.append((number, model.training))
        return {"norm": float(sum(p.square().sum() for p in model.parameters())), "two-fold": 2 * number}

    run = fedappeal.simulate(
        "fedavg", model=Net, data=pairs(), evaluate=measured, evaluate_every=2, **QUICK | {"rounds": 5}
    )
    assert seen == [(2, False), (4, False), (5, False)]
    history = run.history.set_index("round")
    assert history["central_two_fold"].dropna().to_dict() == {2: 4.0, 4: 8.0, 5: 10.0}
    expected = float(sum(p.square().sum() for p in run.model().parameters()))
    assert history["central_norm"][5] == pytest.approx(expected, rel=1e-6)
    with pytest.raises(ConfigError, match="evaluate is not allowed: it returned float"):
        fedappeal.simulate("fedavg", model=Net, data=pairs(), evaluate=lambda number, model: 1.0, **QUICK)


class Unshown:
    """A number on a device that failed."""

    def __float__(self) -> float:
        raise RuntimeError("CUDA error")

    __repr__ = __float__  # type: ignore[assignment]


@pytest.mark.parametrize("value", [None, "text", [1, 2], 1j, torch.tensor(1j), torch.ones(2), 10**400, Unshown()])
def test_a_figure_of_an_own_evaluation_that_is_no_number_is_named(value: Any) -> None:
    said = r"^evaluate is not allowed: it returned 'odd': a .*Error: .*; a dict of numbers is$"
    with pytest.raises(ConfigError, match=said):
        fedappeal.simulate("fedavg", model=Net, data=pairs(), evaluate=lambda n, m: {"a": 1, "odd": value}, **QUICK)


def test_numbers_that_are_not_finite_are_null_in_the_history() -> None:
    numbers = {1: math.inf, 2: -math.inf, 3: math.nan}
    run = fedappeal.simulate(
        "fedavg", model=Net, data=pairs(), evaluate=lambda number, model: {"odd": numbers[number]}, **QUICK
    )

    def refused(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    for file in run.path.glob("*.jsonl"):
        lines = [json.loads(line, parse_constant=refused) for line in file.read_text().splitlines()]
        if file.name == "history.jsonl":
            assert [line["central_odd"] for line in lines] == [None] * 3
    assert run.history["central_odd"].isna().all()
    assert run.history["loss"].notna().all()


def test_each_round_is_told() -> None:
    told: list[fedappeal.FinishedRound] = []
    run = fedappeal.simulate("fedavg", model=Net, data=pairs(), on_round=told.append, **QUICK)
    assert [each.number for each in told] == [1, 2, 3]
    assert [each.row["loss"] for each in told] == losses(run)
    assert set(told[0].decisions.values()) == {"joined"}
    assert told[0].run is run


def test_an_exception_of_a_hook_ends_a_run_that_can_continue() -> None:
    class Full(Exception):
        pass

    def stop(each: fedappeal.FinishedRound) -> None:
        if each.number == 2:
            raise Full("the disk is full")

    common: dict[str, Any] = {"model": Net, "data": pairs(), **QUICK}
    with pytest.raises(Full, match="the disk is full"):
        fedappeal.simulate("maxfl", on_round=stop, out="run", **common)
    run = fedappeal.load("run", model=Net, data=pairs(), quiet=True)
    assert (run.rounds, run.finished) == (2, False)
    run.resume()
    assert losses(run) == losses(fedappeal.simulate("maxfl", **common))


# -- going on ------------------------------------------------------------------------------------------


def test_ctrl_c_leaves_a_run_that_continues_to_the_bit(capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(each: fedappeal.FinishedRound) -> None:
        if each.number == 2 and not each.run.path.joinpath("again").exists():
            each.run.path.joinpath("again").touch()
            raise KeyboardInterrupt

    common: dict[str, Any] = {"model": Net, "data": pairs(), "evaluate": side(9, 1), **QUICK}
    run = fedappeal.simulate("maxfl", on_round=interrupt, **common)
    assert run.interrupted
    assert (run.rounds, run.finished) == (2, False)
    said = f"interrupted after round 2; run.resume() continues it ({run.path})\n"
    assert capsys.readouterr().out == said
    assert "2 of 3 rounds" in repr(run)
    assert isinstance(run.model(), Net)
    assert run.resume() is run
    assert not run.interrupted
    whole = fedappeal.simulate("maxfl", **common)
    timed = ["seconds"]
    assert run.history.drop(columns=timed).equals(whole.history.drop(columns=timed))
    assert run.clients.equals(whole.clients)


def test_a_finished_run_continues_to_a_new_total_and_is_refused_without_one() -> None:
    common: dict[str, Any] = {"model": Net, "data": pairs(), **QUICK}
    run = fedappeal.simulate("fedavg", **common)
    with pytest.raises(ConfigError, match="has finished all its 3 rounds"):
        run.resume()
    with pytest.raises(ConfigError, match="rounds = 'many' is not allowed: input should be a valid integer"):
        run.resume(rounds="many")  # type: ignore[arg-type]
    assert run.resume(rounds=5).config.rounds == 5
    assert losses(run)[:3] == losses(fedappeal.simulate("fedavg", **common))
    assert run.finished


class Other(Net):
    """Another class with the same layout."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 2


def test_own_parts_are_given_again_and_others_refused() -> None:
    data, loss = pairs(), nn.CrossEntropyLoss()
    run = fedappeal.simulate("fedavg", model=Net, data=data, loss=loss, **QUICK)
    loaded = fedappeal.load(run.path)
    assert loaded.history.equals(run.history)
    assert repr(loaded) == repr(run)
    for needs in (loaded.model, loaded.resume):
        with pytest.raises(
            ConfigError, match=re.escape("fedappeal.load(path, data=..., model=..., loss=..., metrics=...)")
        ):
            needs(**({"rounds": 9} if needs == loaded.resume else {}))
    changed = [*data[:3], (data[3][0], (data[3][1][0] + 1, data[3][1][1]))]
    refused: list[tuple[dict[str, Any], str]] = [
        ({"model": Net, "data": changed, "loss": loss}, "data is not that of the run in"),
        ({"model": Other, "data": data, "loss": loss}, "model is not that of the run in"),
        ({"model": Net(), "data": data, "loss": loss}, "model is not that of the run in"),
        ({"model": Net, "data": data}, "loss and metrics is missing"),
        ({"model": Net, "loss": loss}, "data is missing"),
        ({"data": data, "loss": loss}, "model is missing"),
        ({"model": Net, "data": data, "loss": nn.MSELoss()}, "loss and metrics is not that of the run in"),
    ]
    for given, said in refused:
        with pytest.raises(ConfigError, match=re.escape(said)) as error:
            fedappeal.load(run.path, **given)
        assert "\n" not in str(error.value)
    same = fedappeal.load(run.path, model=Net, data=data, loss=loss, quiet=True)
    for (name, a), b in zip(run.model().state_dict().items(), same.model().state_dict().values(), strict=True):
        assert torch.equal(a, b), name
    assert same.resume(rounds=4).rounds == 4


@pytest.mark.parametrize("path", [3, None, b"run", [1]])
def test_what_is_no_path_is_one_line(path: Any) -> None:
    run = fedappeal.simulate("fedavg", model=Net, data=pairs(), **QUICK)
    calls: list[Any] = [fedappeal.load, fedappeal.compare, run.report().save]
    for call in [*calls, *([run.keep, partial(run.export, "safetensors")] if path else [])]:
        with pytest.raises(ConfigError, match=r"^(path|output|runs) = .* is not allowed: a path is$"):
            call(path if call is not fedappeal.compare else [path])


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not the folder of a run"):
        fedappeal.load(tmp_path)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "config.json").write_text(json.dumps({}))
    with pytest.raises(ConfigError, match="already holds a run"):
        fedappeal.simulate("fedavg", model=Net, data=pairs(), out=tmp_path / "taken")


# -- threads -------------------------------------------------------------------------------------------


def test_runs_in_threads_at_once_give_what_each_gives_alone() -> None:
    def run(seed: int) -> list[float]:
        return list(losses(fedappeal.simulate("maxfl", model=Net, data=pairs(), seed=seed, **QUICK)))

    alone = [run(seed) for seed in range(4)]
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(run, range(4))) == alone


def test_the_command_says_that_python_continues_a_run_of_own_objects(tmp_path: Path) -> None:
    run = fedappeal.simulate("fedavg", model="logistic", data=pairs(), rounds=1, out=tmp_path / "own", quiet=True)
    with pytest.raises(ConfigError, match=r"own objects: in Python, fedappeal\.load"):
        resume_run(run.path, ResumeOptions(rounds=2))
