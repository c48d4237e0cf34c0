"""The benchmark's page, pictures and verdicts, from its results alone."""

from collections import Counter
from pathlib import Path

from fedappeal.studies.bench.design import BASELINE, Cell
from fedappeal.studies.bench.results import RESULTS, BenchResults
from fedappeal.studies.experiment import OWN, Arm, Claim, Contrast, Experiment, Quick, Results
from fedappeal.studies.page import MOST_WORDS, SHORT_FORM
from fedappeal.studies.pictures import by_seed
from fedappeal.studies.record import recorded_runs
from fedappeal.studies.table import numbers_table
from fedappeal.studies.verdict import Verdict, verdicts
from fedappeal.system.files import replace_file
from fedappeal.views.comparison.measures import Measure
from fedappeal.views.comparison.table import NONE, Table

PAGE = "README.md"
PICTURES = {"kept": "overview", "gm-appeal": "overview-appeal"}
"""By the measure that is drawn."""

HEADLINES = {"kept": "runs that live", "gm-appeal": "GM-Appeal", "score": "the metric"}
"""Measures by which strategies are compared with FedAvg, with their names."""

LIVES = 20.0
"""A run lives when at least this many per cent of its clients join in its last rounds."""

_NOT_SAID = """\
- Clients are simulated: their policies are rules that the papers state, not people.
- Each strategy runs with the same local training on a task, but for ADA-GD and MaxFL+ADA-GD, whose round is one
  gradient step. Own settings are the papers' or this project's defaults; none was tuned to the benchmark.
- All are judged by the global model. Per-FedAvg, pFedMe and Ditto train it for another use, a model of each client's
  own. Ditto's global model is FedAvg's, and so is FedNova's where clients take equally many local steps.
- Where no client joins, the model stays as it is, and clients that sat out sit out for good.
- A run that ended early counts on as in its last round; where that was mandatory nothing is known of these.
- GM-Appeal is measured on test data, while clients decide by their training data.
- Tasks are small: a round takes a client some milliseconds. Nothing is said about large models.
"""


def as_results(results: BenchResults) -> Results:
    """Return the rows as those of an experiment, whose claims are that a strategy is ahead of FedAvg."""
    cells = results.cells()
    arms = tuple(Arm(str(cell), group=f"{cell.behaviour}, {cell.task}", label=cell.strategy) for cell in cells)
    of_task = {task: results.measures_of(task) for task in dict.fromkeys(cell.task for cell in cells)}
    measures = {measure.key: measure for shown in of_task.values() for measure in reversed(shown)}
    claims = tuple(
        _ahead(cell, measure)
        for cell in cells
        for measure in of_task[cell.task]
        if cell.strategy != BASELINE and measure.key in HEADLINES
    )
    experiment = Experiment(
        "bench", "Who keeps its volunteers", OWN, "", {}, arms, tuple(measures.values()), Quick({}), claims=claims
    )
    return Results(experiment, recorded_runs(results, {arm.name: arm for arm in arms}), results.quick)


def _ahead(cell: Cell, measure: Measure) -> Claim:
    other = str(Cell(cell.task, cell.behaviour, BASELINE))
    sides, sign = [(str(cell), measure.key), (other, measure.key)], -1 if measure.better == "lower" else 1
    margin = Contrast(sides[0], sides[1], sign, LIVES if measure.key == "kept" else None)  # type: ignore[arg-type]
    group, unit = f"{cell.behaviour}, {cell.task}", "points" if measure.percent else ""
    return Claim(f"{cell.strategy} over {BASELINE}: {HEADLINES[measure.key]}", margin, group, unit)


def with_verdicts(results: BenchResults) -> BenchResults:
    """Return the results with their verdicts, corrected for the comparisons of one task and behaviour."""
    outcomes = tuple(verdicts(as_results(results), by_group=True))
    return results.model_copy(update={"verdicts": outcomes})


def side(verdict: Verdict) -> str:
    """Return whether a strategy is ``ahead`` of FedAvg or ``behind``; ``undecided`` where seeds do not tell."""
    if verdict.word == "undecided" or not verdict.mean:
        return "level" if verdict.word != "undecided" else "undecided"
    return "ahead" if verdict.mean > 0 else "behind"


def tables(results: BenchResults) -> list[Table]:
    """Return all numbers, how often each strategy is ahead, and the differences that are decided."""
    return [numbers_table(as_results(results), as_results(results).arms), tally(results), decided(results)]


