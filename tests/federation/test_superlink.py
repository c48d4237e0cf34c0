"""What a SuperLink says before it is started."""

from pathlib import Path

import pytest

from fedappeal.federation import superlink
from fedappeal.federation.superlink import SuperLink, SuperLinkError


def test_where_stock_supernodes_speak_http_a_superlink_without_it_has_no_address_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(superlink, "SUPERNODE_SPEAKS_HTTP", True)
    with pytest.raises(SuperLinkError, match="speak HTTP, which this SuperLink does not serve"):
        _ = SuperLink(tmp_path).stock_address
