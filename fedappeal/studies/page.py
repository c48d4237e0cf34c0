"""The page of an experiment: tables, pictures, settings, seeds, versions; beside it the numbers as JSON."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from fedappeal.studies.experiment import OWN, Experiment, Results
from fedappeal.studies.plan import Plan, folder_name
from fedappeal.studies.record import Record, make_record, read_record, settings_apart, take_over
from fedappeal.studies.results import StudyResults
from fedappeal.studies.table import (
    diverged_table,
    nearness_table,
    ranking_table,
    result_tables,
    seeds_table,
)
from fedappeal.studies.verdict import Verdict, summary, verdicts
from fedappeal.system.files import replace_file
from fedappeal.views.comparison.table import Table


def page_stem(plan: Plan, folder: Path) -> Path:
    """Return the path of the page and its pictures, without an ending."""
    return folder / folder_name(plan.experiment.name, plan.quick)


GLANCE = "-gaps"
"""What the name of the picture drawn from the numbers ends with."""
_LEADING = 3
"""Verdicts on a page's first screen: those of the first group."""


def all_tables(record: Record) -> list[Table]:
    """Return the tables of numbers."""
    arms, results = record.arms(), record.results()
    further = (
        diverged_table(record.numbers.diverged, arms),
        nearness_table(results, arms),
        ranking_table(verdicts(results)),
        seeds_table(results, arms),
    )
    return result_tables(results, arms) + [table for table in further if table]


def write_page(plan: Plan, results: Results, failed: Mapping[str, str], folder: Path) -> tuple[Path, Record, str]:
    """Draw the figure and write the page and the numbers.

    Args:
        plan: what was planned.
        results: what came out.
        failed: the runs that failed, with their reasons.
        folder: where to.

    Returns:
        The page's path, its record, and why the figure could not be drawn; empty where it was.
    """
    folder.mkdir(parents=True, exist_ok=True)
    stem, trouble, drawn = page_stem(plan, folder), "", False
    if plan.experiment.figure and results.runs:
        try:
            plan.experiment.figure(results, stem)
            if plan.experiment.glance:
                plan.experiment.glance(results, stem.with_name(stem.name + GLANCE))
            drawn = True
        except Exception as error:  # the numbers are there all the same
            trouble = _said(error)
    record = make_record(plan, results, failed, drawn)
    return _written(record, stem), record, trouble


def add_to_page(
    record: Record, plan: Plan, results: Results, failed: Mapping[str, str], folder: Path
) -> tuple[Path, Record, str]:
    """Write a page again with rows that it lacked; the figure stays that of the last full run.

    Args:
        record: of the page.
        plan: what was planned of these rows.
        results: what came out of them.
        failed: the runs that failed, with their reasons.
        folder: of the page.

    Returns:
        As `write_page`; the figure is the one that is drawn from the numbers.

    Raises:
        ConfigError: other numbers of seeds.
    """
    whole, trouble = record.joined(make_record(plan, results, failed, figure=False)), ""
    stem = page_stem(plan, folder)
    if whole.experiment.glance:
        try:
            whole.experiment.glance(whole.results(), stem.with_name(stem.name + GLANCE))
        except Exception as error:  # the numbers are there all the same
            trouble = _said(error)
    return _written(whole, stem), whole, trouble


