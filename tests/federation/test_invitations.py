"""The file of invitations: how often one can be used, by whom, until when; and who may read it."""

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from fedappeal.federation import invitations as module
from fedappeal.federation.invitations import Invitations, NotRedeemed, seconds_of
from fedappeal.protocol.invitation import digest_of
from fedappeal.protocol.proof import client_id_of
from fedappeal.settings.config import ConfigError

SECRET, OTHER = bytes(range(16)), bytes(range(100, 116))


def test_an_invitation_is_used_as_often_as_it_says_and_the_same_key_gets_the_same_answer(tmp_path: Path) -> None:
    kept = Invitations(tmp_path)
    assert not kept.listens()
    kept.add("lab", SECRET, uses=2, seconds=60)
    assert (tmp_path / "invitations.db").stat().st_mode & 0o777 == 0o600
    assert SECRET not in (tmp_path / "invitations.db").read_bytes(), "its hash alone is kept"
    assert kept.look(digest_of(SECRET)).name == "lab"
    assert [kept.redeem(SECRET, key) for key in (b"a", b"b", b"a", b"b")] == ["lab-1", "lab-2", "lab-1", "lab-2"]
    for ask in (lambda: kept.redeem(SECRET, b"c"), lambda: kept.look(digest_of(SECRET))):
        with pytest.raises(NotRedeemed, match="used"):
            ask()
    assert kept.look(digest_of(SECRET), b"a").name == "lab"
    (one,) = kept.all()
    assert one.members == ((client_id_of(b"a"), "lab-1"), (client_id_of(b"b"), "lab-2"))
    with pytest.raises(NotRedeemed, match="unknown"):
        kept.redeem(OTHER, b"a")


def test_when_the_port_listens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, start = Invitations(tmp_path), time.time()
    monkeypatch.setattr(module.time, "time", lambda: start + later)
    later = 0.0
    kept.add("anna", SECRET, uses=1, seconds=60)
    assert kept.listens()
    later = 61.0
    assert not kept.listens()
    with pytest.raises(NotRedeemed, match="expired"):
        kept.redeem(SECRET, b"a")
    kept.add("anna", OTHER, uses=1, seconds=60)
    assert kept.redeem(OTHER, b"a") == "anna"
    assert kept.listens(), "the answer may have been lost"
    later = 61.0 + module.AFTER
    assert not kept.listens()


def test_a_withdrawn_one_admits_nobody_not_even_who_used_it(tmp_path: Path) -> None:
    kept = Invitations(tmp_path)
    kept.add("lab", SECRET, uses=3, seconds=60)
    kept.redeem(SECRET, b"a")
    with pytest.raises(ConfigError, match="it is invited already"):
        kept.add("lab", OTHER, uses=1, seconds=60)
    kept.withdraw("lab")
    assert not kept.listens()
    for key in (b"a", b"b"):
        with pytest.raises(NotRedeemed, match="withdrawn"):
            kept.redeem(SECRET, key)
    with pytest.raises(ConfigError, match="no open invitation"):
        kept.withdraw("lab")
    kept.add("lab", OTHER, uses=1, seconds=60)


def test_of_ten_at_once_as_many_win_as_it_says(tmp_path: Path) -> None:
    """Each by a connection of its own, as processes have."""
    Invitations(tmp_path).add("lab", SECRET, uses=3, seconds=60)
    won: list[str] = []

    def race(number: int) -> None:
        with suppress(NotRedeemed):
            won.append(Invitations(tmp_path).redeem(SECRET, bytes([number])))

    with ThreadPoolExecutor(10) as threads:
        list(threads.map(race, range(10)))
    assert sorted(won) == ["lab-1", "lab-2", "lab-3"]


def test_what_is_not_allowed_is_one_line(tmp_path: Path) -> None:
    kept = Invitations(tmp_path)
    for name, uses, expected in [
        ("../x", 1, "name = '../x' is not allowed"),
        ("x" * 65, 1, "name = 'xx"),
        ("x", 0, "uses = 0 is not allowed: 1 to 1000"),
        ("x", 1001, "uses = 1001 is not allowed"),
    ]:
        with pytest.raises(ConfigError, match=expected):
            kept.add(name, SECRET, uses, 60)
    assert kept.all() == []
    assert [seconds_of(text) for text in ("30m", "12h", "7d")] == [1800, 43200, 604800]
    for text in ("", "7", "0d", "-1d", "7w", "999999d"):
        with pytest.raises(ConfigError, match="expires = "):
            seconds_of(text)
