"""How long a client waits: numbers worked out by hand."""

import pytest

from client.fleet.traffic import poll_wait, retry_wait


@pytest.mark.parametrize(
    ("idle", "wait"),
    [(0.0, 0.01), (0.02, 0.01), (0.4, 0.1), (1.0, 0.25), (30.0, 0.25), (59.9, 0.25), (60.0, 1.0), (1e6, 1.0)],
)
def test_a_look_comes_a_quarter_of_the_pause_later(idle: float, wait: float) -> None:
    assert poll_wait(idle) == pytest.approx(wait)


@pytest.mark.parametrize(("pause", "most"), [(1.0, 22), (10.0, 60), (60.0, 262)])
def test_a_pause_costs_few_looks(pause: float, most: int) -> None:
    idle, looks = 0.0, 0
    while idle < pause:
        idle += poll_wait(idle)
        looks += 1
    assert looks <= most


def test_attempts_to_connect_come_slower_and_never_stop() -> None:
    assert [round(retry_wait(n, 0.5), 2) for n in (1, 2, 3, 4, 5, 6)] == [0.5, 0.8, 1.28, 2.05, 3.28, 5.0]
    assert retry_wait(10**6, 0.5) == pytest.approx(5.0)
    assert retry_wait(1, 0.0) == pytest.approx(0.4)
    assert retry_wait(1, 1.0) == pytest.approx(0.6)
