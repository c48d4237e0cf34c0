"""A report in a real browser: all charts are drawn, on a phone and a screen, light, dark and on paper."""

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, FloatRect, Page, sync_playwright

from fedappeal.api.report import Report
from fedappeal.record.decisions import pack_decisions
from fedappeal.record.folder import RunFolder
from fedappeal.record.lines import MEASUREMENTS, PARTICIPATION
from fedappeal.views.report.report import ReportOptions, write_report
from tests.views.comparison.recorded import a_run, a_sweep
from tests.views.live.browser import check_accessible

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")

LONG = "a-client-whose-owner-likes-long-names-without-any-blank-in-them-4711"
HOSTILE = "<img src=//example.org/x onerror=console.error(1)>"
PHONE, SCREEN = 400, 1400


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM)
        yield started
        started.close()


WORDS = ("joined", "sat-out", "left", "absent", "failed", "refused", "surplus")
Scheme = Literal["light", "dark"]
LOOKS: list[tuple[int, Scheme]] = [(PHONE, "light"), (SCREEN, "dark")]


def a_run_of_strangers(folder: Path) -> Path:
    """Write a run with long and hostile names, and with a client of each decision; return its folder."""
    lines = [{"accuracy": 0.5, "gm_appeal": 0.5, "loss": 1.0, "failed": 1, "failures": {LONG: HOSTILE}}] * 3
    path = a_run(folder, lines, strategy="maxfl")  # type: ignore[arg-type]
    run = RunFolder.open(path)
    run.append(
        PARTICIPATION, *(pack_decisions(n, {LONG: "joined", HOSTILE: "left", "bert": "failed"}) for n in (1, 2, 3))
    )
    run.append(PARTICIPATION, pack_decisions(4, {f"c{n}": word for n, word in enumerate(WORDS)}))
    measured = {"round": 3, "client-ids": [LONG, HOSTILE], "loss": [0.2, 0.9], "accuracy": [0.9, 0.6]}
    run.append(MEASUREMENTS, {**measured, "appealed": [1, 0]})
    return path


@pytest.fixture
def one(tmp_path: Path) -> Path:
    return a_run_of_strangers(tmp_path / "one")


