"""The page of an experiment: its verdict in a sentence, pictures, the tables a reader needs; all else in the JSON."""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedappeal.studies.experiment import Drawing, Experiment, Results
from fedappeal.studies.plan import Plan, folder_name
from fedappeal.studies.study_record import StudyRecord, make_record, read_record
from fedappeal.studies.table import numbers_table, verdict_table
from fedappeal.studies.verdict import leading, summary
from fedappeal.system.files import replace_file
from fedappeal.system.wording import plural
from fedappeal.views.comparison.measures import save
from fedappeal.views.comparison.table import TextTable

MOST_WORDS = 800
"""Words of a page; what does not fit stays in the JSON beside it."""
WrittenPage = tuple[Path, StudyRecord, str]
"""A page's path, its record, and why a picture could not be drawn; empty where all were."""


def page_stem(plan: Plan, folder: Path) -> Path:
    """Return the path of the page and its pictures, without an ending."""
    return folder / folder_name(plan.experiment.name, plan.quick)


def all_tables(record: StudyRecord) -> list[TextTable]:
    """Return the tables of numbers and of verdicts."""
    outcomes = record.numbers.verdicts
    return [numbers_table(record.results(), record.arms()), *([verdict_table(outcomes)] if outcomes else [])]


def write_page(plan: Plan, results: Results, folder: Path) -> WrittenPage:
    """Draw the pictures and write the page and the numbers.

    Args:
        plan: what was planned.
        results: what came out.
        folder: where to.

    Returns:
        The page's path, its record, and why a picture could not be drawn; empty where all were.
    """
    folder.mkdir(parents=True, exist_ok=True)
    stem, figure = page_stem(plan, folder), plan.experiment.figure
    trouble = _draw({"": figure}, results, stem) if figure and results.runs else ""
    drawn = bool(figure and results.runs and not trouble)
    return _write(make_record(plan, results, drawn), stem, trouble)


def add_to_page(record: StudyRecord, plan: Plan, results: Results, folder: Path) -> WrittenPage:
    """Write a page again with runs that it lacked.

    The figure stays that of the last full run.

    Args:
        record: of the page.
        plan: the runs that it lacked.
        results: what came out of them.
        folder: of the page.

    Returns:
        As `write_page`; the pictures are those that are drawn from the numbers.
    """
    return _write(record.joined(make_record(plan, results, figure=False)), page_stem(plan, folder))


def rewrite_page(experiment: Experiment, folder: Path) -> Path:
    """Write an experiment's verdicts and page again from its numbers; return its path.

    Raises:
        ConfigError: the numbers are not there, or are no record of the experiment; or it has a picture to draw, and
            matplotlib is not installed.
    """
    return _write(read_record(experiment, folder), folder / experiment.name, strict=True)[0]


def _write(record: StudyRecord, stem: Path, trouble: str = "", strict: bool = False) -> WrittenPage:
    """Write verdicts and numbers, pictures drawn from them, and the page."""
    record = record.with_verdicts()
    if record.numbers.rows and record.results().runs:
        trouble = trouble or _draw(record.experiment.glances, record.results(), stem, strict)
    record.numbers.write(stem.with_name(stem.name + ".json"))
    page = stem.with_name(stem.name + ".md")
    replace_file(page, page_of(record).encode())
    return page, record, trouble


def _draw(drawings: Mapping[str, Drawing], results: Results, stem: Path, strict: bool = False) -> str:
    """Draw pictures; return why one could not be drawn, or raise it where ``strict``."""
    for ending, draw in drawings.items():
        try:
            save(draw(results), stem.with_name(stem.name + ending))
        except Exception as error:
            if strict:
                raise
            return " ".join(f"{type(error).__name__}: {error}".split())
    return ""


def page_of(record: StudyRecord) -> str:
    """Return the page in Markdown, of at most `MOST_WORDS`.

    Verdict, pictures, tables of the first group, notes.
    """
    experiment, numbers = record.experiment, record.numbers
    outcomes = numbers.verdicts
    name = folder_name(experiment.name, numbers.quick)
    head = [f"# {experiment.title}", summary(outcomes)]
    if numbers.quick:
        head.append("**The short form (`--quick`): it shows that the experiment runs, not what comes out of it.**")
    head += [f"{experiment.source[0].upper()}{experiment.source[1:]}. {experiment.claim}", *_pictures(record, name)]
    tail = [f"## Notes\n\n{experiment.notes.strip()}"] if experiment.notes else []
    tail.append(_origin(record, name))
    tables = [numbers_table(record.results(), record.arms()).first_group()]
    first = leading(outcomes)
    for group in dict.fromkeys([*(v.group for v in first), *(v.group for v in outcomes)]):
        table = verdict_table([verdict for verdict in outcomes if verdict.group == group])
        tables.insert(-1 if group == first[0].group else len(tables), table)
    return "\n\n".join([*head, *_fitting(tables, [*head, *tail]), *tail]) + "\n"


def _fitting(tables: Sequence[TextTable], others: Sequence[str]) -> list[str]:
    """Return the first tables, in their order, for which the page has room."""
    room = MOST_WORDS - sum(len(part.split()) for part in others)
    texts = [table.markdown() for table in tables if table.rows]
    used = itertools.accumulate(len(text.split()) for text in texts)
    return [text for text, words in zip(texts, used, strict=True) if words <= room]


def _pictures(record: StudyRecord, name: str) -> list[str]:
    """Return the pictures, a link to another figure, and what that one lacks.

    The other figure is over the rounds.
    """
    experiment, numbers = record.experiment, record.numbers
    endings = list(experiment.glances) or ([""] if numbers.figure else [])
    parts = [f"![{experiment.title}]({name}{ending}.png)" for ending in endings]
    if numbers.figure and (experiment.glances or numbers.undrawn):
        undrawn = (
            f", without {plural(len(numbers.undrawn), 'row')}, or seeds of them, of other runs"
            if numbers.undrawn
            else ""
        )
        parts.append(f"[The runs over the rounds]({name}.png){undrawn}.")
    return parts


def _origin(record: StudyRecord, name: str) -> str:
    numbers = record.numbers
    missing = [f"not run here: {line}" for line in record.skipped()]
    missing += [f"not run yet: {', '.join(waiting)}"] if (waiting := record.waiting()) else []
    if runs := len(record.runs_waiting()):
        missing.append(
            f"not run yet: {plural(runs, 'run')} of the rows; a claim is over the seeds that its rows have"
        )
    missing += [f"failed: {row}, seed {seed}: {reason}" for (row, seed), reason in numbers.failed.items()]
    diverged = [f"{row.name}, seed {seed}" for row in numbers.rows for seed in row.diverged]
    missing += [f"diverged: {', '.join(diverged)}"] if diverged else []
    seeds = f"seeds 0 to {numbers.seeds - 1}" if numbers.seeds > 1 else "seed 0"
    text = (
        f"`{numbers.command}` did these runs, with {seeds}; intervals are over them. Every number, setting, "
        f"version and verdict stands in [{name}.json]({name}.json)."
    )
    return "\n".join(["## How it was made\n", text, *(f"- {line}" for line in missing)])
