"""A simulated run that was stopped, killed or has finished continues as if nothing had happened, to the bit."""

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from client.training.sgd import SGD
from fedappeal.core.local_rule import TrainingJob
from fedappeal.record.folder import RunFolder, runtime_of
from fedappeal.record.lines import CHECKPOINT, EVENTS, MEASUREMENTS, MODEL, PARTICIPATION
from fedappeal.record.reader import Record, rounds_done
from fedappeal.runs.plan import RunPlan
from fedappeal.settings.config import ConfigError, RunConfig
from fedappeal.simulation.engine import simulate
from fedappeal.simulation.memory import REQUIREMENTS, SavedMemory
from fedappeal.simulation.options import Simulation
from fedappeal.system.files import read_safetensors, write_safetensors
from server.checkpoints import Checkpoint, settings_to_resume
from strategies.rounds.round import RoundRecord
from tests.warm import WarmPopen

SETTINGS: dict[str, Any] = {
    **{"task": "digits", "model": "logistic", "clients": 6, "unseen-clients": 1, "clients-per-round": 3, "rounds": 5},
    **{"mandatory-rounds": 2, "local-steps": 4, "batch-size": 16, "solo.steps": 8, "learning-rate": 0.3},
}
STRATEGIES: dict[str, dict[str, Any]] = {
    "fedavg": {"participation": "appeal=0.4,defect=0.6", "defect.leave-below": 1.2},
    "fedprox": {},
    "fedadam": {"mandatory-rounds": "auto", "goodwill": 2},
    "fednova": {"local-steps": 0, "local-epochs": 2},
    "fedau": {},
    "mifa": {},
    "oracle": {"oracle.probabilities": "0.5"},
    "scaffold": {},
    "qfedavg": {},
    "afl": {},
    "term": {"tuning-steps": 2, "adaptation-steps": 0},
    "mwfed": {},
    "ditto": {"rounds": 4},
    "perfedavg": {"rounds": 4},
    "pfedme": {"rounds": 4},
    "maxfl": {"judge-on": "cross-fitted", "use": "best", "evaluate-every": 2},
    "fedalign": {"fedalign.epsilon-schedule": "linear", "fedalign.global-loss": "stale", "loss-mode": "training"},
    "adagd": {"clients-per-round": 0, "adagd.precision": 0.05, "adagd.step-size": 0.5},
    "maxfl-adagd": {"clients-per-round": 0, "maxfl-adagd.precision": 0.05, "maxfl-adagd.step-size": 0.5},
}

ALONE = {
    **{"strategy": "maxfl", "clients": 8, "clients-per-round": 1, "max-train-examples": 1, "mandatory-rounds": 10},
    **{"seed": 3, "maxfl.stabilizer": 1.0},
}
"""Clients with one example, of which one alone is asked first; the step follows its loss to the last digits."""


@pytest.fixture(autouse=True)
def _one_thread_and_every_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.setattr("server.recorder.SECONDS_APART", 0.0)
    monkeypatch.setattr("server.recorder.LARGEST_SHARE", 0)


def settings(**changed: Any) -> RunConfig:
    return RunConfig.parse(SETTINGS | {key.replace("_", "-"): value for key, value in changed.items()})


def run(path: Path, config: RunConfig, mode: str = "auto", **how: Any) -> Path:
    simulate(config, RunPlan.of(config, path).folder({}), Simulation(mode, threads=1), **how)
    return path


def resume(path: Path, rounds: int | None = None, **how: Any) -> None:
    config = settings_to_resume(path, rounds)
    simulate(config, RunFolder.open(path), Simulation.of_runtime(Record(path).config["runtime"]), **how)


@dataclass(frozen=True)
class Undisturbed:
    """A run that nothing stops.

    Attributes:
        left: what it leaves.
        at_round_4: its folder with the lines of round 4, before that round's memory and checkpoint are written.
    """

    left: dict[str, Any]
    at_round_4: Path


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[RunConfig], Undisturbed]:
    """Runs that nothing stops: equal settings run once. They begin before a test changes anything."""
    runs: dict[RunConfig, Undisturbed] = {}
    save = SavedMemory.save

    def run_of(config: RunConfig) -> Undisturbed:
        if config not in runs:
            folder = tmp_path_factory.mktemp("undisturbed")

            def copied(self: SavedMemory, number: int) -> None:
                if number == 4:
                    shutil.copytree(folder / "whole", folder / "at-round-4")
                save(self, number)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(SavedMemory, "save", copied)
                runs[config] = Undisturbed(left_by(run(folder / "whole", config)), folder / "at-round-4")
        return runs[config]

    return run_of


