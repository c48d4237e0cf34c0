"""The volunteer's page in a process of its own."""

import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from client.page.beside import page_beside
from client.state.signs import working
from tests.views.live.browser import browser, needs_chromium, picture


@needs_chromium
@pytest.mark.parametrize("width", [400, 1400])
def test_an_owner_pauses_and_sets_limits_and_the_page_ends_with_its_client(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], width: int
) -> None:
    with page_beside(tmp_path, 0, "max-seconds=5"), browser(width=width, dark=width == 400) as visited:
        said = ""
        while "your page" not in said:
            said += capfd.readouterr().out
        url = re.search(r"http://\S+", said)[0]  # type: ignore[index]
        page: Any = visited.page
        page.goto(url)
        page.get_by_role("button", name="Pause").click()
        page.get_by_text("paused: nothing is worked on").wait_for()
        page.get_by_text("5 counts, by --limits").wait_for()
        with working(tmp_path, "round 4, maxfl on digits"):
            page.get_by_text("works on round 4, maxfl on digits").wait_for()
        page.locator("[name=hours]").fill("22-6")
        page.get_by_role("button", name="Keep these limits").click()
        page.get_by_text("limits kept").wait_for()
        picture(page, f"volunteer-{width}")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert not visited.problems
    assert '"22-6"' in (tmp_path / "limits.json").read_text()
    with pytest.raises(httpx.ConnectError):
        httpx.get(url)
