"""Experiments' files: what one describes, by hand, and one line for each that is not allowed."""

from pathlib import Path

import pytest

from fedappeal.reproductions import experiment_names, load_experiment
from fedappeal.reproductions.description import read_experiment
from fedappeal.settings.config import ConfigError, RunConfig
from fedappeal.studies.experiment import Arm, Contrast, Experiment
from fedappeal.studies.plan import slug

FILE = """
extends = ["shared"]
title = "A small one"
source = "nowhere, table 1"
claim = "Two is more than one."
notes = "- Ours.\\n"

[settings]
rounds = 3

[rows]
one = {title = "One", settings = {strategy = "fedavg", momentum = 0.5}}
two = {title = "Two", settings = {strategy = "maxfl"}}

[paper.printed]
columns = ["loss", "share"]
rows = {one = [[2.5, 0.1], 46], two = [1.25]}

[groups.main]
title = "As written"
paper = "printed"

[groups.slow]
title = "Slow"
settings = {learning-rate = 0.01, momentum = 0.9}
rows = {two = {rounds = 9}}
against = {one = "main"}

[columns]
share = {title = "share %, last 20 rounds", read = ["late", "accuracy", 20], percent = true}

[[claims]]
text = "{row} over {other}: {column}"
rows = ["two"]
others = ["*"]
columns = ["share"]

[[claims]]
text = "{row} is low"
groups = ["main"]
rows = ["one", "two"]
columns = ["loss"]
bound = 2.0
lower = true
inclusive = true
"""
SHARED = """
[settings]
rounds = 200
clients = 4

[columns]
loss = {title = "loss", better = "lower"}
"""


def read(folder: Path, text: str = FILE) -> Experiment:
    (folder / "shared.toml").write_text(SHARED)
    (folder / "small.toml").write_text(text)
    return read_experiment(folder / "small.toml", "small")


def test_a_file_by_hand(tmp_path: Path) -> None:
    experiment = read(tmp_path)
    assert experiment.settings == {"rounds": 3, "clients": 4}
    one, two = {"strategy": "fedavg", "momentum": 0.5}, {"strategy": "maxfl"}
    slow = {"learning-rate": 0.01, "momentum": 0.9, "strategy": "maxfl", "rounds": 9}
    assert experiment.arms == (
        Arm("one", one, {"loss": (2.5, 0.1), "share": 46}, "As written", label="One"),
        Arm("two", two, {"loss": 1.25}, "As written", label="Two"),
        Arm("two-slow", slow, {}, "Slow", label="Two"),
    )
    lines = [{"round": 1, "loss": 3.0, "accuracy": 0.5}, {"round": 2, "loss": 1.0, "accuracy": 0.7}]
    assert [measure.number(lines) for measure in experiment.measures] == [1.0, pytest.approx(60)]
    assert [(claim.text, claim.group, claim.unit, claim.margin) for claim in experiment.claims] == [
        ("Two over One: share %", "As written", "points", Contrast(("two", "share"), ("one", "share"))),
        ("Two over One: share %", "Slow", "points", Contrast(("two-slow", "share"), ("one", "share"))),
        ("One is low", "As written", "", Contrast(("one", "loss"), 2.0, -1)),
        ("Two is low", "As written", "", Contrast(("two", "loss"), 2.0, -1)),
    ]


def test_a_computed_margin_has_the_rows_of_its_group(tmp_path: Path) -> None:
    margin = 'margin = ["@adagd.readings:decays", 5]'
    text = FILE.replace('others = ["*"]\ncolumns = ["share"]', margin)
    first, second, *_ = read(tmp_path, text.replace("{row} over {other}: {column}", "{row}")).claims
    numbers = {("two", "below-peak"): 7.0, ("two-slow", "below-peak"): 4.5}
    assert first.margin(lambda row, key: numbers[row, key]) == 2.0
    assert second.margin(lambda row, key: numbers[row, key]) == -0.5


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('title = "A small one"', 'titel = "A small one"', "title: Field required"),
        ("rounds = 3", "rounds 3", "Expected '=' after a key"),
        (
            'read = ["late", "accuracy", 20]',
            'read = ["lately", "accuracy"]',
            "'lately' is no function of",
        ),
        (
            'read = ["late", "accuracy", 20]',
            'read = ["@adagd.readings:late"]',
            "adagd.readings:late' is no",
        ),
        ("percent = true", 'percent = "much"', "columns.share.percent: Input should be a valid boolean"),
        ("rows = {two = {rounds = 9}}", "rows = {three = {rounds = 9}}", "there is no 'three'"),
        ('rows = ["two"]', 'rows = ["twoo"]', "claims: there is no row 'twoo'"),
        ('columns = ["loss"]', 'columns = ["los"]', "claims: there is no column 'los'"),
        ('groups = ["main"]', 'groups = ["mian"]', "claims: there is no group 'mian'"),
        ('text = "{row} is low"', 'text = "{arm} is low"', "there is no 'arm'"),
        ('extends = ["shared"]', 'extends = ["shard"]', "No such file"),
        ("inclusive = true", "inclusive = true\nsign = 1", "claims.1.sign: Extra inputs are not permitted"),
    ],
)
def test_what_is_not_allowed_is_one_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read(tmp_path, FILE.replace(old, new))
    (line,) = str(raised.value).splitlines()
    assert line.startswith(str(tmp_path / "small.toml"))
    assert message in line


@pytest.mark.parametrize("name", experiment_names())
def test_a_row_is_known_by_a_key(name: str) -> None:
    """In records, claims and folders alike: no sentence is one."""
    assert all(arm.name == slug(arm.name) for arm in load_experiment(name).arms)


@pytest.mark.parametrize("name", experiment_names())
def test_clients_judge_by_training_data_as_in_the_papers(name: str) -> None:
    experiment = load_experiment(name)
    settings = [{**experiment.settings, **arm.settings} for arm in experiment.arms if not experiment.compute]
    assert {RunConfig.parse_recorded(of_arm).judge_on for of_arm in settings} <= {"train"}
    assert RunConfig().judge_on == "cross-fitted"
