"""`--help` shows the usual options in groups, `--help-all` shows all, and completion knows all."""

from collections.abc import Sequence

import pytest
from click.shell_completion import ShellComplete
from typer.main import get_command
from typer.testing import CliRunner

from fedappeal.cli.brief_help import GROUPS
from fedappeal.cli.commands import cli

COMMANDS = {("client", name) if name == "limits" else (name,): groups for name, groups in GROUPS.items()}


def help_of(*arguments: str) -> str:
    done = CliRunner().invoke(cli, arguments, env={"COLUMNS": "80"}, catch_exceptions=False)
    assert done.exit_code == 0
    return done.output


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_the_usual_options_are_shown_in_groups_and_all_on_request(command: Sequence[str]) -> None:
    brief, whole = help_of(*command, "--help"), help_of(*command, "--help-all")
    groups = COMMANDS[tuple(command)]
    headings = [line.split("─ ")[1].rsplit(" ─")[0] for line in brief.splitlines() if line.startswith("╭")]
    assert [heading for heading in headings if heading in groups] == list(groups)
    usual = {f"--{name.replace('_', '-')}" for names in groups.values() for name in names}
    shown = {option for option in options_in(brief) if option not in ("--help", "--help-all")}
    assert {option.partition("/")[0] for option in shown} >= {option for option in usual if len(option) < 14}
    assert len(shown) <= len(usual)
    assert len(brief.splitlines()) <= 80
    assert len(options_in(whole)) > 1.5 * len(shown)
    assert help_of(*command, "--help") == brief, "and not another text the next time"


def options_in(text: str) -> set[str]:
    """The options that begin a line of a help."""
    words = (line.strip("│* ").split(" ")[0] for line in text.splitlines() if "--" in line[:7])
    return {word for word in words if word.startswith("--")}


@pytest.mark.parametrize("option", ["--byzantine-share", "--trim-share", "--task"])
def test_completion_knows_every_option(option: str) -> None:
    completion = ShellComplete(get_command(cli), {}, "fedappeal", "_FEDAPPEAL_COMPLETE")
    assert option in {item.value for item in completion.get_completions(["simulate"], "--")}


def test_every_usual_option_exists() -> None:
    commands = get_command(cli).commands  # type: ignore[attr-defined]
    for (name, *below), groups in COMMANDS.items():
        command = commands[name].commands[below[0]] if below else commands[name]
        named = {option for names in groups.values() for option in names}
        assert named <= {parameter.name for parameter in command.params}
