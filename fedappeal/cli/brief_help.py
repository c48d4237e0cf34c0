"""`--help` of commands with many options: those that people use, in groups; `--help-all` shows all."""

import copy
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from typer.core import TyperCommand

GROUPS: Mapping[str, Mapping[str, Sequence[str]]] = tomllib.loads(
    Path(__file__).with_suffix(".toml").read_text("utf-8")
)
"""Names of options by their group's heading, of each command with such groups."""
_ALL = "help_all"


def _help_all() -> click.Option:
    def show(context: click.Context, option: click.Parameter, wanted: bool) -> None:
        if wanted and not context.resilient_parsing:
            context.meta[_ALL] = True
            click.echo(context.get_help(), color=context.color)
            context.exit()

    return click.Option(
        ["--help-all"],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=show,
        help="all options: these are the usual ones",
    )


class BriefHelp(click.Command):
    """The base of commands and groups of commands whose help shows groups of options."""

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self.params.append(_help_all())

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the usual options by their groups, or all."""
        if ctx.meta.get(_ALL):
            super().format_help(ctx, formatter)
            return
        brief = copy.copy(self)  # parsing and completion know all options
        panels = {name: heading for heading, names in GROUPS[self.name or ""].items() for name in names}
        order = list(panels)
        brief.params = sorted(
            (_in_panel(parameter, panels) for parameter in self.params),
            key=lambda p: order.index(p.name) if p.name in panels else -1,
        )
        super(BriefHelp, brief).format_help(ctx, formatter)


def _in_panel(parameter: click.Parameter, panels: Mapping[str, str]) -> Any:
    """Return a copy of a parameter in its panel, hidden without a panel."""
    shown: Any = copy.copy(parameter)
    if isinstance(parameter, click.Option):
        shown.hidden = shown.hidden or shown.name not in (*panels, _ALL)
        if shown.name in panels:
            shown.rich_help_panel = panels[shown.name]
    return shown


class BriefCommand(BriefHelp, TyperCommand):
    """A command whose help shows its groups of options."""