def tally(results: BenchResults) -> Table:
    """Return how often each strategy is ahead of FedAvg, undecided, level by construction and behind."""
    counts: dict[tuple[str, str], Counter[str]] = {}
    for verdict in results.verdicts:
        strategy, _, rest = verdict.claim.partition(f" over {BASELINE}: ")
        counts.setdefault((strategy, rest), Counter())[side(verdict)] += 1
    names = dict.fromkeys(strategy for strategy, _ in counts)
    ways = ("ahead", "undecided", "level", "behind")
    rows = tuple(
        (
            name,
            *(
                "/".join(str(counts[name, key][way]) for way in ways) if (name, key) in counts else NONE
                for key in HEADLINES.values()
            ),
        )
        for name in names
    )
    return Table("ahead of FedAvg/undecided/level/behind", ("", *HEADLINES.values()), rows)


def decided(results: BenchResults) -> Table:
    """Return the differences from FedAvg that the seeds decide."""
    rows = [
        (f"{v.group}: {v.claim}", v.here, side(v))
        for v in results.verdicts
        if side(v) in ("ahead", "behind") and v.test
    ]
    return Table("Decided differences", ("", "gap", ""), tuple(rows))


def write_page(results: BenchResults, folder: Path) -> Path:
    """Draw the pictures and write the page beside them; return its path."""
    shown = as_results(results)
    for key, name in PICTURES.items():
        if shown.runs:
            by_seed(key, 4, LIVES if key == "kept" else None)(shown, folder / name)
    parts = ["# Who keeps its volunteers", _summary(results)]
    if results.quick:
        parts.append(SHORT_FORM.format("benchmark"))
    parts.append(
        "Every strategy on the same clients, which are free to sit out or to leave. Differences from FedAvg are "
        f"paired by seed. A run lives when at least {LIVES:g} % of its clients join in its last rounds."
    )
    parts += [f"![{HEADLINES[key]}]({name}.png)" for key, name in PICTURES.items() if shown.runs]
    counted = tally(results)
    parts += [f"How often each strategy is {counted.title}, over tasks and behaviours:", counted.markdown()]
    tail = ["## What we do not conclude", _NOT_SAID.strip(), "## How it was made", _made(results)]
    if (differences := decided(results)).rows:
        title = "The differences that the seeds decide (the others are in the JSON):"
        room = MOST_WORDS - sum(len(part.split()) for part in [*parts, *tail, title])
        parts += [title, _first_rows(differences, room).markdown()]
    path = folder / PAGE
    replace_file(path, ("\n\n".join([*parts, *tail]) + "\n").encode())
    return path


def _first_rows(table: Table, room: int) -> Table:
    """Return a table with as many of its first rows as take this number of words."""
    rows = list(table.rows)
    while rows and len(Table("", table.header, tuple(rows)).markdown().split()) > room:
        rows.pop()
    return Table(table.title, table.header, tuple(rows))


def _summary(results: BenchResults) -> str:
    """Return the verdict in a sentence."""
    words = Counter(side(verdict) for verdict in results.verdicts)
    lives = [verdict for verdict in results.verdicts if verdict.lived is not None]
    alive = Counter(side(verdict) for verdict in lives)
    return (
        f"**{'Mostly undecided' if words['undecided'] * 2 > len(results.verdicts) else 'Decided in part'}**: with "
        f"{results.seeds} seeds, of {len(results.verdicts)} differences from FedAvg {words['ahead']} are ahead, "
        f"{words['behind']} behind, {words['level']} level and {words['undecided']} undecided; of {len(lives)} on "
        f"runs that live {alive['ahead']} are ahead and {alive['behind']} behind."
    )


def _made(results: BenchResults) -> str:
    lines = [f"- {row}: {reason}" for row, reason in results.skipped.items()]
    lines += [f"- {run}: {reason}" for run, reason in results.failed.items()]
    planned = {name: int(settings["rounds"]) for name, settings in results.settings.items()}
    early = sum(length < planned[row.name] for row in results.rows for length in row.rounds)
    text = (
        f"`{'`, `'.join(results.command.splitlines())}`; {early} runs ended early. Every number, setting, version "
        f"and verdict stands in [{RESULTS}]({RESULTS})."
    )
    return "\n".join([text, *lines])
