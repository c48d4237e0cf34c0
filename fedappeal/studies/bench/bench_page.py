"""The benchmark's page, picture and verdicts, from its results alone."""

import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from fedappeal.studies.bench.bench_results import RESULTS, BenchResults
from fedappeal.studies.bench.design import BASELINE, CORE, LEAST, RATES, TASKS, Cell, cells
from fedappeal.studies.bench.ignition import LIVES, Level, draw, ignition, survival
from fedappeal.studies.experiment import OWN, Claim, Contrast, Experiment, Numbers, Results
from fedappeal.studies.study_record import recorded_runs
from fedappeal.studies.table import with_spread
from fedappeal.studies.verdict import Verdict, verdicts
from fedappeal.system.files import replace_file
from fedappeal.system.wording import plural
from fedappeal.views.comparison.table import NONE, TextTable, plain_number

PAGE = "README.md"
MEASURES = "measures.md"
PICTURE = "ignition"

IGNITION = "ignition"
"""Group of the claims that a strategy lives with less goodwill than FedAvg."""
COMPARED = ("kept", "regret", "worst")
"""Measures by which strategies are compared with FedAvg at a task's largest goodwill."""

_TEXTS: Mapping[str, str] = tomllib.loads(Path(__file__).with_name("page.toml").read_text("utf-8"))


def with_verdicts(results: BenchResults) -> BenchResults:
    """Return the results with verdicts, corrected for multiple comparisons.

    Of one cell or of one task's curves.
    """
    present, of = results.cells(), curves(results)
    compared = [cell for cell in present if cell.baseline in present and cell.strategy != BASELINE]
    claims = [_over(cell, "kept", "runs that live", cell.place, LIVES) for cell in compared]
    at_most = [cell for cell in compared if (cell.behaviour, cell.goodwill) == (CORE, TASKS[cell.task].shown)]
    claims += [_over(cell, key, key, f"{cell.task}, {key}") for cell in at_most for key in COMPARED]
    claims += [_earlier(*curve) for curve in of if curve[1] != BASELINE and (curve[0], BASELINE) in of]
    arms = tuple(cell.arm for cell in present)
    measures = {m.key: m for cell in present for m in results.measures_of(cell.task)}
    experiment = Experiment("bench", "", OWN, arms, measures=tuple(measures.values()), claims=tuple(claims))
    runs = recorded_runs(results, {arm.name: arm for arm in arms})
    outcomes = tuple(verdicts(Results(experiment, runs), growing=True))
    return results.model_copy(update={"verdicts": outcomes})


def claim_key(task: str, of: str, strategy: str) -> str:
    """Return the key of the claim that a strategy beats FedAvg in a measure, or ignites before it."""
    return f"{task}-{of}-{strategy}"


def _over(cell: Cell, measure: str, what: str, group: str, event: float | None = None) -> Claim:
    """Return the claim that a row beats FedAvg's in a measure or event."""
    margin = Contrast((cell.key, measure), (cell.baseline.key, measure), -1 if measure == "regret" else 1, event)
    unit, key = ("points", claim_key(cell.task, measure, cell.strategy)) if event is None else ("", "")
    return Claim(f"{cell.strategy} over {BASELINE}: {what}", margin, group, unit, key=key)


def _earlier(task: str, strategy: str) -> Claim:
    """Return the claim that a seed lives at more levels than with FedAvg."""

    def levels(number: Numbers, name: str) -> int:
        numbers = [number(Cell(task, CORE, goodwill, name).key, "kept") for goodwill in TASKS[task].goodwill]
        return sum(share >= LIVES for share in numbers)

    def margin(number: Numbers) -> float:
        return levels(number, strategy) - levels(number, BASELINE)

    text, key = f"{strategy} ignites before {BASELINE}", claim_key(task, IGNITION, strategy)
    return Claim(text, margin, f"{task}, {IGNITION}", by_side=True, key=key)


def side(verdict: Verdict) -> str:
    """Return a strategy's side of FedAvg: ``ahead``, ``behind`` or ``undecided``.

    Undecided where seeds do not tell.
    """
    if verdict.word == "undecided":
        return verdict.word
    return "level" if not verdict.mean else "ahead" if verdict.mean > 0 else "behind"


