"""An experiment's page: every number and setting that is to be on it, and what the command prints."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fedappeal.cli.option_groups import ReproduceOptions
from fedappeal.cli.reproduce import start_reproduction
from fedappeal.reproductions import experiment_names, load_experiment
from fedappeal.runs.launch.in_process import Machine
from fedappeal.settings.config import ConfigError, TaskSettings
from fedappeal.studies.experiment import Arm, Claim, Contrast, Results
from fedappeal.studies.experiment_page import MOST_WORDS, page_of, rewrite_page, write_page
from fedappeal.studies.harness import carry_out
from fedappeal.studies.plan import make_plan
from fedappeal.studies.study_record import read_record
from fedappeal.system.versions import recorded_versions
from fedappeal.views.comparison.measures import Measure, last
from tests.studies.small import Drawn, computed


def made(tmp_path: Path, **changed: object) -> tuple[str, dict[str, object], str]:
    """Return the page, the numbers, and what went wrong with the figure."""
    marks = tmp_path / "marks"
    marks.mkdir(exist_ok=True)
    settings = {"marks": str(marks), "fails": [2]}
    plan = make_plan(computed(marks, **{"settings": settings, **changed}), tmp_path / "runs", seeds=3)
    console = Console(file=open("/dev/null", "w"))  # noqa: SIM115
    results = carry_out(plan, Machine(threads=1), console)
    page, _, trouble = write_page(plan, results, tmp_path / "pages")
    assert page == tmp_path / "pages" / "computed.md"
    return page.read_text(), json.loads(page.with_suffix(".json").read_text()), trouble


def test_a_page_has_it_all(tmp_path: Path) -> None:
    page, numbers, trouble = made(tmp_path, figure=Drawn, notes="- A note.\n")
    assert trouble == ""
    assert "| ten | 10.50 ± 0.71 (12.00) |" in page
    assert "| twenty | 20.50 ± 0.71 (20.00) |" in page
    # 20 - 10 and 21 - 11; 20 - 20 and 21 - 20: mean 0.5, deviation sqrt(1/2), t of one degree of freedom 12.706
    assert "| twenty is more than ten | reproduced | +10.0 | +8.0 |\n" in page
    assert "| twenty is more than twenty | undecided (needs about 18 seeds) | +0.50 [-5.85, +6.85] | 0.00 |\n" in page
    verdict = "**Mixed**: of the paper's 2 claims 1 reproduced, 1 undecided."
    assert page.startswith(f"# A computed experiment\n\n{verdict}\n\nNowhere, table 0. Twenty is more than ten.\n")
    assert "![A computed experiment](computed.png)" in page
    assert (tmp_path / "pages" / "computed.png").read_text() == "ten twenty"
    assert "## Notes\n\n- A note." in page
    assert "`fedappeal reproduce computed --seeds 3` did these runs, with seeds 0 to 2; " in page
    assert "- failed: ten, seed 2: ArithmeticError: no value for seed 2" in page
    assert numbers["versions"]["python"] == [recorded_versions()["python"]]
    assert [verdict["word"] for verdict in numbers["verdicts"]] == ["reproduced", "undecided"]
    rows: list[dict[str, Any]] = numbers["rows"]  # type: ignore[assignment]
    assert [row.pop("settings")["base"] for row in rows] == ["10", "20"]
    for row in rows:
        assert row.pop("failed") == {"2": "ArithmeticError: no value for seed 2"}
        assert (row.pop("skipped"), row.pop("diverged")) == ("", {})
    assert rows == [
        {
            "name": "ten",
            "group": "",
            "paper": {"value": 12.0},
            "seeds": [0, 1],
            "rounds": [1, 1],
            "ours": {"value": [10, 11]},
        },
        {
            "name": "twenty",
            "group": "",
            "paper": {"value": [20.0, 0.5]},
            "seeds": [0, 1],
            "rounds": [1, 1],
            "ours": {"value": [20, 21]},
        },
    ]


def test_a_page_is_made_again_from_its_numbers_alone(tmp_path: Path) -> None:
    page, _, _ = made(tmp_path, figure=Drawn)
    experiment = computed(tmp_path / "marks", settings={"marks": "", "fails": [2]}, figure=Drawn)
    written = tmp_path / "pages" / "computed.md"
    written.unlink()
    assert rewrite_page(experiment, written.parent) == written
    assert written.read_text() == page
    later = Measure("later", "later", last("later"))
    more = dataclasses.replace(
        experiment, arms=(*experiment.arms, Arm("thirty", {"base": 30})), measures=(*experiment.measures, later)
    )
    assert "- not run yet: thirty, the column 'later'\n" in page_of(read_record(more, written.parent))


def test_a_page_has_no_more_words_than_a_reader_reads(tmp_path: Path) -> None:
    claims = tuple(Claim(f"claim {n}", Contrast(("ten", "value"), 0.0), f"group {n // 9}") for n in range(200))
    page, numbers, _ = made(tmp_path, claims=claims)
    assert len(numbers["verdicts"]) == 200  # type: ignore[arg-type]
    assert MOST_WORDS - 150 < len(page.split()) <= MOST_WORDS
    assert "| claim 8 | undecided " in page
    assert "claim 190" not in page


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (None, "computed.json cannot be read: .*No such file"),
        ("{", "computed.json cannot be read: "),
        ("[]", "computed.json holds no numbers of computed"),
        ('{"experiment": "other"}', "computed.json holds no numbers of computed"),
        (
            '{"experiment": "computed", "source": "", "command": ""}',
            "computed.json has no quick: it was written by an older",
        ),
    ],
)
def test_numbers_that_are_none_are_one_line(text: str | None, line: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "computed.json").write_text(text)
    with pytest.raises(ConfigError, match=line):
        rewrite_page(computed(tmp_path), tmp_path)
    assert not (tmp_path / "computed.md").exists()


def test_the_command_writes_a_page_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy("docs/reproductions/maxfl-figure4.json", tmp_path)
    start_reproduction(ReproduceOptions("maxfl-figure4", out=tmp_path, from_numbers=True), Machine())
    assert "maxfl-figure4.md" in capsys.readouterr().out.replace("\n", "")
    page = Path("docs/reproductions/maxfl-figure4.md").read_text()
    assert (tmp_path / "maxfl-figure4.md").read_text() == page


def test_a_figure_that_cannot_be_drawn_costs_the_figure_only(tmp_path: Path) -> None:
    def broken(results: Results) -> None:
        raise RuntimeError("no\nink")

    page, _, trouble = made(tmp_path, figure=broken)
    assert trouble == "RuntimeError: no ink"
    assert "computed.png" not in page
    assert "| ten | 10.50 ± 0.71 (12.00) |" in page


def test_all_experiments_say_what_they_are() -> None:
    for name in experiment_names():
        experiment = load_experiment(name)
        assert experiment.name == name
        assert experiment.title
        assert experiment.source
        assert experiment.claim
        assert experiment.arms
        assert experiment.measures


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("name", experiment_names())
def test_every_row_has_settings_that_are_allowed(
    name: str, quick: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedappeal.studies.plan._unavailable", lambda task, data_dir: "")  # would download
    experiment = load_experiment(name)
    plan = make_plan(experiment, tmp_path, seeds=1, quick=quick)
    shared = {run.path: run.settings for run in plan.runs}
    for arm in experiment.arms:
        if arm.runs_in and not quick:
            other = make_plan(load_experiment(arm.runs_in), tmp_path, seeds=1)
            theirs = {run.path: run.settings for run in other.runs}
            for run in plan.runs:
                if run.arm is arm:
                    assert theirs[run.path] == shared[run.path]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ReproduceOptions(
        "maxfl-figure5", quick=True, out=tmp_path, pages=tmp_path / "pages", changed=("draws=50",)
    )
    start_reproduction(options, Machine(threads=1))
    shown = capsys.readouterr().out
    assert "Case 2: all different" in shown
    assert "maxfl-figure5-quick.md" in shown.replace("\n", "")
    page = (tmp_path / "pages" / "maxfl-figure5-quick.md").read_text()
    assert "fedappeal reproduce maxfl-figure5 --quick --seeds 1 --set draws=50" in page
    assert (tmp_path / "pages" / "maxfl-figure5-quick.png").read_bytes().startswith(b"\x89PNG")
    assert "</svg>" in (tmp_path / "pages" / "maxfl-figure5-quick.svg").read_text()


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (ReproduceOptions(""), "which experiment"),
        (ReproduceOptions("maxfl-table1", changed=("solo.steps=x",)), "solo.steps = 'x' is not allowed"),
        (
            ReproduceOptions("maxfl-table9"),
            r"experiment = 'maxfl-table9' is not allowed: .*did you mean 'maxfl-table",
        ),
        (ReproduceOptions("maxfl-table1", seeds=-1), "seeds = -1 is not allowed"),
        (ReproduceOptions("maxfl-table1", changed=("rounds",)), "set = 'rounds' is not allowed: KEY=VALUE"),
    ],
)
def test_what_is_not_allowed_is_one_line_before_data_are_looked_for(
    options: ReproduceOptions, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def looked(task: TaskSettings, data_dir: str) -> str:
        raise AssertionError("data were looked for")

    monkeypatch.setattr("fedappeal.studies.plan._unavailable", looked)
    with pytest.raises(ConfigError, match=line):
        start_reproduction(options, Machine())
