"""What the terminal shows of a run: heading, a line a round, table."""

import re
import time
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from rich.console import Console
from rich.table import Table

from fedappeal.protocol.foreign_text import SHOWN_ID, printable
from fedappeal.protocol.metric import Metric
from fedappeal.record.columns import CLIENTS, LINE, TABLE, Column, shown_in
from fedappeal.record.lines import RESTARTED
from fedappeal.record.looks import LOOKS, NOT_ASKED, ON_REQUEST, REFUSED, SURPLUS, look_of
from fedappeal.record.reader import Record, Snapshot
from fedappeal.runs.plan import RunPlan, influence_line
from fedappeal.settings.rounds import AUTO
from fedappeal.system.wording import plural
from fedappeal.tasks.labelled import NaturalTask, PartitionedTask
from fedappeal.views.terminal.fitting import ITEM, PHRASE, WORD, columns_that_fit
from fedappeal.views.terminal.printing import Part, as_json, line_of, say, say_where

_MOST_SIGNS = 40
_CLIENTS = "clients"
"""The column of one sign a client."""
_LEFT_OUT = ("bounded", "preferred_{metric}", "left", "sat_out", _CLIENTS, "gm_appeal", "served", "{metric}")
"""Columns of a round's line that a narrow terminal lacks, in this order, after ``seconds`` and a strategy's own."""
_MEANINGS = {
    "served": "served: as well as by their own model, on test data",
    "preferred_{metric}": "preferred: by the model that each prefers",
}
_MOST_NAMED = 3
_NAME = 160
"""Characters of a client's name, with its id, that are shown."""
_LEFT_OUT_OF_HEADING = ("spread", "special", "asked", "unseen", "seed")
"""Parts of the heading in the order in which a narrow terminal lacks them."""
OPEN = (
    "this federation is open: it counts nodes, not people. One process can be many clients; registered keys "
    "(fedappeal superlink --enable-supernode-auth) prevent that"
)


