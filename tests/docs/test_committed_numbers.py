"""README.md, docs/staying.md, docs/bench.md: the printed numbers are those of the committed runs."""

import json
import math
import re
from collections.abc import Iterator
from statistics import fmean, median
from typing import Any

import pytest
from scipy import stats

from client.requirement import Solo
from fedappeal.settings.config import RunConfig
from fedappeal.views.comparison.statistics import Interval
from tests.docs.pages import DOCS, ROOT

README = " ".join((ROOT / "README.md").read_text().split())
STAYING = (DOCS / "staying.md").read_text()
BENCH = " ".join((DOCS / "bench.md").read_text().split())
RUNS: list[dict[str, Any]] = [json.loads(line) for line in (DOCS / "staying.jsonl").read_text().splitlines()]
BENCH_ROWS: list[dict[str, Any]] = json.loads((DOCS / "bench-results" / "results.json").read_text())["rows"]
TASKS = {"Fashion-MNIST": "fmnist", "digits": "digits", "Chem97": "chem97", "Debian": "debian"}
AS_SENT, BY_TRAINING = "FedAvg, judged as sent", "FedAvg, judged by training loss"
OPPONENTS = ("own steps", "best", "best, nothing shared")
ALL_JOIN, NOT_HELD_OUT = "FedAvg, all always join", "the same, nothing held out"


def values(table: str, arm: str, key: str) -> list[float]:
    """A measure of an arm's runs, by seed; shares in per cent."""
    runs = sorted((run for run in RUNS if (run["table"], run["arm"]) == (table, arm)), key=_seed)
    assert [_seed(run) for run in runs] == list(range(21, 31))
    return [run[key] if key == "asked" else 100 * run[key] for run in runs]


def _seed(run: dict[str, Any]) -> int:
    return int(run["settings"]["seed"])


def mean(table: str, arm: str, key: str) -> float:
    return fmean(values(table, arm, key))


def joined(table: str, arm: str) -> tuple[int, int, int]:
    """The mean of the share that joins of its own accord, and the ends of its 95 % interval, in per cent."""
    interval = Interval.of([share / 100 for share in values(table, arm, "willing")], is_share=True)
    assert interval.low is not None
    assert interval.high is not None
    return round(100 * interval.mean), round(100 * interval.low), round(100 * interval.high)


def in_a_table(share: tuple[int, int, int]) -> str:
    return f"{share[0]} [{share[1]}, {share[2]}]"


def rows(first: str, page: str = STAYING) -> Iterator[list[str]]:
    """The cells of the rows of a page's table that begins with this heading."""
    table = page[page.index(f"| {first}") :].split("\n\n")[0]
    for line in table.splitlines()[2:]:
        yield [cell.strip() for cell in line.strip("|").split("|")]


def test_who_joins() -> None:
    for name, *cells in rows("task, clients |"):
        table = TASKS[name.split(",")[0]]
        assert cells == [in_a_table(joined(table, arm)) for arm in ("MaxFL", "FedAvg", AS_SENT, BY_TRAINING)], name
    assert len(list(rows("task, clients |"))) == len(TASKS)


def test_what_the_runs_under_fedavg_reach() -> None:
    wanted = (
        *(("FedAvg", key) for key in ("served", "asked", "score", "used")),
        *((arm, "score") for arm in (ALL_JOIN, NOT_HELD_OUT)),
    )
    for name, *cells in rows("task | served"):
        measured = [mean(TASKS[name], arm, key) for arm, key in wanted]
        assert [float(cell) for cell in cells] == pytest.approx(measured, abs=0.0501), name
    assert len(list(rows("task | served"))) == len(TASKS)


def test_who_stays_where_the_strategy_decides() -> None:
    for arm, stayed, lost in rows("strategy, judged by, goodwill"):
        assert stayed == in_a_table(joined("scarce goodwill", arm))
        assert int(lost) == sum(share < 20 for share in values("scarce goodwill", arm, "willing"))


def difference(one: str, other: str) -> tuple[int, int, int]:
    """MaxFL's lead by training loss over the same seeds: mean and 95 % interval."""
    arms = (f"{strategy}, training loss, 20 rounds of goodwill" for strategy in (one, other))
    of = [a - b for a, b in zip(*(values("scarce goodwill", arm, "willing") for arm in arms), strict=True)]
    low, high = stats.t.interval(0.95, len(of) - 1, fmean(of), stats.sem(of))
    return round(fmean(of)), round(low), round(high)


