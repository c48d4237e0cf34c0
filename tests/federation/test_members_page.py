"""Members are registered and struck off from the page of a real SuperLink, and clients notice."""

from collections.abc import Iterator

import pytest

from fedappeal.federation.folder import Addresses
from fedappeal.federation.invitations import Invitations
from fedappeal.federation.nodes import PublicKey
from fedappeal.federation.remote import RemoteSuperLink
from fedappeal.protocol.invitation import Invitation
from fedappeal.views.live.actions import SubmittedRun
from fedappeal.views.live.members import Members
from fedappeal.views.live.page import live_page
from fedappeal.views.live.view import View
from fedappeal.web.serving import PagePlace
from tests.federation.conftest import Federation, wait_until
from tests.federation.test_live_page import Reader

pytestmark = pytest.mark.e2e


@pytest.fixture
def reader(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    monkeypatch.setattr("fedappeal.views.live.view.ASKED_WITHIN", 0.5)
    control = federation.superlink.control_address
    Addresses(control, "certs/ca.crt", federation.superlink.fleet_address, "localhost:9094").write(federation.folder)
    remote = RemoteSuperLink.checked(control, str(federation.certs / "ca.crt"))
    view = View(SubmittedRun(remote), None, remote, members=Members(remote, federation.folder))
    with live_page(view, PagePlace(0)) as page:
        reading = Reader(page)
        yield reading
    reading.client.close()


def test_an_operator_admits_and_strikes_off_from_the_page(federation: Federation, reader: Reader) -> None:
    def said(button: str, status: int = 200, **body: str) -> str:
        answer = reader.client.post(f"/{button}", json=body)
        assert answer.status_code == status, answer.text
        return str(answer.json()["said"])

    public = federation.key("0").with_suffix(".pub")
    client_id = PublicKey.read(public).client_id
    assert said("register", key=public.read_text()) == f"0 ({client_id}) is registered"
    assert said("register", key=public.read_text()) == f"0 ({client_id}) is already registered"
    assert said("register", key=federation.key("1").with_suffix(".pub").read_text(), name="ben").startswith("ben (")
    wait_until(lambda: reader.clients() == {"0": "registered", "ben": "registered"})
    client = federation.client(0)
    client.wait_for("connected to")
    wait_until(lambda: reader.clients() == {"0": "connected", "ben": "registered"})

    (node,) = (row["node"] for row in reader.shown["clients"]["rows"] if row["name"] == "0")
    assert said("unregister", node=node) == f"0 ({client_id}) is unregistered for good"
    assert said("unregister", 409, node=node) == "there is no such member any more"
    wait_until(lambda: reader.clients() == {"ben": "registered"})
    client.wait_for("not registered")
    assert "was unregistered once, and no key comes back" in said("register", 409, key=public.read_text())
    assert "unregistered" in federation.fedappeal("federation", "list").out

    line = said("invite", name="lab", uses="2", expires="1h")
    assert Invitations(federation.folder).redeem(Invitation.parse(line).secret, b"a key") == "lab-1"
    wait_until(lambda: [one["by"] for one in reader.shown["members"]["invitations"]] == [["lab-1"]])
    assert said("withdraw", name="lab") == "the invitation of lab is withdrawn"
    wait_until(lambda: [one["status"] for one in reader.shown["members"]["invitations"]] == ["withdrawn"])
    assert line[-28:] not in federation.superlink.log_file.read_text()
