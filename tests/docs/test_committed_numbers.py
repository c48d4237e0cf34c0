"""README.md, docs/staying.md, docs/adagd.md and others: the printed numbers are those of the committed runs."""

import json
import math
import re
from collections.abc import Iterator
from statistics import fmean, median
from typing import Any

import pytest
from scipy import stats

from fedappeal.core.requirement import LOOKS
from fedappeal.settings.config import RunConfig
from fedappeal.studies.plan import slug
from tests.docs.pages import DOCS, ROOT, numbers_in, text_of
from tests.docs.speed_tables import aims, evaluation_rows, simulation_rows
from tests.docs.staying_table import TASKS, joined, runs_of, staying_rows

README = text_of(ROOT / "README.md")
STAYING = (DOCS / "staying.md").read_text()
SPEED = (DOCS / "benchmarks.md").read_text()
STAYING_TEXT = text_of(DOCS / "staying.md")
BENCH_ROWS: list[dict[str, Any]] = json.loads((DOCS / "bench-results" / "results.json").read_text())["rows"]


def values(table: str, arm: str, key: str) -> list[float]:
    """A measure of an arm's runs, by seed; shares in per cent."""
    runs = runs_of(table, arm)
    assert runs, (table, arm)
    return [run[key] if key == "asked" else 100 * run[key] for run in runs]


def mean(table: str, arm: str, key: str) -> float:
    return fmean(values(table, arm, key))


def rows(first: str, page: str = STAYING) -> Iterator[list[str]]:
    """The cells of the rows of a page's table that begins with this heading."""
    begins = re.search(rf"^\| ?{re.escape(first)}", page, re.MULTILINE)
    assert begins, first
    table = page[begins.start() :].split("\n\n")[0]
    for line in table.splitlines()[2:]:
        yield [cell.strip() for cell in line.strip("|").split("|")]


def test_who_joins_is_the_committed_runs_table() -> None:
    """The table is made by ``python -m tests.docs.staying_table``."""
    expected = list(staying_rows())
    assert STAYING[STAYING.index(expected[0]) :].split("\n\n")[0].splitlines() == expected


def test_the_tables_shares_are_means_over_seeds() -> None:
    """By hand: of one arm, the committed lines alone."""
    lines = [line for line in (DOCS / "staying.jsonl").read_text().splitlines() if '"debian-opponents", ' in line]
    best = [json.loads(line) for line in lines if '"maxfl-best-equal-steps"' in line]
    (row,) = (line for line in STAYING.splitlines() if line.startswith("|Debian, 20|MaxFL|best|"))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[5].split()[0] == str(round(10 * sum(run["willing"] for run in best)))
    assert cells[6:8] == [str(round(10 * sum(run[key] for run in best))) for key in ("served", "below")]


def test_who_stays_where_the_strategy_decides() -> None:
    for arm, stayed, lost in rows("strategy, judged by, goodwill"):
        assert stayed == joined(runs_of("scarce goodwill", arm))
        assert int(lost) == sum(share < 20 for share in values("scarce goodwill", arm, "willing"))


def difference(one: str, other: str) -> tuple[int, int, int]:
    """MaxFL's lead by training loss over the same seeds: mean and 95 % interval."""
    arms = (f"{strategy}, training loss, 20 rounds of goodwill" for strategy in (one, other))
    of = [a - b for a, b in zip(*(values("scarce goodwill", arm, "willing") for arm in arms), strict=True)]
    low, high = stats.t.interval(0.95, len(of) - 1, fmean(of), stats.sem(of))
    return round(fmean(of)), round(low), round(high)


def test_differences_in_the_text() -> None:
    lead = numbers_in(STAYING_TEXT, "MaxFL keeps N points more than FedAvg (95 % interval: N to N)")
    small = numbers_in(STAYING_TEXT, "It keeps N more than FedAdam, but the interval (N to N) includes 0")
    assert tuple(lead) == difference("MaxFL", "FedAvg")
    assert tuple(small) == difference("MaxFL", "FedAdam")


def opponents(arm: str, key: str, tasks: tuple[str, ...] = tuple(TASKS)) -> list[int]:
    return [round(mean(f"{task}, opponents", arm, key)) for task in tasks]