def sides(results: BenchResults, of: str) -> dict[tuple[str, str], str]:
    """Return the side of each strategy ahead of or behind FedAvg, by task."""
    by_key = {verdict.key: side(verdict) for verdict in results.verdicts}
    rows = dict.fromkeys((cell.task, cell.strategy) for cell in results.cells())
    by_row = {(task, name): by_key.get(claim_key(task, of, name), "") for task, name in rows}
    return {row: word for row, word in by_row.items() if word in ("ahead", "behind")}


def curves(results: BenchResults) -> dict[tuple[str, str], tuple[Level, ...]]:
    """Return the survival curves that were run with all seeds, by task and strategy."""
    names = dict.fromkeys((cell.task, cell.strategy) for cell in results.cells() if cell.behaviour == CORE)
    return {(task, name): levels for task, name in names if (levels := survival(results, task, name))}


def tables(results: BenchResults) -> list[TextTable]:
    """Return the tables: ignition points, outcomes under other behaviours, each task's numbers."""
    tasks = dict.fromkeys(cell.task for cell in results.cells())
    return [ignition_table(results), behaviour_table(results), *(task_table(results, task) for task in tasks)]


def ignition_table(results: BenchResults) -> TextTable:
    """Return each strategy's ignition point by task, and how its seeds stand to FedAvg's."""
    of, present, marks = curves(results), results.cells(), sides(results, IGNITION)
    core = [cell for cell in present if cell.behaviour == CORE]
    tasks, names = dict.fromkeys(cell.task for cell in core), dict.fromkeys(cell.strategy for cell in core)

    def cell(task: str, name: str) -> str:
        if (task, name) not in of:
            run = all(Cell(task, CORE, goodwill, name) in present for goodwill in TASKS[task].goodwill)
            return "ended early" if run else "not run yet"
        return f"{ignition(of[task, name])} {marks.get((task, name), '')}".rstrip()

    rows = tuple((name, *(cell(task, name) for task in tasks)) for name in names)
    return TextTable("Goodwill at which half of the seeds live [95 %]", ("", *tasks), rows)


def behaviour_table(results: BenchResults) -> TextTable:
    """Return each strategy's surviving runs and staying clients, by behaviour."""
    rows = [cell for cell in results.cells() if cell.behaviour not in (CORE, *RATES)]
    places = dict.fromkeys(cell.behaviour for cell in rows)
    of = {(cell.strategy, cell.behaviour): cell for cell in rows}

    def text(cell: Cell | None) -> str:
        if cell is None or not (shares := results.numbers(cell, "kept").values()):
            return NONE
        stayed = fmean(results.numbers(cell, "stayed").values())
        return f"{sum(k >= LIVES for k in shares)}/{len(shares)}" + (f" ({stayed:.0f})" if stayed < 99.5 else "")

    names = dict.fromkeys(cell.strategy for cell in rows)
    lines = tuple((name, *(text(of.get((name, place))) for place in places)) for name in names)
    return TextTable("Runs that live under other behaviours (clients that did not leave, %)", ("", *places), lines)


def task_table(results: BenchResults, task: str) -> TextTable:
    """Return a task's numbers at its largest goodwill: strategies, and floors where all were run."""
    import numpy as np

    shown = [cell for cell in results.cells() if cell.task == task and cell.goodwill == TASKS[task].shown]
    floors = {RATES[cell.behaviour]: _mean(results, cell, "score") for cell in shown if cell.behaviour in RATES}
    columns = [m for m in results.measures_of(task) if m.key != "stayed"]
    marks = {m.key: sides(results, m.key) for m in columns}
    complete = len(floors) == len(RATES)

    def row(cell: Cell) -> tuple[str, ...]:
        name = cell.strategy if cell.behaviour == CORE else f"({cell.behaviour})"
        numbers = {m.key: list(results.numbers(cell, m.key).values()) for m in columns}
        runs = len(numbers["megabytes"])
        if cell.behaviour == "alone":  # what the shared model lacks, and regret says, their own ones have
            alone = list(map(sum, zip(numbers["score"], numbers["regret"], strict=True)))
            numbers |= {"score": alone, "regret": [], "worst": []}
        spreads = {m.key: with_spread(numbers[m.key], runs, m.digits).replace(" ± ", "±") for m in columns}
        texts = [f"{spread} {marks[key].get((task, name), '')}".rstrip() for key, spread in spreads.items()]
        rate = _mean(results, cell, "kept") / 100
        bounded = complete and cell.behaviour == CORE and len(numbers["kept"]) == runs and rate >= LEAST
        at_random = plain_number(float(np.interp(rate, list(floors), list(floors.values()))), 1) if bounded else NONE
        return (name, *texts, *((at_random,) if complete else ()))

    rows = tuple(row(cell) for cell in shown if cell.behaviour in (CORE, "alone", "everyone"))
    header = ("", *(m.title for m in columns), *((f"{columns[1].title} if random",) if complete else ()))
    return TextTable(f"{task}, goodwill {TASKS[task].shown}", header, rows)


