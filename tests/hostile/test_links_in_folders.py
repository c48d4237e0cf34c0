"""Promise: a run's folder from a stranger changes nothing outside of itself, whatever links and pipes it holds."""

import os
import shutil
import socket
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedappeal.cli.commands import cli
from fedappeal.federation.superlink import SuperLink
from fedappeal.record.follower import Tail
from fedappeal.record.lines import EVENTS, HISTORY, append_lines, written_lines
from fedappeal.settings.config import ConfigError
from fedappeal.system.files import copy_aside, private_log, replace_file
from fedappeal.system.locks import only_process
from fedappeal.system.plain_files import NotPlain, check_plain, open_plain
from tests import warm

QUICK = ("--task", "digits", "--clients", "2", "--rounds", "1", "--local-steps", "1", "--set", "solo.steps=1")
READERS = ("report", "compare", "verify", "export", "predict", "watch")
"""Commands that only read a run's folder, or write one file into it."""
BESIDES = (f"{HISTORY}.damaged-9", "page-address", "tracker-mlflow.json", "wandb", "wandb/x", "new")
"""Names that damage, a page and trackers bring, and one that nothing does."""
SECRET = b"alias ls='ls --color'\n"


def said(*words: str) -> tuple[int, str]:
    """Return with which code a command ends, and what it says."""
    done = CliRunner().invoke(cli, words)
    told = str(done.exception) if isinstance(done.exception, ConfigError) else done.output
    return done.exit_code, told


