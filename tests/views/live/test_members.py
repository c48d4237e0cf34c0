"""Members and invitations of a federation: what the page offers, what its buttons do, and what a member did last."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedappeal.federation.folder import Addresses
from fedappeal.federation.invitations import FILE, Invitations, invitation_file
from fedappeal.flower.control import ListedRun, Node
from fedappeal.protocol.invitation import Invitation
from fedappeal.record.decisions import pack_decisions
from fedappeal.record.folder import RunFolder
from fedappeal.record.lines import PARTICIPATION
from fedappeal.settings.config import ConfigError
from fedappeal.views.live import members as module
from fedappeal.views.live.actions import NotDone, SubmittedRun
from fedappeal.views.live.clients import STATES
from fedappeal.views.live.members import CHANGES, Members
from fedappeal.views.live.view import View
from tests.federation.conftest import run_command
from tests.views.comparison.recorded import a_run
from tests.views.live.admission import SEEN, SuperLinkOfMembers, a_public_key, an_opened_folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return an_opened_folder(tmp_path / "fed")


@pytest.fixture
def members(folder: Path) -> Members:
    return Members(SuperLinkOfMembers(), folder)


def test_the_page_and_the_commands_share_invitations(members: Members, folder: Path) -> None:
    line = members.invite({"name": "lab", "uses": "2", "expires": "12h"})
    invitation = Invitation.parse(line)
    assert invitation.address == "fed.example.org:9094"
    assert not list(folder.glob("*.invite")), "the page's line stands nowhere else"
    assert run_command("federation", "invites", "--federation", str(folder)).out.split().count("lab") == 1
    assert Invitations(folder).redeem(invitation.secret, b"a key") == "lab-1"
    (listed,) = members.section()["invitations"]
    expires = listed.pop("expires")
    assert listed == {"name": "lab", "status": "open", "uses": 2, "used": 1, "by": ["lab-1"]}
    assert expires > SEEN
    assert run_command("federation", "invite", "anna", "--federation", str(folder)).code == 0
    assert invitation_file(folder_of(folder), "anna").exists()
    assert members.withdraw({"name": "anna"}) == "the invitation of anna is withdrawn"
    assert not list(folder.glob("*.invite")), "as the command, it removes what the command had left"
    assert run_command("federation", "invites", "--withdraw", "lab", "--federation", str(folder)).code == 0
    assert [one["status"] for one in members.section()["invitations"]] == ["withdrawn"] * 2


def folder_of(folder: Path) -> Any:
    from fedappeal.federation.folder import FederationFolder

    return FederationFolder.find(folder)


def test_a_new_invitation_removes_the_file_of_a_spent_one(members: Members, folder: Path) -> None:
    assert run_command("federation", "invite", "anna", "--federation", str(folder)).code == 0
    spent = Invitation.parse((folder / "anna.invite").read_text())
    Invitations(folder).redeem(spent.secret, b"a key")
    members.invite({"name": "anna"})
    assert not (folder / "anna.invite").exists(), "it would be sent in place of the new line"


def test_the_open_ones_stand_first_and_who_used_one_is_bounded(members: Members, folder: Path) -> None:
    line = Invitation.parse(members.invite({"name": "lab", "uses": 30}))
    for number in range(30):
        Invitations(folder).redeem(line.secret, bytes([number]))
    members.invite({"name": "first"})
    members.withdraw({"name": "first"})
    members.invite({"name": "second"})
    listed = members.section()["invitations"]
    assert [(one["name"], one["status"]) for one in listed] == [
        ("second", "open"), ("first", "withdrawn"), ("lab", "used")
    ]  # fmt: skip
    assert (listed[2]["used"], listed[2]["by"][-1], len(listed[2]["by"])) == (30, "lab-30", module.MOST_USERS)


def test_the_invitations_name_the_address_that_the_federation_has_now(members: Members, folder: Path) -> None:
    """As in containers, where its certificate lies elsewhere, and another service writes the addresses."""
    ca = (folder / "certs").rename(folder.parent / "ca") / "ca.crt"
    Addresses("127.0.0.1:9", str(ca), "new.example.org:9092", "new.example.org:9094").write(folder)
    assert Invitation.parse(members.invite({"name": "anna"})).address == "new.example.org:9094"


def test_where_something_is_not_done_from_here_a_command_is_named(tmp_path: Path, folder: Path) -> None:
    plain = replace(SuperLinkOfMembers(), root_certificates=None)
    closed = an_opened_folder(tmp_path / "closed", join="")
    for members, offered, command in (
        (Members(SuperLinkOfMembers(), folder), (True, True), ""),
        (Members(SuperLinkOfMembers()), (False, True), "fedappeal federation invite NAME"),
        (Members(SuperLinkOfMembers(), closed), (False, True), "fedappeal federation open FOLDER"),
        (Members(plain, folder), (False, False), "fedappeal federation open FOLDER --host NAME"),
        (
            Members(SuperLinkOfMembers(), folder, admits_all=True),
            (False, False),
            "fedappeal federation open FOLDER --host NAME",
        ),
    ):
        section = members.section()
        assert (section["invite"], section["register"]) == offered
        assert [one["command"] for one in section["commands"]] == [command][: bool(command)]
    with pytest.raises(NotDone, match="where the federation was opened"):
        Members(SuperLinkOfMembers()).invite({"name": "anna"})
    with pytest.raises(ConfigError, match="takes no invitations"):
        Members(SuperLinkOfMembers(), closed).invite({"name": "anna"})
    (folder / FILE).write_bytes(b"no database" * 100)
    section = Members(SuperLinkOfMembers(), folder).section()
    assert "cannot be read or written" in section["problem"]
    assert (section["invitations"], section["commands"]) == ([], [])


def test_a_key_is_registered_and_struck_off_for_good(members: Members, tmp_path: Path) -> None:
    line = a_public_key(tmp_path, "anna")
    said = members.register({"key": line})
    (node,) = members.superlink.nodes()
    assert said == f"anna ({node.client_id}) is registered"
    assert members.register({"key": line, "name": "other"}) == f"other ({node.client_id}) is already registered"
    who = {"node": str(node.node_id)}
    assert members.unregister(who) == f"anna ({node.client_id}) is unregistered for good"
    with pytest.raises(NotDone, match="no such member any more"):
        members.unregister(who)
    with pytest.raises(NotDone, match="was unregistered once, and no key comes back"):
        members.register({"key": line})


def test_a_member_is_named_by_its_number_alone(members: Members, tmp_path: Path) -> None:
    """Another may be called by that number, or by a client-id."""
    members.register({"key": a_public_key(tmp_path, "anna")})
    (anna,) = members.superlink.nodes()
    members.register({"key": a_public_key(tmp_path, "b"), "name": str(anna.node_id)})
    members.register({"key": a_public_key(tmp_path, "c"), "name": anna.client_id})
    members.unregister({"node": str(anna.node_id)})
    for named in (str(anna.node_id), anna.client_id, "anna", ""):
        with pytest.raises(NotDone, match="no such member"):
            members.unregister({"node": named})
    assert [node.status for node in members.superlink.nodes()] == ["unregistered", "registered", "registered"]


def test_a_pasted_name_is_one_short_line_of_printable_characters(members: Members, tmp_path: Path) -> None:
    key = " ".join(a_public_key(tmp_path, "a").split()[:2])
    with pytest.raises(ConfigError, match="name is missing"):
        members.register({"key": key})
    members.register({"key": f"{key} <b>x</b>\x1b[31m\x00 ../../etc " + 200 * "y"})
    (node,) = members.superlink.nodes()
    assert node.name.isprintable()
    assert (node.name[:14], len(node.name)) == ("<b>x</b>?[31m?", 64)
    private = (tmp_path / "a.key").read_text()
    for pasted in (key + "\n" + key, private, "", "ssh-rsa AAAA", "x" * 999):
        with pytest.raises(ConfigError, match="key") as refused:
            members.register({"key": pasted})
        assert len(str(refused.value)) < 200
        assert private.splitlines()[1] not in str(refused.value), "what was pasted is not said again"


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("wrong", [None, 7, True, [], {"a": 1}, "x" * 1001])
def test_a_body_of_another_kind_is_one_line(change: str, wrong: Any, members: Members) -> None:
    """A button's answer is made of `ValueError` alone."""
    for key in ("name", "key", "node", "uses", "expires"):
        said = ""
        try:  # a value that this button does not read is no reason
            CHANGES[change](members, {"name": "anna", "key": "k", "node": "1", key: wrong})
        except ValueError as refused:
            said = str(refused)
        assert len(said.splitlines()) < 2


