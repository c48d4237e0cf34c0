"""Whatever is printed fits the terminal's line, and what is to be copied is whole."""

import io
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from client.limits.limits import Limits, describe_limits
from fedappeal.cli.listing import all_names, description
from fedappeal.protocol.metric import ACCURACY
from fedappeal.runs.checks import resume_command
from fedappeal.runs.plan import RunPlan, deployed_plan, swept_plans
from fedappeal.settings.config import RunConfig, Scalar
from fedappeal.views.comparison.stayed import NOTE, headings
from fedappeal.views.terminal.fitting import ITEM, PHRASE, columns_that_fit, fit_lines
from fedappeal.views.terminal.printing import print_fitting, print_lines, say, say_where
from fedappeal.views.terminal.view import OPEN, RunView
from server.build import run_plugins

WIDTHS = (120, 80, 60, 40)
COUNTS: dict[str, Any] = {"asked": 3, "joined": 3, "sat_out": 0, "left": 0, "bytes_up": 5, "bytes_down": 5}


def a_round(number: int, clients: int) -> dict[str, Any]:
    figures = {"seconds": 0.5, "served": 1.0, "gm_appeal": 0.5, "accuracy": 1.0, "preferred_accuracy": 1.0}
    decisions = {f"client-{n:04}": "joined" for n in range(clients)}
    return {
        **COUNTS,
        **figures,
        "unseen_accuracy": 1.0,
        "round": number,
        "mandatory": number == 1,
        "decisions": decisions,
    }


def events() -> Iterator[dict[str, Any]]:
    yield {"event": "open"}
    yield {"event": "waiting", "enrolled": 1, "wanted": 9, "seconds": 295, "silent": list("abcde")}
    yield {
        "event": "refused",
        "node": "7",
        "client": "garden-pi",
        "reason": "ConfigError: a reason " + "of words " * 9,
    }
    yield {"event": "unavailable", "node": "7", "times": 4, "seconds": 8, "reason": "no answer " * 9}


def run_on(width: int, **settings: Scalar) -> list[str]:
    """All that a run prints, from its heading to where its folder is."""
    out = io.StringIO()
    config = RunConfig.parse(settings)
    view = RunView(RunPlan(run_plugins(config), Path("runs/here")), Console(file=out, width=width, highlight=False))
    view.heading()
    for event in events():
        view.watch("event", event)
    for number in (1, 10_000):
        view.watch("round", a_round(number, config.clients))
    view.summary()
    return out.getvalue().splitlines()


RUNS: list[dict[str, Scalar]] = [
    {},
    {"clients": 12, "influence": "bounded", "unseen-clients": 4},
    {"clients": 40, "strategy": "fedalign", "participation": "appeal", "rounds": 10_000},
    {"clients": 41, "clients-per-round": 5, "strategy": "maxfl"},
    {"clients": 3, "strategy": "adagd", "task": "synth"},
]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("settings", RUNS, ids=str)
def test_no_line_of_a_run_is_longer_than_the_terminal(settings: dict[str, Scalar], width: int) -> None:
    lines = run_on(width, **settings)
    assert [line for line in lines if cell_len(line) > width] == []
    heading, clients = lines[0], f"{settings.get('clients', 10)} clients"
    assert heading.startswith(f"{settings.get('strategy', 'maxfl')} on ")
    assert clients in heading
    (at,) = (n for n, line in enumerate(lines) if " joined" in line and "round" in line.split())
    one, two = lines[at + 1 : at + 3]
    assert len(one.split()) - 1 == len(two.split()) - 1 >= 2, "a round is one line"
    assert two.split()[-1] != "10000"