def test_differences_in_the_text() -> None:
    text = " ".join(STAYING.split())
    lead = re.search(r"MaxFL keeps (\d+) points more than FedAvg \(95 % interval: (\S+) to (\S+)\)", text)
    small = re.search(r"It keeps (\d+) more than FedAdam, but the interval \((\S+) to (\S+)\)", text)
    assert lead
    assert small
    assert tuple(map(int, lead.groups())) == difference("MaxFL", "FedAvg")
    assert tuple(map(int, small.groups())) == difference("MaxFL", "FedAdam")


def test_equal_effort_and_the_best_of_all() -> None:
    measured = [run for run in RUNS if run["table"].endswith(", opponents")]
    last = re.search(r"Seeds 21 to (\d+), joined of its own accord \[95 % interval\]", STAYING)
    assert last
    seeds = list(range(21, int(last[1]) + 1))

    def of(task: str, use: str, figure: str) -> list[float]:
        key = f"{task}, opponents", f"maxfl, {use}, equal steps"
        runs = sorted((run for run in measured if (run["table"], run["arm"]) == key), key=_seed)
        assert [_seed(run) for run in runs] == seeds
        return [run[figure] for run in runs]

    def cell(task: str, use: str) -> str:
        joined = Interval.of(of(task, use, "willing"), is_share=True)
        assert joined.low is not None
        assert joined.high is not None
        share = in_a_table((round(100 * joined.mean), round(100 * joined.low), round(100 * joined.high)))
        served, used = (100 * fmean(of(task, use, figure)) for figure in ("served", "used"))
        return f"{share}; {served:.0f}; {used:.1f}"

    table = list(rows("equal steps, MaxFL"))
    assert [task for task, *_ in table] == ["Chem97", "Debian", "digits"]
    assert table == [[task, *(cell(TASKS[task], use) for use in OPPONENTS)] for task, *_ in table]
    assert len(measured) == len(table) * len(OPPONENTS) * len(seeds), "a run that no cell shows"
    sent = re.search(r"\(as sent (\S+) to (\S+) %\)", STAYING)
    assert sent
    scores = [f"{100 * fmean(of('digits', use, 'score')):.1f}" for use in OPPONENTS[:2]]
    assert list(sent.groups()) == scores


def test_pooled_training_in_the_text() -> None:
    text = " ".join(STAYING.split())
    shares = re.search(r"met the requirement of (\d+) to (\d+) % and of (\d+) to (\d+) % of the clients", text)
    assert shares
    reached = [
        [round(100 * run["as used"]) for run in RUNS if run["table"] == f"{task}, pooled"]
        for task in ("chem97", "debian")
    ]
    assert [int(share) for share in shares.groups()] == [end(of) for of in reached for end in (min, max)]


# -- the README ----------------------------------------------------------------------------------------


def numbers(sentence: str) -> list[float]:
    """The numbers of a sentence of the README, in which N stands for each."""
    found = re.search(re.escape(sentence).replace("N", r"([\d.,]*\d)"), README)
    assert found, sentence
    return [float(number.replace(",", "")) for number in found.groups()]


def test_the_readmes_scarce_setting() -> None:
    maxfl, fedavg, *lead = numbers(
        "MaxFL keeps N % of the clients and FedAvg N %: N points more (95 % interval: N to N)"
    )
    arm = "{}, training loss, 20 rounds of goodwill"
    for printed, strategy in ((maxfl, "MaxFL"), (fedavg, "FedAvg")):
        assert printed == pytest.approx(mean("scarce goodwill", arm.format(strategy), "willing"), abs=0.0501)
    assert tuple(lead) == difference("MaxFL", "FedAvg")
    (run,) = (
        run
        for run in RUNS
        if (run["table"], run["arm"]) == ("scarce goodwill", arm.format("MaxFL")) and _seed(run) == 23
    )
    settings = run["settings"]
    flipped, clients = numbers("N of N clients have flipped labels")
    assert (clients, flipped) == (settings["clients"], settings["clients"] * settings["flip-share"])
    assert numbers("against a model that each trained alone for N steps") == [settings["solo.steps"]]
    assert numbers("join the first N of N rounds") == [settings["mandatory-rounds"], settings["rounds"]]
    assert numbers("under MaxFL N % stay") == [round(100 * run["willing"])]


