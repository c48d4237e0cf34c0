"""A strategy, a policy, a local rule and a task of one's own, by name, from a folder outside the tree."""

from pathlib import Path

import pytest

from fedappeal.record.reader import Record
from fedappeal.settings.config import RunConfig
from tests.docs.pages import write_plugins
from tests.e2e.conftest import BIN, Marked

pytestmark = pytest.mark.e2e

OWN = (
    *("--strategy", "mine.fedyogi:FedYogi", "--set", "fedyogi.server-lr=0.05", "--set", "fedyogi.beta1=0.8"),
    *("--local-rule", "mine.sam:SAM", "--set", "sam.rho=0.1"),
    *("--participation", "mine.stubborn:Stubborn=0.5,always=0.5", "--set", "stubborn.rounds=1"),
    *("--task", "mine.slope:Slope", "--set", "slope.step=0.2"),
    *("--clients", "3", "--rounds", "4", "--mandatory-rounds", "1"),
)


def check(folder: Path) -> list[tuple[int, int]]:
    """Check what a run left behind; return how many joined and sat out, round by round."""
    rounds = Record(folder).history
    assert [line["round"] for line in rounds] == [1, 2, 3, 4]
    assert all(line["failed"] == 0 and line["evaluated"] == 3 for line in rounds), rounds
    settings = Record(folder).config["settings"]
    assert settings["fedyogi.server-lr"] == 0.05
    assert settings["fedyogi.beta2"] == 0.99  # a default is recorded too
    assert settings["sam.rho"] == 0.1
    assert RunConfig.parse(settings).section("slope")["step"] == 0.2
    policies = {line["client-id"]: line["policy"] for line in Record(folder).policies}
    assert len(policies) == 3
    assert set(policies.values()) <= {"mine.stubborn:Stubborn", "always"}
    return [(line["joined"], line["sat_out"]) for line in rounds]


def test_real_processes_and_the_simulation_agree(marked: Marked, tmp_path: Path) -> None:
    code = write_plugins(tmp_path / "code")
    for command, extra in (("local", ()), ("simulate", ("--threads", "1"))):
        done = marked.run(
            str(BIN / "fedappeal"), command, *OWN, "--out", str(tmp_path / command), *extra, cwd=code, warm=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert check(tmp_path / "local") == check(tmp_path / "simulate")


def test_a_name_that_is_not_there_is_one_line(marked: Marked, tmp_path: Path) -> None:
    code = write_plugins(tmp_path / "code")
    name = "mine.fedyogi:FedYogo"
    done = marked.run(
        str(BIN / "fedappeal"), "local", "--strategy", name, "--out", str(tmp_path / "x"), cwd=code, warm=True
    )
    assert done.returncode == 2
    assert f"strategy = '{name}' cannot be imported" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
