"""A TLS federation run by code of one's own: clients that allow it take part, one that does not declines."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from fedappeal.core.plugins import PLUGIN_PATH
from fedappeal.record.reader import Record
from tests.docs.pages import write_plugins
from tests.federation.conftest import Federation
from tests.warm import run

pytestmark = pytest.mark.e2e

OWN = (
    *("--strategy", "mine.fedyogi:FedYogi", "--set", "fedyogi.server-lr=0.05", "--set", "fedyogi.beta1=0.8"),
    *("--local-rule", "mine.sam:SAM", "--set", "sam.rho=0.1"),
    *("--participation", "mine.stubborn:Stubborn", "--set", "stubborn.rounds=1"),
    *("--task", "mine.slope:Slope", "--set", "slope.step=0.2"),
)


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Federation]:
    code = write_plugins(tmp_path / "code")
    running = Federation(tmp_path / "federation", {PLUGIN_PATH: str(code)})
    try:
        running.superlink.start()
        yield running
    finally:
        running.end()


def test_clients_run_code_that_their_owners_allow(own: Federation, tmp_path: Path) -> None:
    own.register("0", "1", "2")
    folder = tmp_path / "run"
    for number in (0, 1):
        own.client(number, "--allow", "mine")
    closed = own.client(2)  # its owner allows nothing
    submit = own.command(
        "submit", *OWN, "--clients", "3", "--min-clients", "2", "--rounds", "3", "--mandatory-rounds", "1",
        "--round-timeout", "20", "--out", str(folder),
    )  # fmt: skip
    done = run(submit, env=own.environment, cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    rounds = Record(folder).history
    assert [line["round"] for line in rounds] == [1, 2, 3]
    assert rounds[0]["joined"] == 2
    assert all(line["evaluated"] == 2 and line["failed"] == 0 for line in rounds)
    why = (
        "ConfigError: strategy = 'mine.fedyogi:FedYogi' is not allowed: this client's owner has not allowed the "
        "package 'mine' (--allow mine)"
    )
    refused = [event["reason"] for event in Record(folder).events if event["event"] == "refused"]
    assert refused
    assert set(refused) == {why}
    assert why in closed.wait_for("not allowed")