def _mean(results: BenchResults, cell: Cell, key: str) -> float:
    numbers = results.numbers(cell, key).values()
    return fmean(numbers) if numbers else 0.0


def write_page(results: BenchResults, folder: Path) -> Path:
    """Write picture, page and page of measures; return the page's path."""
    of = curves(results)
    if of:
        draw(of, folder / PICTURE)
    head = ["# Who keeps its volunteers", _summary(results)]
    head += [f"![share of seeds that live, by goodwill]({PICTURE}.png)"] if of else []
    head.append(_TEXTS["lives"])
    tail = ["## What we do not conclude", _TEXTS["not-concluded"], "## How it was made", _origin(results)]
    lives, others, *by_task = tables(results)
    headline = _headline(results, "regret", "regret than with FedAvg")
    _write(folder / MEASURES, ["# Retention, regret, worst decile and bytes", headline, _TEXTS["measures"]], by_task)
    return _write(folder / PAGE, head, [lives, others], tail)


def _write(path: Path, head: Sequence[str], shown: Sequence[TextTable], tail: Sequence[str] = ()) -> Path:
    parts = [f"{table.title}:\n\n{table.markdown()}" for table in shown if table.rows]
    replace_file(path, ("\n\n".join([*head, *parts, *tail]) + "\n").encode())
    return path


def _headline(results: BenchResults, of: str, less_what: str) -> str:
    """Return a sentence on the strategies ahead of and behind FedAvg."""
    ahead, behind = (
        ", ".join(f"{name} on {task}" for (task, name), side in sides(results, of).items() if side == word) or "none"
        for word in ("ahead", "behind")
    )
    return f"**Less {less_what}: {ahead}; more: {behind}.**"


def _summary(results: BenchResults) -> str:
    """Return the verdict in a sentence."""
    of_curves = [verdict for verdict in results.verdicts if not verdict.contrast]
    of_cells = [verdict for verdict in results.verdicts if verdict.contrast and verdict.contrast.event]
    words = Counter(side(verdict) for verdict in of_cells)
    return (
        f"{_headline(results, IGNITION, 'goodwill than FedAvg needs')} "
        f"That is of {plural(len(of_curves), 'curve')}, with {_seeds(results)} seeds; of "
        f"{plural(len(of_cells), 'comparison')} of runs that live at one level, {words['ahead']} are ahead, "
        f"{words['behind']} behind, {words['level']} level and {words['undecided']} undecided."
    )


def _seeds(results: BenchResults) -> str:
    numbers = sorted({len(row.seeds) for cell, row in results.cells().items() if cell.behaviour == CORE})
    return " to ".join(map(str, dict.fromkeys((numbers[0], numbers[-1])))) if numbers else "no"


def _origin(results: BenchResults) -> str:
    titles = {row.name: Cell.of_key(row.name).title for row in results.rows}
    lines = [f"- not run here: {titles[row.name]}: {row.skipped}" for row in results.rows if row.skipped]
    lines += [f"- failed: {titles[row]}, seed {seed}: {reason}" for (row, seed), reason in results.failed.items()]
    lines += [f"- {name}: its file has the SHA-256 {source}..." for name, source in results.sources.items()]
    missing = Counter[str]()
    for cell in cells():
        missing[f"{cell.task}, {'floors' if cell.behaviour in RATES else cell.behaviour}"] += len(
            results.lacking(cell.key, cell.seeds)
        )
    if waiting := [f"{place} ({runs} runs)" for place, runs in missing.items() if runs]:
        lines.append(f"- not run yet: {'; '.join(waiting)}")
    runs, (first, *later) = sum(len(row.seeds) for row in results.rows), results.command.splitlines()
    commands = f"`{first}`" + (f" and {plural(len(later), 'later command')}" if later else "")
    return "\n".join(
        [
            f"{runs} runs by {commands}. Every number, setting, command and verdict stands in "
            f"[{RESULTS}]({RESULTS}); behaviours and their sources: docs/bench.md.",
            *lines,
        ]
    )
