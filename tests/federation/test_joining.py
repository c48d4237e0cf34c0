"""From nothing to a first round: an operator's three commands, and one of each of three volunteers."""

import re
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

from client.state.membership import Membership
from fedappeal.federation.folder import Addresses
from fedappeal.federation.invitations import Invitations
from fedappeal.protocol.invitation import Invitation
from fedappeal.record.reader import Record
from tests.federation.conftest import ENVIRONMENT, FEDAPPEAL, Client, run_command
from tests.ports import free_port
from tests.warm import run

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]  # up to ten processes of one test import PyTorch
Start = Callable[..., Client]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a command, which is one more that somebody types; all are ended afterwards."""
    clients: list[Client] = []

    def starting(*command: str, log: str) -> Client:
        clients.append(Client([*FEDAPPEAL, *command], tmp_path / log))
        return clients[-1]

    yield starting
    for client in clients[::-1]:
        if client.process.poll() is None:
            client.end(signal.SIGKILL)


def data_of(folder: Path, seed: int) -> str:
    """Write images in ten folders, and return their place: each class is bright in rows of its own."""
    from PIL import Image

    draw = np.random.default_rng(seed)
    for label in range(10):
        place = folder / str(label)
        place.mkdir(parents=True)
        for number in range(6):
            image = draw.integers(0, 40, (8, 8), dtype=np.uint8)
            image[label % 8, :: 1 + label // 8] = 255
            Image.fromarray(image).save(place / f"{number}.png")
    return str(folder)


@pytest.fixture
def opened(tmp_path: Path) -> list[str]:
    ports = [free_port() for _ in range(3)]
    where = ["--fleet-api-address", f"127.0.0.1:{ports[1]}", "--join-address", f"127.0.0.1:{ports[2]}", "--page", "0"]
    return ["federation", "open", str(tmp_path / "fed"), "--host", "localhost", "--port", str(ports[0]), *where]


def test_three_commands_of_the_operator_and_one_of_each_volunteer(
    tmp_path: Path, opened: list[str], start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed, began, operator, volunteers = tmp_path / "fed", time.monotonic(), 0, 0
    photos = [data_of(tmp_path / f"photos-{number}", number) for number in range(3)]
    superlink = start(*opened, log="superlink")
    operator += 1
    superlink.wait_for("the live page: ")
    monkeypatch.chdir(fed)
    done = run_command("federation", "invite", "lab", "--uses", "3")
    operator += 1
    line = done.out.strip()
    assert (done.code, done.err, (fed / "lab.invite").read_text()) == (0, "", f"{line}\n")
    assert (fed / "lab.invite").stat().st_mode & 0o777 == 0o600
    superlink.wait_for("invitations are redeemed at")
    members = []
    for number, data in enumerate(photos):
        given = line if number else str(fed / "lab.invite")
        state = str(tmp_path / f"state-{number}")
        members.append(
            start("join", given, "--data", data, "--state-dir", state, "--device", "cpu", log=f"v{number}")
        )
        volunteers += 1
    for number, member in enumerate(members):
        member.wait_for("connected to localhost:")
        words = [one.split(":")[0] for one in member.said().splitlines()[:5]]
        assert words == ["who asks", "code", "leaves", "costs", "to stop"], member.said()
        shown = Path(f"/proc/{member.process.pid}/cmdline").read_text()
        assert line[-40:] not in shown, "no list of processes has the secret any more"
        assert not list((tmp_path / f"state-{number}").glob("*.invite"))
    run = start("submit", "--federation", str(fed), "--clients", "3", "--rounds", "2", "--task", "digits",
                "--out", "runs/first", log="run")  # fmt: skip
    operator += 1
    assert run.process.wait(600) == 0, run.said()
    assert (operator, volunteers) == (3, len(members))
    history = Record(fed / "runs" / "first").history
    assert [one["round"] for one in history] == [1, 2]
    assert sum(one["joined"] for one in history) >= 3
    print(f"from nothing to a finished run of three volunteers: {time.monotonic() - began:.0f} s")
    nodes = run_command("federation", "list").out
    assert all(name in nodes for name in ("lab-1", "lab-2", "lab-3"))
    listed = run_command("federation", "invites").out
    assert "used    3 of 3" in " ".join(listed.split("\n")), listed
    # Afterwards `fedappeal client` alone continues.
    assert members[0].end() == 0
    again = start("client", "--state-dir", str(tmp_path / "state-0"), log="again")
    again.wait_for("connected to")
    # And a way back: refused while the client runs, then signed by the key itself.
    leave = ("client", "leave", "--federation", "--state-dir", str(tmp_path / "state-0"))
    done = run_command(*leave)
    assert (done.code, "a client runs here" in done.err) == (2, True), done
    assert again.end() == 0
    client_id = re.findall(r"key-[0-9a-f]{16}", run_command("client", "status", "--state-dir", leave[-1]).out)[0]
    done = run_command(*leave)
    assert (done.code, done.err, "is unregistered for good" in done.out) == (0, "", True), done
    assert not (tmp_path / "state-0" / "client.key").exists()
    assert any(
        client_id in row and "unregistered" in row for row in run_command("federation", "list").out.splitlines()
    )
    assert run_command(*leave).code == 2, "it is no member any more"
    # Joining again is another key, and another client; this time the federation's own page invites.
    page = re.search(r"http://(\S+)/\?token=(\S+)", superlink.said())
    assert page
    known = {"Origin": f"http://{page[1]}", "Authorization": f"Bearer {page[2]}"}
    invite = f"http://{page[1]}/invite"
    line = httpx.post(invite, json={"name": "back"}, headers=known, trust_env=False, timeout=60).json()["said"]
    back = start("join", line, "--data", photos[0], "--state-dir", leave[-1], log="back")
    back.wait_for("connected to")
    status = run_command("client", "status", "--state-dir", leave[-1]).out
    assert client_id not in status.splitlines()[0]
    assert line[-28:] not in superlink.said()


def test_data_that_fit_no_run_are_refused_before_the_secret_is_shown(
    tmp_path: Path, opened: list[str], start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed = tmp_path / "fed"
    superlink = start(*opened, log="superlink")
    superlink.wait_for("the live page: ")
    monkeypatch.chdir(fed)
    start(
        "submit",
        "--federation",
        str(fed),
        "--clients",
        "1",
        "--rounds",
        "1",
        "--task",
        "digits",
        "--out",
        "waits",
        log="run",
    ).wait_for("nobody is online")
    line = run_command("federation", "invite", "anna").out.strip()
    superlink.wait_for("invitations are redeemed at")
    wrong = tmp_path / "wrong.npz"
    np.savez(wrong, x=np.zeros((40, 3, 5, 7), np.uint8), y=np.arange(40) % 10)
    state = tmp_path / "state"
    done = run(
        [sys.executable, "-m", "fedappeal.cli.main", "join", line, "--data", str(wrong), "--state-dir", str(state)],
        env=ENVIRONMENT, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    (said,) = done.stderr.splitlines()
    assert (done.returncode, "the data fit no run of this federation, so nothing was sent: digits:" in said) == (
        2,
        True,
    )
    assert not state.exists(), "nothing is half-written"
    assert "open" in run_command("federation", "invites").out, "the invitation is not spent"
    run_command("federation", "invites", "--withdraw", "anna")
    superlink.wait_for("no invitation is open")
    done = run(
        [sys.executable, "-m", "fedappeal.cli.main", "join", line, "--partition-id", "0", "--state-dir", str(state)],
        env=ENVIRONMENT, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    (said,) = done.stderr.splitlines()
    assert (done.returncode, "nothing listens at localhost" in said, "withdrawn" in said) == (2, True, True)


def test_the_service_of_a_member_is_a_unit_of_its_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that is a member already needs no connection for it."""
    invited = Invitation.new("fed.example.org:9094", bytes(32))
    (tmp_path / "state").mkdir()
    Membership("anna", bytes(32).hex(), {"superlink": "fed.example.org:9092", "partition-id": 3}).write(
        tmp_path / "state"
    )
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    done = run_command("join", str(invited), "--service", "--state-dir", str(tmp_path / "state"), "--device", "cpu")
    assert (done.code, done.err) == (0, "")
    unit = (tmp_path / "config" / "systemd" / "user" / "fedappeal-client.service").read_text()
    command = f'-P -m fedappeal.cli.main client --state-dir "{tmp_path / "state"}"'
    assert f'ExecStart="{sys.executable}" {command}\n' in unit
    member = Membership.read(tmp_path / "state")
    assert member
    assert member.options == {"superlink": "fed.example.org:9092", "partition-id": 3, "device": "cpu"}
    done = run_command(
        "join", str(Invitation.new("other:1", bytes([1]) * 32)), "--state-dir", str(tmp_path / "state")
    )
    assert (done.code, "it is a member of fed.example.org:9092; name another folder" in done.err) == (2, True)
    for given in (["--superlink", "a:1"], ["--insecure"]):
        done = run_command("join", str(invited), *given)
        assert (done.code, "is not allowed here: the invitation says it" in done.err) == (2, True)


def test_what_leaves_a_federation_leaves_no_run_besides() -> None:
    done = run_command("client", "leave", "--federation", "--all")
    assert (done.code, "federation is not allowed with all" in done.err) == (2, True)


def test_a_port_that_is_taken_is_one_line(tmp_path: Path) -> None:
    Addresses("127.0.0.1:1", "", "a:1", "a:2").write(tmp_path)
    assert run_command("federation", "invite", "anna", "--federation", str(tmp_path)).code == 2, "no certificate"
    Invitations(tmp_path).add("anna", bytes(16), 1, 60)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        tls = ["--certificate", "none", "--key", "none"]
        done = run_command("federation", "redeem", "--federation", str(tmp_path), "--address", address, *tls)
    (line,) = done.err.splitlines()
    assert (done.code, line.endswith(f"address = '{address}' is not allowed: Address already in use")) == (1, True)
