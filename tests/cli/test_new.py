"""`fedappeal new`: what it writes is checked and runs as its line says, and nothing is overwritten."""

import re
import shlex
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from fedappeal.cli.main import main
from fedappeal.cli.new import APP, KINDS, write_new
from fedappeal.record.reader import Record
from fedappeal.settings.config import ConfigError

Command = Callable[..., str]


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs a command in an empty folder, and returns what it prints."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def run(*words: str) -> str:
        monkeypatch.setattr(sys, "argv", list(words))
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code
        return capsys.readouterr().out

    return run


@pytest.mark.parametrize("kind", KINDS)
def test_what_it_writes_is_checked_and_runs_as_its_line_says(
    kind: str, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = command("fedappeal", "new", kind, f"own_{kind}/new_{kind}.py")
    check, simulate = re.findall("`(fedappeal .*?)`", line)
    assert f"own_{kind}.new_{kind}:New{kind.capitalize()}: nothing found" in command(*shlex.split(check))
    monkeypatch.setattr("fedappeal.runs.dry_round.check_plugins", lambda *_: None)  # as it was checked just now
    command(*shlex.split(simulate), "--out", "run")
    rounds = Record(tmp_path / "run").history
    assert len(rounds) == 12
    assert max(done["joined"] for done in rounds) == 4
    assert not re.search(r"Mine|mine[.:]", (tmp_path / f"own_{kind}/new_{kind}.py").read_text())


@pytest.mark.parametrize(
    ("kind", "file", "said"),
    [
        ("strategies", "a.py", "kind = 'strategies' is not allowed: strategy, policy, rule, task, model"),
        ("task", "there.py", "file = 'there.py' is not allowed: File exists; nothing was written"),
        ("task", "a.txt", "file = 'a.txt' is not allowed: letters, digits and _, ending in .py"),
        ("task", "../a.py", "file = '../a.py' is not allowed: letters"),
        ("task", "my-task.py", "file = 'my-task.py' is not allowed: letters"),
        ("task", "numpy.py", "file = 'numpy.py' is not allowed: Python has another module 'numpy'"),
        ("app", "torch", "folder = 'torch' is not allowed: Python has another module 'torch'"),
        ("app", "below/client", "folder = 'below/client' is not allowed: Python has another module 'client'"),
        ("app", "there.py", "folder = 'there.py' is not allowed: up to 32 small letters"),
    ],
)
@pytest.mark.usefixtures("command")
def test_what_it_does_not_write_is_one_line(kind: str, file: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "there.py").write_text("mine")
    with pytest.raises(ConfigError, match=said) as refused:
        write_new(kind, Path(file))
    assert "\n" not in str(refused.value)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("there.py", "mine")]


@pytest.mark.usefixtures("command")
def test_a_class_is_not_called_as_what_its_file_imports_or_as_a_setting() -> None:
    assert "policy:MyPolicy`" in write_new("policy", Path("policy.py"))
    assert "out:MyOut`" in write_new("strategy", Path("out.py"))


@pytest.mark.usefixtures("command")
def test_a_folder_called_mine_is_in_every_name() -> None:
    line = write_new("strategy", Path("mine/steady.py"))
    assert "`fedappeal check mine.steady:Steady`" in line
    assert "`fedappeal simulate --strategy mine.steady:Steady --set steady.momentum=0.5 " in line


def test_an_app_is_a_project_of_its_own(tmp_path: Path) -> None:
    folder = tmp_path / "hearts"
    assert write_new(APP, folder) == f"{folder}: change it, run it with `flwr run {folder}`"
    project = tomllib.loads((folder / "pyproject.toml").read_text())
    flower = project["tool"]["flwr"]["app"]
    assert (flower["fab-format-version"], project["project"]["name"]) == (1, "hearts")
    assert "flwr[simulation]>=1.39.0" in project["project"]["dependencies"]
    for part in flower["components"].values():
        module, _, name = part.partition(":")
        assert f"{name} = " in (folder / f"{module.replace('.', '/')}.py").read_text()
    assert (folder / "LICENSE").exists()
    assert not any("mineapp" in file.read_text() for file in folder.rglob("*.*") if file.is_file())


@pytest.mark.parametrize("name", ["my_app", "my-app", "class", "Hearts", "there"])
def test_an_apps_folder_that_is_not_allowed_is_one_line(tmp_path: Path, name: str) -> None:
    (tmp_path / "there").mkdir()
    with pytest.raises(ConfigError, match=f"folder = '{tmp_path / name}' is not allowed") as error:
        write_new(APP, tmp_path / name)
    assert "\n" not in str(error.value)
