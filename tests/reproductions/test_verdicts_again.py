"""All committed verdicts, found again by a second program that shares no code with the first.

It reads the JSON alone: margins from the rows, p by special functions, enumeration and binomials, Holm by a loop.
"""

import itertools
import json
import math
import re
from functools import cache
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import ndtr, stdtr, stdtrit
from scipy.stats import chi2, shapiro

from fedappeal.reproductions import load_experiment

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted((DOCS / "reproductions").glob("*.json"))
BENCH = DOCS / "bench-results" / "results.json"


def number(rows: dict[str, Any], side: list[str], seed: int) -> float | None:
    row = rows[side[0]]
    if seed not in row["seeds"]:
        return None
    value = row["ours"][side[1]][row["seeds"].index(seed)]
    return None if value is None else float(value)


def margins_of(rows: dict[str, Any], contrast: dict[str, Any]) -> dict[int, float]:
    margins = {}
    bound = contrast["other"] if not isinstance(contrast["other"], list) else None
    for seed in rows[contrast["one"][0]]["seeds"]:
        one = number(rows, contrast["one"], seed)
        other = bound if bound is not None else number(rows, contrast["other"], seed)
        if one is None or other is None:
            continue
        if contrast["event"] is not None:
            one, other = float(one >= contrast["event"]), float(other >= contrast["event"])
        margins[seed] = contrast["sign"] * (one - other)
    return margins


def sides_of(rows: dict[str, Any], verdict: dict[str, Any]) -> dict[int, float]:
    """Of each seed that all rows have, on which side the number of levels is at which it lives."""
    task, _, strategy = verdict["key"].partition("-ignition-")
    lived: dict[str, dict[int, int]] = {}
    for name in (strategy, "fedavg"):
        curve = [row for row in rows.values() if re.fullmatch(rf"{task}-appeal-\d+-{re.escape(name)}", row["name"])]
        assert len(curve) == 4
        shared = set.intersection(*(set(row["seeds"]) for row in curve))
        lived[name] = {seed: sum(number(rows, [row["name"], "kept"], seed) >= 20 for row in curve) for seed in shared}
    pairs = {seed: lived[strategy][seed] - lived["fedavg"][seed] for seed in lived[strategy].keys() & lived["fedavg"]}
    return {seed: float((gap > 0) - (gap < 0)) for seed, gap in pairs.items()}


def papers_margin(rows: dict[str, Any], contrast: dict[str, Any]) -> float | None:
    sides = [contrast["one"], contrast["other"]]
    if contrast["event"] is not None:
        return None
    values = []
    for side in sides:
        if not isinstance(side, list):
            values.append(float(side))
            continue
        printed = rows[side[0]]["paper"].get(side[1].removesuffix("-late"))
        if printed is None:
            return None
        values.append(printed[0] if isinstance(printed, list) else printed)
    return float(contrast["sign"] * (values[0] - values[1]))


def binomial_p(ahead: int, behind: int) -> float:
    n, fewer = ahead + behind, min(ahead, behind)
    return min(1.0, 2 * sum(math.comb(n, k) for k in range(fewer + 1)) / 2**n)


def flips_p(margins: list[float]) -> float:
    sums = [
        sum(s * m for s, m in zip(signs, margins, strict=True))
        for signs in itertools.product((1, -1), repeat=len(margins))
    ]
    reached = sum(margins)
    least = min(sum(s <= reached + 1e-9 for s in sums), sum(s >= reached - 1e-9 for s in sums))
    return min(1.0, 2 * least / len(sums))


@cache
def errors(degrees: int) -> NDArray[np.float64]:
    """Quantiles of an estimated standard deviation over the true one."""
    return np.asarray(np.sqrt(chi2.ppf((np.arange(20_000) + 0.5) / 20_000, degrees) / degrees))


