"""What an author gets wrong is found before round 1: a line with file and line of the author's code."""

import gc
import itertools
import re
import textwrap
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas
import pytest
from flwr.app import ArrayRecord

from fedappeal.cli.check_plugin import check_own
from fedappeal.cli.command_observers import CommandObservers
from fedappeal.cli.start import start_simulations
from fedappeal.core.registry import STRATEGIES
from fedappeal.federation.remote import RemoteSuperLink
from fedappeal.runs import dry_round
from fedappeal.runs.checks import check_learns_here
from fedappeal.runs.dry_round import CONDITIONS, DryRun, check_plugins
from fedappeal.runs.launch.in_process import InProcess
from fedappeal.runs.launch.observers import RunUnfinished
from fedappeal.runs.launch.superlink import Submission
from fedappeal.runs.plan import deployed_plan, swept_plans
from fedappeal.settings.config import ConfigError, RunConfig, TaskSettings
from fedappeal.simulation.options import Simulation
from fedappeal.tasks import load_task
from fedappeal.tasks.fit import check_fit
from server.build import run_plugins
from server.recorder import Recorder
from strategies.rounds.exchange.members import Member
from strategies.rounds.round import Hooks, RoundRecord
from strategies.rounds.strategy import rounds_of
from tests.runs.mistakes import HEAD, MISTAKES

NUMBERS = itertools.count()


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path / f"mine{next(NUMBERS)}.py"  # a module of its own: none is imported twice


def write(file: Path, code: str) -> None:
    file.write_text(HEAD + textwrap.dedent(code).lstrip())


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_typical_mistake_is_found_before_round_1(
    mistake: str, mine: Path, recwarn: pytest.WarningsRecorder
) -> None:
    code, said = MISTAKES[mistake]
    write(mine, code)
    with pytest.raises(ConfigError) as refused:
        check_own(f"{mine.stem}:X", {"clients": 4})
    line = str(refused.value)
    assert "\n" not in line
    assert re.search(said, line), line
    lines = mine.read_text().splitlines()
    if (here := [number for number, text in enumerate(lines, start=1) if "# HERE" in text]) and here:
        assert f"({mine.name}:{here[0]})" in line
    assert not recwarn.list  # NumPy's, for example


@pytest.mark.parametrize(
    "code",
    [
        """
        class X(Gathering):
            def due(self, round):
                return round.number > 9
        """,
        """
        class X(FedAvg):
            def finish(self, round):
                return round.model if round.number < 9 else super().finish(round)
        """,
    ],
    ids=["inherited from another file", "the model that was sent"],
)
def test_a_strategy_may_keep_the_model_in_all_its_tiny_rounds(code: str, mine: Path) -> None:
    base = mine.with_name(f"base_of_{mine.name}")
    base.write_text(
        "from strategies import FedAvg\n"
        "from strategies.rounds import round as rounds\n\n\n"
        "class Gathering(FedAvg):\n"
        "    def finish(self, round):\n"
        "        return super().finish(round) if self.due(round) else rounds.KEEP_MODEL\n"
    )
    write(mine, f"from {base.stem} import Gathering\n" + textwrap.dedent(code))
    assert f"{mine.stem}:X" in check_own(f"{mine.stem}:X", {"clients": 4})


def test_an_import_does_not_excuse_a_model_that_never_changes(mine: Path) -> None:
    code = MISTAKES["no weight for any client"]
    write(mine, "from strategies.rounds.round import KEEP_MODEL\n" + textwrap.dedent(code[0]))
    with pytest.raises(ConfigError, match=code[1]):
        check_own(f"{mine.stem}:X", {"clients": 4})


NET = """
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(64, 10)
    def forward(self, x):
        return self.layer(x.flatten(1))
"""


