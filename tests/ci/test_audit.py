"""`make audit` tells what was found from what could not be looked at."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / ".ci" / "audit.py"
PINNED = "idna==3.20 --hash=sha256:" + 64 * "0" + "\n"
CLEAN = {"name": "idna", "version": "3.20", "vulns": []}
UNREAD = {"name": "torch", "skip_reason": "Dependency not found on PyPI and could not be audited"}
FLAWED = {"name": "jinja2", "version": "2.0", "vulns": [{"id": "PYSEC-1", "fix_versions": ["2.1", "3.0"]}]}


@pytest.fixture(scope="module")
def audit() -> ModuleType:
    spec = importlib.util.spec_from_file_location("audit", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("packages", "code", "lines"),
    [
        ([CLEAN], 0, ["no advisory concerns any of 1 packages"]),
        ([CLEAN, UNREAD], 3, ["no advisories could be read for 1 of 2 packages: torch"]),
        ([CLEAN, FLAWED], 1, ["jinja2 2.0: PYSEC-1, mended in 2.1, 3.0"]),
        (
            [FLAWED, UNREAD],
            1,
            ["jinja2 2.0: PYSEC-1, mended in 2.1, 3.0", "no advisories could be read for 1 of 2 packages: torch"],
        ),
    ],
    ids=["clean", "unread", "flawed", "both"],
)
def test_a_report_of_pip_audit(
    audit: ModuleType, packages: list[dict[str, Any]], code: int, lines: list[str]
) -> None:
    outcome = audit.advisories({"dependencies": packages, "fixes": []})
    assert (outcome.code, list(outcome.lines)) == (code, lines)


@pytest.mark.parametrize(("codes", "code"), [((0, 0), 0), ((0, 3), 3), ((1, 3), 1), ((2, 3), 2), ((1, 0), 1)])
def test_what_was_found_comes_before_what_could_not_be_looked_at(
    audit: ModuleType, codes: tuple[int, int], code: int
) -> None:
    assert audit.exit_code([audit.Outcome(each, ()) for each in codes]) == code


def without_a_network() -> dict[str, str]:
    nowhere = dict.fromkeys(("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"), "http://127.0.0.1:9")
    return {**nowhere, "NO_PROXY": "", "no_proxy": ""}


def test_without_a_network_the_exit_code_is_one_of_its_own(audit: ModuleType, tmp_path: Path) -> None:
    """Of a project of one line a folder: `make lint` has bandit read all of ours, which takes 8 s."""
    script = tmp_path / ".ci" / "audit.py"
    for folder in audit.CODE:
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "code.py").write_text("import os\n")
    script.write_bytes(SCRIPT.read_bytes())
    (tmp_path / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    requirements = tmp_path / "requirements.txt"
    requirements.write_text(PINNED)
    done = subprocess.run(
        [sys.executable, str(script), str(requirements)],
        env={**os.environ, **without_a_network()},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    said = done.stdout.splitlines()
    assert (done.returncode, len(said), done.stderr) == (3, 2, ""), done
    assert said[0] == "audit: bandit finds nothing in the code"
    assert re.fullmatch(r"audit: the advisories could not be reached: .*127\.0\.0\.1.*", said[1])


def test_packages_that_are_not_pinned(audit: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in without_a_network().items():
        monkeypatch.setenv(name, value)
    (tmp_path / "requirements.txt").write_text("idna>=3\n")
    outcome = audit.audit_packages(tmp_path / "requirements.txt")
    assert outcome.code == 2
    assert re.fullmatch("pip-audit failed: .*idna.*", *outcome.lines)


def test_every_exception_from_the_rules_has_its_reason() -> None:
    for part in ("fedappeal", "client", "server", "strategies", "benchmarks", ".ci"):
        for file in (ROOT / part).rglob("*.py"):
            for line in file.read_text().splitlines():
                assert "# nosec" not in line or re.search(r"# nosec B\d{3} # \w{2}", line), f"{file}: {line}"
