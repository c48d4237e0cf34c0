"""Units for systemd: paths as they are, also those with spaces and signs that systemd reads."""

import re
import shutil
import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from string import Template

import pytest

from fedappeal.settings.config import ConfigError
from fedappeal.system.systemd import unit_path

UNITS = ["fedappeal-client.service", "fedappeal-federation.service"]


def test_a_path_is_one_word_of_a_unit() -> None:
    assert unit_path("/srv/my fed %n", "folder") == "/srv/my fed %%n"
    for path in ('/srv/a"b', "/srv/a\nb", "/srv/$HOME", "/srv/a\\b"):
        with pytest.raises(ConfigError, match=r"python = .* is not allowed with --service"):
            unit_path(path, "python")


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not installed")
@pytest.mark.parametrize("name", UNITS)
def test_systemd_takes_units_with_any_path(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "my %n fed"
    folder.mkdir()
    (folder / "python").symlink_to(sys.executable)
    facts = {"python": unit_path(folder / "python", "python"), "folder": str(folder), "host": "a.example.org",
             "user": "root", "escaped": unit_path(folder, "folder")}  # fmt: skip
    if "client" in name:
        facts["folder"] = facts["escaped"]
    unit = tmp_path / name
    unit.write_text(
        Template((files("fedappeal.federation") / "templates" / name).read_text("utf-8")).substitute(facts)
    )
    done = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=60, check=False
    )
    newer = re.compile(r"Unknown key( name)? '(RestartSteps|RestartMaxDelaySec)' in section .*ignoring")
    assert [line for line in done.stderr.splitlines() if name in line and not newer.search(line)] == []
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", UNITS)
def test_a_service_cannot_gain_rights(name: str) -> None:
    unit = (files("fedappeal.federation") / "templates" / name).read_text("utf-8")
    assert {"UMask=0077", "NoNewPrivileges=yes", "RestrictSUIDSGID=yes", "Restart=always"} <= set(unit.splitlines())