def test_a_large_model_is_let_go_of_after_its_check(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reference cycles hold copies of it, and commands that wait for hours collect no garbage."""
    monkeypatch.setattr(dry_round, "LARGE", 1000)
    write(mine, NET + "class X(FedAvg): ...\n")
    gc.collect()
    gc.disable()
    try:
        check_own(f"{mine.stem}:Net", {"clients": 4})
        alive = [one for one in gc.get_objects() if type(one).__name__ == "Net"]
    finally:
        gc.enable()
    assert alive == []


def test_a_large_model_is_trained_once_and_all_else_is_tried_on_a_small_one(
    mine: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(dry_round, "LARGE", 1000)
    tried: list[tuple[str, int]] = []
    outcome = DryRun.outcome

    def noted(dry: DryRun, **how: Any) -> Any:
        tried.append((dry.task.name, dry.more.get("rounds", dry_round.ROUNDS)))
        return outcome(dry, **how)

    monkeypatch.setattr(DryRun, "outcome", noted)
    learns = "class X(FedAvg): ...\n"
    write(mine, NET + learns)
    check_own(f"{mine.stem}:Net", {"clients": 4})
    assert tried == [("digits", 1)]
    assert caplog.messages == ["checking: the model of 0 MB is trained for one round"]
    tried.clear()
    check_own(f"{mine.stem}:X", {"clients": 4, "model": f"{mine.stem}:Net"})
    assert tried == [("digits", 1), *3 * [("synth", 3)]]
    tried.clear()
    check_own(f"{mine.stem}:X", {"clients": 4})
    assert tried == 3 * [("synth", 3)], "of a large model of fedappeal's nothing is tried"
    tried.clear()
    frozen = mine.with_name(f"frozen_{mine.name}")
    write(frozen, NET.replace("x.flatten(1)", "x.flatten(1) * 0").replace("10)", "10, bias=False)"))
    with pytest.raises(ConfigError, match="the model is still the initial one after 1 round that all clients joined"):
        check_own(f"{frozen.stem}:Net", {"clients": 4})
    assert tried == [("digits", 1)]


def test_a_loss_for_which_all_weights_are_0_is_said_as_such(mine: Path) -> None:
    code = """
    from fedappeal.tasks.datasets.digits import Digits
    class Huge(Digits):
        default_model = "logistic"
        def loss(self, outputs, y, reduction="mean"):
            return 3000 * super().loss(outputs, y, reduction) + 300 * (outputs - 30).square().mean()
    """
    write(mine, code)
    settings = {"task": f"{mine.stem}:Huge", "learning-rate": 1e-6, "solo.learning-rate": 1e-4}
    with pytest.raises(ConfigError) as refused:
        check_own(f"{mine.stem}:Huge", {**settings, "strategy": "maxfl"})
    assert str(refused.value).startswith("strategy = 'maxfl' gives all clients the weight 0, so the model stays")
    assert mine.name not in str(refused.value)
    assert f"{mine.stem}:Huge" in check_own(f"{mine.stem}:Huge", {**settings, "strategy": "fedavg"})


def test_a_model_may_have_more_outputs_in_training(mine: Path) -> None:
    code = """
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.auxiliary = torch.nn.Linear(64, 10), torch.nn.Linear(64, 10)
        def forward(self, x):
            outputs = self.layer(x.flatten(1))
            return (outputs, self.auxiliary(x.flatten(1))) if self.training else outputs

    class X(Digits):
        def initial_model(self, seed):
            torch.manual_seed(seed)
            return Net()
        def loss(self, outputs, y, reduction="mean"):
            parts = outputs if isinstance(outputs, tuple) else (outputs,)
            return sum(super(X, self).loss(part, y, reduction) for part in parts)
    """
    write(mine, "from fedappeal.tasks.datasets.digits import Digits\n" + textwrap.dedent(code))
    check_fit(load_task(TaskSettings.parse({"task": f"{mine.stem}:X"})), 0)


def test_a_policy_under_which_no_client_would_join_is_said(mine: Path, caplog: pytest.LogCaptureFixture) -> None:
    code = """
    class X(Policy):
        def decide(self, situation):
            return Decision.JOINED if situation.server_round > LATE else Decision.SAT_OUT
    """
    for late, said in ((1, 0), (9, 1)):
        caplog.clear()
        mine.with_name(f"{mine.stem}_{late}.py").write_text(HEAD + f"LATE = {late}\n" + textwrap.dedent(code))
        assert "nothing found" in check_own(f"{mine.stem}_{late}:X", {"clients": 4})
        lines = [record.getMessage() for record in caplog.records if "no client would join" in record.getMessage()]
        assert len(lines) == said
        assert all(f"participation = '{mine.stem}_{late}:X'" in line for line in lines)


def test_an_internal_fault_keeps_its_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A frame of pandas is no author's."""
    scope: dict[str, Any] = {"__name__": "fedappeal.simulation.engine", "pandas": pandas}
    exec("def simulate_plan(*_, **more): pandas.DataFrame()['a']", scope)
    (plan,) = swept_plans({"strategy": "fedavg", "clients": 2, "rounds": 2}, out=str(tmp_path / "out"))
    monkeypatch.setattr("fedappeal.runs.launch.in_process.simulate_plan", scope["simulate_plan"])
    with pytest.raises(KeyError):
        InProcess(Simulation()).launch([plan], CommandObservers())


def test_a_run_that_names_it_is_refused_before_it_has_a_folder(mine: Path, tmp_path: Path) -> None:
    write(mine, MISTAKES["a forgotten return"][0])
    plans = swept_plans(
        {"strategy": f"{mine.stem}:X", "clients": 2, "rounds": 2}, ["seed=0..1"], str(tmp_path / "out")
    )
    with pytest.raises(ConfigError, match=f"forgotten return.*{mine.name}:14"):
        start_simulations(plans, InProcess(Simulation()))
    assert not (tmp_path / "out").exists()


def test_what_fails_after_the_dry_run_is_one_line_too(mine: Path, tmp_path: Path) -> None:
    code = """
    class X(Task):
        input_shape, num_classes = (1,), 2
        def initial_model(self, seed):
            torch.manual_seed(seed)
            return torch.nn.Linear(1, 2)
        def load(self, client):
            assert client < 3, "no such client"
            split = Split(torch.arange(12.0)[:, None], torch.arange(12) % 2)
            return ClientData(split, split)
    """
    write(mine, code)
    settings = {"task": f"{mine.stem}:X", "strategy": "fedavg", "clients": 4, "rounds": 2}
    (plan,) = swept_plans(settings, out=str(tmp_path / "out"))
    with pytest.raises(RunUnfinished, match=rf"^AssertionError: no such client \({mine.name}:19\)$"):
        InProcess(Simulation()).launch([plan], CommandObservers())


def test_a_submission_tries_it_on_a_toy_task(mine: Path) -> None:
    write(mine, MISTAKES["a policy that returns a bool"][0])
    plan = deployed_plan({"participation": f"{mine.stem}:X", "task": "fmnist", "out": "/far/away"})
    with pytest.raises(ConfigError, match=f"policy X returned .*{mine.name}:14"):
        Submission(RemoteSuperLink("127.0.0.1:1")).check(plan)


@pytest.mark.parametrize(
    ("mistake", "names", "said"),
    [
        ("a loss an example", {"task": "{}:X"}, "loss is not allowed: it returned a tensor"),
        ("a model that is called with more", {"model": "{}:X"}, "failed: TypeError: .*'width'"),
        ("a model that is called with more", {"model": "torchvision:resnet1"}, "no such classifier"),
    ],
)
def test_a_submission_tries_its_task_where_the_data_is_here_and_makes_its_model(
    mistake: str, names: dict[str, str], said: str, mine: Path
) -> None:
    write(mine, MISTAKES[mistake][0])
    settings = {key: name.format(mine.stem) for key, name in names.items()}
    plan = deployed_plan({**settings, "out": "/far/away"})
    with pytest.raises(ConfigError, match=said):
        Submission(RemoteSuperLink("127.0.0.1:1")).check(plan)


def write_digits_task(mine: Path, more: str, elsewhere: bool) -> None:
    """Write a task of one's own on the digits, with more in its class; its data may be on another machine."""
    data = "raise FileNotFoundError" if elsewhere else "return Digits(self.settings).load(client)"
    write(
        mine,
        f"""
        from fedappeal.tasks.datasets.digits import Digits

        class X(Task):
            num_classes, input_shape = 10, (1, 8, 8)
{more}

            def initial_model(self, seed):
                return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))

            def load(self, client):
                {data}
        """,
    )


@pytest.mark.parametrize("elsewhere", [True, False])
@pytest.mark.parametrize("metric", ["joined", "central-accuracy"])
def test_a_submission_and_a_check_refuse_a_metric_that_is_a_column_of_the_run(
    metric: str, elsewhere: bool, mine: Path
) -> None:
    named = f"""
            def __init__(self, settings, data_dir=None):
                super().__init__(settings, data_dir)
                self.other_metrics = ("{metric}",)

            def metrics(self, outputs, y):
                return {{**super().metrics(outputs, y), "{metric}": 1.0}}
"""
    write_digits_task(mine, named, elsewhere)
    plan = deployed_plan({"task": f"{mine.stem}:X", "out": "/far/away"})
    said = f"^metric = '{metric}' is not allowed: another number of the run"
    with pytest.raises(ConfigError, match=said):
        Submission(RemoteSuperLink("127.0.0.1:1")).check(plan)
    with pytest.raises(ConfigError, match="^load of the task failed" if elsewhere else said):
        check_plugins(plan, "cpu")


@pytest.mark.parametrize("elsewhere", [True, False])
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("metric = 'f1'", "metric = 'f1' is not allowed: a Metric"),
        ("metric = None", "metric = None is not allowed: a Metric"),
        ("other_metrics = None", "other_metrics = None is not allowed: a tuple of names"),
        ("other_metrics = (1,)", r"other_metrics = \(1,\) is not allowed: a tuple of names"),
        ("other_metrics = 'f1'", "other_metrics = 'f1' is not allowed: a tuple of names"),
        ("metric = property(lambda self: open('/far/away'))", ""),
    ],
)
def test_a_metric_that_is_none_is_one_line(wrong: str, said: str, elsewhere: bool, mine: Path) -> None:
    write_digits_task(mine, f"            {wrong}", elsewhere)
    with pytest.raises(ConfigError, match=rf"^[^\n]*\({mine.name}:\d+\)\)?[^\n]*$"):
        check_own(f"{mine.stem}:X", {})
    plan = deployed_plan({"task": f"{mine.stem}:X", "out": "/far/away"})
    lacks_data = elsewhere and not said
    with nullcontext() if lacks_data else pytest.raises(ConfigError, match=said if elsewhere else mine.name):
        Submission(RemoteSuperLink("127.0.0.1:1")).check(plan)