def _said(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def _written(record: Record, stem: Path) -> Path:
    record.numbers.write(stem.with_name(stem.name + ".json"))
    page = stem.with_name(stem.name + ".md")
    replace_file(page, page_of(record).encode())
    return page


def rewrite_page(experiment: Experiment, folder: Path) -> Path:
    """Write an experiment's page again from its numbers in a folder; return its path.

    One without runs of its own has the numbers, and a picture, of the page that has its runs.

    Raises:
        ConfigError: the numbers are not there, or are no record of the experiment; or it has a picture to draw, and
            matplotlib is not installed.
    """
    page, shared = folder / f"{experiment.name}.md", take_over(experiment, folder)
    record = shared or read_record(experiment, folder)
    if shared and experiment.figure:
        experiment.figure(record.results(), folder / experiment.name)
    if experiment.glance:
        experiment.glance(record.results(), folder / (experiment.name + GLANCE))
    replace_file(page, page_of(record).encode())
    return page


def page_of(record: Record) -> str:
    """Return the page, in Markdown: verdict, picture and one table first, then everything."""
    experiment, numbers = record.experiment, record.numbers
    parts = [f"# {experiment.title}", f"{experiment.source}. {experiment.claim}"]
    if numbers.quick:
        parts.append("**The short form (`--quick`): it shows that the experiment runs, not what comes out of it.**")
    tables, outcomes = all_tables(record), verdicts(record.results())
    if outcomes:
        parts += ["## Verdict", summary(outcomes), _sentences(experiment, _leading(outcomes))]
    if numbers.figure:
        parts += _pictures(experiment, folder_name(experiment.name, numbers.quick))
        if undrawn := numbers.undrawn:
            over = " over the rounds" if experiment.glance else ""
            parts.append(f"Not in the picture{over}, because they were run later: {'; '.join(undrawn)}.")
    ours = f"mean ± sample standard deviation over {numbers.seeds} seeds" if numbers.seeds > 1 else "one seed"
    theirs = " Paper: as printed there." if any(arm.paper for arm in record.arms()) else ""
    if tables:
        parts += [f"## {tables[0].title}", f"Ours: {ours}.{theirs}", tables[0].first_group().markdown()]
    if len(outcomes) > len(_leading(outcomes)):
        parts += ["## Every claim", _LEVEL, _sentences(experiment, outcomes)]
    if tables:
        parts.append("## Every table")
    for table in tables:
        parts.append(f"<details><summary>{table.title}</summary>\n\n{table.markdown()}\n\n</details>")
    if experiment.notes:
        parts += ["## Notes", experiment.notes.strip()]
    if waiting := record.waiting():
        parts += ["## Not run yet", "Written down after the last full run:", _bullets(waiting)]
    if skipped := record.skipped():
        parts += ["## Not run here", _bullets(skipped)]
    if failed := numbers.failed:
        parts += ["## Failed runs", _bullets([f"{run}: {reason}" for run, reason in failed.items()])]
    parts += ["## Settings", f"```\n{numbers.command}\n```", *_settings(numbers)]
    parts += ["## Versions", _versions(numbers.versions)]
    return "\n\n".join(parts) + "\n"


def _pictures(experiment: Experiment, name: str) -> list[str]:
    """Return the picture to look at first, and links to the others."""
    if not experiment.glance:
        return [f"![{experiment.title}]({name}.png)", f"([SVG]({name}.svg))"]
    first = name + GLANCE
    over_rounds = f"all rows over the rounds: [PNG]({name}.png), [SVG]({name}.svg)"
    return [f"![{experiment.title}]({first}.png)", f"([SVG]({first}.svg); {over_rounds})"]


_LEVEL = (
    "The gap is the mean over seeds of what the claim compares within a seed, above 0 where it holds; level: its "
    "95 % interval (Student's t) holds 0, or a seed has no number, or one that is infinite the other way."
)


def _leading(outcomes: Sequence[Verdict]) -> list[Verdict]:
    return [verdict for verdict in outcomes if verdict.claim.group == outcomes[0].claim.group][:_LEADING]


def _sentences(experiment: Experiment, outcomes: Sequence[Verdict]) -> str:
    """Return a claim and its verdict a line, under the headings of their groups."""
    says = "Expected" if experiment.source == OWN else "The paper says"
    lines, group = list[str](), ""
    for verdict in outcomes:
        if verdict.claim.group != group:
            group = verdict.claim.group
            lines.append(f"\n**{group}**\n" if lines else f"**{group}**\n")
        lines.append(f"- {says}: {verdict.claim.text}. Here: {verdict.words()}.")
    return "\n".join(lines)


def _bullets(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _settings(numbers: StudyResults) -> list[str]:
    different, others = settings_apart(numbers.settings)
    parts = [f"Seeds: {', '.join(map(str, range(numbers.seeds)))}."]
    if different:
        rows = tuple((name, *(row.get(key, "") for key in different)) for name, row in numbers.settings.items())
        parts += ["What differs:", Table("", ("", *(f"`{key}`" for key in different)), rows).markdown()]
    shared = Table("", ("setting", "value"), tuple((f"`{k}`", value) for k, value in others.items()))
    return [*parts, f"<details><summary>What does not differ</summary>\n\n{shared.markdown()}\n\n</details>"]


def _versions(versions: Mapping[str, Sequence[str]]) -> str:
    return ", ".join(f"{package} {' and '.join(numbers)}" for package, numbers in versions.items())
