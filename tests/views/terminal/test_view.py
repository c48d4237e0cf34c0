"""What a run prints: which rounds it calls special, and what its signs mean."""

import io
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fedappeal.record.folder import RunFolder
from fedappeal.runs.plan import RunPlan
from fedappeal.settings.config import RunConfig, Scalar
from fedappeal.views.terminal.view import RunView
from server.build import run_plugins

LINE: dict[str, Any] = {"joined": 1, "sat_out": 0, "left": 0, "seconds": 0.5, "mandatory": True, "decisions": {}}


def printed(columns: int = 100, **settings: Scalar) -> list[str]:
    """The heading, the legend, the columns' names, and two rounds of which the first is mandatory."""
    out = io.StringIO()
    config = RunConfig.parse({"clients": 4, **settings})
    view = RunView(RunPlan(run_plugins(config), Path("runs/here")), Console(file=out, width=columns, highlight=False))
    view.heading()
    for server_round in (1, 2):
        view.watch("round", {**LINE, "round": server_round, "mandatory": server_round == 1})
    return out.getvalue().splitlines()


@pytest.mark.parametrize(
    ("settings", "rounds"),
    [
        ({}, "20 rounds (up to 10 mandatory), seed 0"),
        ({"strategy": "fedavg", "rounds": 5, "mandatory_rounds": 2}, "5 rounds (2 mandatory), seed 0"),
        ({"strategy": "fedalign"}, "20 rounds (2 of warm-up), seed 0"),
        ({"strategy": "fedalign", "fedalign.warmup-share": 0.07, "rounds": 100}, "100 rounds (7 of warm-up), seed 0"),
        ({"strategy": "adagd"}, "20 rounds (adagd's local form, beyond its theorem), seed 0"),
        ({"participation": "always"}, "20 rounds, seed 0"),
        ({"strategy": "fedalign", "participation": "appeal"}, "20 rounds (up to 10 mandatory, 2 of warm-up), seed 0"),
    ],
)
def test_mandatory_rounds_are_announced_where_clients_heed_them(settings: dict[str, Scalar], rounds: str) -> None:
    heading, legend, columns, _, first, second = printed(120, **settings)
    assert heading.endswith(f", {rounds}")
    starred = "mandatory" in rounds
    assert ("* mandatory" in legend, "1*" in first) == (starred, starred)
    assert "2*" not in second
    assert columns.startswith("served: ")


@pytest.mark.parametrize("participation", ["auto", "appeal", "match", "defect", "always"])
@pytest.mark.parametrize("clients_per_round", [0, 2])
@pytest.mark.parametrize("strategy", ["maxfl", "fedalign", "adagd", "fedavg"])
def test_the_legend_is_one_line_of_at_most_a_hundred_characters(
    strategy: str, clients_per_round: int, participation: str
) -> None:
    lines = printed(strategy=strategy, clients_per_round=clients_per_round, participation=participation)
    (at,) = (k for k, line in enumerate(lines) if "joined, " in line)
    assert lines[at].endswith(", · not asked")
    assert len(lines[at]) <= 100
    assert ("+ surplus" in lines[at]) == (clients_per_round > 0 and strategy != "fedalign")
    assert ("- refused" in lines[at]) == (strategy == "fedalign")


def test_a_refused_client_is_called_by_its_name() -> None:
    out = io.StringIO()
    console = Console(file=out, width=100, highlight=False)
    view = RunView(
        RunPlan.of(RunConfig(), Path("runs/here")), console, name_of={"key-1": "garden-pi (key-1)"}.__getitem__
    )
    view.watch("event", {"event": "refused", "node": "7", "client": "key-1", "reason": "data is refused: [values]"})
    view.watch("event", {"event": "refused", "node": "8", "reason": "ConfigError: another protocol"})
    assert out.getvalue().splitlines() == [
        "client garden-pi (key-1): data is refused: [values]",
        "a client was refused: ConfigError: another protocol",
    ]


OWN = """
from fedappeal.tasks.datasets.digits import Digits
from fedappeal.tasks.task import Task


class Own(Task):
    input_shape, num_classes = (4,), 2

    def initial_model(self, seed):
        raise NotImplementedError

    load = inputs = initial_model


class Mine(Digits):
    pass
"""


