"""Reports of run folders written by hand: their numbers, where files lie, what of others is escaped."""

import base64
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedappeal.record.decisions import pack_decisions
from fedappeal.record.folder import RunFolder
from fedappeal.record.lines import CONFIG, EVENTS, MEASUREMENTS, PARTICIPATION, REQUIREMENTS
from fedappeal.settings.config import ConfigError
from fedappeal.views.report.charts import AS_SENT, NOT_TOLD, PLOTLY, RELEASE, Chart
from fedappeal.views.report.report import ReportOptions, Section, linked_script, page, write_report
from tests.views.comparison.recorded import a_run, a_sweep

HOSTILE = "</script><img src=x onerror=alert(1)>{{SCRIPT}}&\u2028"


class Texts(HTMLParser):
    """The page's sentences and cells, the charts' data, and each element that loads or runs something."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.text, self.figures, self.loads = "", "", list[str]()
        self.open: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append((tag, dict(attrs)))
        self.loads += [f"{tag} {name}" for name, _ in attrs if name.startswith("on")]
        self.loads += [str(value) for name, value in attrs if name in ("src", "href")]

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.open.pop()[0] != tag:
            pass

    def handle_data(self, data: str) -> None:
        tag, attrs = self.open[-1] if self.open else ("", {})
        if attrs.get("id") == "figures":
            self.figures += data
        elif tag not in ("script", "style"):
            self.text += data


def read(path: Path) -> tuple[Texts, list[dict[str, Any]]]:
    found = Texts(path.read_text())
    figures: list[dict[str, Any]] = json.loads(found.figures)
    return found, figures


@pytest.fixture
def a_finished_run(tmp_path: Path) -> Path:
    lines = [
        {"gm_appeal": 0.0, "accuracy": 0.25, "loss": 2.0, "evaluated": 2, "expected": 2, "sat_out": 1},
        {"gm_appeal": 0.5, "accuracy": 0.75, "loss": 0.5, "evaluated": 2, "expected": 2, "sat_out": 1, "failed": 1},
    ]
    lines[1]["failures"] = {"anna": HOSTILE, "bert": "disk full"}  # type: ignore[assignment]
    path = a_run(tmp_path / "runs" / "one", lines, strategy="maxfl", clients=2)
    folder = RunFolder.open(path)
    folder.append(
        PARTICIPATION, pack_decisions(1, {"anna": "joined", "bert": "sat-out"}), pack_decisions(2, {"bert": "joined"})
    )
    measured = {"round": 2, "client-ids": ["anna", "bert"], "loss": [0.25, 0.75], "accuracy": [0.9, 0.6]}
    folder.append(MEASUREMENTS, {**measured, "appealed": [1, 0]})
    folder.append(REQUIREMENTS, {"client-id": "bert", "requirement": 0.5, "of": "loss"})
    folder.append(EVENTS, {"event": "finished", "round": 2, "reason": ""})
    return path


def test_what_came_out_of_a_run(a_finished_run: Path) -> None:
    file = write_report([a_finished_run])
    assert file == a_finished_run / "report.html"
    found, figures = read(file)
    assert (
        "maxfl on digits, seed 0, finished its 2 rounds. After round 2 the model has a GM-Appeal of 0.50 and a test "
        "accuracy of 75 % over 2 clients. Of 4 requests to train 2 were joined; 2 were declined, 1 failed, no client "
        "left."
    ) in found.text
    by_axis = {figure["layout"].get("yaxis", {}).get("title", {}).get("text", ""): figure for figure in figures}
    assert by_axis["GM-Appeal"]["data"][0]["y"] == [0.0, 0.5]
    assert by_axis["Test accuracy %"]["data"][0]["y"] == [25.0, 75.0]
    assert by_axis["Test loss"]["data"][0]["y"] == [2.0, 0.5]
    decided = {trace["name"]: trace["y"] for trace in by_axis["clients"]["data"]}
    assert decided == {"joined": [1.0, 1.0], "sat out": [1.0, 0.0]}
    clients = {trace["name"]: (trace["x"], trace["y"]) for trace in by_axis["test loss"]["data"]}
    assert clients == {
        "the model meets its requirement": (["anna"], [0.25]),
        "it does not": (["bert"], [0.75]),
        "required": (["bert"], [0.5]),
    }
    assert by_axis["MB a round"]["data"][0]["y"] == [0.5, 0.5]
    assert "in all 1.0 MB up, 2.0 MB down, 1.0 s." in found.text
    assert "learning-rate" in found.text


def test_the_share_of_clients_served_is_a_chart_where_a_run_has_it(tmp_path: Path) -> None:
    lines = [{"accuracy": 0.5}, {"accuracy": 0.6, "served": 0.25}, {"accuracy": 0.7, "served": 0.75}]
    _, figures = read(write_report([a_run(tmp_path / "run", lines, strategy="maxfl")]))
    shown = {figure["layout"].get("yaxis", {}).get("title", {}).get("text", ""): figure["data"] for figure in figures}
    served = shown["Served as well as alone, % of clients"][0]
    assert (served["x"], served["y"]) == ([2, 3], [25.0, 75.0])
    _, figures = read(write_report([a_run(tmp_path / "without", lines[:1], strategy="maxfl")]))
    assert "Served as well as alone" not in json.dumps(figures)


def test_what_is_required_of_the_metric_stands_beside_it(a_finished_run: Path) -> None:
    lines = {"client-id": "bert", "requirement": 0.8, "of": "metric"}
    (a_finished_run / REQUIREMENTS).write_text(json.dumps(lines) + "\n")
    _, figures = read(write_report([a_finished_run]))
    shown = [{trace["name"]: trace["y"] for trace in figure["data"] if trace.get("name")} for figure in figures]
    assert {"the model meets its requirement": [90.0], "it does not": [60.0], "required": [80.0]} in shown


@pytest.mark.parametrize("client", [[], {}, 5, None])
def test_a_requirement_of_no_client_is_one_line(a_finished_run: Path, client: object) -> None:
    RunFolder.open(a_finished_run).append(REQUIREMENTS, {"client-id": client, "requirement": 0.8})
    with pytest.raises(ConfigError, match=r"requirements.jsonl' cannot be read: line 2: client-id = "):
        write_report([a_finished_run])


def test_who_joined_when(a_finished_run: Path) -> None:
    _, figures = read(write_report([a_finished_run]))
    heat, *entries = next(figure["data"] for figure in figures if figure["data"][0]["type"] == "heatmap")
    assert heat["y"] == ["anna", "bert"]
    assert heat["x"] == ["1", "2"]
    assert [entry["name"] for entry in entries] == ["joined", "sat out"]
    assert heat["z"]["dtype"] == "f4"
    decided = np.frombuffer(base64.b64decode(heat["z"]["bdata"]), np.float32).reshape(2, 2)
    np.testing.assert_array_equal(decided, [[0.0, np.nan], [1.0, 0.0]])


def test_texts_of_others_stay_texts(a_finished_run: Path) -> None:
    file = write_report([a_finished_run])
    found, _ = read(file)
    assert "<img src=x onerror=alert(1)>{{SCRIPT}}&" in found.text  # as it is read, not as an element
    assert "\u2028" not in file.read_text()
    assert [load for load in found.loads if "alert" in load or load.startswith("img")] == []
    assert not re.search(r"https?:", file.read_text())


def test_no_tag_is_in_the_data() -> None:
    chart = Chart("title", "alt", {"data": [{"name": HOSTILE}]})
    text = page("title", [Section("section", charts=[chart])], linked_script("plotly.js"))
    data = re.findall(r'<script type="application/json" id="figures">(.*?)</script>', text, re.DOTALL)[0]
    assert json.loads(data) == [chart.figure]
    assert "<" not in data


def test_hostile_ids_do_not_leave_the_data(tmp_path: Path) -> None:
    path = a_run(tmp_path / "one", [{"accuracy": 0.5}], strategy="fedavg")
    lines = [{"round": 1, "client-id": HOSTILE, "decision": HOSTILE}]
    (path / PARTICIPATION).write_text("".join(json.dumps(line) + "\n" for line in lines))
    measured = {"round": 1, "client-ids": [HOSTILE], "loss": [1.0], "accuracy": [0.5], "appealed": [True]}
    (path / MEASUREMENTS).write_text(json.dumps(measured) + "\n")
    found, figures = read(write_report([path]))
    assert len([None for tag in re.findall("<script", (path / "report.html").read_text())]) == 3
    heat, entry = next(figure["data"] for figure in figures if figure["data"][0]["type"] == "heatmap")
    bars = [
        trace for figure in figures for trace in figure["data"] if "the model meets its requirement" in str(trace)
    ]
    # Plotly reads its texts as a small HTML, links included.
    for name in (heat["y"][0], entry["name"], bars[0]["x"][0]):
        assert name.startswith("&lt;/script&gt;")
    assert "onerror" in found.text


def test_the_script_lies_once_beside_the_runs(a_finished_run: Path) -> None:
    runs = a_finished_run.parent
    found, _ = read(write_report([a_finished_run]))
    script = next(runs.glob("plotly-*.min.js"))
    assert found.loads == [f"../{script.name}"]
    before = script.stat().st_mtime_ns
    write_report([a_finished_run])
    assert script.stat().st_mtime_ns == before
    script.write_text("damaged")
    write_report([a_finished_run])
    assert script.stat().st_size > 1_000_000


def test_the_scripts_release_is_the_one_that_its_first_line_says() -> None:
    assert f"plotly.js (cartesian - minified) v{RELEASE}\n" in PLOTLY.read_text(encoding="utf-8")[:200]


def test_a_single_file_loads_nothing(a_finished_run: Path, tmp_path: Path) -> None:
    file = write_report([a_finished_run], ReportOptions(tmp_path / "elsewhere" / "page.html", single_file=True))
    assert file.stat().st_size > 1_000_000
    assert read(file)[0].loads == []
    assert not list(tmp_path.rglob("plotly-*"))


def test_several_runs_are_compared(tmp_path: Path) -> None:
    sweep = a_sweep(tmp_path / "sweep", {"fedavg": [0.1, 0.2, 0.3], "maxfl": [0.3, 0.5, 0.7]})
    file = write_report([sweep])
    assert file == sweep / "report.html"
    found, figures = read(file)
    assert found.loads == [next(sweep.glob("plotly-*")).name]
    # differences 0.2, 0.3, 0.4: mean 0.3, s = 0.1, t(2) = 4.303, so 4.303 * 0.1 / sqrt(3) = 0.248
    assert "maxfl against fedavg: test accuracy % better (+30.0 [+5.2, +54.8], 3 seeds)" in found.text
    assert "20.0 [5.7, 51.0]" in found.text
    differences = figures[-1]["data"][0]
    assert (differences["x"], differences["y"]) == (pytest.approx([30.0]), ["maxfl: test accuracy %"])
    assert differences["error_x"]["array"] == pytest.approx([24.84], abs=0.01)
    turned, _ = read(write_report([sweep], ReportOptions(baseline="maxfl")))
    assert "test accuracy % worse (-30.0 [-54.8, -5.2], 3 seeds)" in turned.text


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([0.3], "test accuracy % +20.0 (one seed: no interval)"),
        ([0.3, 0.4], "test accuracy % undecided (+20.0, 2 seeds)"),
    ],
)
def test_without_a_spread_over_seeds_no_interval_is_shown(values: list[float], words: str, tmp_path: Path) -> None:
    sweep = a_sweep(tmp_path / "sweep", {"fedavg": [value - 0.2 for value in values], "maxfl": values})
    file = write_report([sweep])
    found, figures = read(file)
    assert f"maxfl against fedavg: {words}" in found.text
    assert "error_x" not in figures[-1]["data"][0]
    assert "maxfl: test accuracy % +20; maxfl: joined, % of those asked +0." in found.text


def test_a_band_of_a_share_ends_where_shares_do(tmp_path: Path) -> None:
    sweep = a_sweep(tmp_path / "sweep", {"fedavg": [0.1, 0.9]})
    _, figures = read(write_report([sweep]))
    low, high, mean = (trace["y"] for trace in figures[0]["data"])
    assert (low, high, mean) == (pytest.approx([0.2402093]), pytest.approx([99.7597907]), [50.0])


def test_the_page_of_10_000_rounds_is_small_and_has_every_spike(tmp_path: Path) -> None:
    lines = [{"loss": 1.0 + n % 2, "seconds": 1.0} for n in range(1, 10_001)]
    lines[4_321]["loss"], lines[7_000]["seconds"] = 50.0, 99.0
    file = write_report([a_run(tmp_path / "long", lines, strategy="fedavg")])
    _, figures = read(file)
    loss = next(f for f in figures if f["layout"].get("yaxis", {}).get("title", {}).get("text") == "Test loss")
    points = dict(zip(loss["data"][0]["x"], loss["data"][0]["y"], strict=True))
    assert (points[1], points[4_322], points[10_000]) == (2.0, 50.0, 1.0)
    assert all(points[number] == lines[number - 1]["loss"] for number in points)
    (seconds,) = (trace for figure in figures for trace in figure["data"] if trace.get("name") == "seconds")
    assert (max(seconds["y"]), seconds["x"][seconds["y"].index(99.0)]) == (99.0, 7_001)
    assert len(points) > 900
    assert all(len(trace["x"]) <= 1000 for figure in figures for trace in figure["data"])
    assert file.stat().st_size < 1_000_000


def test_each_clients_model_and_requirement_stand_in_a_table(a_finished_run: Path) -> None:
    text = write_report([a_finished_run]).read_text()
    assert "<td>60</td><td>0.75</td><td>no</td><td>loss 0.5</td>" in text
    assert "<td>90</td><td>0.25</td><td>yes</td><td>not told</td>" in text
    assert NOT_TOLD not in text
    (a_finished_run / REQUIREMENTS).unlink()  # as of a run of real clients
    assert NOT_TOLD in write_report([a_finished_run]).read_text()


def test_figures_of_the_model_as_sent_are_called_so_where_clients_judge_it_as_used(tmp_path: Path) -> None:
    for judged, expected in (("cross-fitted", True), ("train", False)):
        path = a_run(tmp_path / judged, [{"accuracy": 0.5, "adapted_loss": 0.4}], strategy="maxfl", judge_on=judged)
        measured = {"round": 1, "client-ids": ["anna"], "loss": [0.8], "accuracy": [0.5], "appealed": [1]}
        RunFolder.open(path).append(MEASUREMENTS, measured)
        RunFolder.open(path).append(REQUIREMENTS, {"client-id": "anna", "requirement": 0.5, "of": "loss"})
        text = write_report([path]).read_text()
        assert [words in text for words in ("test loss as sent", AS_SENT)] == [expected] * 2


def test_bad_input_is_one_line_and_writes_nothing(a_finished_run: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no such folder"):
        write_report([tmp_path / "nothing"])
    for output, line in ((f"{CONFIG}/page.html", "no file can be made in"), (EVENTS, "it is a file of the run")):
        with pytest.raises(ConfigError, match=line):
            write_report([a_finished_run], ReportOptions(a_finished_run / output))
    (a_finished_run / PARTICIPATION).write_text('{"round": 1, "asked": [], "decisions": ["j"], "legend": {}}\n')
    with pytest.raises(ConfigError, match=r"participation.jsonl' cannot be read: 'j' is no decision"):
        write_report([a_finished_run])
    assert not list(tmp_path.rglob("*.html"))


@pytest.mark.parametrize(
    "damage", [{"bytes_up": 1e308}, {"sat_out": None}, {"evaluated": float("nan")}, {"loss": 1e308}]
)
def test_a_damaged_history_is_one_line(damage: dict[str, Any], tmp_path: Path) -> None:
    path = a_run(tmp_path / "run", [{"accuracy": 0.5} | damage] * 2, strategy="fedavg")
    with pytest.raises(ConfigError, match=r"history.jsonl' cannot be read: line 1: .* is no such number"):
        write_report([path])


def test_a_folder_of_any_name_finds_its_script(tmp_path: Path) -> None:
    path = a_run(tmp_path / "50 % of #1?" / "run", [{"accuracy": 0.5}], strategy="fedavg")
    file = write_report([path], ReportOptions(path.parent / "a#b" / "page.html"))
    found, _ = read(file)
    script = next(file.parent.glob("plotly-*"))
    assert found.loads == [script.name]
    found, _ = read(write_report([path]))
    assert found.loads == [f"../{script.name}"]
