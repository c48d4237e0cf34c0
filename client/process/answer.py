"""One answer of a client, as its log and its activity show it.

Also the reason of an error, for the server.
"""

import math
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from flwr.app import ArrayRecord, Message, MessageType, RecordDict

from client.data.refused import OwnDataError
from client.limits.guard import config_of
from client.outcome import DECISIONS, DECLINED, EVALUATED, FAILED, JOINED, LEFT, SAT_OUT, WAITING, Outcome
from client.state.activity import Activity
from fedappeal.protocol import keys
from fedappeal.protocol.foreign_text import printable
from fedappeal.protocol.packing import content_bytes, content_hash, content_size
from fedappeal.record.looks import LOOKS, ON_REQUEST
from fedappeal.settings.config import ConfigError

_PROBLEMS = (FAILED, DECLINED)
_DONE = {
    JOINED: "joined",
    SAT_OUT: "sat-out",
    LEFT: "left",
    EVALUATED: "evaluated",
    FAILED: "failed",
    DECLINED: "failed",
}
LONGEST = 500
"""Characters of a reason."""
_LONGEST_NAME, _MOST_NAMES = 80, 100
"""Characters of a name, and names of figures and models, that a receipt keeps."""
ELSEWHERE = "(a file of this device)"
"""Stands for each path."""
_QUOTED = re.compile(r"""'[^'\n]*[/\\].*?'(?=[\s:;,.)\]]|$)|"[^"\n]*[/\\][^"\n]*\"""")
_BARE = re.compile(r"""(?:(?<=[\s=:(\[,;])|^)(?:~|\.{1,2}|[A-Za-z]:|file:)?[/\\][^\s'",;)\]]*""")


@dataclass
class Answer:
    """A client's answer to one message, for its owner to see.

    Attributes:
        message: what was asked.
        outcome: what the client did.
        reply: what was answered.
    """

    message: Message
    outcome: Outcome

    def __post_init__(self) -> None:
        self.reply = self.outcome.reply(self.message)

    @property
    def kind(self) -> str:
        """``answered`` or ``failed``, as an event."""
        return "failed" if self.outcome.what in _PROBLEMS else "answered"

    @property
    def _by_goodwill(self) -> str:
        """The goodwill that the client has spent, in words, where it joined by that; else empty."""
        judged = self.outcome.judged
        by_goodwill = judged and self.outcome.what == JOINED and judged.spent and not judged.met
        return judged.goodwill_spent if judged and by_goodwill else ""

    def line(self, seconds: float) -> str:
        """Return a line for the owner's log: what it did and why; figures where it sat out or joined by goodwill."""
        what, judged = self.outcome.what, self.outcome.judged
        figures = str(judged) if judged and (what == SAT_OUT or self._by_goodwill) else ""
        facts = "; ".join(filter(None, (figures, self._by_goodwill, f"{seconds:.2f} s")))
        return f"{task_of(self.message)}: {', '.join(filter(None, (what, self.outcome.why)))} ({facts})"

    @property
    def decided(self) -> tuple[str, str] | None:
        """What the client decided, and why in words and numbers.

        None where the message asked for no decision.
        """
        what, judged = self.outcome.what, self.outcome.judged
        if what in (*_PROBLEMS, WAITING) or (what in DECISIONS.values() and judged is None):
            return what, self.outcome.why
        if what not in DECISIONS.values() or judged is None:
            return None
        policy = f"policy {judged.policy}" if judged.policy else ""
        if what == JOINED and config_of(self.message).get(keys.MANDATORY):
            what = LOOKS[ON_REQUEST].title
        return what, "; ".join(filter(None, (judged.compared, self._by_goodwill, policy)))

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
            done=_DONE.get(self.outcome.what, ""),
            seconds=seconds,
            bytes_up=content_size(self.reply.content) if self.reply.has_content() else 0,
            bytes_down=content_size(self.message.content) if self.message.has_content() else 0,
            server_round=round_of(self.message),
            judged=self.outcome.judged,
            run_id=self.message.metadata.run_id,
            final=bool(config.get(keys.FINAL, 0)),
            decided=self.decided,
        )

    def receipt(self, content_id: str) -> dict[str, object]:
        """Return what the reply tells, as its receipt keeps it.

        Args:
            content_id: hash of the reply's content on the wire, which holds what is shortened here.
        """
        config, content = config_of(self.message), self.reply.content if self.reply.has_content() else RecordDict()
        model = self.message.content.get(keys.ARRAYS) if self.message.has_content() else None
        told: dict[str, object] = {"error": self.reply.error.reason or ""} if self.reply.has_error() else {}
        for name, record in content.items():
            if isinstance(record, ArrayRecord):
                told[f"{name} (bytes)"] = content_bytes(record)
            else:
                told |= {key if name == keys.METRICS else f"{name}.{key}": value for key, value in record.items()}
        return {
            "run": printable(config.get(keys.RUN_KEY, "") or self.message.metadata.run_id, _LONGEST_NAME),
            "round": round_of(self.message),
            "kind": printable(self.message.metadata.message_type.partition(".")[0], _LONGEST_NAME),
            "model": content_hash(model) if isinstance(model, ArrayRecord) else "",
            "decision": self.outcome.what,
            "told": {printable(key, _LONGEST_NAME): _figure(told[key]) for key in islice(told, _MOST_NAMES)},
            "bytes": content_size(content),
            "hash": content_id,
        }


def _figure(value: object) -> object:
    """Return a figure of a reply for its receipt: a number, or a short text of anything else."""
    return value if isinstance(value, int | float) and math.isfinite(value) else printable(value, LONGEST)


def task_of(message: Message) -> str:
    """Return what a message asks for: ``round 3``, or ``roll call``."""
    if message.metadata.message_type.partition(".")[0] == MessageType.QUERY:
        return "roll call"
    return f"round {round_of(message) or message.metadata.group_id or '?'}"


def round_of(message: Message) -> int:
    """Return the round that a message names.

    0 where it names none.
    """
    number = config_of(message).get(keys.SERVER_ROUND)
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
    """Return a text without anything that looks like a path.

    These folders and what is in them are left out too.
    """
    paths = {*folders, str(Path.home()), str(Path.cwd()), sys.prefix} - {"", "/"}
    for folder in sorted(paths, key=len, reverse=True):
        text = re.sub(rf"""['"]?{re.escape(folder)}[^\s'"]*['"]?""", ELSEWHERE, text)
    return _BARE.sub(ELSEWHERE, _QUOTED.sub(ELSEWHERE, text))
