"""Promise: what a folder names is not imported unless the call allows its package.

The attacker gives a folder away: a model whose card, or a run whose settings, name a module that lies beside it.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import fedappeal
from fedappeal.record.lines import CONFIG
from fedappeal.runs.plan import RunPlan
from fedappeal.settings.config import ConfigError, RunConfig
from fedappeal.simulation.engine import simulate
from fedappeal.simulation.options import Simulation
from fedappeal.trained import load_model
from tests import warm
from tests.plugin_folder import IMPORTED, write_distribution, write_module
from tests.trained.models import write_model

BASE = {"clients": 2, "rounds": 1, "local-steps": 1, "task": "digits", "strategy": "fedavg", "solo.steps": 1}
EVIL = "given_away"
NAMES = {
    "strategy": f"{EVIL}:Mean",
    "task": f"{EVIL}:Line",
    "participation": f"always=0.5,{EVIL}:Willing=0.5",
    "local-rule": f"{EVIL}:Step",
    "requirement": f"{EVIL}:Nothing",
}
RUNTIMES = {
    "simulation": Simulation(mode="sequential").runtime(),
    "local": {"kind": "local", "data-dir": "", "device": "cpu"},
    "submitted": {"kind": "submitted"},
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that somebody gave away: the user stands in it."""
    write_module(tmp_path, EVIL)
    arrays = {"weight": np.ones((2, 1), np.float32), "bias": np.zeros(2, np.float32)}
    write_model(tmp_path / "model.safetensors", arrays, task=f"{EVIL}:Line", input_shape=(1,), num_classes=2)
    np.savez(tmp_path / "data.npz", x=np.ones((1, 1), np.float32))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", str(tmp_path))])
    return tmp_path


def write_run(folder: Path, settings: dict[str, object], runtime: str = "simulation") -> None:
    """Write the settings of a run, as whoever gives a folder away can."""
    RunPlan.of(RunConfig.parse(BASE), folder).folder(RUNTIMES[runtime])
    record = json.loads((folder / CONFIG).read_text())
    record["settings"].update(settings)
    (folder / CONFIG).write_text(json.dumps(record))


def typed(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """Type a command, as from a terminal, in the current folder."""
    return warm.run(
        [str(Path(sys.executable).with_name("fedappeal")), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )


@pytest.mark.parametrize(
    "command", [("export", ".", "--to", "safetensors"), ("predict", ".", "--data", "data.npz")], ids=lambda c: c[0]
)
def test_a_config_beside_a_model_does_not_make_its_code_run(folder: Path, command: tuple[str, ...]) -> None:
    (folder / CONFIG).write_text("{}")
    ended = typed(*command)
    assert not (folder / IMPORTED).exists(), "the code ran"
    assert ended.returncode != 0
    assert ended.stderr.splitlines() == [
        f"fedappeal: file 'model.safetensors' is a model of task '{EVIL}:Line': task = '{EVIL}:Line' is not allowed: "
        f"code that it names runs only with --allow {EVIL} --allow . (the current folder)"
    ]
    assert "--allow ." in typed(*command, "--allow", EVIL).stderr, "the current folder was not named"
    assert not (folder / IMPORTED).exists()
    assert typed(*command, "--allow", EVIL, "--allow", ".").returncode == 0
    assert (folder / IMPORTED).exists()


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_resume_imports_nothing_that_is_not_allowed(folder: Path, runtime: str) -> None:
    write_run(folder / "run", {"strategy": NAMES["strategy"], "task": NAMES["task"]}, runtime)
    options = ("--superlink", "127.0.0.1:9") if runtime == "submitted" else ()
    ended = typed("resume", "run", *options)
    assert not (folder / IMPORTED).exists(), "the code ran"
    assert ended.returncode != 0
    assert ended.stderr.splitlines() == [
        f"fedappeal: 'run' holds a run of strategy '{EVIL}:Mean' and task '{EVIL}:Line': code that it names runs "
        f"only with --allow {EVIL} --allow . (the current folder)"
    ]


@pytest.mark.parametrize("setting", NAMES)
def test_no_setting_of_a_run_is_forgotten(
    folder: Path, setting: str, resumed: Callable[[dict[str, object]], str]
) -> None:
    assert f"{EVIL}:" in (line := resumed({setting: NAMES[setting]}))
    assert f"--allow {EVIL}" in line


def test_settings_of_an_installed_plug_in_do_not_import_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch, resumed: Callable[[dict[str, object]], str]
) -> None:
    write_distribution(
        folder / "site", "given-away", "1.0", EVIL, f"[fedappeal.policies]\nwilling = {EVIL}:Willing\n"
    )
    (folder / f"{EVIL}.py").rename(folder / "site" / f"{EVIL}.py")
    monkeypatch.syspath_prepend(str(folder / "site"))
    assert "--allow given-away" in resumed({"willing.much": 1})


@pytest.fixture
def resumed(folder: Path) -> Callable[[dict[str, object]], str]:
    """Resume a run of some settings by Python and by the command; return the line with which both are refused."""

    def resumed(settings: dict[str, object]) -> str:
        from fedappeal.cli.option_groups import ResumeOptions
        from fedappeal.cli.start import resume_run

        write_run(folder / "run", settings)
        run = fedappeal.load(folder / "run")
        for call in (run.resume, lambda: resume_run(folder / "run", ResumeOptions())):
            with pytest.raises(ConfigError) as refused:
                call()
            assert not (folder / IMPORTED).exists(), "the code ran"
            assert EVIL not in sys.modules
        return str(refused.value)

    return resumed


def test_a_run_of_ones_own_goes_on_where_its_code_is_allowed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = RunConfig.parse(BASE | {"strategy": NAMES["strategy"]})
    monkeypatch.syspath_prepend(str(folder))
    how = Simulation(mode="sequential")
    simulate(given, RunPlan.of(given, folder / "run").folder(how.runtime()), how)
    (folder / IMPORTED).unlink()
    assert f"--allow {EVIL}" in typed("resume", "run", "--rounds", "2").stderr
    ended = typed("resume", "run", "--rounds", "2", "--allow", EVIL, "--allow", ".")
    assert ended.returncode == 0, ended.stderr
    assert (folder / IMPORTED).exists()
    again = fedappeal.load("run", allow=[EVIL], quiet=True)
    assert again.resume(rounds=3).rounds == 3


def test_python_loads_a_model_of_foreign_code_only_where_it_is_allowed(folder: Path) -> None:
    (folder / CONFIG).write_text("{}")
    for allow in ((), ("other",), (EVIL,)):
        with pytest.raises(ConfigError, match="--allow"):
            load_model(folder, allow=allow)
        assert EVIL not in sys.modules
    assert load_model(folder, allow=(EVIL, ".")).weight.tolist() == [[1.0], [1.0]]


@pytest.mark.parametrize("command", ["compare", "report"])
def test_what_only_reads_a_run_imports_nothing_that_it_names(folder: Path, command: str) -> None:
    config = RunConfig.parse(BASE)
    simulate(config, RunPlan.of(config, folder / "run").folder({}), Simulation(mode="sequential"))
    record = json.loads((folder / "run" / CONFIG).read_text())
    record["settings"].update(NAMES)
    (folder / "run" / CONFIG).write_text(json.dumps(record))
    assert typed(command, "run").returncode == 0
    assert not (folder / IMPORTED).exists(), "the code ran"