class RunView:
    """Prints a line a round under one heading, then a summary.

    Args:
        plan: the run.
        console: where it prints; None: standard output.
        data: how the data is spread over the clients; None: as the task says; empty: that is not known here.
        name_of: returns what a client-id is called.
    """

    def __init__(
        self,
        plan: RunPlan,
        console: Console | None = None,
        data: str | None = None,
        name_of: Callable[[str], str] = str,
    ) -> None:
        self.config = config = plan.config
        self.path, self._given_path = plan.path, plan.given_path
        if data is None:
            task = plan.task
            data = task.partition if isinstance(task, PartitionedTask | NaturalTask) else "its own partition"
        self.data = data
        self.console = console or Console(highlight=False)
        self.rounds: list[dict[str, Any]] = []
        self._name_of = name_of
        self._plugins = plan.plugins
        self._note = plan.note or influence_line(plan.plugins)
        self._started = time.monotonic()
        self._stopped: float | None = None
        self._total = config.clients + config.unseen_clients
        self._enrolled = 0
        self._began = False
        self._clients: set[str] = set()
        self._status = self.console.status("")

    def heading(self) -> None:
        """Print the heading of the run to come."""
        c = self.config
        strategy = self._plugins.strategy
        most = "up to " if c.mandatory_rounds == AUTO else ""
        special = [f"{most}{c.resolved_mandatory_rounds} mandatory"] if self._plugins.knows_mandatory else []
        special += strategy.notes(c, self._plugins.settings_of(strategy))
        parts: dict[str, Part] = {
            "strategy": (c.strategy, "bold"),
            "on": " on ",
            "task": (c.task, "bold"),
            "spread": f" ({self.data})" if self.data else "",
            "clients": f", {plural(c.clients, 'client')}",
            "unseen": f" and {c.unseen_clients} unseen" if c.unseen_clients else "",
            "asked": f", {c.clients_per_round} a round" if c.clients_per_round else "",
            "rounds": f", {plural(c.rounds, 'round')}",
            "special": f" ({', '.join(special)})" if special else "",
            "seed": f", seed {c.seed}",
        }
        widths = {name: len(part if isinstance(part, str) else part[0]) for name, part in parts.items()}
        shown = parts if as_json() else columns_that_fit(widths, self.console.width, _LEFT_OUT_OF_HEADING)
        self._say(*(parts[name] for name in shown))
        if self._note:
            self._say(self._note)

    def start(self, doing: str = "starting the SuperLink and the client processes") -> None:
        """Print the heading of the run to come, and show progress."""
        self.heading()
        if not as_json():
            self._status.start()
        self.doing(doing)

    def doing(self, text: str) -> None:
        """Show a present step, or a wait, before the first round."""
        if self.console.is_terminal and not as_json():
            self._doing(text)
        else:
            self._say(text)

    def stop(self) -> None:
        """Stop the progress and the clock, before trackers are waited for."""
        self._status.stop()
        self._stopped = self._stopped or time.monotonic()

    def watch(self, kind: str, line: dict[str, Any]) -> None:
        """Show one new line of the run's folder."""
        if as_json():
            self._event(kind, line)
        elif kind == "round":
            self._round(line)
        elif line["event"] == "enrolled":
            self._enrolled = int(line["enrolled"])
            if line.get("returned"):
                self._say(f"client {printable(self._name_of(line['client']), _NAME)} had left, and takes part again")
            if self._enrolled == self._total and not self._began:
                self._say(f"{plural(self._total, 'client')} enrolled after {self._seconds():.1f} s")
            self._doing(f"{self._enrolled} of {self._total} clients enrolled")
        elif line["event"] == "waiting":
            self._waiting(line)
        elif line["event"] == "refused":
            client = line.get("client")
            who = f"client {printable(self._name_of(client), _NAME)}" if client else "a client was refused"
            self._say(f"{who}: {printable(line['reason'])}", style="yellow")
        elif line["event"] == "awaits-approval":
            self._say(f"client {printable(self._name_of(line['client']), _NAME)} waits for its owner's approval")
        elif line["event"] == "unavailable":
            text = f"node {line['node']} was called {line['times']} times and is not available"
            self._say(f"{text}: {printable(line['reason'])} (called again in {line['seconds']} s)", style="yellow")
        elif line["event"] == "open":
            self._say(OPEN, style="yellow")
        elif line["event"] == RESTARTED:
            self._say("the SuperLink is back, and continues the run", style="yellow")
        elif line["event"] == "resumed" and line["round"]:
            self._say(f"continued after round {line['round']}")
        elif line["event"] == "round":
            if 0 < self._enrolled < self._total and not self._began:
                self._say(f"{self._enrolled} of {self._total} clients enrolled: the run begins with them")
            self._began = True
            self._doing(f"round {line['round']} of {self.config.rounds}")

    def summary(self) -> None:
        """Print the table at the end."""
        if not self.rounds:
            self._say("no rounds were run")
            self._say_folder()
            return
        last = self.rounds[-1]
        if (end := Record(self.path).standing.end) and end["reason"]:
            self._say(f"the run ended in round {end['round']}: {end['reason']}", style="yellow")
        self._say(f"after round {last['round']}", style="italic")
        self._table(last)
        for key in last:
            if key.endswith("_clients"):
                name = key.removesuffix("_clients").replace("_", " ")
                self._say(f"{name}: the mean over the {last[key]} clients that could compute it")
        seconds = sorted(float(r["seconds"]) for r in self.rounds)
        totals = Snapshot(rounds=self.rounds).totals
        self._say(
            f"{totals['joined']} of {totals['asked']} requests to train were joined; "
            f"{totals['bytes_up'] / 1e6:.1f} MB up, {totals['bytes_down'] / 1e6:.1f} MB down; "
            f"median {seconds[len(seconds) // 2]:.2f} s a round; {self._seconds():.1f} s in all",
            unit=PHRASE,
        )
        if compared := sum(int(r.get("compared_decisions", 0)) for r in self.rounds):
            flipped = sum(int(r.get("flipped_decisions", 0)) for r in self.rounds)
            self._say(f"evaluation in bfloat16: {flipped} of {compared} decisions were others in float32")
        self._say_folder()

    def _table(self, last: dict[str, Any]) -> None:
        """Print the measures of the last round; where the line is narrow, with short names."""
        metric = self.metric
        prefixes = ("", "unseen_") if f"unseen_{metric.column}" in last else ("",)
        columns = [c for c in shown_in(TABLE, metric) if not c.key.startswith("adapted_") or c.key in last]
        cells = [[column.text(last.get(prefix + column.key)) for prefix in prefixes] for column in columns]
        if as_json():
            for column, row in zip(columns, cells, strict=True):
                self._say(": ".join([column.title, *row]))
            return
        titles, heads = [column.title for column in columns], ["seen clients", "unseen clients"]
        if max(map(len, titles)) + sum(map(len, heads[: len(prefixes)])) + 3 * len(prefixes) + 4 > self.console.width:
            titles, heads = [c.short or c.title.partition(" (")[0] for c in columns], ["seen", "unseen"]
        table = Table("measure")
        for head, _ in zip(heads, prefixes, strict=False):
            table.add_column(head, justify="right")
        for title, row in zip(titles, cells, strict=True):
            table.add_row(line_of(title), *row)
        self.console.print(table)

    def _say_folder(self) -> None:
        facts = {"event": "log", "run": self.path.name}
        say_where(self.console, "the run's folder", self._given_path, facts)

    def _event(self, kind: str, line: dict[str, Any]) -> None:
        """Print a round's or event's JSON line, and one each missing reply."""
        event = "round" if kind == "round" else str(line["event"])
        if event == "round":
            event = "round-finished" if kind == "round" else "round-begun"
        facts = {"event": event, "run": self.path.name, "round": line.get("round"), "client": line.get("client")}
        figures = {
            k: v for k, v in line.items() if k not in ("time", "event", "round", "client", "decisions", "failures")
        }
        text = " ".join([event, *(f"{key}={value}" for key, value in figures.items())])
        style = "yellow" if event in ("refused", "unavailable", "rolled-back", "failed", "open") else ""
        say(self.console, text, style=style, facts=facts, seconds=line.get("time"))
        if kind == "round":
            self.rounds.append(line)
            for client, reason in line.get("failures", {}).items():
                what = "client-absent" if line["decisions"].get(client) == "absent" else "client-failed"
                about = {**facts, "event": what, "client": printable(client, SHOWN_ID)}
                say(self.console, str(reason), style="yellow", facts=about)

    def _waiting(self, line: dict[str, Any]) -> None:
        enrolled, wanted, silent = line["enrolled"], line["wanted"], line["silent"]
        nodes = [f"node {printable(node, SHOWN_ID)}" for node in silent[:_MOST_NAMED]]
        nodes += [f"{len(silent) - _MOST_NAMED} more"] if len(silent) > _MOST_NAMED else []
        who = f"; called, without an answer yet (starting, or paused): {', '.join(nodes)}" if silent else ""
        self._say(
            f"{enrolled} of {wanted} clients enrolled; waiting up to {printable(line['seconds'], SHOWN_ID)} s for "
            f"{wanted - enrolled} more{who}"
        )

    @cached_property
    def metric(self) -> Metric:
        """The task's primary metric; the run's folder has it once a round is over."""
        return Record(self.path).metric

    @cached_property
    def _layout(self) -> tuple[bool, list[tuple[Column, int]]]:
        """Whether lines have client signs, and the columns that fit, with widths."""
        columns = {column.key: column for column in shown_in(LINE, self.metric)}
        if self.config.influence != "bounded":
            del columns["bounded"]
        least = {"left": 4, "seconds": 5, self.metric.column: 8}
        widths = {key: max(least.get(key, 6), len(column.title)) for key, column in columns.items()}
        left_out = [key.format(metric=self.metric.column) for key in _LEFT_OUT]
        others = [key for key in reversed(columns) if key not in (*left_out, "round", "joined")]
        room = {_CLIENTS: len(self._who(""))} | {key: width + 1 for key, width in widths.items()}
        shown = columns_that_fit(room, self.console.width + 1, [*others, *left_out])
        signs = _CLIENTS in shown and room[_CLIENTS] > 0
        return signs, [(columns[key], widths[key]) for key in shown if key != _CLIENTS]

    def _round(self, line: dict[str, Any]) -> None:
        signs_shown, columns = self._layout
        if not self.rounds:
            if signs_shown:
                self._say(self._legend(), style="dim", unit=ITEM)
            meanings = {key.format(metric=self.metric.column): words for key, words in _MEANINGS.items()}
            if said := [meanings[column.key] for column, _ in columns if column.key in meanings]:
                self._say("; ".join(said), style="dim", unit=PHRASE)
            heading = " ".join(column.title.rjust(width) for column, width in columns)
            self._say((self._who(" clients") if signs_shown else "") + heading, style="bold", whole=True)
        self.rounds.append(line)
        mandatory = bool(self._plugins.knows_mandatory and line.get("mandatory"))
        values = [column.text(line.get(column.key, 0 if column.unit == CLIENTS else None)) for column, _ in columns]
        values[0] += "*" if mandatory else " "
        row = " ".join(v.rjust(w) for v, (_, w) in zip(values, columns, strict=True))
        self._clients |= set(line["decisions"])
        signs = self._signs(line["decisions"], mandatory) if signs_shown else []
        self._say(*signs, row, whole=True)
        if "rolled_back_to" in line:
            model = f"back to that of round {line['rolled_back_to']:.0f}"
            self._say(f"        most clients have no finite loss on this model: {model}", style="yellow")
        for client, reason in line.get("failures", {}).items():
            self._say(f"        {printable(client, SHOWN_ID)}: {printable(reason)}", style="yellow")

    def _signs(self, decisions: Mapping[str, str], mandatory: bool) -> list[Part]:
        """Return one sign a client, by client-id, and what fills the column."""
        looks = [look_of(decisions.get(client, ""), mandatory) for client in sorted(self._clients)]
        signs: list[Part] = [(look.sign, look.colour) if look else NOT_ASKED.sign for look in looks]
        return [*signs, self._who("x" * len(signs))[len(signs) :]]

    def _legend(self) -> str:
        strategy = self._plugins.strategy
        # Clients that were asked in place of others may be more than the round needs.
        surplus = bool(self.config.clients_per_round) and strategy.asks_on and self.config.ask_on
        happens = {ON_REQUEST: False, SURPLUS: surplus, REFUSED: strategy.may_refuse}
        signs = [f"{look.sign} {decision}" for decision, look in LOOKS.items() if happens.get(decision, True)]
        star = "* mandatory; " if self._plugins.knows_mandatory else ""
        return star + ", ".join([*signs, f"{NOT_ASKED.sign} {NOT_ASKED.title}"])

    def _who(self, signs: str) -> str:
        """Return the column of one sign a client; empty if too many."""
        width = self.config.clients
        return f"{signs:<{max(width, 8)}} " if width <= _MOST_SIGNS else ""

    def _say(self, *parts: Part, style: str = "", whole: bool = False, unit: re.Pattern[str] = WORD) -> None:
        facts = {"event": "log", "run": self.path.name}
        say(self.console, *parts, style=style, whole=whole, unit=unit, facts=facts)

    def _doing(self, text: str) -> None:
        self._status.update(line_of(f"{text} ({self._seconds():.0f} s)"))

    def _seconds(self) -> float:
        return (time.monotonic() if self._stopped is None else self._stopped) - self._started