def test_the_readmes_defaults() -> None:
    share, *ends = joined("fmnist", "MaxFL")
    assert f"**{share} % of the clients join of their own accord**" in README
    assert numbers("95 % interval: N to N). The first") == ends
    assert joined("fmnist", "FedAvg") == joined("fmnist", "MaxFL"), "FedAvg keeps as many"
    assert numbers("The first N rounds, on average") == [round(mean("fmnist", "MaxFL", "asked"))]
    sent, used = numbers("accuracy from N to N %")
    assert sent == pytest.approx(mean("fmnist", "MaxFL", "score"), abs=0.0501)
    assert used == pytest.approx(mean("fmnist", "MaxFL", "used"), abs=0.0501)
    assert tuple(numbers("as it is sent, N % join (N to N)")) == joined("fmnist", AS_SENT)
    assert tuple(numbers("by training loss, N % (N to N; both under FedAvg)")) == joined("fmnist", BY_TRAINING)
    assert numbers("at least as good for N % of the clients") == [round(mean("fmnist", "MaxFL", "served"))]
    assert numbers("MaxFL keeps N % and FedAvg N %.") == [
        round(mean("debian", arm, "willing")) for arm in ("MaxFL", "FedAvg")
    ]


def test_the_readmes_opponent_has_fewer_steps() -> None:
    assert RunConfig().adaptation_steps == 5, "the README says five"
    (alone,), (together,) = numbers("alone for only N steps"), numbers("it trains for up to N")
    (rounds,) = {run["settings"]["rounds"] for run in RUNS if run["table"] == "fmnist"}
    assert alone == Solo.Settings().steps
    assert together == rounds * RunConfig().local_steps


# -- the benchmark -------------------------------------------------------------------------------------


def lives(strategy: str, goodwill: int) -> int:
    """Runs of 20 with flipped labels in which at least 20 % of the clients join at the end."""
    (row,) = (row for row in BENCH_ROWS if row["name"] == f"fmnist, appeal {goodwill}, {strategy}")
    assert len(row["ours"]["kept"]) == 20
    return sum(share >= 20 for share in row["ours"]["kept"])


def needed(strategy: str) -> float:
    """The least goodwill with which half of the runs live."""
    return min((goodwill for goodwill in (0, 10, 15, 25) if lives(strategy, goodwill) >= 10), default=math.inf)


def test_the_benchmarks_flipped_labels() -> None:
    few, more = numbers("half of the runs survive with N mandatory rounds under MaxFL and FedAdam; FedAvg needs N")
    assert (needed("maxfl"), needed("fedadam"), needed("fedavg"), needed("scaffold")) == (few, few, more, more)
    living = "with 15 mandatory rounds 17 of MaxFL's 20 runs live, 14 of FedAdam's, 7 of FedAvg's and 2 of SCAFFOLD's"
    assert living in BENCH
    assert [lives(name, 15) for name in ("maxfl", "fedadam", "fedavg", "scaffold")] == [17, 14, 7, 2]
    assert "With 25, 19 of FedAvg's runs live and 12 of SCAFFOLD's; with q-FFL and ADA-GD no run lives" in BENCH
    assert [lives(name, 25) for name in ("fedavg", "scaffold", "qfedavg", "adagd")] == [19, 12, 0, 0]


def measured(name: str, key: str) -> list[float]:
    """A measure of a row's runs that tell it."""
    (row,) = (row for row in BENCH_ROWS if row["name"] == name)
    return [value for value in row["ours"][key] if value is not None]


def living(task: str, goodwill: int) -> set[str]:
    """The strategies of which half of the runs live."""
    strategies = {row["name"].split(", ")[2] for row in BENCH_ROWS}
    of = {name: measured(f"{task}, appeal {goodwill}, {name}", "kept") for name in strategies}
    runs = len(BENCH_ROWS[0]["seeds"])
    return {name for name, kept in of.items() if sum(share >= 20 for share in kept) >= runs / 2}


def test_the_benchmarks_other_tasks() -> None:
    assert "two mandatory rounds are enough on `chem97`, eight on `digits`, for FedAvg and most others" in BENCH
    for task, goodwill in (("chem97", 2), ("digits", 8)):
        assert "fedavg" in living(task, goodwill)
        assert len(living(task, goodwill)) > 5, "of ten"
    assert "On `digits` FedALIGN needs ten, almost no run of q-FFL lives with 14" in BENCH
    assert "fedalign" in living("digits", 10) - living("digits", 8)
    assert 0 < sum(share >= 20 for share in measured("digits, appeal 14, qfedavg", "kept")) <= 3
    assert "15 of 20 runs of ADA-GD, here with one gradient a round, end in a mandatory round" in BENCH
    assert len(measured("digits, appeal 14, adagd", "kept")) == 20 - 15, "those do not tell"


