"""The dates of certificates: what is refused, and what is warned of."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from fedappeal.system.validity import Validity
from tests.client import certificates


@pytest.mark.parametrize(("days", "warned"), [(31, False), (29, True), (0.5, True)])
def test_a_certificate_is_warned_of_in_its_last_30_days(days: float, warned: bool) -> None:
    end = datetime.now(UTC) + timedelta(days=days)
    text = Validity(end - timedelta(days=400), end).warning("it")
    assert text == (f"it ends at {end:%Y-%m-%d %H:%M} UTC: renew it and start the SuperLink again" if warned else "")


def test_of_a_file_of_several_the_servers_stands_first_and_the_ca_that_ends_last_counts(tmp_path: Path) -> None:
    short, long = certificates.make(tmp_path / "short", days=2), certificates.make(tmp_path / "long", days=9)
    both = short.certificate.read_bytes() + long.ca.read_bytes()
    assert Validity.of_server(both) == Validity.of_server(short.certificate.read_bytes())
    assert Validity.of_ca(both) == Validity.of_ca(long.ca.read_bytes())
