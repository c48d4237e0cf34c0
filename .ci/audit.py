"""Audits the code with bandit, and the pinned packages with pip-audit: `make audit`.

    python .ci/audit.py [REQUIREMENTS]

Exit code 0: nothing found. 1: something found. 2: the audit itself failed. 3: nothing found, but the advisories of
some packages could not be read; pip-audit by itself would call these clean.
"""

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CODE = ("fedappeal", "client", "server", "strategies", "benchmarks", ".ci")
FOUND, FAILED, UNREACHABLE = 1, 2, 3
_NETWORK = re.compile(r"requests\.exceptions|urllib3\.exceptions|ConnectionError|[Tt]imed? ?out|HTTPError")


@dataclass(frozen=True)
class Outcome:
    """What an audit came to: its exit code, and lines that say why."""

    code: int
    lines: tuple[str, ...]


def advisories(report: dict[str, Any]) -> Outcome:
    """Return what pip-audit's report in JSON comes to."""
    packages = report["dependencies"]
    flaws = [
        f"{package['name']} {package['version']}: {flaw['id']}, mended in {', '.join(flaw['fix_versions']) or 'none'}"
        for package in packages
        for flaw in package.get("vulns", ())
    ]
    unread = [package["name"] for package in packages if "skip_reason" in package]
    lines = [*flaws]
    if unread:
        lines.append(f"no advisories could be read for {len(unread)} of {len(packages)} packages: {_some(unread)}")
    if not lines:
        lines.append(f"no advisory concerns any of {len(packages)} packages")
    return Outcome(FOUND if flaws else UNREACHABLE if unread else 0, tuple(lines))


def audit_packages(requirements: Path) -> Outcome:
    """Audit a file of pinned packages."""
    command = ("pip_audit", "--require-hashes", "--disable-pip", "--progress-spinner", "off", "--format", "json")
    done = _run(*command, "--requirement", str(requirements))
    try:
        return advisories(json.loads(done.stdout))
    except ValueError:
        errors = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        if _NETWORK.search(done.stderr):
            return Outcome(UNREACHABLE, (f"the advisories could not be reached: {errors[-1][:300]}",))
        return Outcome(FAILED, (f"pip-audit failed: {errors[-1][:300]}",))


def audit_code() -> Outcome:
    """Audit the project's own code."""
    done = _run("bandit", "--quiet", "--configfile", "pyproject.toml", "--recursive", *CODE)
    if done.returncode == 0:
        return Outcome(0, ("bandit finds nothing in the code",))
    return Outcome(FOUND if done.returncode == 1 else FAILED, (done.stdout.strip() or done.stderr.strip(),))


def exit_code(outcomes: Sequence[Outcome]) -> int:
    """Return the code of several audits: what was found comes before what could not be looked at."""
    return min((outcome.code for outcome in outcomes if outcome.code), default=0)


def _run(module: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")


def main() -> None:
    """Print what was found, and end with the exit code above."""
    requirements = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "requirements.txt"
    outcomes = (audit_code(), audit_packages(requirements.absolute()))
    for outcome in outcomes:
        for line in outcome.lines:
            print(f"audit: {line}", flush=True)
    sys.exit(exit_code(outcomes))


if __name__ == "__main__":
    main()
