"""What the terminal shows of a run: heading, a line a round, table."""

import time
from collections.abc import Callable
from functools import cached_property
from typing import Any

from rich.console import Console
from rich.table import Table

from fedappeal.protocol.foreign_text import SHOWN_ID, printable
from fedappeal.protocol.metric import Metric
from fedappeal.record.columns import CLIENTS, LINE, TABLE, Column, shown_in
from fedappeal.record.reader import Record, Snapshot
from fedappeal.runs.plan import RunPlan, influence_line
from fedappeal.settings.rounds import AUTO
from fedappeal.system.wording import counted
from fedappeal.tasks.labelled import NaturalTask, PartitionedTask
from fedappeal.views.terminal.shown import Part, as_json, line_of, say

_SIGNS = {"joined": "●", "sat-out": "○", "left": "×", "failed": "!", "absent": "z", "surplus": "+", "refused": "-"}
_MOST_SIGNS = 40
_COLUMNS = "served: as well as by their own model, on test data; preferred: by the model that each prefers"
_MOST_NAMED = 3
_NAME = 160
"""Characters of a client's name, with its id, that are shown."""
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
        self.path = plan.path
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
        """Say what is about to run."""
        c = self.config
        unseen = f" and {c.unseen_clients} unseen" if c.unseen_clients else ""
        asked = f", {c.clients_per_round} a round" if c.clients_per_round else ""
        strategy = self._plugins.strategy
        most = "up to " if c.mandatory_rounds == AUTO else ""
        special = [f"{most}{c.resolved_mandatory_rounds} mandatory"] if self._plugins.knows_mandatory else []
        special += strategy.notes(c, self._plugins.settings_of(strategy))
        of_which = f" ({', '.join(special)})" if special else ""
        spread = f" ({self.data})" if self.data else ""
        many = f"{counted(c.clients, 'client')}{unseen}{asked}, {counted(c.rounds, 'round')}{of_which}, seed {c.seed}"
        self._say((c.strategy, "bold"), " on ", (c.task, "bold"), f"{spread}, {many}", soft_wrap=False)
        if self._note:
            self._say(self._note)

    def start(self, doing: str = "starting the SuperLink and the client processes") -> None:
        """Say what is about to run, and begin to show progress."""
        self.heading()
        if not as_json():
            self._status.start()
        self.doing(doing)

    def doing(self, text: str) -> None:
        """Show what is being done, or waited for, before rounds are shown."""
        if self.console.is_terminal and not as_json():
            self._doing(text)
        else:
            self._say(text)

    def stop(self) -> None:
        """Stop showing progress, and the clock: trackers may be waited for yet."""
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
                self._say(f"{counted(self._total, 'client')} enrolled after {self._seconds():.1f} s")
            self._doing(f"{self._enrolled} of {self._total} clients enrolled")
        elif line["event"] == "waiting":
            self._waiting(line)
        elif line["event"] == "refused":
            client = line.get("client")
            who = f"client {printable(self._name_of(client), _NAME)}" if client else "a client was refused"
            self._say(f"{who}: {printable(line['reason'])}", style="yellow")
        elif line["event"] == "unavailable":
            text = f"node {line['node']} was called {line['times']} times and is not available"
            self._say(f"{text}: {printable(line['reason'])} (called again in {line['seconds']} s)", style="yellow")
        elif line["event"] == "open":
            self._say(OPEN, style="yellow")
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
            self._say(f"no rounds were run; the run's folder is {self.path}", soft_wrap=False)
            return
        last = self.rounds[-1]
        if (end := Record(self.path).standing.end) and end["reason"]:
            self._say(f"the run ended in round {end['round']}: {end['reason']}", style="yellow")
        table = Table(title=f"after round {last['round']}", title_justify="left")
        table.add_column("measure")
        table.add_column("seen clients", justify="right")
        metric = self.metric
        unseen = f"unseen_{metric.column}" in last
        if unseen:
            table.add_column("unseen clients", justify="right")
        for column in shown_in(TABLE, metric):
            if column.key.startswith("adapted_") and column.key not in last:
                continue
            cells = [column.text(last.get(prefix + column.key)) for prefix in (("", "unseen_") if unseen else ("",))]
            table.add_row(line_of(column.title), *cells)
        if as_json():
            for row in zip(*(column.cells for column in table.columns), strict=True):
                self._say(": ".join(map(str, row)))
        else:
            self.console.print(table)
        seconds = sorted(float(r["seconds"]) for r in self.rounds)
        totals = Snapshot(rounds=self.rounds).totals
        self._say(
            f"{totals['joined']} of {totals['asked']} requests to train were joined; "
            f"{totals['bytes_up'] / 1e6:.1f} MB up, {totals['bytes_down'] / 1e6:.1f} MB down; "
            f"median {seconds[len(seconds) // 2]:.2f} s a round; {self._seconds():.1f} s in all",
            soft_wrap=False,
        )
        if compared := sum(int(r.get("compared_decisions", 0)) for r in self.rounds):
            flipped = sum(int(r.get("flipped_decisions", 0)) for r in self.rounds)
            self._say(f"evaluation in bfloat16: {flipped} of {compared} decisions were others in float32")
        self._say("the run's folder: ", (str(self.path), "bold"))

    def _event(self, kind: str, line: dict[str, Any]) -> None:
        """Print a JSON line of a round, and one of each reply that is missing; or one of an event."""
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
    def _columns(self) -> list[tuple[Column, int]]:
        """The columns of a round's line, each with its width."""
        columns = shown_in(LINE, self.metric)
        if self.config.influence != "bounded":
            columns = [column for column in columns if column.key != "bounded"]
        widths = {"left": 4, "seconds": 5, self.metric.column: 8}
        return [(column, max(widths.get(column.key, 6), len(column.title))) for column in columns]

    def _round(self, line: dict[str, Any]) -> None:
        if not self.rounds:
            self._say(self._legend(), style="dim", soft_wrap=False)
            self._say(_COLUMNS, style="dim", soft_wrap=False)
            heading = self._who(" clients") + " ".join(c.title.rjust(w) for c, w in self._columns)
            self._say(heading, style="bold", soft_wrap=False)
        self.rounds.append(line)
        star = "*" if self._plugins.knows_mandatory and line.get("mandatory") else " "
        values = [
            column.text(line.get(column.key, 0 if column.unit == CLIENTS else None)) for column, _ in self._columns
        ]
        values[0] += star
        row = " ".join(v.rjust(w) for v, (_, w) in zip(values, self._columns, strict=True))
        self._clients |= set(line["decisions"])
        signs = (_SIGNS.get(line["decisions"].get(client, ""), "·") for client in sorted(self._clients))
        self._say(self._who("".join(signs)) + row, soft_wrap=False)
        if "rolled_back_to" in line:
            model = f"back to that of round {line['rolled_back_to']:.0f}"
            self._say(f"        most clients have no finite loss on this model: {model}", style="yellow")
        for client, reason in line.get("failures", {}).items():
            self._say(f"        {printable(client, SHOWN_ID)}: {printable(reason)}", style="yellow")

    def _legend(self) -> str:
        strategy = self._plugins.strategy
        # Clients that were asked in place of others may be more than the round needs.
        surplus = bool(self.config.clients_per_round) and strategy.asks_on and self.config.ask_on
        happens = {"surplus": surplus, "refused": strategy.may_refuse}
        signs = [f"{sign} {name}" for name, sign in _SIGNS.items() if happens.get(name, True)]
        star = "* asked not to opt out; " if self._plugins.knows_mandatory else ""
        return star + ", ".join([*signs, "· not asked"])

    def _who(self, signs: str) -> str:
        """Return one sign a client, in the order of the client-ids; empty where they are too many for a line."""
        width = self.config.clients
        return f"{signs:<{max(width, 8)}} " if width <= _MOST_SIGNS else ""

    def _say(self, *parts: Part, style: str = "", soft_wrap: bool = True) -> None:
        facts = {"event": "log", "run": self.path.name}
        say(self.console, *parts, style=style, soft_wrap=soft_wrap, facts=facts)

    def _doing(self, text: str) -> None:
        self._status.update(line_of(f"{text} ({self._seconds():.0f} s)"))

    def _seconds(self) -> float:
        return (time.monotonic() if self._stopped is None else self._stopped) - self._started
