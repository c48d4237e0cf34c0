"""Takes the pictures of a report, a live run and a volunteer's page again: `python docs/site/screenshots.py`.

It needs Chromium, and first runs a simulation and six client processes. The colours are reduced to a palette, so that
a picture has less than 150 kB.
"""

import io
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

from client.page.app import volunteer_app
from fedappeal.record.reader import Record
from fedappeal.web.serving import PagePlace, serve_page

PICTURES = Path(__file__).parents[1] / "img"
FEDAPPEAL = [sys.executable, "-m", "fedappeal.cli.main"]
SIMULATED = ["--task", "digits", "--strategy", "maxfl", "--clients", "30", "--rounds", "60", "--seed", "0"]
LIVE = [
    *("--task", "digits", "--strategy", "maxfl", "--clients", "6", "--rounds", "60", "--mandatory-rounds", "8"),
    *("--flip-share", "0.34", "--goodwill", "-1", "--page", "0"),
]
"""Two of six clients have flipped labels: they sit out once they may."""
TAKEN_AFTER = 30
"""Rounds of the live run before its pictures are taken."""
COLOURS = 64
PATIENCE = 900.0
SHOWN_AS = "/srv/federation"
"""What stands on the pictures for the folder that this run has by chance."""
RENAME = """([from, to]) => {
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) texts.currentNode.data = texts.currentNode.data.replaceAll(from, to);
}"""


def main() -> None:
    """Take the pictures."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("screenshots.py: needs Chromium: apt-get install chromium")
    with tempfile.TemporaryDirectory() as temporary, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        take_report(browser, Path(temporary) / "20261122-maxfl-digits")
        take_live(browser, Path(temporary) / "runs" / "first", temporary)
        browser.close()


def take_report(browser: Browser, run: Path) -> None:
    """Simulate a run, and take its report."""
    subprocess.run([*FEDAPPEAL, "simulate", *SIMULATED, "--out", str(run)], check=True, stdout=subprocess.DEVNULL)
    subprocess.run([*FEDAPPEAL, "report", str(run)], check=True)
    page = browser.new_page(viewport={"width": 1200, "height": 1900})
    page.goto((run / "report.html").as_uri())
    page.wait_for_selector("html[data-drawn]", state="attached")
    save(page, "report")


def take_live(browser: Browser, run: Path, folder: str) -> None:
    """Run clients on this machine; take the live page, and the first client's."""
    live = subprocess.Popen([*FEDAPPEAL, "local", *LIVE, "--out", str(run)], stdout=subprocess.DEVNULL)
    try:
        wait_for(live, lambda: (run / "page-address").exists() and Record(run).snapshot.last_round >= TAKEN_AFTER)
        address = (run / "page-address").read_text("utf-8").strip()
        for width, height, scheme in ((1400, 2180, "light"), (400, 1100, "dark")):
            page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
            page.goto(address)
            page.wait_for_selector("#charts .js-plotly-plot .main-svg")
            save(page, f"live-page-{width}", folder)
        client = sorted((run / "clients").glob("[0-9]*"))[0]
        with serve_page(volunteer_app(client), PagePlace(0)) as beside:
            for width, height, scheme in ((1040, 980, "light"), (400, 1100, "dark")):
                page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
                page.goto(beside.url)
                page.wait_for_selector("#decisions tr")
                save(page, f"volunteer-{1400 if width > 400 else width}")
    finally:
        live.send_signal(signal.SIGINT)
        live.wait()


def wait_for(process: "subprocess.Popen[bytes]", ready: Any) -> None:
    """Wait until the run is so far."""
    deadline = time.monotonic() + PATIENCE
    while not ready():
        if process.poll() is not None or time.monotonic() > deadline:
            sys.exit("screenshots.py: the live run has not got so far")
        time.sleep(0.5)


def save(page: Any, name: str, folder: str = "") -> None:
    """Save what a page shows now, in few colours."""
    if folder:
        page.evaluate(RENAME, [folder, SHOWN_AS])
    picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    picture.quantize(COLOURS, dither=Image.Dither.NONE).save(PICTURES / f"{name}.png", optimize=True)
    page.close()


if __name__ == "__main__":
    main()
