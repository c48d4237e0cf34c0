"""What keeps a SuperLink from starting: certificates out of their dates, and another one on its database."""

import os
import re
import sqlite3
from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError

from fedappeal.federation import one_superlink
from fedappeal.federation.one_superlink import check_certificates, only_superlink, run_one_superlink
from fedappeal.flower.superlink.superlink_process import Ports
from fedappeal.settings.config import ConfigError
from tests.client import certificates

OPTIONS = ["--insecure", "--fleet-api-address", "127.0.0.1:0"]


@pytest.fixture(autouse=True)
def unchanged_log(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("readable_log", "log_refusals"):
        monkeypatch.setattr(one_superlink, name, lambda *given: None)


def test_a_database_has_one_superlink(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two names of one file are one database; in memory there is none to share."""
    begun: list[tuple[str, ...]] = []
    monkeypatch.setattr(one_superlink, "run_superlink", lambda ports, guarded: begun.append(ports.for_flower))
    (tmp_path / "link.db").symlink_to(tmp_path / "state.db")
    options = [*OPTIONS, "--database", str(tmp_path / "state.db")]
    with only_superlink(tmp_path / "link.db"):
        refused = rf"state\.db' is not allowed: the SuperLink of process {os.getpid()} runs on it"
        with pytest.raises(ConfigError, match=refused):
            run_one_superlink(options, guarded=True)
        run_one_superlink(OPTIONS, guarded=True)
    run_one_superlink(options, guarded=True)
    assert begun == [tuple(OPTIONS), tuple(options)]


def test_a_database_that_cannot_be_written_or_is_none_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(ports: Ports, guarded: bool) -> None:
        raise OperationalError("CREATE TABLE a\n", {}, sqlite3.OperationalError("database or disk is full"))

    database = tmp_path / "state.db"
    monkeypatch.setattr(one_superlink, "run_superlink", full)
    for content, reason in (("", "database or disk is full"), ("hello" * 999, "file is not a database")):
        database.write_text(content)
        with pytest.raises(ConfigError) as refused:
            run_one_superlink([*OPTIONS, "--database", str(database)], guarded=True)
        assert str(refused.value) == f"database = '{database}' cannot be read or written: {reason}"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"days": -3}, r"the certificate of ssl-certfile = '.*server.crt' expired at 20.* UTC; this clock says 20.*"),
        ({"days": 3, "ca_days": -3}, r"the certificate of ssl-ca-certfile = '.*ca.crt' expired at 20.*"),
        ({"first_day": 2}, r"the certificate of ssl-certfile = '.*server.crt' is not valid before 20.*"),
    ],
)
def test_a_superlink_does_not_start_with_a_certificate_out_of_its_dates(
    given: dict[str, int], said: str, tmp_path: Path
) -> None:
    tls = certificates.make(tmp_path / "tls", **given)
    with pytest.raises(ConfigError) as refused:
        check_certificates(str(tls.certificate), str(tls.ca))
    assert re.fullmatch(said, str(refused.value))


def test_files_that_hold_no_certificate_are_refused_and_no_file_is_fine(tmp_path: Path) -> None:
    assert check_certificates("", "") == []
    empty = tmp_path / "empty"
    empty.write_text("hello")
    with pytest.raises(ConfigError, match=f"ssl-certfile = '{empty}' is not allowed: it holds no certificate in PEM"):
        check_certificates(str(empty), "")
    with pytest.raises(ConfigError, match="is not allowed: No such file or directory"):
        check_certificates("", str(tmp_path / "nowhere"))
