"""The committed pages: written again from their numbers, and the list of them with a verdict each.

``python -m fedappeal.reproductions.pages docs/reproductions`` writes them.
"""

import sys
from pathlib import Path

from fedappeal.reproductions import experiment_names, load_experiment
from fedappeal.studies.experiment_page import rewrite_page
from fedappeal.studies.study_record import read_record
from fedappeal.studies.verdict import leading, summary
from fedappeal.system.files import replace_file

BEGIN, END = "<!-- pages -->", "<!-- /pages -->"
"""The list stands between these two lines of the folder's README.md."""


def page_list(folder: Path) -> str:
    """Return the list of pages, as a Markdown table."""
    lines = ["| page | | what came out |", "| --- | --- | --- |"]
    for name in experiment_names():
        experiment = load_experiment(name)
        title = experiment.title.partition(": ")[2] or experiment.title
        outcome = summary(leading(read_record(experiment, folder).numbers.verdicts))
        lines.append(f"| [{name}]({name}.md) | {experiment.source}: {title} | {outcome} |")
    return "\n".join(lines)


def with_list(text: str, folder: Path) -> str:
    """Return a README with the list of pages of its folder."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n{page_list(folder)}\n{END}{rest.partition(END)[2]}"


def write_pages(folder: Path) -> None:
    """Write all pages of a folder, and the list in its README.md, from their numbers."""
    for name in experiment_names():
        rewrite_page(load_experiment(name), folder)
    readme = folder / "README.md"
    replace_file(readme, with_list(readme.read_text("utf-8"), folder).encode())


if __name__ == "__main__":
    write_pages(Path(sys.argv[1]))