def test_a_resumed_run_and_not_each_seed_of_a_sweep_is_tried(
    mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(mine, "class X(FedAvg): ...")
    tried = list[int]()
    monkeypatch.setattr("fedappeal.runs.dry_round.check_plugins", lambda plan, _: tried.append(plan.config.seed))
    settings = {"strategy": f"{mine.stem}:X", "clients": 2, "rounds": 2}
    plans = swept_plans(settings, ["seed=3..5", "data-seed=1,2", "local-steps=2,3"], str(tmp_path / "out"))
    InProcess(Simulation()).check(plans)
    assert tried == [3, 3]
    check_learns_here(replace(plans[-1], resumes=True), "cpu")
    assert tried == [3, 3, 5]


def test_a_plugin_that_fails_on_all_clients_later_ends_the_run(mine: Path, tmp_path: Path) -> None:
    late = """
    class X(Policy):
        def decide(self, situation):
            assert situation.server_round < 5, "late"
            return Decision.JOINED
    """
    write(mine, late)
    (plan,) = swept_plans({"participation": f"{mine.stem}:X", "clients": 2, "rounds": 6}, out=str(tmp_path / "out"))
    with pytest.raises(ConfigError, match=rf"every client failed in round 5: .*late \({mine.name}:15\)"):
        start_simulations([plan], InProcess(Simulation()))


@pytest.mark.parametrize(
    ("asked", "of", "reason", "ends"),
    [
        (3, 5, "AssertionError (the client's log says more)", True),
        (2, 2, "AssertionError (the client's log says more)", True),
        (2, 5, "AssertionError (the client's log says more)", False),
        (3, 3, "no answer before the deadline", False),
    ],
)
def test_a_deployed_run_ends_where_its_plugin_fails_on_all_that_were_asked(
    asked: int, of: int, reason: str, ends: bool, mine: Path, tmp_path: Path
) -> None:
    write(mine, "class X(FedAvg): ...")
    plan = deployed_plan({"strategy": f"{mine.stem}:X", "clients": of, "rounds": 6, "out": str(tmp_path / "out")})
    rounds = rounds_of(plan.plugins.build())
    for k in range(of):
        rounds.members.enrol(Member(f"c{k}", 10 + k))
    recorder = Recorder(plan.folder({}), rounds, ArrayRecord(), 6, plan.plugins, Hooks(), durable=True)
    record = RoundRecord(1, {f"c{k}": "failed" for k in range(asked)}, {f"c{k}": reason for k in range(asked)})
    with pytest.raises(ConfigError, match="every client failed in round 1: Assert") if ends else nullcontext():
        recorder.on_round_end(record, ArrayRecord())


def together(strategy: str) -> dict[str, object]:
    """All conditions of conformance that a strategy bears, in one: of three clients one leaves and one returns."""
    _, sample, _, _, evaluating, bounds = CONDITIONS
    config = RunConfig.parse({"strategy": strategy})
    kind = run_plugins(config).strategy
    bounded = not kind.unbounded and not kind.influence.lack(config, run_plugins(config).settings_of(kind))
    more = {**({} if kind.needs_everybody else sample), **evaluating, **(bounds if bounded else {})}
    return {**more, "participation": "always+once+bernoulli"}


@pytest.mark.parametrize("strategy", STRATEGIES.built_in)
def test_our_strategies_conform(strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if strategy != "maxfl":  # which shows that one stands each condition alone
        monkeypatch.setattr("fedappeal.runs.dry_round.CONDITIONS", [together(strategy)])
    assert "conforms" in check_own(strategy, {"clients": 4}, conformance=True)


def test_a_strategy_that_differs_in_another_form_does_not_conform(
    mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedappeal.runs.dry_round.CONDITIONS", CONDITIONS[:1])
    code = """
    class X(FedAvg):
        def update(self, round):  # HERE
            return round.model_of({n: w + len(round.model) for n, w in round.layers().items()})
    """
    write(mine, code)
    with pytest.raises(ConfigError, match="all clients, one array a layer: the model differs by more than 1e-6"):
        check_own(f"{mine.stem}:X", {"clients": 4, "model": "logistic"}, conformance=True)