def test_the_text_beside_the_table() -> None:
    sent = numbers_in(STAYING_TEXT, "on digits the shared model loses by `use = best` (as sent N to N %)")
    arms = (f"maxfl, {use}, equal steps" for use in ("own steps", "best"))
    assert sent == pytest.approx([mean("digits, opponents", arm, "score") for arm in arms], abs=0.0501)
    whole = numbers_in(STAYING_TEXT, "(`judge-on = held-out`) MaxFL keeps N, N, N, N and N % against 100 steps")
    assert whole == opponents("maxfl, own steps, not cross-fitted, 100 steps", "willing")
    by_training = numbers_in(STAYING_TEXT, "By training loss, the papers' way, FedAvg keeps N, N, N, N and N %")
    assert by_training == opponents("fedavg, as sent, by training loss, 100 steps", "willing")
    assert "ahead of both comes from sharing: *below* on every task, *served* least on MovieLens" in STAYING_TEXT
    uses = ("best", "best, nothing shared", "best, nothing shared, all train")
    below, served = (
        [[mean(f"{task}, opponents", f"maxfl, {use}, equal steps", key) for use in uses] for task in TASKS]
        for key in ("below", "served")
    )
    assert all(best > max(controls) for best, *controls in below)
    ahead = dict(zip(TASKS, (best - max(controls) for best, *controls in served), strict=True))
    assert min(ahead, key=lambda task: ahead[task]) == "movielens"
    assert f"the lowest of {LOOKS + 1} looks" in STAYING_TEXT
    assert f"held-out loss {LOOKS} times on the way" in STAYING_TEXT
    assert numbers_in(STAYING_TEXT, "here N (`solo.effort = equal`)") == [60 * RunConfig().local_steps]


# -- the README ----------------------------------------------------------------------------------------


def test_the_readmes_scarce_setting() -> None:
    maxfl, fedavg, *lead = numbers_in(
        README, "MaxFL keeps N % of the clients and FedAvg N %: N points more (95 % interval: N to N)"
    )
    arm = "{}, training loss, 20 rounds of goodwill"
    for printed, strategy in ((maxfl, "MaxFL"), (fedavg, "FedAvg")):
        assert printed == pytest.approx(mean("scarce goodwill", arm.format(strategy), "willing"), abs=0.0501)
    assert tuple(lead) == difference("MaxFL", "FedAvg")
    (run,) = (run for run in runs_of("scarce goodwill", arm.format("MaxFL")) if run["settings"]["seed"] == 23)
    settings = run["settings"]
    flipped, clients = numbers_in(README, "N of N clients have flipped labels")
    assert (clients, flipped) == (settings["clients"], settings["clients"] * settings["flip-share"])
    assert numbers_in(README, "against a model that each trained alone for N steps") == [settings["solo.steps"]]
    assert numbers_in(README, "join the first N of N rounds") == [settings["mandatory-rounds"], settings["rounds"]]
    assert numbers_in(README, "under MaxFL N % stay") == [round(100 * run["willing"])]


def test_the_readmes_equal_effort() -> None:
    own = "fmnist, opponents", "maxfl, own steps, equal steps"
    assert RunConfig().adaptation_steps == 5, "the README says five"
    share, *ends = map(int, re.findall(r"\d+", joined(runs_of(*own))))
    assert f"**{share} % of the clients join of their own accord**" in README
    assert numbers_in(README, "95 % interval: N to N). The first") == ends
    assert numbers_in(README, "alone for the N steps") == [60 * RunConfig().local_steps]
    assert {run["settings"]["rounds"] for run in runs_of(*own)} == {60}
    assert numbers_in(README, "The first N rounds, on average") == [round(mean(*own, "asked"))]
    measured = [mean(*own, key) for key in ("score", "used")]
    assert numbers_in(README, "accuracy from N to N %") == pytest.approx(measured, abs=0.0501)
    assert numbers_in(README, "at least as good for N % of the clients") == [round(mean(*own, "served"))]
    other = "fmnist, opponents", "fedavg, own steps, equal steps"
    assert numbers_in(README, "FedAvg keeps N %; here the choice") == [round(mean(*other, "willing"))]
    both = [values(*arm, "willing") for arm in (own, other)]
    assert stats.ttest_rel(*both).pvalue > 0.05, "here the choice of strategy makes no difference"
    (sent, *ends) = map(int, re.findall(r"\d+", joined(runs_of(own[0], "maxfl, as sent, equal steps"))))
    assert numbers_in(README, "as it is sent, N % join (N to N)") == [sent, *ends]
    firsts = [of_seeds[0] for of_seeds in both]
    assert numbers_in(README, "seed N: most join on request at first") == [21]
    assert numbers_in(README, "N % stay under MaxFL, N % under FedAvg") == [*map(round, firsts)]
    kept = [opponents(f"maxfl, {use}, equal steps", "willing", ("debian",))[0] for use in ("own steps", "best")]
    assert numbers_in(README, "MaxFL keeps N %, and N % where clients use the best") == kept


# -- the benchmark -------------------------------------------------------------------------------------


def lives(strategy: str, goodwill: int) -> int:
    """Runs of 20 with flipped labels in which at least 20 % of the clients join at the end."""
    (row,) = (row for row in BENCH_ROWS if row["name"] == f"fmnist-appeal-{goodwill}-{strategy}")
    assert len(row["ours"]["kept"]) == 20
    return sum(share >= 20 for share in row["ours"]["kept"])


def needed(strategy: str) -> float:
    """The least goodwill with which half of the runs live."""
    return min((goodwill for goodwill in (0, 10, 15, 25) if lives(strategy, goodwill) >= 10), default=math.inf)


