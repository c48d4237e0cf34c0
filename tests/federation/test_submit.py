"""What a submitted bundle says: settings of plug-ins under their tables, and the ClientApp of stock SuperNodes."""

import io
import tomllib
import zipfile
from typing import Any

import pytest

from fedappeal import __version__
from fedappeal.federation.remote import RemoteSuperLink
from fedappeal.flower import bundle
from fedappeal.flower.bundle import build_fab
from fedappeal.runs.launch.superlink import Submission
from fedappeal.settings.config import ConfigError, RunConfig, Scalar


def pyproject(fab: bytes) -> dict[str, Any]:
    with zipfile.ZipFile(io.BytesIO(fab)) as archive:
        return tomllib.loads(archive.read("pyproject.toml").decode())


def test_a_plugins_settings_come_back_as_they_were_given() -> None:
    settings = {"strategy": "maxfl", "maxfl.server-lr": 0.5, "solo.steps": 5, "resume": False}
    fab = build_fab(settings)
    assert pyproject(fab)["tool"]["flwr"]["app"]["config"]["maxfl"] == {"server-lr": 0.5}
    assert bundle.read_bundle(fab, {}) == bundle.RunSettings(settings, __version__)


def test_the_clientapp_of_stock_nodes_is_the_one_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[bytes] = []

    def start_run(superlink: RemoteSuperLink, fab: bytes, overrides: dict[str, Scalar]) -> int:
        sent.append(fab)
        assert overrides == {"strategy": "maxfl", "task": "digits", "out": ""}, "what the list of runs shows"
        return 7

    monkeypatch.setattr(RemoteSuperLink, "start_run", start_run)
    superlink = RemoteSuperLink("h:1")
    assert superlink.submit(RunConfig(), "mine.app:app") == 7
    superlink.submit(RunConfig())
    apps = [pyproject(fab)["tool"]["flwr"]["app"]["components"] for fab in sent]
    assert [app["clientapp"] for app in apps] == ["mine.app:app", "client.app:app"]
    assert {app["serverapp"] for app in apps} == {"server.app:app"}


@pytest.mark.parametrize("named", ["mine", "mine:", ":app", "mine app:app", "mine.app:app()"])
def test_a_clientapp_that_is_no_name_is_refused_before_anything_is_sent(named: str) -> None:
    with pytest.raises(ConfigError, match=r"is not allowed: package\.module:attribute of a ClientApp"):
        Submission(RemoteSuperLink("127.0.0.1:1"), clientapp=named)
