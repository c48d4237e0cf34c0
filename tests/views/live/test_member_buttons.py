"""Inviting, withdrawing, registering and striking off in a real browser, wide and narrow, by pointer and keyboard."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedappeal.federation.invitations import Invitations
from fedappeal.flower.control import Node
from fedappeal.protocol.invitation import Invitation
from fedappeal.views.live.actions import SubmittedRun
from fedappeal.views.live.members import Members
from fedappeal.views.live.page import live_page
from fedappeal.views.live.view import View
from fedappeal.web.serving import PagePlace, ServedPage
from tests.views.live.admission import SEEN, SuperLinkOfMembers, a_public_key, an_opened_folder
from tests.views.live.browser import chromium, fits, narrow, needs_chromium, new_page

__all__ = ["chromium"]
pytestmark = needs_chromium
MARKUP = "<img src=x onerror=alert(1)><b>bold</b>"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return an_opened_folder(tmp_path / "fed")


@pytest.fixture
def superlink() -> SuperLinkOfMembers:
    made = SuperLinkOfMembers()
    for number, (name, status) in enumerate({"anna": "online", MARKUP: "offline", "attic": "registered"}.items(), 1):
        made.listed.append(Node(f"key-{number:016x}", number, name, status, SEEN, SEEN))
    return made


@pytest.fixture
def served(folder: Path, superlink: SuperLinkOfMembers, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServedPage]:
    monkeypatch.setattr("fedappeal.views.live.view.ASKED_WITHIN", 0.5)
    monkeypatch.setattr("fedappeal.views.live.view.ASKED_EVERY", 0.5)
    view = View(SubmittedRun(superlink), None, superlink, members=Members(superlink, folder))
    with live_page(view, PagePlace(0)) as page:
        yield page


def test_an_operator_uses_each_button(
    chromium: Any, served: ServedPage, folder: Path, superlink: SuperLinkOfMembers
) -> None:
    with new_page(chromium) as visited, new_page(chromium) as second:
        page: Any = visited.page
        other: Any = second.page
        for one in (page, other):
            one.goto(served.url)
            one.locator("#clients tr", has_text="attic").wait_for()

        def said(text: str) -> None:
            page.locator("#members-said", has_text=text).wait_for()

        page.get_by_role("button", name="Invite", exact=True).click()
        assert not page.locator("#invited").is_visible(), "a form without a name is not sent"
        page.get_by_label("name", exact=True).fill("lab")
        page.get_by_label("devices").fill("3")
        page.get_by_label("open for").select_option("1d")
        page.get_by_role("button", name="Invite", exact=True).dblclick()
        page.locator("#line", has_text="fedappeal://").wait_for()
        line = page.locator("#line").inner_text()
        (kept,) = Invitations(folder).all()
        assert (kept.name, kept.uses, kept.status) == ("lab", 3, "open")
        page.get_by_role("button", name="Copy the line").click()
        page.locator("#copied:not(:empty)").wait_for()
        assert page.evaluate("window.getSelection().toString().trim()") == line
        fits(page, "members", 1400)
        other.locator("#invitations tr", has_text="0 of 3").wait_for()
        assert "fedappeal://" not in other.content()
        assert "fedappeal://" not in page.url
        page.get_by_role("button", name="Done").click()
        assert not page.locator("#invited").is_visible()
        assert "fedappeal://" not in page.content()

        narrow(page, "members")
        Invitations(folder).redeem(Invitation.parse(line).secret, b"a key")
        page.locator("#invitations tr", has_text="lab-1").wait_for()
        withdraw = page.get_by_role("button", name="Withdraw the invitation of lab")
        withdraw.click()
        assert "who has joined by it stays" in page.locator("#question").inner_text()
        page.locator("#no").click()
        withdraw.focus()
        page.keyboard.press("Enter")
        page.get_by_role("button", name="Withdraw", exact=True).click()
        said("the invitation of lab is withdrawn")
        page.locator("#invitations tr", has_text="withdrawn").wait_for()
        assert [one.status for one in Invitations(folder).all()] == ["withdrawn"]

        page.get_by_text("Register a public key without an invitation").click()
        page.get_by_label("public key").fill(a_public_key(folder, "ben"))
        page.get_by_role("button", name="Register", exact=True).click()
        said("ben (key-")
        page.locator("#clients tr", has_text="ben").wait_for()

        strike = page.get_by_role("button", name=f"Unregister {MARKUP}")
        strike.click()
        assert f"Unregister {MARKUP} for good?" in page.locator("#question").inner_text()
        page.locator("#no").click()
        assert "unregistered" not in {node.status for node in superlink.listed}
        strike.click()
        page.get_by_role("button", name="Unregister for good").click()
        said("is unregistered for good")
        page.locator("#clients tr", has_text="bold").wait_for(state="detached")
        assert [node.name for node in superlink.listed if node.status == "unregistered"] == [MARKUP]
        assert (visited.problems, second.problems) == ([], [])


def test_a_line_is_gone_where_the_page_is_loaded_again_or_come_back_to(chromium: Any, served: ServedPage) -> None:
    with new_page(chromium) as visited:
        page: Any = visited.page
        for number, leave in enumerate((page.reload, lambda: (page.goto("about:blank"), page.go_back()))):
            page.goto(served.url)
            page.get_by_label("name", exact=True).fill(f"c{number}")
            page.keyboard.press("Enter")
            page.locator("#line", has_text="fedappeal://").wait_for()
            leave()
            page.locator("#invitations tr", has_text=f"c{number}").wait_for()
            assert "fedappeal://" not in page.content()
            assert page.get_by_label("name", exact=True).input_value() == ""


def test_a_button_keeps_the_focus_of_the_keyboard_while_its_table_is_made_anew(
    chromium: Any, served: ServedPage, superlink: SuperLinkOfMembers
) -> None:
    with new_page(chromium) as visited:
        page: Any = visited.page
        page.goto(served.url)
        page.get_by_role("button", name="Unregister attic").focus()
        superlink.register_node(b"a key", "ben")
        page.locator("#clients tr", has_text="ben").wait_for()
        label = page.evaluate("document.activeElement.getAttribute('aria-label')")
        assert re.fullmatch(r"Unregister attic \(.+\)", label), "names need not differ, ids do"


def test_a_page_that_cannot_invite_names_the_command(chromium: Any, superlink: SuperLinkOfMembers) -> None:
    view = View(SubmittedRun(superlink), None, superlink, members=Members(superlink))
    with live_page(view, PagePlace(0)) as page, new_page(chromium) as visited:
        shown: Any = visited.page
        shown.goto(page.url)
        shown.locator("#members-commands code", has_text="fedappeal federation invite NAME").wait_for()
        assert not shown.locator("#invite").is_visible()
        assert shown.get_by_role("button", name="Unregister anna").is_visible()
