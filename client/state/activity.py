"""A client's activity: of each run rounds, seconds, bytes, decisions, and figures of the models that it judged.

The process that serves adds what an `Outcome` says, and what it cost. It stays on the device, in one small file
beside the records.
"""

import json
import logging
import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from pydantic import FiniteFloat, TypeAdapter

from client.state.signs import Moment
from fedappeal.core.requirement import LOSS, METRIC, Evaluation, Requirement
from fedappeal.flower.node.fleet import COMPLETED, FAILED, STOPPED
from fedappeal.protocol.foreign_text import printable
from fedappeal.protocol.keys import TEST_SPLIT, is_run_key
from fedappeal.system.files import DAMAGED, replace_file, set_aside
from fedappeal.system.locks import changing
from fedappeal.system.wording import plural

ACTIVITY = "activity.json"
"""The file's name in the state folder."""
KEPT_RUNS = 32
"""Runs that are remembered; the one that was served longest ago is forgotten first."""
KEPT_FIGURES = 200
"""Latest figures on test data that are remembered of a run."""
KEPT_DECISIONS = 20
"""Latest decisions that are remembered of a run."""
_DETAILED_RUNS = 4
"""Latest runs of which figures and decisions are remembered."""
OVER, RUN_STOPPED, RUN_FAILED, ENDED_EARLY = "over", "stopped", "failed", "ended early"
"""How a run has ended; the last: without a last message, and its SuperLink does not say why."""
ENDED_LINES = {
    OVER: "the run is over",
    RUN_STOPPED: "the run was stopped",
    RUN_FAILED: "the run failed",
    ENDED_EARLY: "the run ended without a last message: it was stopped, or it failed",
}
ENDED_AS = {COMPLETED: OVER, STOPPED: RUN_STOPPED, FAILED: RUN_FAILED}
"""How a run has ended, by the SuperLink's words."""
RESTED = "rested"
_NEVER_ASKED_AGAIN = ("left for good", "declined")
_LONGEST = 80
_LONGEST_REASON = 300
_MOST_BYTES = 4 * 1024 * 1024
log = logging.getLogger("fedappeal.client")


@dataclass(frozen=True)
class Judged:
    """A client's measurement of a model, compared with its requirement.

    Attributes:
        figure: the loss, or the value of the task's metric, that was measured.
        requirement: rho_k.
        of: what both are: ``loss``, or the metric's name.
        split: on which data, ``train``, ``held-out`` or ``test``.
        met: whether the model meets the requirement.
        bound: where the figure has to be: ``below`` the requirement, ``at least`` or ``at most`` there.
        spent: rounds of the run that the client has joined on request although the model did not meet it.
        goodwill: how many it gives in the run; None: no limited number, or the model was not sent to be trained.
        policy: which participation policy decided; empty: none did.
        metric: the task's metric; empty: of no test data.
        score: its value on the test data; None as above.
        alone: its value for the model that the client trained alone; None: there is none.
        share: whether the metric is a share, shown in per cent.
    """

    figure: float
    requirement: float
    of: str
    split: str
    met: bool
    bound: str = "below"
    spent: int = 0
    goodwill: int | None = None
    policy: str = ""
    metric: str = ""
    score: float | None = None
    alone: FiniteFloat | None = None
    share: bool = False

    @property
    def compared(self) -> str:
        """The figure beside what is required, in words."""
        split = "training" if self.split == "train" else self.split
        bound = f"{self.bound} {self.requirement:.4f}"
        return f"{split} {self.of} {self.figure:.4f}, required {bound}: {'met' if self.met else 'not met'}"

    @property
    def goodwill_spent(self) -> str:
        """The goodwill that the client has spent, in words.

        Empty where it gives no limited number.
        """
        return "" if self.goodwill is None else f"goodwill: {self.spent} of {plural(self.goodwill, 'round')} spent"

    def __str__(self) -> str:
        return f"{self.of} {self.figure:.3f}, requirement {self.requirement:.3f}"


def judged_of(
    evaluation: Evaluation,
    requirement: Requirement,
    split: str,
    goodwill: tuple[int, int] | None = None,
    policy: str = "",
) -> Judged | None:
    """Return what was measured of a model beside what is required.

    None where it was not measured.

    Args:
        evaluation: what was measured.
        requirement: what the client requires.
        split: on which data.
        goodwill: rounds that it has joined on request, and how many it gives; None: it was not asked to train.
        policy: which policy decided; empty: none did.
    """
    figure, of, bound, metric = evaluation.loss, LOSS, "below", evaluation.metric
    if requirement.of == METRIC:
        figure, of, bound = evaluation.score, metric.name, "at least" if metric.higher_is_better else "at most"
    if math.isnan(figure):
        return None
    spent, most = goodwill or (0, None)
    judged = Judged(figure, requirement.rho, of, split, requirement.met(evaluation), bound, spent, most, policy)
    if split != TEST_SPLIT:
        return judged
    alone = requirement.solo_score if math.isfinite(requirement.solo_score) else None
    return replace(judged, metric=metric.name, score=evaluation.score, alone=alone, share=metric.is_share)


