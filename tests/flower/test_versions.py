"""The versions of Flower that fedappeal runs on: each claim of `versions`, against the one that is installed."""

import inspect
import tomllib
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from flwr.supernode.start_client_internal import start_client_internal
from packaging.requirements import Requirement
from packaging.version import Version

from fedappeal.flower import versions

ROOT = Path(__file__).resolve().parents[2]
INSTALLED = Version(version("flwr"))
HTTP = Version("1.40") <= INSTALLED


def test_the_project_asks_for_the_versions_that_are_tried() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert versions.SUPPORTED in project["project"]["dependencies"]
    assert project["tool"]["flwr"]["app"]["flwr-version-target"] == versions.OLDEST
    supported = Requirement(versions.SUPPORTED).specifier
    for path, oldest in (("requirements.txt", True), ("requirements-newest.txt", False)):
        (pin,) = [line for line in (ROOT / path).read_text().splitlines() if line.startswith("flwr==")]
        locked = Version(pin.removeprefix("flwr==").removesuffix(" \\"))
        following = Version(f"{locked.major}.{locked.minor + 1}")
        assert locked in supported
        assert (locked == Version(versions.OLDEST)) is oldest
        assert (following in supported) is oldest, f"{path} does not hold the end of {versions.SUPPORTED}"


def test_the_installed_flower_serves_grpc_and_its_supernode_speaks_what_is_expected() -> None:
    flower: Any = import_module("flwr.superlink.cli.flower_superlink")
    source = inspect.getsource(flower.SuperLinkLifespan)
    assert "_start_fleet_api()" in source, f"Flower {INSTALLED} has no Fleet API over gRPC: clients need HTTP now"
    if HTTP:
        assert getattr(flower, versions.GRPC_FLEET, None) == versions.GRPC_FLEET, (
            f"Flower {INSTALLED} starts the Fleet API over gRPC in another way than 1.42 did"
        )
    assert versions.SUPERNODE_SPEAKS_HTTP is HTTP
    assert ("transport" not in inspect.signature(start_client_internal).parameters) is HTTP


def test_calls_over_grpc_end_in_the_handlers_that_are_named() -> None:
    handlers = versions.fleet_handlers()
    servicer = import_module("flwr.server.superlink.fleet.grpc_rere.fleet_servicer")
    called = [value for value in vars(servicer).values() if value is handlers]
    assert called, f"Flower {INSTALLED} handles the calls of the Fleet API elsewhere than in {handlers.__name__}"
