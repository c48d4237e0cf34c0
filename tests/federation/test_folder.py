"""Addresses that a folder keeps of its federation: others are one line, and another user's are taken if named."""

import os
from pathlib import Path

import pytest

from fedappeal.federation.folder import Addresses, FederationFolder
from fedappeal.settings.config import ConfigError

KEPT = Addresses("127.0.0.1:8000", "certs/ca.crt", "h:9092")


@pytest.mark.parametrize(
    "text",
    ['{"control": 5, "ca": [], "fleet": null}', "[1]", '"abc"', "{}", "[" * 100_000, '{"\\u001b": ""}', "\xff"],
)
def test_what_is_no_addresses_is_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "addresses.json").write_text(text, "latin-1")
    with pytest.raises(
        ConfigError, match=r"addresses\.json' cannot be read \(.*\): open the federation again"
    ) as error:
        FederationFolder.find(tmp_path)
    assert str(error.value).isprintable()


def test_another_users_federation_is_taken_only_where_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anybody may write to a folder above a run, as /tmp, and would get its runs."""
    KEPT.write(tmp_path)
    run = tmp_path / "runs" / "one"
    own = FederationFolder.find(None, near=run)
    assert own is not None
    assert own.addresses == KEPT
    monkeypatch.setattr(os, "geteuid", lambda: (tmp_path / "addresses.json").stat().st_uid + 1)
    named = FederationFolder.find(tmp_path)
    assert named is not None
    if (tmp_path / "addresses.json").stat().st_uid == 0:
        os.chown(tmp_path / "addresses.json", 12345, -1)
    with pytest.raises(ConfigError, match=f"federation = '{tmp_path}' is another user's, and is taken only where"):
        FederationFolder.find(None, near=run)
