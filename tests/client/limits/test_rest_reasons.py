"""For which limit a client rests, with a clock, a power supply and a network that a test sets."""

from dataclasses import dataclass
from datetime import datetime

import pytest

from client.limits.limits import Limits
from client.limits.rest import Surroundings, check_surroundings, why_resting
from fedappeal.settings.config import ConfigError


@dataclass
class Place:
    """What a test sets."""

    hour: int = 12
    mains: bool | None = True
    unmetered: bool | None = True
    seconds: float = 0.0
    asked: int = 0

    def network(self) -> bool | None:
        self.asked += 1
        return self.unmetered

    def around(self) -> Surroundings:
        return Surroundings(
            lambda: datetime(2026, 11, 22, self.hour), lambda: self.mains, self.network, lambda: self.seconds
        )


def why(place: Place, moved: int = 0, **limits: object) -> str:
    return why_resting(Limits.model_validate(limits), place.around(), lambda: moved)


def test_hours_open_and_close() -> None:
    place = Place()
    assert why(place, hours="9-17") == ""
    place.hour = 17
    assert why(place, hours="9-17") == "hours = 9-17"
    place.hour = 9
    assert why(place, hours="9-17") == ""


def test_power_and_network() -> None:
    place = Place()
    assert why(place, mains_only=True, unmetered_only=True) == ""
    place.mains = False
    assert why(place, mains_only=True) == "mains-only: the device is on battery"
    assert why(place) == ""
    place.unmetered = False
    assert why(place, unmetered_only=True) == "unmetered-only: the network is metered"


@pytest.mark.parametrize(("limit", "said"), [("mains_only", "on mains power"), ("unmetered_only", "is metered")])
def test_what_is_not_known_is_not_allowed(limit: str, said: str) -> None:
    place, limits = Place(mains=None, unmetered=None), {limit: True}
    assert said in why(place, **limits)
    with pytest.raises(ConfigError, match="is not allowed here: this machine does not say") as caught:
        check_surroundings(Limits.model_validate(limits), place.around())
    assert "\n" not in str(caught.value)
    check_surroundings(Limits(), place.around())


def test_a_days_traffic() -> None:
    assert why(Place(), 4_999_999, max_traffic=5) == ""
    assert why(Place(), 5_000_000, max_traffic=5) == "max-traffic = 5 MB is reached, until midnight UTC"
    assert why(Place(), 10**12) == ""


def test_the_network_is_asked_twice_a_minute() -> None:
    place = Place()
    around = place.around()
    for second in range(61):
        place.seconds = second
        around.network()
    assert place.asked == 3
