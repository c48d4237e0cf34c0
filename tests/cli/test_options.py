"""Commands' options: made of signatures, dataclasses and settings; the helps of docstrings."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import click
import pytest
import typer
from typer.main import get_command
from typer.testing import CliRunner

from fedappeal.cli.commands import cli
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


def options(command: click.Command, name: str = "fedappeal") -> Iterator[tuple[str, Any]]:
    """Yield the options and arguments of a command and of those below it, each with its command's name."""
    yield from ((f"{name} {option.name}", option) for option in command.params)
    for word, below in command.commands.items() if isinstance(command, click.Group) else ():
        yield from options(below, f"{name} {word}")


def test_every_option_of_every_command_has_a_help() -> None:
    assert not [name for name, option in options(get_command(cli)) if not option.help]


def test_options_are_read_off_a_signature_and_its_docstring() -> None:
    command = get_command(app).commands["paint"]  # type: ignore[attr-defined]
    found = {option.name: (option.opts, option.secondary_opts, option.help) for option in command.params}
    assert found == {
        "files": (["files"], [], "what is painted: one, or more of them"),
        "light": (["--light"], ["--no-light"], "with light"),
        "twice": (["--twice"], [], "two times, ..."),
        "of": (["--number"], [], "how many"),
        "sky": (["--sky"], [], "what is above"),
        "dark": (["--dark"], [], "whether it is night"),
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
