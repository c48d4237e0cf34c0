"""`--log-format json`: every line is one event with the same fields, whatever other parties wrote."""

import io
import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click import Command
from rich.console import Console
from typer.main import get_command

from client.process.serve import Event, _log
from fedappeal.cli.commands import cli
from fedappeal.record.reader import Record
from fedappeal.runs.plan import RunPlan
from fedappeal.settings.config import ConfigError, RunConfig
from fedappeal.system.json_log import FIELDS, LOG_FORMAT, JsonFormat, chosen_formatter, json_line
from fedappeal.views.terminal.printing import complain, use_format
from fedappeal.views.terminal.view import RunView


@pytest.fixture(autouse=True)
def text_again() -> Iterator[None]:
    yield
    use_format("text")


def events(text: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in text.splitlines()]
    assert all(tuple(each) == FIELDS for each in found)
    return found


def test_a_simulation_prints_an_event_a_round(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    arguments = ["simulate", "--log-format", "json", "--model", "logistic", "--clients", "3", "--rounds", "3"]
    arguments += ["--local-steps", "2", "--requirement", "fixed", "--set", "prox.x=1", "--out", str(tmp_path / "run")]
    command: Command = get_command(cli)
    with pytest.raises(ConfigError):
        command(arguments, standalone_mode=False)
    arguments[arguments.index("prox.x=1")] = "scaffold.server-lr=1"
    command(arguments, standalone_mode=False)
    printed = capfd.readouterr()
    (unused,) = events(printed.err)
    assert (unused["level"], unused["event"]) == ("error", "problem")
    assert unused["message"] == "scaffold.server-lr is not used by this run"
    found = events(printed.out)
    rounds = [each for each in found if each["event"] == "round-finished"]
    assert [each["round"] for each in rounds] == [1, 2, 3]
    for each, line in zip(rounds, Record(tmp_path / "run").history, strict=True):
        assert (each["logger"], each["level"], each["run"], each["client"]) == ("fedappeal.run", "info", "run", None)
        assert f"joined={line['joined']} " in each["message"]
        assert f"loss={line['loss']} " in each["message"]


def test_events_and_failures_name_run_round_and_client() -> None:
    use_format("json")
    out = io.StringIO()
    view = RunView(RunPlan.of(RunConfig.parse({}), Path("runs/here")), Console(file=out))
    view.watch("event", {"time": 12.5, "event": "refused", "client": "anna", "reason": "no\x1b[31m\nsuch"})
    decisions = {"berta": "failed", "cleo": "absent"}
    counts = {"joined": 0, "sat_out": 0, "left": 0, "seconds": 1.0, "decisions": decisions}
    failures = {"berta": "she said\n{", "cleo": "no answer before the deadline"}
    view.watch("round", {"round": 2, **counts, "failures": failures})
    refused, finished, failed, absent = events(out.getvalue())
    assert refused["time"] == "1970-01-01T00:00:12.500+00:00"
    assert (refused["level"], refused["event"], refused["client"]) == ("warning", "refused", "anna")
    assert refused["message"] == "refused reason=no?[31m?such"
    assert (finished["event"], finished["round"], finished["run"]) == ("round-finished", 2, "here")
    assert (failed["event"], failed["round"], failed["client"]) == ("client-failed", 2, "berta")
    assert failed["message"] == "she said?{"
    assert (absent["event"], absent["client"]) == ("client-absent", "cleo")


def test_what_goes_wrong_is_an_event_too(capfd: pytest.CaptureFixture[str]) -> None:
    complain("a\nb")
    assert capfd.readouterr().err == "fedappeal: a?b\n"
    use_format("json")
    complain("a\nb")
    (found,) = events(capfd.readouterr().err)
    assert (found["level"], found["message"]) == ("error", "a?b")


@pytest.mark.parametrize("command", ["local", "simulate", "submit", "resume", "superlink", "client"])
def test_every_command_that_logs_has_the_option(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = get_command(cli).commands[command]  # type: ignore[attr-defined]
    assert any("--log-format" in option.opts for option in found.params)


def test_another_format_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="log-format = 'xml' is not allowed: text, json"):
        use_format("xml")
    monkeypatch.setenv(LOG_FORMAT, "xml")
    with pytest.raises(ConfigError, match="log-format = 'xml'"):
        chosen_formatter(logging.Formatter())


def test_a_clients_events_have_the_same_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(JsonFormat())
    logger = logging.getLogger("fedappeal.client")
    monkeypatch.setattr(logger, "handlers", [handler])
    monkeypatch.setattr(logger, "propagate", False)
    logger.setLevel(logging.INFO)
    _log(Event("failed", "round 3: failed", run=7, round=3, client="anna"))
    _log(Event("given-up", "gave up"))
    try:
        raise ValueError("no")
    except ValueError:
        logger.exception("the app raised")
    failed, gone, raised = events(out.getvalue())
    assert [failed[key] for key in FIELDS[1:]] == [
        *("warning", "fedappeal.client", "failed", "round 3: failed", 7, 3, "anna"),
    ]
    assert (gone["event"], gone["run"]) == ("given-up", None)
    assert (raised["event"], raised["message"]) == ("log", "the app raised: ValueError: no")


def test_a_server_process_logs_as_its_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    text = logging.Formatter()
    assert chosen_formatter(text) is text
    monkeypatch.setenv(LOG_FORMAT, "json")
    assert isinstance(chosen_formatter(text), JsonFormat)
    assert sys.getsizeof(json_line("info", "x", "y" * 10_000, {})) < 3_000