@dataclass(frozen=True)
class PastDecision:
    """What a client answered to one message, or that it rested, and why.

    Attributes:
        at: when, in seconds since 1970.
        server_round: the round; 0: the roll call. Of a rest the latest before it.
        what: ``joined``, ``sat out``, ``left for good``, ``declined``, ``failed`` or ``rested``.
        why: in words and numbers.
    """

    at: Moment
    server_round: int
    what: str
    why: str


@dataclass(frozen=True)
class RunActivity:
    """A client's activity in one run.

    Attributes:
        run_key: which run.
        strategy: its strategy; empty where its bundle does not say.
        task: its task; empty as above.
        first: when the client first answered it, in seconds since 1970.
        last: when it last did.
        done: how often it did what: ``joined``, ``sat-out``, ``left``, ``evaluated``, ``failed``.
        seconds: time that the answers took.
        bytes_up: bytes of the answers' contents; ``bytes_down``: of the messages'.
        server_round: the latest round.
        judged: what it measured of the latest model that it judged; None: of none.
        served_since: the first of the rounds up to now in which it was asked and the model met its requirement; 0:
            the latest did not.
        goodwill: what it has spent of its goodwill, in words; empty: it gives no limited number.
        run_id: Flower's number of it; 0: not known.
        ended: how it ended: ``over`` by its last message, ``ended early`` by the SuperLink's word; empty: it
            may go on.
        test: what was measured of the latest model on the test data; None: nothing was.
        curve: latest rounds with the score of the model on the test data.
        decisions: the latest, the last one last.
    """

    run_key: str
    strategy: str
    task: str
    first: Moment
    last: Moment
    done: Mapping[str, int] = field(default_factory=dict)
    seconds: FiniteFloat = 0.0
    bytes_up: int = 0
    bytes_down: int = 0
    server_round: int = 0
    judged: Judged | None = None
    served_since: int = 0
    goodwill: str = ""
    run_id: int = 0
    ended: str = ""
    test: Judged | None = None
    curve: tuple[tuple[int, FiniteFloat], ...] = ()
    decisions: tuple[PastDecision, ...] = ()

    @property
    def latest_answer(self) -> PastDecision | None:
        """The latest decision that is no rest.

        None where there is none.
        """
        return next((decision for decision in reversed(self.decisions) if decision.what != RESTED), None)

    @property
    def goodwill_line(self) -> str:
        """Goodwill that the client has spent, and since when the model serves it."""
        since = f"the model serves you since round {self.served_since}" if self.served_since else ""
        return "; ".join(filter(None, (self.goodwill, since)))

    @property
    def what(self) -> str:
        """Strategy and task of the run, in a few words."""
        return run_of({"strategy": self.strategy, "task": self.task})

    def lines(self) -> list[str]:
        """Return what an owner reads of it, a line a thing."""
        began, ended = (time.strftime("%Y-%m-%d %H:%M", time.localtime(moment)) for moment in (self.first, self.last))
        until = "" if began == ended else f" to {ended[11:] if began[:10] == ended[:10] else ended}"
        joined, sat_out = self.done.get("joined", 0), self.done.get("sat-out", 0)
        did = [f"joined {plural(joined, 'round')}", f"sat out {sat_out}"]
        did += [f"{key} {self.done[key]}" for key in ("evaluated", "failed") if self.done.get(key)]
        traffic = f"{self.bytes_up / 1e6:.1f} MB up, {self.bytes_down / 1e6:.1f} MB down"
        lines = [f"{self.what}, {began}{until}", f"{', '.join(did)}; {self.seconds:.1f} s of work; {traffic}"]
        if (judged := self.judged) is not None:
            lines.append(f"round {self.server_round}: {judged.compared}")
        return [*lines, *([self.goodwill_line] if self.goodwill_line else [])]


def run_of(settings: Mapping[str, object]) -> str:
    """Return what a run is by its settings, in a few words."""
    strategy, task = (printable(settings.get(key, ""), _LONGEST) for key in ("strategy", "task"))
    return f"{strategy} on {task}" if strategy and task else "a run of another kind"


_RUNS: TypeAdapter[list[RunActivity]] = TypeAdapter(list[RunActivity])


