"""`fedappeal join`: the five lines that an owner reads, and what is asked for at a terminal."""

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import typer

from client.settings import AppSettings, NodeSettings
from fedappeal.cli import join
from fedappeal.protocol.invitation import Invitation
from fedappeal.settings.config import ConfigError

INVITED = Invitation.new("fed.example.org:9094", bytes.fromhex("127f7613c7a8da5e" + "00" * 24))


@pytest.mark.parametrize(
    ("node", "app", "expected"),
    [
        ({}, {}, "fedappeal's own; a run sends settings and models, no code"),
        ({"allow": "mine"}, {}, "fedappeal's own and mine; a run sends settings and models, no code"),
        ({}, {"app": "mine.app:app"}, "mine.app:app; confined to the data"),
        ({}, {"app": "mine.app:app", "no-sandbox": True}, "mine.app:app; NOT confined to the data"),
        ({}, {"app": "bundle"}, "each run's that you approve; confined to the data"),
    ],
)
def test_five_lines_say_who_asks_and_which_code_runs(
    node: dict[str, Any], app: dict[str, Any], expected: str, tmp_path: Path
) -> None:
    settings = NodeSettings.parse({"data": "photos", "state-dir": str(tmp_path), **node})
    lines = join._what_happens(
        INVITED, "anna", settings, AppSettings.parse(app), ["digits", "digits"], {"digits": 60}
    )
    assert [line[:11].strip() for line in lines] == ["who asks:", "code:", "leaves:", "costs:", "to stop:"]
    assert lines[0] == "who asks:  fed.example.org (127f7613c7a8da5e), its runs: digits; you are 'anna'"
    assert lines[1] == f"code:      {expected}"
    assert lines[2].endswith("never your 60 examples for digits")
    assert max(map(len, lines)) <= 100


def test_a_hostile_federations_words_stay_in_their_line(tmp_path: Path) -> None:
    node = NodeSettings.parse({"data": "photos", "state-dir": str(tmp_path)})
    lines = join._what_happens(INVITED, "anna", node, AppSettings(), ["x\n\x1b[31m" + "y" * 10**4], {})
    assert all(line.isprintable() and len(line) < 250 for line in lines)


def test_a_certificate_that_cannot_be_kept_spends_no_invitation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = Mock(ca=b"x", look=Mock(return_value={}))
    monkeypatch.setattr("client.fleet.joining.JoinPort", Mock(return_value=port))
    (tmp_path / "ca.crt").mkdir()
    with pytest.raises(OSError, match=r"ca\.crt"):
        join._become_member(INVITED, tmp_path, NodeSettings(), AppSettings(), {})
    port.look.assert_called_once()
    port.redeem.assert_not_called()


def test_what_is_missing_is_asked_for_at_a_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def prompt(text: str) -> str:
        asked.append(text)
        return {"your data": "beds.csv", "the table": "kind"}[text[:9]]

    monkeypatch.setattr(typer, "prompt", prompt)
    given: dict[str, Any] = {"data": "", "label": "", "app": "", "partition-id": -1}
    monkeypatch.setattr(join.sys.stdin, "isatty", lambda: False, raising=False)
    with pytest.raises(ConfigError, match="data is missing"):
        join._asked_for(given)
    assert asked == []
    monkeypatch.setattr(join.sys.stdin, "isatty", lambda: True, raising=False)
    assert join._asked_for(given) == {"data": "beds.csv", "label": "kind"}
    assert len(asked) == 2
    for enough in ({"data": "photos"}, {"app": "mine:app"}, {"partition-id": 0}):
        join._asked_for({**given, **enough})
    assert len(asked) == 2, "no more than it needs"