def test_the_readmes_flipped_labels() -> None:
    few, more = numbers_in(
        README, "half of the runs survive with N mandatory rounds under MaxFL and FedAdam; FedAvg needs N"
    )
    assert (needed("maxfl"), needed("fedadam"), needed("fedavg"), needed("scaffold")) == (few, few, more, more)


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
    with_more = runs.pop("local-epsilon-0.05")
    assert left == pytest.approx(fmean(run["left"] for run in with_more.values()), abs=0.0501)
    assert "In these runs no client left;" in page
    assert not any(run["left"] for of_seed in runs.values() for run in of_seed.values())


def test_adagds_local_form_on_chem97() -> None:
    rows = json.loads((DOCS / "local-form.json").read_text())["chem97"]["rows"]
    sentence = "reaches N %, under MaxFL's weights N, one gradient a round N, and MaxFL N; five seeds"
    of_seeds = [[100 * run["accuracy"] for run in row["seeds"].values()] for row in rows.values()]
    assert numbers_in(text_of(DOCS / "adagd.md"), sentence) == pytest.approx([*map(fmean, of_seeds)], abs=0.0501)
    for other in of_seeds[1:]:
        assert stats.ttest_rel(of_seeds[0], other).pvalue > 0.05, "five seeds do not tell them apart"


def test_influence_has_the_worst_measured_attack_of_each_row() -> None:
    page, tables = (DOCS / "influence.md").read_text(), json.loads((DOCS / "influence.json").read_text())["tables"]
    for name, table in tables.items():
        expected = []
        for row in table:
            attacks = {title: lost for title, lost in row["attacks"].items() if not title.endswith("-off")}
            tried = {title: lost["mean"] for title, lost in attacks.items() if lost["seeds"] == row["seeds"]}
            worst = max(tried, key=lambda title: tried[title])
            lost = f"{tried[worst]:.1f} ({attacks[worst]['most']:.1f})"
            honest = f"{row['honest']:.1f}" if "honest" in row else "-"
            expected.append([f"`{row['strategy']}`", str(len(row["seeds"])), worst, lost, honest])
        shown = [[*cells[:2], slug(cells[2]), *cells[3:]] for cells in rows(f"{name}:", page)]
        assert shown == expected


def test_speed_is_the_committed_figures() -> None:
    """The tables are made by ``python -m tests.docs.speed_tables``."""
    for expected in (simulation_rows(), evaluation_rows()):
        assert SPEED[SPEED.index(expected[0]) :].split("\n\n")[0].splitlines() == expected


def test_aims_of_speed_say_what_was_reached_and_why_others_were_not() -> None:
    assert [cells[:3] for cells in rows("aim |", SPEED)] == [list(aim[:3]) for aim in aims()]
    for (*_, why), (*_, reached) in zip(rows("aim |", SPEED), aims(), strict=True):
        assert bool(why) is not reached, why


def test_a_ratio_of_speed_is_the_median_of_the_repetitions() -> None:
    """By hand, of the first row's reference."""
    runs = json.loads((DOCS / "benchmarks.json").read_text())["rows"]["simulation/mlp"]
    plain = median(a["s"] / b["s"] for a, b in zip(runs["plain-loop"], runs["batched"], strict=True))
    (row,) = (
        line for line in SPEED.splitlines() if line.startswith("| plain PyTorch loop | ") and "(1.00)" not in line
    )
    assert f"({plain:.2f})" in row.split(" | ")[1]


def test_the_times_of_flowers_runtime_are_the_medians_of_their_pairs() -> None:
    pairs = json.loads((DOCS / "benchmarks.json").read_text())["Flower"]
    one, other = (f"{median(pairs[row]):.2f}" for row in ("simulation/mlp", "simulation/mlp-evaluated"))
    assert f"Flower's runtime on both cores took {one} and {other} times our time" in SPEED


def test_what_the_superlinks_own_parts_give_is_the_median_of_the_committed_pairs() -> None:
    runs = json.loads((DOCS / "superlink.json").read_text())["runs"]
    keys = ("without", "one-by-one", "clients", "database", "repetition")
    used = {tuple(run[key] for key in keys): run["superlink"] + run["serverapp"] for run in runs}

    def ratio(part: str, clients: int) -> str:
        of = (slug(part), False, clients)
        pairs = [seconds / used["", *key[1:]] for key, seconds in used.items() if key[:3] == of]
        return f"{median(pairs):.2f}" if pairs else ""

    table = list(rows("without |", SPEED))
    assert table == [[part, *(ratio(part, clients) for clients in (5, 50, 200))] for part, *_ in table]
    assert len(table) == 3

    whole, without = (
        median(run["MiB"] for run in runs if tuple(run[key] for key in keys[:4]) == (of, False, 5, False))
        for of in ("", "superexec-as-a-thread")
    )
    assert numbers_in(text_of(DOCS / "benchmarks.md"), "SuperExec as a thread saves N MiB") == [without - whole]
