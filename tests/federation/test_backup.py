"""What docs/upkeep.md says of a backup: a copy of a running federation is the same federation elsewhere."""

import json
import re
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from fedappeal.federation.superlink import SuperLink
from fedappeal.record.reader import Record
from tests.client.certificates import TLS
from tests.federation.conftest import ROOT, Federation, wait_until
from tests.federation.test_remote import SHORT

pytestmark = pytest.mark.e2e
COMMANDS = re.search(
    r"^```\n(python3 .*state\.db.*\ncp .*)\n```$", (ROOT / "docs" / "upkeep.md").read_text("utf-8"), re.M
)

KEPT = {"certs", "runs", "state.db", "federation.toml", "addresses.json", "invitations.db"}


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Federation]:
    federation = Federation(tmp_path / "first")
    try:
        federation.superlink.start()
        yield federation
    finally:
        federation.end()


def members(federation: Federation) -> list[tuple[str, str]]:
    listed = json.loads(federation.fedappeal("federation", "list", "--json").out)
    return [(node["client-id"], node["name"]) for node in listed]


def test_a_copy_of_a_running_federation_is_the_same_federation(running: Federation, tmp_path: Path) -> None:
    assert running.register("0", "1", "2").code == 0
    for number in range(2):
        running.client(number)
    assert running.fedappeal("federation", "unregister", "2").code == 0
    run, copy = running.folder / "runs" / "first", tmp_path / "backup"
    done = running.fedappeal("submit", *SHORT, "--rounds", "2", "--out", str(run))
    assert done.code == 0, done.out + done.err

    copy.mkdir()
    assert COMMANDS
    (running.folder / "backup").symlink_to(copy)
    for name in ("federation.toml", "addresses.json"):  # as `federation open` writes them
        (running.folder / name).write_text(name)
    with closing(sqlite3.connect(running.folder / "invitations.db")) as invitations:
        invitations.execute("CREATE TABLE invitation (name TEXT)")
    subprocess.run(COMMANDS[1], shell=True, cwd=running.folder, check=True)
    assert {path.name for path in running.folder.iterdir()} & KEPT == {path.name for path in copy.iterdir()} == KEPT
    with closing(sqlite3.connect(copy / "invitations.db")) as invitations:
        assert invitations.execute("SELECT count(*) FROM invitation").fetchone() == (0,)
    assert (running.folder / "state.db-wal").stat().st_size, "the latest entries stand beside the database"
    before, port = members(running), int(running.superlink.fleet_address.rpartition(":")[2])
    running.superlink.stop()

    options = [*TLS(copy / "certs").options, "--database", str(copy / "state.db")]
    running.superlink = SuperLink(tmp_path / "second", options, fleet_port=port)
    running.superlink.start()
    assert members(running) == before
    refused = running.register("2")
    assert refused.code == 1
    assert "was unregistered once" in refused.err
    assert running.run(["verify", str(copy / "runs" / "first")]).code == 0
    resumed = running.fedappeal("resume", str(copy / "runs" / "first"), "--rounds", "3")
    assert resumed.code == 0, resumed.out + resumed.err
    wait_until(lambda: [line["joined"] for line in Record(copy / "runs" / "first").history] == [2, 2, 2])
    assert len(Record(run).history) == 2