def test_the_benchmarks_accuracies() -> None:
    text = re.search(
        r"alone reach (\S+) % accuracy, FedAvg with half of the schools (\S+) %, with all (\S+) %", BENCH
    )
    assert text
    row = "chem97, {}, fedavg".format
    alone = fmean(measured(row("alone 6"), "score")) + fmean(measured(row("alone 6"), "regret"))
    shared = [fmean(measured(row(behaviour), "score")) for behaviour in ("appeal 6", "everyone 6")]
    assert [float(number) for number in text.groups()] == pytest.approx([alone, *shared], abs=0.0501)
    assert fmean(measured(row("appeal 6"), "kept")) == pytest.approx(50, abs=1.5), "half of the schools"

    raised = re.search(
        r"on `digits` FedAdam and SCAFFOLD raise the worst decile from (\d+) to (\d+) %; SCAFFOLD", BENCH
    )
    assert raised
    worst, sent = (
        {name: fmean(measured(f"digits, appeal 14, {name}", key)) for name in ("fedavg", "fedadam", "scaffold")}
        for key in ("worst", "megabytes")
    )
    low, high = map(int, raised.groups())
    assert round(worst["fedavg"]) == low
    assert {round(worst["fedadam"]), round(worst["scaffold"])} == {high}
    assert sent["scaffold"] / sent["fedavg"] == pytest.approx(2, abs=0.1), "twice the bytes"
    assert "With flipped labels it stays below 5 %." in BENCH
    flipped = [row["name"] for row in BENCH_ROWS if row["name"].startswith("fmnist, appeal 25, ")]
    assert max(fmean(measured(name, "worst")) for name in flipped) < 5

    assert "under `coalition` about a fifth stays with most strategies, a tenth with FedAdam" in BENCH
    names = [row["name"] for row in BENCH_ROWS if row["name"].startswith("chem97, coalition 6, ")]
    stays = {name.split(", ")[2]: fmean(measured(name, "stayed")) for name in names}
    assert round(stays["fedadam"]) == 10
    assert sum(19 <= share <= 21 for share in stays.values()) > len(stays) / 2


def test_adagds_local_form() -> None:
    page = " ".join((DOCS / "adagd.md").read_text().split())
    text = re.search(
        r"the local form reaches (\S+) % accuracy, under MaxFL's weights (\S+), with one gradient a round (\S+), "
        r"and MaxFL (\S+)\. .* with epsilon = 0.05, (\S+) of the 30 left on average",
        page,
    )
    assert text
    runs = {name: row["seeds"] for name, row in json.loads((DOCS / "local-form.json").read_text())["rows"].items()}
    assert all(list(of_seed) == ["21", "22", "23", "24", "25"] for of_seed in runs.values())
    *accuracies, left = map(float, text.groups())
    *reached, _ = [100 * fmean(run["accuracy"] for run in of_seed.values()) for of_seed in runs.values()]
    assert accuracies == pytest.approx(reached, abs=0.0501)
    with_more = runs.pop("local, epsilon 0.05")
    assert left == pytest.approx(fmean(run["left"] for run in with_more.values()), abs=0.0501)
    assert "In these runs no client left;" in page
    assert not any(run["left"] for of_seed in runs.values() for run in of_seed.values())


def test_influence_has_the_worst_measured_attack_of_each_row() -> None:
    page, tables = (DOCS / "influence.md").read_text(), json.loads((DOCS / "influence.json").read_text())["tables"]
    for name, table in tables.items():
        expected = []
        for row in table:
            attacks = {title: lost for title, lost in row["attacks"].items() if not title.endswith("off")}
            tried = {title: lost["mean"] for title, lost in attacks.items() if lost["seeds"] == row["seeds"]}
            worst = max(tried, key=lambda title: tried[title])
            lost = f"{tried[worst]:.1f} ({attacks[worst]['most']:.1f})"
            honest = f"{row['honest']:.1f}" if "honest" in row else "-"
            expected.append([f"`{row['strategy']}`", str(len(row["seeds"])), worst, lost, honest])
        assert list(rows(f"{name}:", page)) == expected


def test_what_the_superlinks_own_parts_give_is_the_median_of_the_committed_pairs() -> None:
    runs = json.loads((DOCS / "superlink.json").read_text())["runs"]
    keys = ("without", "one-by-one", "clients", "database", "repetition")
    used = {tuple(run[key] for key in keys): run["superlink"] + run["serverapp"] for run in runs}

    def ratio(part: str, clients: int) -> str:
        apart = part == "traffic added up"  # with more to add up
        pairs = [seconds / used["", *key[1:]] for key, seconds in used.items() if key[:3] == (part, apart, clients)]
        return f"{median(pairs):.2f}" if pairs else ""

    table = list(rows("without |", (DOCS / "benchmarks.md").read_text()))
    assert table == [[part, *(ratio(part, clients) for clients in (5, 50, 200))] for part, *_ in table]
    assert len(table) == 8