def a_submitted_run(path: Path, number: int, status: str, decisions: dict[str, str], node: int) -> ListedRun:
    a_run(path, [{"accuracy": 0.5}], rounds=3)
    folder = RunFolder.open(path)
    for client in decisions:
        folder.event("enrolled", client=client, node=str(node), enrolled=1, examples=5)
    folder.append(PARTICIPATION, pack_decisions(1, decisions))
    return ListedRun(number, status, "maxfl", "digits", SEEN, "", str(path))


def test_a_member_outside_the_run_that_is_shown_has_its_last_decision_of_another(
    members: Members, tmp_path: Path
) -> None:
    superlink = members.superlink
    assert isinstance(superlink, SuperLinkOfMembers)
    statuses = {"offline": 1, "online": 2, "registered": 3, "unregistered": 4}
    superlink.listed.extend(Node(f"key-{n}", n, f"c{n}", status, SEEN, SEEN) for status, n in statuses.items())
    superlink.submitted[:] = [
        a_submitted_run(tmp_path / "oldest", 5, "completed", {"key-1": "joined", "key-2": "left"}, 0),
        a_submitted_run(tmp_path / "older", 6, "completed", {"key-1": "sat-out"}, 1),
        a_submitted_run(tmp_path / "shown", 7, "completed", {"key-4": "joined"}, 4),
    ]
    view = View(SubmittedRun(superlink), None, superlink, members=members)

    def rows() -> dict[str, tuple[str, str, str]]:
        view._next_question = 0.0
        view.refresh()
        return {row["name"]: (row["state"], row["why"], row["node"]) for row in view.news()["clients"]["rows"]}

    for _ in range(4):  # one further run is read each time
        shown = rows()
    assert shown == {
        "c4": ("unregistered", "", ""),
        "c1": ("offline", "sat out in round 1 of older (maxfl on digits)", "1"),
        "c2": ("connected", "left in round 1 of oldest (maxfl on digits)", "2"),
        "c3": ("registered", "", "3"),
    }
    assert {state for state, _, _ in shown.values()} <= set(STATES)
    # One that goes on is read again; one that has ended is not.
    superlink.submitted.insert(2, a_submitted_run(tmp_path / "going-on", 8, "running", {"key-2": "joined"}, 2))
    for path in ("going-on", "older"):
        rows()
        RunFolder.open(tmp_path / path).append(PARTICIPATION, pack_decisions(1, {"key-1": "joined"}))
        RunFolder.open(tmp_path / path).event("enrolled", client="key-1", node="1", enrolled=2)
    shown = rows()
    assert shown["c2"][1] == "joined in round 1 of going-on (maxfl on digits)"
    assert shown["c1"][1] == "joined in round 1 of going-on (maxfl on digits)"


