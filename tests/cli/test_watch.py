"""`fedappeal watch` and `--page`: what is wrong is one line before anything is started."""

import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from fedappeal.cli import live_page
from fedappeal.cli.main import main
from fedappeal.cli.option_groups import PageOptions, ResidentOptions
from fedappeal.web.serving import PagePlace
from tests.views.comparison.recorded import a_run


def complaint(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str) -> str:
    monkeypatch.setattr(sys, "argv", ["fedappeal", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    [line] = err.splitlines()
    return line


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "run is missing"),
        (["nowhere"], "'nowhere' is not the folder of a run"),
        (["RUN", "--page", "99999"], "page = 99999 is not allowed: 0"),
        (["RUN", "--page", "x"], "page = 'x' is not allowed: PORT or HOST:PORT"),
        (["RUN", "--page", "example.org:80"], "page = 'example.org:80' is not allowed: PORT or HOST:PORT"),
        (["RUN", "--page", "0.0.0.0:0"], "page-published is missing"),
        (["RUN", "--page", "0", "--page-published", "here"], "page-published = 'here' is not allowed: HOST:PORT"),
        (["RUN", "--root-certificates", "ca"], "root-certificates = 'ca' is not allowed without --superlink"),
        (["RUN", "--superlink", "nowhere"], "superlink = 'nowhere' is not allowed"),
        (["RUN", "--page", "TAKEN"], "is not allowed: Address already in use"),
    ],
)
def test_what_is_wrong_is_one_line(
    tmp_path: Path,
    arguments: list[str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = a_run(tmp_path / "run", [])
    with socket.create_server(("127.0.0.1", 0)) as taken:
        places = {"RUN": str(run), "TAKEN": str(taken.getsockname()[1])}
        given = [places.get(argument, argument) for argument in arguments]
        assert said in complaint(capsys, monkeypatch, "watch", *given)


@pytest.mark.parametrize("command", [["local"], ["submit", "--superlink", "127.0.0.1:1"]])
def test_a_run_is_not_begun_where_its_page_has_no_place(
    tmp_path: Path, command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    for more, said in (
        (["--page", "-1"], "page = '-1' is not allowed"),
        (["--page-published", "127.0.0.1:80"], "page-published = '127.0.0.1:80' is not allowed without --page"),
    ):
        assert said in complaint(capsys, monkeypatch, *command, "--out", str(out), *more)
    assert not out.exists()


def test_a_detached_run_has_no_page_of_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["submit", "--superlink", "127.0.0.1:1", "--detach", "--page", "0"]
    assert "page = '0' is not allowed with --detach" in complaint(capsys, monkeypatch, *given)


def test_places() -> None:
    assert PageOptions().place is None
    assert PageOptions("0").place == PagePlace(0)
    assert PageOptions("[::1]:0").place == PagePlace(0, "::1") or not socket.has_ipv6
    assert PageOptions("0.0.0.0:0", "127.0.0.1:8090").place == PagePlace(0, "0.0.0.0", "127.0.0.1:8090")


@pytest.mark.parametrize(("options", "admits_all"), [(["--enable-supernode-auth"], False), ([], True)])
def test_the_page_of_a_superlink_knows_whether_it_asks_for_keys(
    options: list[str], admits_all: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Mapping[str, str]] = []

    @contextmanager
    def start(_: object, environment: Mapping[str, str], __: object) -> Iterator[None]:
        started.append(environment)
        yield

    monkeypatch.setattr(live_page, "keep_running", start)
    tls = ["--ssl-ca-certfile", "ca.crt", "--ssl-certfile", "server.crt", "--ssl-keyfile", "server.key"]
    with live_page.resident_page([*tls, *options], PageOptions(page="0"), ResidentOptions()):
        assert [live_page.ADMITS_ALL in environment for environment in started] == [admits_all]