@contextmanager
def opened(
    browser: Browser, file: Path, width: int = SCREEN, scheme: str = "light"
) -> Iterator[tuple[Page, list[str]]]:
    """Open a page and scroll through it; it, and what it asked for and complained of."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page, seen = context.new_page(), list[str]()
    page.on("request", lambda request: seen.append(request.url.partition(":")[0]))
    page.on("console", lambda message: seen.append(f"console: {message.text}"))
    page.on("pageerror", lambda error: seen.append(f"error: {error}"))
    page.goto(file.as_uri())
    page.wait_for_selector("html[data-drawn]", state="attached")
    for chart in page.locator(".chart").all():
        chart.scroll_into_view_if_needed()
        chart.locator(".main-svg").first.wait_for()
    yield page, seen
    context.close()


@dataclass
class Opened:
    """A report that tests share, opened once."""

    page: Page
    seen: list[str]
    file: Path
    width: int
    scheme: str


@pytest.fixture(scope="module", params=LOOKS)
def report_of_one(
    browser: Browser, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Opened]:
    file = write_report([a_run_of_strangers(tmp_path_factory.mktemp("report") / "one")])
    with opened(browser, file, *request.param) as (page, seen):
        yield Opened(page, seen, file, *request.param)


@pytest.fixture(scope="module", params=LOOKS)
def report_of_several(
    browser: Browser, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Opened]:
    """The report of a sweep of two strategies."""
    results = {"fedavg": [0.1, 0.2, 0.3], "maxfl": [0.3, 0.5, 0.7]}
    file = write_report([a_sweep(tmp_path_factory.mktemp("report") / "sweep", results)])
    with opened(browser, file, *request.param) as (page, seen):
        yield Opened(page, seen, file, *request.param)


def check_charts(page: Page, seen: list[str], file: Path, files: int) -> None:
    assert page.locator(".chart.js-plotly-plot .main-svg:first-child").count() == 8
    assert file.read_text().count('id="chart-') == 8
    assert set(seen) <= {"file", "blob", "data"}
    assert seen.count("file") == files


def test_all_charts_are_drawn(report_of_one: Opened) -> None:
    check_charts(report_of_one.page, report_of_one.seen, report_of_one.file, 2)


def test_all_charts_of_a_single_file_are_drawn(one: Path, browser: Browser) -> None:
    file = write_report([one], ReportOptions(single_file=True))
    with opened(browser, file) as (page, seen):
        check_charts(page, seen, file, 1)


DRAWN = "document.querySelectorAll('.chart .main-svg:first-child').length"


def test_charts_out_of_view_are_drawn_once_they_come_into_view(one: Path, browser: Browser) -> None:
    with browser.new_page(viewport={"width": PHONE, "height": 600}) as page:
        page.goto(write_report([one]).as_uri())
        page.wait_for_selector("html[data-drawn]", state="attached")
        assert 0 < page.evaluate(DRAWN) < 8
        last = page.locator("#chart-7")
        assert last.locator(".main-svg").count() == 0
        last.scroll_into_view_if_needed()
        last.locator(".main-svg").first.wait_for()


@pytest.mark.parametrize("single_file", [False, True])
def test_a_page_that_is_printed_before_it_is_drawn_has_all_charts(
    one: Path, single_file: bool, browser: Browser
) -> None:
    with browser.new_page(viewport={"width": PHONE, "height": 600}) as page:
        page.goto(write_report([one], ReportOptions(single_file=single_file)).as_uri(), wait_until="domcontentloaded")
        page.pdf()
        assert page.evaluate(DRAWN) == 8


SCRIPT_TIME = """
let script;
Object.defineProperty(window, "Plotly", {
  get: () => script,
  set: value => { script = value; window.scriptRan ??= performance.now(); },
});
"""


@pytest.mark.parametrize("single_file", [False, True])
def test_its_text_is_painted_before_plotlys_script_runs(one: Path, single_file: bool, browser: Browser) -> None:
    file = write_report([one], ReportOptions(single_file=single_file))
    with browser.new_page() as page:
        page.add_init_script(SCRIPT_TIME)
        page.goto(file.as_uri())
        page.wait_for_selector("html[data-drawn]", state="attached")
        painted = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
        assert 0 < painted < page.evaluate("scriptRan")


def test_a_report_of_one_fits_and_stays_on_this_machine(report_of_one: Opened) -> None:
    check_that_it_fits(report_of_one)


def test_a_report_of_several_fits_and_stays_on_this_machine(report_of_several: Opened) -> None:
    check_that_it_fits(report_of_several)


def check_that_it_fits(report: Opened) -> None:
    page, width = report.page, report.width
    assert set(report.seen) <= {"file", "blob", "data"}
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    check_accessible(page)
    for box in [chart.bounding_box() for chart in page.locator(".chart .main-svg").all()]:
        assert box is not None
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
    texts = [chart.get_attribute("aria-label") or "" for chart in page.locator("[role=img]").all()]
    assert len(texts) == page.locator(".chart").count() > 0
    assert all(len(text) > 20 for text in texts)
    assert page.locator("figcaption").all_inner_texts() == texts
    ink, ground = (page.evaluate(f"getComputedStyle(document.body).{name}") for name in ("color", "backgroundColor"))
    assert (brightness(ink) > brightness(ground)) == (report.scheme == "dark")
    letters = page.evaluate("getComputedStyle(document.querySelector('.chart .xtick text')).fill")
    assert letters == ink


@pytest.mark.parametrize("report_of_one", LOOKS[1:], indirect=True)
def test_paper_is_white_and_charts_fit_it(report_of_one: Opened) -> None:
    page = report_of_one.page
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert brightness(page.evaluate("getComputedStyle(document.body).backgroundColor")) == 255 * 3
    assert brightness(page.evaluate("getComputedStyle(document.querySelector('.chart .xtick text')).fill")) == 0
    sheet = 180 / 25.4 * 96
    widths = [box["width"] for chart in page.locator(".chart .main-svg").all() if (box := chart.bounding_box())]
    assert 0 < max(widths) <= sheet
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert_names_above_the_map(report_of_one)
    assert brightness(page.evaluate("getComputedStyle(document.body).backgroundColor")) < 200


def test_a_notebook_shows_it_in_a_frame_of_its_own(one: Path, tmp_path: Path, browser: Browser) -> None:
    shown = Report(one)._repr_html_()
    file = tmp_path / "notebook.html"
    file.write_text(f"<!doctype html><body style='max-width:none'><h1 id=mine>mine</h1>{shown}</body>")
    with browser.new_page() as page:
        page.goto(file.as_uri())
        page.frame_locator("iframe").locator("html[data-drawn]").wait_for(state="attached")
        for chart in page.frame_locator("iframe").locator(".chart").all():
            chart.scroll_into_view_if_needed()
            chart.locator(".main-svg").first.wait_for()
        assert page.evaluate("getComputedStyle(document.body).maxWidth") == "none"
        assert page.evaluate("[document.querySelectorAll('.chart').length, typeof Plotly]") == [0, "undefined"]
        assert page.evaluate("document.querySelector('iframe').contentDocument") is None, "of another origin"


def brightness(colour: str) -> int:
    """The sum of a colour's red, green and blue."""
    return sum(int(number) for number in re.findall(r"\d+", colour)[:3])


