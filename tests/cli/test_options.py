"""Commands' options: made of signatures, dataclasses and settings; the helps of docstrings."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from typer.main import get_command
from typer.testing import CliRunner

from fedappeal.cli.client import client_app
from fedappeal.cli.commands import cli
from fedappeal.cli.federation import federation_app
from fedappeal.cli.options import Commands


@dataclass(frozen=True)
class Colours:
    """Options of a test."""

    sky: str = "blue"
    """what is above"""
    dark: bool | None = None
    """whether it
    is night"""


app = Commands()
app.command("other")(lambda: None)
seen: list[dict[str, Any]] = []


@app.add("paint")
def paint(
    files: list[Path],
    *,
    light: bool = True,
    twice: bool = False,
    of: Annotated[int, typer.Option("--number", min=1)] = 3,
    colours: Colours,
) -> None:
    """Paint files.

    Args:
        files: what is painted: one, or
            more of them.
        light: with light.
        twice: two times, ....
        of: how many.
        colours: the colours.
    """
    seen.append({"files": files, "light": light, "twice": twice, "of": of, "colours": colours})


@pytest.mark.parametrize("commands", [cli, client_app, federation_app])
def test_every_option_of_every_command_has_a_help(commands: Commands) -> None:
    whole: Any = get_command(commands)
    parameters = [p for command in (whole, *whole.commands.values()) for p in command.params]
    assert len(parameters) > 5
    assert not [p.name for p in parameters if not p.help]


def test_options_are_read_off_a_signature_and_its_docstring() -> None:
    command = get_command(app).commands["paint"]  # type: ignore[attr-defined]
    assert {option.name: (option.opts, option.secondary_opts) for option in command.params} == {
        "files": (["files"], []),
        "light": (["--light"], ["--no-light"]),
        "twice": (["--twice"], []),
        "of": (["--number"], []),
        "sky": (["--sky"], []),
        "dark": (["--dark"], []),
    }
    assert {option.name: option.help for option in command.params} == {
        "files": "what is painted: one, or more of them",
        "light": "with light",
        "twice": "two times, ...",
        "of": "how many",
        "sky": "what is above",
        "dark": "whether it is night",
    }
    assert command.help == "Paint files."


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("a b", {"files": [Path("a"), Path("b")], "light": True, "twice": False, "of": 3, "colours": Colours()}),
        (
            "a --no-light --twice --number 2 --sky red --dark",
            {"files": [Path("a")], "light": False, "twice": True, "of": 2, "colours": Colours("red", True)},
        ),
    ],
)
def test_a_command_is_called_with_its_groups_of_options(words: str, expected: dict[str, Any]) -> None:
    assert CliRunner().invoke(app, ["paint", *words.split()]).exit_code == 0
    assert seen.pop() == expected