def check_needed(verdict: dict[str, Any], margins: list[float], level: float) -> None:
    """The number of seeds is enough, and one fewer is not; of 100 or fewer none is where there is no number."""

    def missing(n: int) -> float:
        if verdict["test"] == "McNemar":
            pair = [round(margins.count(side) * n / len(margins)) for side in (1, -1)]
            return binomial_p(*pair) - level
        critical, shift = stdtrit(n - 1, 1 - level / 2), abs(fmean(margins)) / stdev(margins) * math.sqrt(n)
        power = float(ndtr(shift - critical * errors(n - 1)).mean())
        return max(0.8 - power, 0.0 if verdict["test"] == "t" else 2.0 ** (1 - n) - level)

    if verdict["needs"] is None:
        assert missing(100) > -1e-5
    else:
        assert missing(verdict["needs"]) <= 1e-5
        assert verdict["needs"] == 2 or missing(verdict["needs"] - 1) > -1e-5


def word_of(verdict: dict[str, Any], margins: list[float], adjusted: float | None) -> str:
    if verdict["unmeasured"] or len(margins) < 2:
        return "undecided"
    mean, paper = fmean(margins), verdict["paper"]
    if adjusted is None:
        holds = mean > 0 or (verdict["inclusive"] and mean > -1e-9)
        fails = not holds
    else:
        holds, fails = adjusted <= 0.05 and mean > 0, adjusted <= 0.05 and mean < 0
    if holds:
        return (
            "same direction, smaller"
            if paper is not None and verdict["high"] is not None and verdict["high"] < paper
            else "reproduced"
        )
    small = paper is not None and paper > 0 and verdict["high"] is not None and verdict["high"] < paper / 2
    return "not reproduced" if fails or small else "undecided"


@pytest.mark.parametrize("path", [*PAGES, BENCH], ids=lambda path: path.stem)
def test_the_verdicts_follow_from_the_rows(path: Path) -> None:
    whole = json.loads(path.read_text())
    rows = {row["name"]: row for row in whole["rows"]}
    tested: dict[str, list[tuple[float, int]]] = {}
    for place, verdict in enumerate(whole["verdicts"]):
        if verdict["p"] is not None:
            tested.setdefault(verdict["group"] if path == BENCH else "", []).append((verdict["p"], place))
    holm: dict[int, tuple[float, int]] = {}
    for family in tested.values():
        largest = 0.0
        for rank, (p, place) in enumerate(sorted(family)):
            largest = max(largest, min(1.0, (len(family) - rank) * p))
            holm[place] = (largest, len(family))
    claims = path == BENCH or load_experiment(path.stem).claims  # figure 8 has none
    assert bool(whole["verdicts"]) == bool(claims), "there is nothing to check"
    for place, verdict in enumerate(whole["verdicts"]):
        margins = {int(seed): value for seed, value in verdict["margins"].items()}
        if verdict["contrast"]:
            assert margins == pytest.approx(margins_of(rows, verdict["contrast"]), abs=1e-9)
            assert verdict["paper"] == pytest.approx(papers_margin(rows, verdict["contrast"]))
        if verdict["group"].endswith(", ignition"):
            assert margins == sides_of(rows, verdict)
        values = list(margins.values())
        check_numbers(verdict, values)
        adjusted, family_size = holm.get(place, (None, 1))
        assert verdict["adjusted"] == pytest.approx(adjusted)
        assert verdict["word"] == word_of(verdict, values, verdict["adjusted"]), verdict["claim"]
        if verdict["word"] == "undecided" and verdict["p"] is not None:
            check_needed(verdict, values, 0.05 / family_size)


