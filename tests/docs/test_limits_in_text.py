"""Limits that pages name are those of the code."""

import pytest

from client.state.receipts import MOST_BYTES
from fedappeal.data.data_size import _DEFAULT as MAX_DATA
from fedappeal.federation.certificates import _CA_DAYS as CA_DAYS
from fedappeal.federation.invitations import AFTER
from fedappeal.federation.join_server import _MOST_BODY as MOST_BODY
from fedappeal.flower.superlink.connections import MOST_CONNECTIONS
from fedappeal.flower.superlink.fleet_app import MOST_AT_ONCE
from fedappeal.flower.superlink.request_sizes import LARGEST_REQUEST
from fedappeal.protocol.foreign_text import _LONGEST as LONGEST_TEXT
from fedappeal.protocol.invitation import SECRET_BYTES
from fedappeal.settings.config import RunConfig
from fedappeal.simulation.evaluation import COMPARED_EVERY
from fedappeal.simulation.pool import MANY
from fedappeal.system.plain_files import LARGEST as LARGEST_LINE
from fedappeal.tasks import load_task
from fedappeal.views.live.clients import MOST_SHOWN
from fedappeal.views.live.live_run import MOST_ROUNDS
from fedappeal.views.tracking.tracker_threads import PATIENCE
from strategies.rounds.exchange.members import Probation
from tests.docs.pages import DOCS, numbers_in, text_of


def owed(failures: int) -> float:
    """The good turns that a client owes after some failures."""
    probation = Probation()
    for _ in range(failures):
        probation.fail("a")
    turns = 0
    while "a" in probation:
        probation.succeed("a")
        turns += 1
    return turns


@pytest.mark.parametrize(
    ("page", "sentence", "values"),
    [
        ("deployment", "or `--start-after` (N s) after the last answer", [RunConfig().start_after]),
        ("deployment", "until it has answered in time N times (then N, N)", [owed(2), owed(3), owed(4)]),
        ("deployment", "requests of up to N MiB may be in progress", [LARGEST_REQUEST / 2**20]),
        ("deployment", "over HTTP N for each key", [MOST_AT_ONCE]),
        ("deployment", "A Fleet port has at most N.", [MOST_CONNECTIONS]),
        ("security", "its text is escaped and cut to N characters", [LONGEST_TEXT]),
        ("security", "join by guessing (N bits", [8 * SECRET_BYTES]),
        ("security", "bodies above N KiB", [MOST_BODY / 1024]),
        ("security", "`FEDAPPEAL_MAX_DATA` (N MB), a line above N MB", [MAX_DATA, LARGEST_LINE // 10**6]),
        ("watching", "the latest N rounds, the SuperLink's runs, and at most N clients", [MOST_ROUNDS, MOST_SHOWN]),
        ("watching", "gives no sign of life for N s", [PATIENCE]),
        ("privacy", "The latest N to N MB stay", [MOST_BYTES >> 20, 2 * MOST_BYTES >> 20]),
        ("simulation", "Above N clients a simulation loads a client's data when first needed", [MANY]),
    ],
)
def test_a_limit_is_that_of_the_code(page: str, sentence: str, values: list[float]) -> None:
    assert numbers_in(text_of(DOCS / f"{page}.md"), sentence) == values


def test_limits_in_words() -> None:
    assert "Port 9094 listens while an invitation is open, and for ten minutes after its use" in text_of(
        DOCS / "deployment.md"
    )
    assert AFTER == 10 * 60
    assert "The CA's ends after ten years" in text_of(DOCS / "upkeep.md")
    assert CA_DAYS == 3650
    assert "compares the decisions of every tenth round" in text_of(DOCS / "simulation.md")
    assert COMPARED_EVERY == 10


def test_the_model_of_the_deployed_rounds() -> None:
    config = RunConfig.parse({"task": "fmnist", "clients": 3})
    size = sum(parameter.numel() for parameter in load_task(config.task_settings()).initial_model(0).parameters())
    text = text_of(DOCS / "benchmarks.md")
    (parameters,) = numbers_in(text, "MLP with N parameters")
    (size_sent,) = numbers_in(text, "for a model of N;")
    assert (parameters, size_sent) == (round(size, -2), round(4 * size, -3))