@pytest.fixture
def undisturbed_scaffold(undisturbed: Callable[[RunConfig], Undisturbed]) -> dict[str, Any]:
    """What SCAFFOLD's run leaves."""
    return undisturbed(settings(strategy="scaffold")).left


@pytest.fixture
def undisturbed_maxfl(undisturbed: Callable[[RunConfig], Undisturbed]) -> dict[str, Any]:
    """What MaxFL's run leaves."""
    return undisturbed(settings(strategy="maxfl")).left


def left_by(path: Path) -> dict[str, Any]:
    """All that a run leaves, but for dates, seconds and the run's key."""
    checkpoint = Checkpoint.read(path / CHECKPOINT)
    state = {name: dict(record) for name, record in checkpoint.state.config_records.items()}
    arrays = {
        f"{name}/{key}": array.numpy().tobytes()
        for name, record in {"model": checkpoint.arrays, **checkpoint.state.array_records}.items()
        for key, array in record.items()
    }
    return {
        "history": [{k: v for k, v in line.items() if k != "seconds"} for line in Record(path).history],
        **{name: Record(path).lines(name) for name in (PARTICIPATION, MEASUREMENTS, REQUIREMENTS)},
        "rounds": [e["round"] for e in Record(path).events if e["event"] == "round"],
        "model": {name: array.tobytes() for name, array in read_safetensors(path / MODEL)[0].items()},
        "state": (state, arrays, checkpoint.server_round),
        "memory": memory(path, checkpoint.server_round),
    }


def memory(path: Path, last: int) -> dict[str, Any]:
    """What the clients remember at first and after the last round, without the run's key.

    An earlier checkpoint's memory is kept too; which rounds had one, an interrupt decides.
    """
    key, found = RunFolder.open(path).run_key, {}
    for file in (path / f"memory-{server_round}.safetensors" for server_round in (0, last)):
        arrays, _ = read_safetensors(file)
        text = json.loads(arrays.pop("text").tobytes().decode().replace(key, "KEY"))
        found[file.name] = {name.replace(key, "KEY"): array.tobytes() for name, array in arrays.items()}, text
    return found


def killed_after(monkeypatch: pytest.MonkeyPatch, server_round: int) -> None:
    """Let runs end after the lines of the next round, before its memory and its checkpoint are written."""
    save = SavedMemory.save

    def killed(self: SavedMemory, number: int) -> None:
        if number == server_round + 1:
            raise RuntimeError("killed")
        save(self, number)

    monkeypatch.setattr(SavedMemory, "save", killed)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_run_that_was_killed_continues_to_the_bit(
    strategy: str, undisturbed: Callable[[RunConfig], Undisturbed]
) -> None:
    config = settings(strategy=strategy, **STRATEGIES[strategy])
    whole, killed = undisturbed(config).left, undisturbed(config).at_round_4
    assert Checkpoint.read(killed / CHECKPOINT).server_round == 3
    assert len(Record(killed).history) == 4
    resume(killed)
    assert left_by(killed) == whole
    assert len(whole["history"]) == config.rounds
    assert sum(line["joined"] for line in whole["history"][3:]) > 0


@pytest.mark.parametrize("recorded", ["held-out", "train", ""])
def test_a_run_goes_on_judging_as_it_began(recorded: str, tmp_path: Path) -> None:
    judge_on = recorded or "train"  # what runs of versions without the setting meant
    run(tmp_path / "run", settings(judge_on=judge_on, adaptation_steps=0, rounds=2))
    if not recorded:
        file = tmp_path / "run" / "config.json"
        config = json.loads(file.read_text())
        del config["settings"]["judge-on"]
        file.write_text(json.dumps(config))
    assert settings_to_resume(tmp_path / "run", 3).judge_on == judge_on
    assert settings().judge_on == "cross-fitted"
    resume(tmp_path / "run", 3)
    whole = run(tmp_path / "whole", settings(judge_on=judge_on, adaptation_steps=0, rounds=3))
    assert left_by(tmp_path / "run")["history"] == left_by(whole)["history"]