def check_numbers(verdict: dict[str, Any], margins: list[float]) -> None:
    """Test and interval: of the bootstrap only that it lies around the mean, within the margins."""
    if not margins:
        assert verdict["mean"] is None
        return
    assert verdict["mean"] == pytest.approx(fmean(margins), abs=1e-9)
    if verdict["test"] == "McNemar":
        assert verdict["p"] == pytest.approx(binomial_p(margins.count(1), margins.count(-1)))
    elif max(margins) - min(margins) < 1e-9:
        assert (verdict["test"], verdict["p"]) == ("", None)
    elif len(margins) < 3 or shapiro(margins).pvalue >= 0.05:
        error, degrees = stdev(margins) / math.sqrt(len(margins)), len(margins) - 1
        half = stdtrit(degrees, 0.975) * error
        assert verdict["test"] == "t"
        assert [verdict["low"], verdict["high"]] == pytest.approx([fmean(margins) - half, fmean(margins) + half])
        assert verdict["p"] == pytest.approx(2 * stdtr(degrees, -abs(fmean(margins)) / error), rel=1e-6)
    else:
        assert verdict["test"] == "sign flips"
        if len(margins) <= 16:  # beyond, flips are drawn
            assert verdict["p"] == pytest.approx(flips_p(margins))
        assert min(margins) <= verdict["low"] <= fmean(margins) <= verdict["high"] <= max(margins)


FLOORS = {"random-25": 25, "random-50": 50, "random-75": 75, "everyone": 100}


def at_random(whole: dict[str, Any], task: str, joined: float) -> float:
    """Accuracy between the two floors around a share that joined, on the line through them."""
    of = {row["name"]: fmean(row["ours"]["score"]) for row in whole["rows"] if row["name"].startswith(task)}
    floors = {name: next(key for key in of if f"-{name}-" in key) for name in FLOORS}
    points = [(share, of[floors[name]]) for name, share in FLOORS.items()]
    ((x0, y0), (x1, y1)) = next(pair for pair in itertools.pairwise(points) if pair[0][0] <= joined <= pair[1][0])
    return y0 + (y1 - y0) * (joined - x0) / (x1 - x0)


def cell_of(values: list[float | None], digits: int, word: str) -> str:
    numbers = [value for value in values if value is not None]
    some = f" ({len(numbers)} of {len(values)})" if len(numbers) < len(values) else ""
    side = {"reproduced": " ahead", "not reproduced": " behind"}.get(word, "")
    return f"{fmean(numbers):.{digits}f}±{stdev(numbers):.{digits}f}{some}{side}"


def test_the_page_of_measures_follows_from_the_rows() -> None:
    whole = json.loads(BENCH.read_text())
    rows = {row["name"]: row["ours"] for row in whole["rows"]}
    # A strategy that is FedAvg's equal in every seed is neither ahead nor behind.
    words = {(v["group"], v["claim"].split()[0]): v["word"] for v in whole["verdicts"] if any(v["margins"].values())}
    checked = 0
    page = (BENCH.parent / "measures.md").read_text()
    for task, goodwill, lines in re.findall(r"^(\w+), goodwill (\d+):\n\n.*\n.*\n((?:\|.*\n)+)", page, re.MULTILINE):
        for line in lines.splitlines():
            name, *cells = (cell.strip() for cell in line.strip("|").split("|"))
            behaviour = name.strip("()") if name.startswith("(") else "appeal"
            ours = rows[f"{task}-{behaviour}-{goodwill}-{'fedavg' if behaviour != 'appeal' else name}"]
            numbers = [ours["kept"], ours["score"], ours["regret"], ours["worst"], ours["megabytes"]]
            if behaviour == "alone":
                numbers[1] = [shared + lost for shared, lost in zip(ours["score"], ours["regret"], strict=True)]
            keys = ("kept", "score", "regret", "worst", "megabytes")
            expected = [
                cell_of(values, digits, words.get((f"{task}, {key}", name), ""))
                for key, values, digits in zip(keys, numbers, (0, 1, 1, 1, 1), strict=True)
            ]
            if behaviour == "alone":
                expected[2:4] = ["-", "-"]
            bounded = behaviour == "appeal" and None not in ours["kept"] and fmean(ours["kept"]) >= 25
            expected.append(f"{at_random(whole, task, fmean(ours['kept'])):.1f}" if bounded else "-")
            assert cells == expected, (task, name)
            checked += 1
    assert checked == 3 * 12
