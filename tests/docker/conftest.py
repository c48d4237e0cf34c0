"""Tests with real containers: `make test-docker`. One image and one long-running federation for all of them."""

import os
import subprocess
import uuid
from collections.abc import Callable, Iterator

import pytest

from tests.docker.federation import IMAGE, ROOT, Federation, docker
from tests.docker.turns import of_turn

ASKED = os.environ.get("FEDAPPEAL_DOCKER_TESTS", "") == "1"
TURN = os.environ.get("FEDAPPEAL_DOCKER_TURN", "")
"""Number of the turn whose tests run; empty: all run."""
CHANGED_SINCE = os.environ.get("FEDAPPEAL_CHANGED_SINCE", "HEAD~1")
"""The commit before the change that is checked."""
OTHERS = pytest.StashKey[list[str]]()
RECOVERIES = pytest.StashKey[list[str]]()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip where nobody asked for containers; where somebody did, a missing engine is a failure."""
    if ASKED and TURN:
        diff = ["git", "diff", "--name-only", CHANGED_SINCE, "HEAD"]
        done = subprocess.run(diff, cwd=ROOT, capture_output=True, text=True)
        # A clone of one commit alone does not say what changed: then it is everything.
        changed = ["docker/"] if done.returncode else done.stdout.splitlines()
        turn = set(of_turn([item.nodeid for item in items], changed, int(TURN)))
        others = [item for item in items if item.nodeid not in turn]
        config.hook.pytest_deselected(items=others)
        config.stash[OTHERS] = [item.nodeid for item in others]
        items[:] = [item for item in items if item.nodeid in turn]
    for item in items:
        if item.nodeid.startswith("tests/docker/"):
            item.add_marker(pytest.mark.docker)
            item.add_marker(pytest.mark.timeout(900))  # the first one builds the image
            if not ASKED:
                item.add_marker(pytest.mark.skip(reason="needs a Docker engine: make test-docker"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say which tests were not of this turn, and how long each recovery took."""
    if others := config.stash.get(OTHERS, []):
        terminalreporter.section(f"not of turn {TURN}")
        for name in others:
            terminalreporter.line(name)
    if lines := config.stash.get(RECOVERIES, []):
        terminalreporter.section("recovery")
        for line in lines:
            terminalreporter.line(line)


@pytest.fixture
def recovered(request: pytest.FixtureRequest) -> Callable[[str, float], None]:
    """Record what came back and after how many seconds."""

    def record(what: str, seconds: float) -> None:
        request.config.stash.setdefault(RECOVERIES, []).append(f"{seconds:6.1f} s  {what}")

    return record


@pytest.fixture(scope="session")
def image() -> str:
    """Build the image of the working tree."""
    docker("version")  # says what is wrong with the engine
    base = ["--build-arg", f"BASE_IMAGE={os.environ['BASE_IMAGE']}"] if os.environ.get("BASE_IMAGE") else []
    subprocess.run(["docker", "build", "-f", "docker/Dockerfile", "-t", IMAGE, *base, "."], cwd=ROOT, check=True)
    return IMAGE


@pytest.fixture(scope="session")
def new_federation(image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Federation]]:
    """Make federations that are not started yet; at the end all are removed."""
    made: list[Federation] = []

    def make() -> Federation:
        federation = Federation(f"fedappeal-test-{uuid.uuid4().hex[:6]}", tmp_path_factory.mktemp("runs"))
        made.append(federation)
        return federation

    yield make
    for federation in made:
        federation.stop()


@pytest.fixture(scope="session")
def long_running(new_federation: Callable[[], Federation]) -> Federation:
    """A federation of four clients that stays up; each test submits runs of its own."""
    federation = new_federation()
    federation.start(4)
    return federation


@pytest.fixture
def federation(long_running: Federation, request: pytest.FixtureRequest) -> Iterator[Federation]:
    """The long-running federation; where a test failed, with what its containers said last."""
    yield long_running
    for client in long_running.clients():  # whatever a test left behind
        docker("unpause", client, check=False)
    if request.node.stash.get(FAILED, False):
        print(long_running.compose("logs", "--tail", "60", check=False))


FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Remember for the fixtures above whether a test failed."""
    report = yield
    if report.when == "call":  # type: ignore[attr-defined]
        item.stash[FAILED] = report.failed  # type: ignore[attr-defined]
    return report
