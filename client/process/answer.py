"""One answer of a client, as its log and its activity show it; and the reason of an error for the server."""

import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from flwr.app import Message, MessageType

from client.data.columns import OwnDataError
from client.limits.guard import config_of
from client.state.activity import Activity, Judged
from fedappeal.protocol import keys
from fedappeal.protocol.foreign_text import printable
from fedappeal.protocol.keys import DataProblem, Decision
from fedappeal.protocol.packing import content_size
from fedappeal.settings.config import ConfigError

_DECISIONS = {int(Decision.JOINED): "joined", int(Decision.SAT_OUT): "sat out", int(Decision.LEFT): "left for good"}
_DONE = {"joined": "joined", "sat out": "sat-out", "left for good": "left", "evaluated": "evaluated"}
LONGEST = 500
"""Characters of a reason."""
ELSEWHERE = "(a file of this device)"
"""Stands for each path."""
_QUOTED = re.compile(r"""'[^'\n]*[/\\].*?'(?=[\s:;,.)\]]|$)|"[^"\n]*[/\\][^"\n]*\"""")
_BARE = re.compile(r"""(?:(?<=[\s=:(\[,;])|^)(?:~|\.{1,2}|[A-Za-z]:|file:)?[/\\][^\s'",;)\]]*""")


@dataclass(frozen=True)
class Answer:
    """A client's answer to one message.

    Attributes:
        kind: ``answered``, or ``failed`` (an error reply).
        outcome: what was done, in a few words.
        message: what was asked.
        reply: what was answered.
        judged: what the client measured of the model that was sent; None: it did not.
    """

    kind: str
    outcome: str
    message: Message
    reply: Message
    judged: Judged | None = None

    @classmethod
    def given(cls, message: Message, reply: Message, judged: Judged | None) -> Self:
        """Return what an app's reply is."""
        kind = "failed" if _declined(reply) else "answered"
        return cls(kind, _outcome(message, reply), message, reply, judged)

    def line(self, seconds: float) -> str:
        """Return a line for the owner's log, with the figures where it sat out or joined by goodwill."""
        figures, judged = "", self.judged
        if judged and self.outcome == _DECISIONS[Decision.SAT_OUT]:
            figures = f"{judged}; "
        elif judged and judged.spent and not judged.met and self.outcome == _DECISIONS[Decision.JOINED]:
            figures = f"{judged}; {judged.goodwill_spent}; "
        return f"{task_of(self.message)}: {self.outcome} ({figures}{seconds:.2f} s)"

    @property
    def decided(self) -> tuple[str, str] | None:
        """What the client decided, and why in words and numbers; None: the message asked for no decision."""
        what, _, problem = self.outcome.partition(", ")
        if what in ("failed", "declined"):
            return what, problem
        if what not in _DECISIONS.values():
            return None
        judged = self.judged
        if judged is None:
            return what, "its policy was away: it did not look at the model" if what == "sat out" else ""
        by_goodwill = what == "joined" and judged.spent and not judged.met
        reasons = [judged.compared, judged.goodwill_spent if by_goodwill else "", f"policy {judged.policy}"]
        return what, "; ".join(reason for reason in reasons if reason and reason != "policy ")

    def remember(self, activity: Activity, settings: Mapping[str, object], seconds: float) -> None:
        """Add the answer to what the client did in the run.

        Args:
            activity: where that is remembered.
            settings: the run's.
            seconds: what the answer took.
        """
        config = config_of(self.message)
        run_key = str(config.get(keys.RUN_KEY, ""))
        activity.answered(
            run_key if keys.is_run_key(run_key) else "",  # a part of files' names
            settings,
            done="failed" if self.kind == "failed" or self.reply.has_error() else _DONE.get(self.outcome, ""),
            seconds=seconds,
            bytes_up=content_size(self.reply.content) if self.reply.has_content() else 0,
            bytes_down=content_size(self.message.content) if self.message.has_content() else 0,
            server_round=_round(config),
            judged=self.judged,
            run_id=self.message.metadata.run_id,
            final=bool(config.get(keys.FINAL, 0)),
            decided=self.decided,
        )


def task_of(message: Message) -> str:
    """Return what a message asks for: ``round 3``, or ``roll call``."""
    if message.metadata.message_type.partition(".")[0] == MessageType.QUERY:
        return "roll call"
    return f"round {_round(config_of(message)) or message.metadata.group_id or '?'}"


def round_of(message: Message) -> int | None:
    """Return the round that a message is of; None: of none."""
    return _round(config_of(message)) or None


def _outcome(message: Message, reply: Message) -> str:
    """Return what was done, in a word or two."""
    if reply.has_error():
        return f"failed, {reply.error.reason}"
    if problem := _declined(reply):
        return f"declined, {DataProblem(problem).text}"
    kind = message.metadata.message_type.partition(".")[0]
    if kind == MessageType.TRAIN:
        metrics = reply.content.metric_records.get(keys.METRICS)
        decision = metrics.get(keys.DECISION) if metrics else None
        return _DECISIONS.get(decision, "trained") if isinstance(decision, int) else "trained"
    return {MessageType.EVALUATE: "evaluated"}.get(kind, "answered")


def _declined(reply: Message) -> str:
    """Return the data problem for which an answer declines the roll call; empty: none."""
    info = reply.content.config_records.get(keys.INFO) if reply.has_content() else None
    return str(info.get(keys.DATA_REFUSED, "")) if info else ""


def _round(config: Mapping[str, object]) -> int:
    """Return the round that a message names; 0 where it names none."""
    number = config.get(keys.SERVER_ROUND)
    return number if isinstance(number, int) else 0


def reason_of(error: BaseException, folders: Iterable[str] = ()) -> str:
    """Return what the server is told of an error.

    The text of a `ConfigError` is about settings, which the server's operator can change; that of any other error may
    hold anything, values of the owner's data among it. The owner's own log has all of it.

    Args:
        error: what was raised.
        folders: files and folders of the owner's, whatever their names look like.
    """
    kind = type(error).__name__
    if isinstance(error, OwnDataError):
        return f"{kind}: {error.problem.text} {keys.LOGGED}"
    if isinstance(error, ConfigError):
        return printable(without_paths(f"{kind}: {' '.join(str(error).split())}", folders), LONGEST)
    return printable(f"{kind} {keys.LOGGED}", LONGEST)


def without_paths(text: str, folders: Iterable[str] = ()) -> str:
    """Return a text in which nothing that looks like a path is left, nor these folders and what is in them."""
    paths = {*folders, str(Path.home()), str(Path.cwd()), sys.prefix} - {"", "/"}
    for folder in sorted(paths, key=len, reverse=True):
        text = re.sub(rf"""['"]?{re.escape(folder)}[^\s'"]*['"]?""", ELSEWHERE, text)
    return _BARE.sub(ELSEWHERE, _QUOTED.sub(ELSEWHERE, text))