def test_who_is_offline_is_listed_on_a_federations_page_alone(members: Members) -> None:
    superlink = members.superlink
    assert isinstance(superlink, SuperLinkOfMembers)
    superlink.listed.append(Node("key-1", 1, "anna", "offline", SEEN, SEEN))
    for given, expected in ((members, ["offline"]), (None, [])):
        view = View(SubmittedRun(superlink), None, superlink, members=given)
        everything = json.loads(json.dumps(view.news()))
        assert [row["state"] for row in everything["clients"]["rows"]] == expected
        assert (everything["members"] is None) == (given is None)
    with pytest.raises(NotDone, match="members are not changed from this page"):
        view.change_members("invite", {"name": "anna"})


def test_a_superlink_that_is_away_is_one_line(members: Members, tmp_path: Path) -> None:
    superlink = members.superlink
    assert isinstance(superlink, SuperLinkOfMembers)
    superlink.away.append(True)
    view = View(SubmittedRun(superlink), None, superlink, members=members)
    view.refresh()
    for change, body in (("register", {"key": a_public_key(tmp_path, "a")}), ("unregister", {"node": "1"})):
        with pytest.raises(NotDone, match=r"^the SuperLink does not answer$"):
            view.change_members(change, body)
    assert view.change_members("invite", {"name": "anna"}).startswith("fedappeal://"), "that is a file's"