@pytest.mark.parametrize(
    ("width", "columns"),
    [
        (100, "clients round joined served sat out left bounded GM-Appeal accuracy preferred s"),
        (86, "clients round joined served sat out left bounded GM-Appeal accuracy preferred"),
        (80, "clients round joined served sat out left GM-Appeal accuracy preferred"),
        (70, "clients round joined served sat out left GM-Appeal accuracy"),
        (60, "clients round joined served sat out GM-Appeal accuracy"),
        (50, "clients round joined served GM-Appeal accuracy"),
        (40, "round joined served GM-Appeal accuracy"),
        (30, "round joined served accuracy"),
        (20, "round joined"),
    ],
)
def test_columns_are_left_out_in_a_fixed_order(width: int, columns: str) -> None:
    lines = run_on(width, clients=10, influence="bounded")
    assert columns in [" ".join(line.split()) for line in lines]


WORD = st.builds("{}{}".format, st.text("abc", min_size=1, max_size=11), st.sampled_from(["", ",", ";"]))
WORDS = st.lists(WORD, min_size=1, max_size=20).map(" ".join)


@given(WORDS, st.integers(13, 40), st.sampled_from([ITEM, PHRASE, None]), st.integers(0, 6))
def test_lines_keep_every_word_in_its_order(words: str, width: int, unit: Any, blanks: int) -> None:
    text = " " * min(blanks, width - 13) + words
    lines = [line.plain for line in fit_lines(Text(text), width, *([unit] if unit else []))]
    assert " ".join(" ".join(lines).split()) == " ".join(words.split())
    assert max(map(cell_len, lines)) <= width


def test_commands_and_paths_are_not_broken() -> None:
    command = "`fedappeal resume runs/a-first-run --superlink 127.0.0.1:8000`"
    lines = [line.plain for line in fit_lines(Text(f"continue it: {command} does that"), 40)]
    assert lines == ["continue it:", command, "does that"]
    out = io.StringIO()
    console = Console(file=out, width=20, highlight=False)
    say_where(console, "the report", Path("my runs/first run, of many/report.html"))
    say(console, "the live page: ", ("http://127.0.0.1:41237/?token=abcdefgh", "bold"), whole=True)
    report, page = out.getvalue().splitlines()
    assert shlex.split(report.partition(": ")[2]) == ["my runs/first run, of many/report.html"]
    assert page.endswith("?token=abcdefgh")


def test_a_folder_is_shown_as_it_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for plan in (deployed_plan({"out": "runs/first"}, here=True), swept_plans({}, [], "runs/first")[0]):
        assert plan.path == tmp_path / "runs" / "first"
        assert resume_command(plan.config, plan.given_path) == "fedappeal resume runs/first"
    (seed, _) = swept_plans({}, ["seed=0,1"], "runs/first")
    assert seed.given_path == Path("runs/first/seed-0")
    given = deployed_plan({"out": str(tmp_path / "a b")}, here=True)
    assert resume_command(given.config, given.given_path) == f"fedappeal resume '{tmp_path}/a b'"


@pytest.mark.parametrize("width", WIDTHS)
def test_lists_and_limits_fit(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    for lines in (all_names(), description("maxfl"), description("columns"), describe_limits(Limits())):
        print_lines(lines)
    printed = capsys.readouterr().out.splitlines()
    assert [line for line in printed if cell_len(line) > width] == []
    assert len(printed) > 80


@pytest.mark.parametrize("width", WIDTHS)
def test_who_stayed_fits(width: int) -> None:
    out = io.StringIO()
    console, names = Console(file=out, width=width, highlight=False), headings(ACCURACY)
    cells = dict(zip(names, [["fedavg"], *[["100.0 %"]] * 4, ["20"]], strict=True))
    print_fitting(console, cells, left_out=names[:1:-1], boxed=True)
    say(console, NOTE, unit=PHRASE)
    say(console, OPEN)
    lines = out.getvalue().splitlines()
    assert max(map(cell_len, lines)) <= width
    assert "stayed" in lines[1]


def test_columns_that_must_stay_do() -> None:
    widths = {"id": 30, "name": 10, "node": 8}
    assert columns_that_fit(widths, 48, ["node", "name"]) == ["id", "name", "node"]
    assert columns_that_fit(widths, 47, ["node", "name"]) == ["id", "name"]
    assert columns_that_fit(widths, 5, ["node", "name"]) == ["id"]