def command(name: str, run: Path) -> tuple[str, ...]:
    more = {"export": ("--to", "safetensors"), "predict": ("--data", str(run)), "resume": ("--rounds", "3")}
    return name, str(run), *more.get(name, ())


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A simulated run and a local one, each after all commands that write into its folder."""
    folder = tmp_path_factory.mktemp("runs")
    for kind in ("simulate", "local"):
        begin = [str(Path(sys.executable).with_name("fedappeal")), kind, *QUICK, "--out", str(folder / kind)]
        ended = warm.run(begin, capture_output=True, text=True, timeout=240, cwd=folder)
        assert ended.returncode == 0, ended.stderr
    assert said("resume", str(folder / "simulate"), "--rounds", "2")[0] == 0
    assert said("report", str(folder / "simulate"))[0] == 0
    return {"simulate": folder / "simulate", "local": folder / "local"}


def names_in(run: Path) -> list[str]:
    """Return what the commands have written, sub-folders too, and `BESIDES`."""
    written = [str(path.relative_to(run)) for path in run.rglob("*") if "apps" not in path.parts]
    return [*sorted(written), *BESIDES]


def outside_of(folder: Path) -> dict[str, tuple[bytes, int, int]]:
    """Return all files of a folder: content, mode, time of the last change of either."""
    return {
        str(path): (path.read_bytes() if path.is_file() else b"", path.stat().st_mode, path.stat().st_ctime_ns)
        for path in [folder, *folder.rglob("*")]
    }


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    (folder / ".bashrc").write_bytes(SECRET)
    return folder


def to_file(place: Path, outside: Path) -> None:
    place.symlink_to(outside / ".bashrc")


def to_nothing(place: Path, outside: Path) -> None:
    place.symlink_to(outside / "sitecustomize.py")


def to_folder(place: Path, outside: Path) -> None:
    place.symlink_to(outside)


def pipe(place: Path, outside: Path) -> None:
    os.mkfifo(place)


def second_name(place: Path, outside: Path) -> None:
    os.link(outside / ".bashrc", place)


def planted(run: Path, name: str, plant: Callable[[Path, Path], None], outside: Path) -> Iterator[None]:
    """Put something in the place of a name while the caller is at it."""
    place, kept = run / name, run.parent / "kept"
    new = not place.parent.exists()
    place.parent.mkdir(exist_ok=True)
    if there := place.exists():
        place.rename(kept)
    plant(place, outside)
    yield
    place.unlink()
    if there:
        kept.rename(place)
    if new:
        place.parent.rmdir()


@pytest.mark.parametrize("plant", [to_file, to_nothing, to_folder, pipe, second_name], ids=lambda p: p.__name__)
@pytest.mark.parametrize("kind", ["simulate", "local"])
def test_nothing_outside_changes_wherever_it_stands(
    kind: str, plant: Callable[[Path, Path], None], runs: dict[str, Path], outside: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(runs[kind], run)
    # A second name does no harm where files are read, or replaced by others.
    commands = ("resume",) if plant is second_name else (READERS if plant is to_nothing else ("resume", "report"))
    names = names_in(run)
    assert {".lock", HISTORY, "checkpoint.safetensors"} <= set(names)
    assert kind == "simulate" or {"logs/superlink.log", "clients/0000/changes.lock", ".command.lock"} <= set(names)
    for name in names:
        for _ in planted(run, name, plant, outside):
            before = outside_of(outside)
            for which in commands:
                code, told = said(*command(which, run))
                assert code != 0, (which, name)
                assert len(told.splitlines()) == 1, (which, name, told)
                assert f"'{name}'" in told or "readable config.json" in told, (which, name, told)
            assert outside_of(outside) == before, name


def test_the_folder_itself_may_be_reached_through_a_link(runs: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(runs["simulate"], tmp_path / "run")
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "run")
    assert said("report", str(link))[0] == 0
    assert said("resume", str(link), "--rounds", "3")[0] == 0


def test_a_new_run_is_not_begun_beside_a_link(outside: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    to_nothing(tmp_path / "run" / ".lock", outside)
    code, told = said("simulate", *QUICK, "--out", str(tmp_path / "run"))
    assert code != 0
    assert "'.lock' in it is a link" in told
    assert not (outside / "sitecustomize.py").exists()


def test_links_of_wandb_are_its_own(outside: Path, tmp_path: Path) -> None:
    logs = tmp_path / "run" / "wandb" / "run-1" / "logs"
    logs.mkdir(parents=True)
    (logs / "debug.log").touch()
    (logs / "debug-core.log").symlink_to(outside / ".bashrc")
    (tmp_path / "run" / "wandb" / "latest-run").symlink_to("run-1")
    (tmp_path / "run" / "wandb" / "debug.log").symlink_to("run-1/logs/debug.log")
    check_plain(tmp_path / "run", changed=True)
    (tmp_path / "run" / "wandb" / "up").symlink_to("../..")
    with pytest.raises(ConfigError, match="'wandb/up' in it is a link"):
        check_plain(tmp_path / "run")


# -- each writer and reader by itself: a folder may change after it was looked at -----------------------------


def hold(path: Path) -> None:
    with only_process(path.parent, path.name):
        pass


def damage(path: Path) -> None:
    """Put a file aside whose nine names are taken, the last one by what was planted."""
    file = path.with_name("history.jsonl")
    file.write_bytes(b"nonsense\n")
    for name in ("damaged", *(f"damaged-{n}" for n in range(2, 9))):
        file.with_name(f"history.jsonl.{name}").touch()
    path.rename(file.with_name("history.jsonl.damaged-9"))
    assert copy_aside(file).read_bytes() == b"nonsense\n"


WRITERS: dict[str, Callable[[Path], object]] = {
    "append": lambda path: append_lines(path, [{"round": 1}]),
    "lock": hold,
    "log": lambda path: private_log(path).close(),
    "replace": lambda path: replace_file(path, b"new"),
    "aside": damage,
}


@pytest.mark.parametrize("plant", [to_file, to_nothing, to_folder, pipe, second_name], ids=lambda p: p.__name__)
@pytest.mark.parametrize("writer", WRITERS)
def test_no_writer_follows(writer: str, plant: Callable[[Path, Path], None], outside: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    plant(place := tmp_path / "run" / "it", outside)
    before = {path: (content, mode) for path, (content, mode, _) in outside_of(outside).items()}
    refuses: AbstractContextManager[object] = (
        nullcontext() if writer in ("replace", "aside") else pytest.raises((NotPlain, ConfigError))
    )
    with refuses:
        WRITERS[writer](place)
    assert {path: (content, mode) for path, (content, mode, _) in outside_of(outside).items()} == before


@pytest.mark.parametrize("plant", [to_file, to_folder, pipe], ids=lambda p: p.__name__)
def test_no_reader_follows_or_waits(plant: Callable[[Path, Path], None], outside: Path, tmp_path: Path) -> None:
    plant(place := tmp_path / EVENTS, outside)
    with pytest.raises(NotPlain):
        list(written_lines(place))
    assert Tail(place).read() == []


def test_a_socket_is_no_file(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "it"))
        for flags in (os.O_RDONLY, os.O_RDWR):
            with pytest.raises(NotPlain, match="it is no file"):
                open_plain(tmp_path / "it", flags)


def test_who_may_read_a_lock_may_write_it(tmp_path: Path) -> None:
    (tmp_path / "lock").touch()
    for before, after in ((0o644, 0o600), (0o664, 0o660), (0o666, 0o666), (0o600, 0o600)):
        (tmp_path / "lock").chmod(before)
        hold(tmp_path / "lock")
        assert stat.S_IMODE((tmp_path / "lock").stat().st_mode) == after
    hold(tmp_path / "other")
    assert stat.S_IMODE((tmp_path / "other").stat().st_mode) == 0o600


def test_an_app_that_lies_in_a_local_runs_folder_is_not_flowers(tmp_path: Path) -> None:
    """Flower takes an app from its home where it is installed already, and its code before ours."""
    app = tmp_path / "logs" / "flower" / "apps" / "fedappeal.fedappeal.0.1.0.6dc4c43d" / "server"
    app.mkdir(parents=True)
    (app / "app.py").write_text("raise SystemExit('the code ran')")
    home = Path(SuperLink(tmp_path / "logs")._env()["FLWR_HOME"])
    assert home == tmp_path / "logs" / "flower"
    assert list(home.iterdir()) == []