class Activity:
    """A client's activity in its latest runs, in a file of its state folder."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        self._path = folder / ACTIVITY
        self._clock = clock

    def runs(self) -> dict[str, RunActivity]:
        """Return what is remembered of each run, by run-key; the latest run is the last."""
        try:
            with self._path.open("rb") as file:
                runs = _RUNS.validate_json(file.read(_MOST_BYTES))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            log.warning("%s cannot be read, and is begun anew: %s", self._path, str(error).splitlines()[0])
            return {}
        return {run.run_key: run for run in runs if is_run_key(run.run_key)}

    def answered(
        self,
        run_key: str,
        settings: Mapping[str, object],
        *,
        done: str = "",
        seconds: float = 0.0,
        bytes_up: int = 0,
        bytes_down: int = 0,
        server_round: int = 0,
        judged: Judged | None = None,
        run_id: int = 0,
        final: bool = False,
        decided: tuple[str, str] | None = None,
    ) -> None:
        """Remember one answer.

        Args:
            run_key: of the run.
            settings: the run's.
            done: what was done, as in `RunActivity.done`; empty: nothing that is counted.
            seconds: what it took.
            bytes_up: size of the answer's content.
            bytes_down: size of the message's.
            server_round: the round; 0: none.
            judged: what was measured of the model, if it was.
            run_id: Flower's number of the run.
            final: whether this was the run's last message.
            decided: what was decided, and why; None: nothing.
        """
        with changing(self._path.parent):
            runs, now = self.runs(), self._clock()
            if not runs and self._path.exists():
                with suppress(OSError):
                    set_aside(self._path)  # damaged, not empty: it holds a run from the first answer on
            strategy, task = (printable(settings.get(key, ""), _LONGEST) for key in ("strategy", "task"))
            run = runs.pop(run_key, None) or RunActivity(run_key, strategy, task, now, now)
            since, goodwill = run.served_since, run.goodwill
            if judged and judged.split != "test":
                since, goodwill = (since or server_round) if judged.met else 0, judged.goodwill_spent
            test, curve, decisions = run.test, run.curve, run.decisions
            if judged and judged.score is not None and math.isfinite(judged.score):
                earlier = tuple(point for point in curve if point[0] < server_round)  # a resumed run repeats rounds
                test, curve = judged, (*earlier, (server_round, judged.score))[-KEPT_FIGURES:]
            if decided:
                latest = PastDecision(now, server_round, decided[0], printable(decided[1], _LONGEST_REASON))
                decisions = (*decisions, latest)[-KEPT_DECISIONS:]
            runs[run_key] = replace(
                run,
                last=now,
                done={**run.done, done: run.done.get(done, 0) + 1} if done else run.done,
                seconds=run.seconds + seconds,
                bytes_up=run.bytes_up + bytes_up,
                bytes_down=run.bytes_down + bytes_down,
                server_round=server_round if judged else run.server_round,
                judged=judged or run.judged,
                served_since=since,
                goodwill=goodwill,
                run_id=run_id or run.run_id,
                ended=OVER if final else "",
                test=test,
                curve=curve,
                decisions=decisions,
            )
            self._keep(runs)

    def rested(self, why: str) -> None:
        """Remember that the client begins to rest, in each run that may ask it.

        Of rests in a row, the latest is kept.
        """
        with changing(self._path.parent):
            runs, now, resting = self.runs(), self._clock(), {}
            for run in list(runs.values())[-_DETAILED_RUNS:]:
                latest = run.decisions[-1] if run.decisions and not run.ended else None
                if latest is not None and latest.what not in _NEVER_ASKED_AGAIN:
                    before = run.decisions[:-1] if latest.what == RESTED else run.decisions
                    decision = PastDecision(now, latest.server_round, RESTED, printable(why, _LONGEST_REASON))
                    resting[run.run_key] = replace(run, decisions=(*before, decision)[-KEPT_DECISIONS:])
            if resting:
                self._keep({**runs, **resting})

    def end(self, run_key: str, how: str) -> None:
        """Remember how a run has ended whose last message did not come: one of `ENDED_LINES`."""
        with changing(self._path.parent):
            runs = self.runs()
            if run_key in runs and not runs[run_key].ended:
                self._keep({**runs, run_key: replace(runs[run_key], ended=how)})

    def _keep(self, runs: Mapping[str, RunActivity]) -> None:
        latest_runs = [asdict(activity) for activity in runs.values()][-KEPT_RUNS:]
        for earlier in latest_runs[:-_DETAILED_RUNS]:
            earlier |= {"curve": (), "decisions": earlier["decisions"][-1:]}
        # Not forced to the disk: a power cut may cost a round's figures, and a small device's card lives longer.
        try:
            replace_file(self._path, json.dumps(latest_runs).encode(), durable=False, mode=0o600)
        except OSError as error:  # a full disk: the client's answers matter more
            log.warning("%s cannot be written: %s", self._path, error)

    def forget(self) -> None:
        """Forget all runs."""
        with changing(self._path.parent):
            for file in (self._path, *self._path.parent.glob(f"{ACTIVITY}.{DAMAGED}*")):
                file.unlink(missing_ok=True)