@pytest.mark.parametrize(
    ("settings", "data", "said"),
    [
        ({}, None, "maxfl on digits (dirichlet), 4 clients, 20 rounds"),
        (
            {"partition": "iid", "clients": 1, "rounds": 1},
            None,
            "maxfl on digits (iid), 1 client, 1 round (up to 1 mandat",
        ),
        ({"task": "synth"}, None, "maxfl on synth (natural), 4 clients"),
        ({"task": "headed:Own"}, None, "maxfl on headed:Own (its own partition), 4 clients"),
        ({"task": "headed:Own", "partition": "iid"}, None, "maxfl on headed:Own (its own partition), 4 clients"),
        ({"task": "headed:Mine"}, None, "maxfl on headed:Mine (dirichlet), 4 clients"),
        ({}, "own data", "maxfl on digits (own data), 4 clients"),
        ({}, "", "maxfl on digits, 4 clients"),
        ({"task": "elsewhere:Own"}, "", "maxfl on elsewhere:Own, 4 clients"),
    ],
)
def test_the_heading_says_how_the_data_is_spread_where_that_is_known(
    settings: dict[str, Scalar], data: str | None, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "headed.py").write_text(OWN)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    out = io.StringIO()
    config = RunConfig.parse({"clients": 4, **settings})
    RunView(RunPlan.of(config, tmp_path), Console(file=out, width=100, highlight=False), data).heading()
    assert out.getvalue().startswith(said)


@pytest.mark.parametrize("reason", ["nobody is left", ""])
def test_an_early_end_is_said_with_its_reason(reason: str, tmp_path: Path) -> None:
    RunFolder(tmp_path, "key").event("finished", round=2, reason=reason)
    out = io.StringIO()
    view = RunView(RunPlan.of(RunConfig(), tmp_path), Console(file=out, width=100, highlight=False))
    view.rounds = [{**LINE, "round": 2, "asked": 2, "bytes_up": 0, "bytes_down": 0}]
    view.summary()
    said = [line for line in out.getvalue().splitlines() if "ended" in line]
    assert said == (["the run ended in round 2: nobody is left"] if reason else [])


def told(*events: dict[str, Any], **settings: Scalar) -> list[str]:
    out = io.StringIO()
    view = RunView(
        RunPlan.of(RunConfig.parse({"clients": 3, **settings}), Path("here")), Console(file=out, width=200), data=""
    )
    for event in events:
        view.watch("event", event)
    return out.getvalue().splitlines()


def test_whom_a_run_waits_for_and_how_long_is_said() -> None:
    waiting = {"event": "waiting", "enrolled": 2, "wanted": 3, "seconds": 295, "silent": []}
    assert told(waiting, {**waiting, "silent": ["71"]}, {**waiting, "silent": list("abcde")}) == [
        "2 of 3 clients enrolled; waiting up to 295 s for 1 more",
        "2 of 3 clients enrolled; waiting up to 295 s for 1 more; called, without an answer yet (starting, "
        "or paused): node 71",
        "2 of 3 clients enrolled; waiting up to 295 s for 1 more; called, without an answer yet (starting, "
        "or paused): node a, node b, node c, 2 more",
    ]


@pytest.mark.parametrize(("enrolled", "said"), [(2, "2 of 3 clients enrolled: the run begins with them"), (3, "")])
def test_a_run_that_begins_without_some_clients_says_so_once(enrolled: int, said: str) -> None:
    arrivals = [{"event": "enrolled", "enrolled": number} for number in range(1, enrolled + 1)]
    lines = told(*arrivals, {"event": "round", "round": 1}, {"event": "round", "round": 2})
    assert [line for line in lines if "begins" in line] == ([said] if said else [])
    assert any("3 clients enrolled after" in line for line in lines) == (enrolled == 3)


def test_a_client_that_returns_is_named_and_the_arrivals_are_not_said_again() -> None:
    arrivals = [{"event": "enrolled", "client": f"c{number}", "enrolled": number} for number in range(1, 4)]
    returned = {"event": "enrolled", "client": "c2", "enrolled": 3, "returned": True}
    lines = told(*arrivals, {"event": "round", "round": 1}, returned)
    assert sum("3 clients enrolled after" in line for line in lines) == 1
    assert lines[-1] == "client c2 had left, and takes part again"
    lines = told(*arrivals[:2], {**returned, "client": "c3"})
    assert "3 clients enrolled after" in lines[-1], "a run that is resumed may wait for the one who returns"


def test_what_clients_call_themselves_and_why_they_failed_is_no_markup() -> None:
    out = io.StringIO()
    view = RunView(RunPlan.of(RunConfig(clients=2), Path("runs/here")), Console(file=out, width=200, highlight=False))
    view.watch("round", {**LINE, "round": 1, "failures": {"[/]anna[red]": "[/bold] no model"}})
    assert out.getvalue().splitlines()[-1].strip() == "[/]anna[red]: [/bold] no model"


def test_an_open_federation_and_a_node_that_is_never_available_are_said() -> None:
    unavailable = {"event": "unavailable", "node": "7", "times": 4, "seconds": 8, "reason": "[/nope] not\x1b[2J now"}
    assert told({"event": "open"}, unavailable) == [
        "this federation is open: it counts nodes, not people. One process can be many clients; registered keys "
        "(fedappeal superlink --enable-supernode-auth) prevent that",
        "node 7 was called 4 times and is not available: [/nope] not?[2J now (called again in 8 s)",
    ]