def test_each_colour_of_the_heat_map_has_its_whole_name_above_the_map(report_of_one: Opened) -> None:
    assert_names_above_the_map(report_of_one)


def assert_names_above_the_map(report_of_one: Opened) -> None:
    figures = report_of_one.page.locator("figure")
    name = report_of_one.page.get_by_role("heading", name="Who joined when")
    chart = figures.filter(has=name).locator(".chart")
    around, cells = chart.bounding_box(), chart.locator(".heatmaplayer image").bounding_box()
    boxes = [name.bounding_box() for name in chart.locator(".legendtext").all()]
    title = chart.locator(".xtitle").bounding_box()
    assert around is not None
    assert cells is not None
    assert title is not None
    assert title["y"] >= cells["y"] + cells["height"]
    assert cells["height"] > 80
    assert len(boxes) == len(WORDS)
    for place, box in enumerate(boxes):
        assert box is not None
        assert around["x"] <= box["x"]
        assert box["x"] + box["width"] <= around["x"] + around["width"]
        assert around["y"] <= box["y"]
        assert box["y"] + box["height"] <= cells["y"]
        assert not any(overlap(box, other) for other in boxes[:place] if other)


def overlap(one: FloatRect, other: FloatRect) -> bool:
    """Whether two boxes share a point."""
    beside = one["x"] + one["width"] <= other["x"] or other["x"] + other["width"] <= one["x"]
    return not (beside or one["y"] + one["height"] <= other["y"] or other["y"] + other["height"] <= one["y"])


@pytest.mark.parametrize(("width", "named"), [(PHONE, 0), (SCREEN, 30)])
def test_names_that_would_lie_on_each_other_are_left_out(width: int, named: int, one: Path, browser: Browser) -> None:
    clients = [f"client-{n:02d}" for n in range(30)]
    measured = {"round": 3, "client-ids": clients, "loss": [0.5] * 30, "accuracy": [0.5] * 30, "appealed": [1] * 30}
    RunFolder.open(one).append(MEASUREMENTS, measured)
    with opened(browser, write_report([one]), width) as (page, _):
        chart = page.locator("figure", has=page.get_by_role("heading", name="Clients and what they require"))
        assert chart.locator(".xtick text").count() == named