@pytest.mark.parametrize("mode", ["batched", "sequential"])
def test_what_clients_have_measured_comes_back_too(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients judge the model that they have just evaluated by what they measured; few of them are kept at once.

    The loss on one client's example is in its last digits another alone than beside those of other clients.
    """
    monkeypatch.setattr("client.roster.KEPT", 6)
    config = settings(**ALONE, rounds=10)
    whole = run(tmp_path / "whole", config, mode)
    with monkeypatch.context() as patch:
        killed_after(patch, 2)
        with pytest.raises(RuntimeError, match="killed"):
            run(tmp_path / "halved", config, mode)
    resume(tmp_path / "halved")
    assert left_by(tmp_path / "halved") == left_by(whole)
    assert Record(whole).config["runtime"]["mode"] == ("layers" if mode == "batched" else mode)


@pytest.mark.parametrize("step", ["before round 1", "before the checkpoint", "after the checkpoint"])
def test_a_kill_between_two_files_leaves_a_pair(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed_scaffold: dict[str, Any]
) -> None:
    config, path = settings(strategy="scaffold"), tmp_path / "run"

    def killed(*given: Any) -> None:
        raise RuntimeError("killed")

    def killed_in_round_3(checkpoint: Checkpoint, *given: Any) -> None:
        if checkpoint.server_round == 3:
            raise RuntimeError("killed")
        write(checkpoint, *given)

    write = Checkpoint.write
    with monkeypatch.context() as patch:
        if step == "before round 1":
            patch.setattr(SavedMemory, "_write_requirements", killed)
        elif step == "before the checkpoint":
            patch.setattr(Checkpoint, "write", killed_in_round_3)
        else:
            patch.setattr(SavedMemory, "keep_only", killed)
        with pytest.raises(RuntimeError, match="killed"):
            run(path, config)
    expected = {"before round 1": {0}, "before the checkpoint": {0, 1, 2, 3}, "after the checkpoint": {0, 1}}
    assert {int(file.stem.split("-")[1]) for file in path.glob("memory-*")} == expected[step]
    (half_written := path / ".checkpoint.safetensors.999999999.tmp").touch()
    resume(path)
    assert not half_written.exists()
    assert left_by(path) == undisturbed_scaffold


PROGRAM = """
import sys, time
from pathlib import Path
import server.recorder, torch
from fedappeal.settings.config import RunConfig
from fedappeal.simulation.engine import simulate
from fedappeal.simulation.options import Simulation
from fedappeal.record.folder import RunFolder
from fedappeal.record.reader import Record, rounds_done

server.recorder.SECONDS_APART, server.recorder.LARGEST_SHARE = 0.0, 0
path = Path(sys.argv[1])
config = RunConfig.parse(Record(path).config["settings"])
simulate(config, RunFolder.open(path), Simulation(threads=1), lambda record: time.sleep(0.05))
"""


def test_a_process_that_was_killed_leaves_a_run_that_continues(tmp_path: Path) -> None:
    config = settings(strategy="scaffold", rounds=12)
    whole, path = run(tmp_path / "whole", config), tmp_path / "killed"
    RunPlan.of(config, path).folder({})
    process = WarmPopen([sys.executable, "-c", PROGRAM, str(path)])
    deadline = time.monotonic() + 120
    while rounds_done(path) < 4:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert 4 <= rounds_done(path) < 12
    resume(path)
    assert left_by(path) == left_by(whole)
    kinds = [event["event"] for event in Record(path).events]
    assert (kinds[0], kinds.count("resumed"), kinds[-1]) == ("enrolled", 1, "finished")


# -- Ctrl-C and SIGTERM --------------------------------------------------------------------------------


def interrupted(path: Path, config: RunConfig, server_round: int, number: int = signal.SIGINT) -> None:
    """Run, and send this process a signal between two rounds."""

    def on_round(record: RoundRecord) -> None:
        if record.server_round == server_round:
            signal.raise_signal(number)

    with pytest.raises(KeyboardInterrupt):
        run(path, config, on_round=on_round)


def test_ctrl_c_between_rounds_loses_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed_maxfl: dict[str, Any]
) -> None:
    monkeypatch.setattr("server.recorder.SECONDS_APART", 1e9)
    path, before = tmp_path / "run", signal.getsignal(signal.SIGINT)
    interrupted(path, settings(strategy="maxfl"), 3)
    assert signal.getsignal(signal.SIGINT) is before
    assert rounds_done(path) == 3
    assert Record(path).events[-1]["event"] == "interrupted"
    resume(path)
    assert left_by(path) == undisturbed_maxfl


@pytest.mark.parametrize(("apart", "kept"), [(1e9, 4), (0.0, 3)])
def test_ctrl_c_in_a_round_ends_it_where_that_loses_none(
    apart: float, kept: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed_maxfl: dict[str, Any]
) -> None:
    """Round 3 would be lost where it is in no checkpoint yet: then round 4 is finished first."""
    monkeypatch.setattr("server.recorder.SECONDS_APART", apart)
    config, path, reply = settings(strategy="maxfl"), tmp_path / "run", SGD.reply

    def struck(rule: SGD, job: TrainingJob) -> Any:
        if job.server_round == 4 and not struck_once:
            struck_once.append(1)
            signal.raise_signal(signal.SIGINT)
        return reply(rule, job)

    struck_once: list[int] = []
    with monkeypatch.context() as patch:
        patch.setattr(SGD, "reply", struck)
        with pytest.raises(KeyboardInterrupt):
            run(path, config)
    assert rounds_done(path) == kept
    resume(path)
    assert left_by(path) == undisturbed_maxfl


def test_an_interrupt_of_the_callers_own_loses_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A notebook's kernel, or a hook, may raise it; so may any other error of a hook end the run between rounds."""
    monkeypatch.setattr("server.recorder.SECONDS_APART", 1e9)
    for error in (KeyboardInterrupt, ValueError):
        path = tmp_path / error.__name__

        def on_round(record: RoundRecord, error: type[BaseException] = error) -> None:
            if record.server_round == 2:
                raise error

        with pytest.raises(error):
            run(path, settings(), on_round=on_round)
        assert rounds_done(path) == 2


def test_sigterm_saves_the_run_and_then_does_what_it_would_have_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.recorder.SECONDS_APART", 1e9)
    path, done = tmp_path / "run", []
    before = signal.signal(signal.SIGTERM, lambda *given: done.append(rounds_done(path)))
    try:
        interrupted(path, settings(), 2, signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert done == [2]
    assert Record(path).events[-1]["event"] == "interrupted"


# -- more rounds -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "own",
    [
        {"strategy": "maxfl", "mandatory-rounds": -1, "clients-per-round": 0},
        {"strategy": "fedalign", "fedalign.epsilon-schedule": "linear", "fedalign.warmup-share": 0.5},
        {"strategy": "scaffold", "participation": "appeal"},
    ],
    ids=lambda own: str(own["strategy"]),
)
def test_a_finished_run_continues_as_it_began(own: dict[str, Any], tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", settings(**own, rounds=7, schedule_rounds=4))
    path = run(tmp_path / "longer", settings(**own, rounds=4))
    resume(path, 6)
    resume(path, 7)
    assert left_by(path) == left_by(whole)
    record = Record(path).config
    assert (record["settings"]["rounds"], record["settings"]["schedule-rounds"]) == (7, 4)
    resumptions = [(each["from-round"], each["to-round"]) for each in record["resumptions"]]
    assert resumptions == [(4, 6), (6, 7)]
    assert all(each["date"] and each["versions"]["torch"] for each in record["resumptions"])
    ends = [e for e in Record(path).events if e["event"] in ("resumed", "finished")]
    assert [(e["event"], e["round"]) for e in ends] == [
        *(("finished", 4), ("resumed", 4), ("finished", 6), ("resumed", 6), ("finished", 7)),
    ]
    if own["strategy"] == "maxfl":
        mandatory = [line["mandatory"] for line in Record(path).history]
        assert mandatory[:5] == [True] * 4 + [False]
    # With a total of its own from the start it is another run.
    other = run(tmp_path / "other", settings(**own, rounds=7))
    differs = left_by(other)["history"] != left_by(whole)["history"]
    assert differs == (own["strategy"] != "scaffold")


def test_a_model_that_was_measured_only_at_the_end_is_measured_again(tmp_path: Path) -> None:
    """Else clients would judge it in the next round by what they measured all together, as no longer run does."""
    own = ALONE | {"mandatory-rounds": 5, "evaluate-every": 4}
    whole = run(tmp_path / "whole", settings(**own, rounds=10, schedule_rounds=5))
    path = run(tmp_path / "longer", settings(**own, rounds=5))
    assert "accuracy" in Record(path).history[4]
    resume(path, 10)
    assert left_by(path)["model"] == left_by(whole)["model"]


# -- what continues must be what began -------------------------------------------------------------------


def test_another_task_or_model_is_refused_and_nothing_is_lost(tmp_path: Path) -> None:
    path = run(tmp_path / "run", settings(rounds=2))
    before = {file.name: file.read_bytes() for file in path.iterdir() if file.name not in (EVENTS, "config.json")}
    for changed, what in (({"seed": 9}, "task-fingerprint"), ({"model": "mlp"}, "layout")):
        config = RunConfig.parse({**settings_to_resume(path, 5).as_config(), **changed})
        with pytest.raises(ConfigError, match=rf"{what} \w+ is not that of the run in '.*', \w+: a run continues"):
            simulate(config, RunFolder.open(path), Simulation(threads=1))
    assert {file.name: file.read_bytes() for file in path.iterdir() if file.name in before} == before
    for file in path.glob("memory-[12].safetensors"):
        file.unlink()
    with pytest.raises(ConfigError, match=r"memory-2.safetensors' cannot be read"):
        resume(path, 5)


def test_a_run_that_keeps_no_memory_says_so(tmp_path: Path) -> None:
    config = settings(rounds=2)
    simulate(config, RunPlan.of(config, tmp_path / "run").folder({}), Simulation(threads=1, resumable=False))
    assert not list((tmp_path / "run").glob("memory-*"))
    with pytest.raises(ConfigError, match="clients' memory was not kept: it cannot continue"):
        runtime_of(tmp_path / "run")


# -- files for analysis ----------------------------------------------------------------------------------


def test_what_each_client_measured_and_requires_is_in_columns(tmp_path: Path) -> None:
    path = run(tmp_path / "run", settings(evaluate_every=2, adaptation_steps=0))  # each loss is of the model as sent
    lines, history = Record(path).measurements, Record(path).history
    assert [line["round"] for line in lines] == [2, 4, 5]
    ids = [f"client-{k:04d}" for k in range(7)]
    required = {line["client-id"]: line for line in Record(path).requirements}
    assert list(required) == ids
    assert {line["of"] for line in required.values()} == {"loss"}
    for line in lines:
        assert line["client-ids"] == ids
        told = history[line["round"] - 1]
        assert sum(line["loss"][:6]) / 6 == pytest.approx(told["loss"])
        assert sum(line["accuracy"][:6]) / 6 == pytest.approx(told["accuracy"])
        assert line["accuracy"][6] == told["unseen_accuracy"]
        appealed = [loss < required[client]["requirement"] for client, loss in zip(ids, line["loss"], strict=True)]
        assert line["appealed"] == appealed
    assert any(line["appealed"] != lines[0]["appealed"] for line in lines)


@pytest.mark.parametrize("text", ["[" * 100_000, "[]", "{}", '{"records": "{}", "judged": [[77, "m", 1, {}]]}'])
def test_requirements_of_a_damaged_memory_are_made_again(
    text: str, tmp_path: Path, undisturbed_scaffold: dict[str, Any]
) -> None:
    path = run(tmp_path / "run", settings(strategy="scaffold", rounds=2, schedule_rounds=5))
    file = path / "memory-0.safetensors"
    arrays, values = read_safetensors(file)
    write_safetensors(file, arrays | {"text": np.frombuffer(text.encode(), np.uint8)}, values)
    resume(path, 5)
    assert left_by(path)["model"] == undisturbed_scaffold["model"]
    assert [line["aside"] for line in Record(path).events if line["event"] == "damaged"] == [
        "memory-0.safetensors.damaged"
    ]
    assert file.exists(), "the clients have made it again"


@pytest.mark.parametrize("model", [np.zeros((2, 2), np.float32), np.zeros(3, np.int8)])
def test_a_checkpoint_of_another_model_is_one_line(model: np.ndarray, tmp_path: Path) -> None:
    path = run(tmp_path / "run", settings(rounds=2))
    arrays, values = read_safetensors(path / CHECKPOINT)
    (name,) = (name for name in arrays if name.startswith("model/"))
    write_safetensors(path / CHECKPOINT, arrays | {name: model}, values)
    with pytest.raises(ConfigError, match=r"checkpoint\.safetensors' does not fit the run: ") as error:
        resume(path, 3)
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize("wrong", [{"threads": "2"}, {"threads": True}, {"mode": 3}, {"data-dir": None}])
def test_a_runtime_of_other_types_is_one_line(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"runtime: {next(iter(wrong))} = .* is not allowed: a value of "):
        Simulation.of_runtime(Simulation().runtime() | wrong)


def test_a_ray_cluster_of_the_folder_is_used_only_if_the_owner_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = Simulation(ray="evil.example:6379", workers=1).runtime()
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(ConfigError, match=r"ray = 'evil\.example:6379' of the run's folder is not allowed") as error:
        Simulation.of_runtime(recorded)
    assert len(str(error.value).splitlines()) == 1
    monkeypatch.setenv("RAY_ADDRESS", "evil.example:6379")
    assert Simulation.of_runtime(recorded).ray == "evil.example:6379"
    monkeypatch.setenv("RAY_ADDRESS", "other:1")
    assert Simulation.of_runtime(recorded | {"ray": "auto"}).ray == "auto"
