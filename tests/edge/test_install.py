"""The installation of an edge device: with a Python that only pretends, so that nothing is downloaded."""

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import typer.main

from fedappeal.cli.client import client_app

EDGE = Path(__file__).parents[2] / "docker" / "edge"
UNIT = EDGE / "fedappeal-client.service"
INSTALL = EDGE / "install.sh"

PYTHON = """#!/bin/sh
case "$*" in
  "-m venv "*)
    mkdir -p "$3/bin"
    printf '#!/bin/sh\\necho "$@" >>"%s/pip.log"\\n' "$PRETENDED" >"$3/bin/python"
    cat >"$3/bin/fedappeal" <<'END'
#!/bin/sh
if [ "$1" = key ]; then
  if grep -qs passphrase "$2"; then exit 2; fi
  [ -f "$2" ] || echo private >"$2"
  echo "public $4" >"${2%.key}.pub"
else
  printf '<%s>' "$@"
  echo " $OMP_NUM_THREADS $FLWR_TELEMETRY_ENABLED"
fi
END
    chmod +x "$3/bin/python" "$3/bin/fedappeal" ;;
  -V) echo Python 3.9.1 ;;
  *version_info*) exit ${TOO_OLD:-0} ;;
esac
"""

Install = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def install(tmp_path: Path) -> Install:
    """Run install.sh in a folder with a certificate, a key and a folder of data."""
    (tmp_path / "python").write_text(PYTHON)
    (tmp_path / "python").chmod(0o755)
    (tmp_path / "ca.crt").write_text("-----BEGIN CERTIFICATE-----\n")
    (tmp_path / "old.key").write_text("-----BEGIN OPENSSH PRIVATE KEY-----\n")
    (tmp_path / "my photos").mkdir()

    def run(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
        env = {**os.environ, "PRETENDED": str(tmp_path), **environment}
        return subprocess.run(
            ["sh", str(INSTALL), *arguments],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run


HERE = ("--no-systemd", "--prefix", "here", "--python", "./python")
NEEDED = ("--superlink", "fed.example.org:9092", "--root-certificates", "ca.crt", "--data", "my photos")


def test_a_first_installation_makes_a_key_and_starts_with_what_was_given(install: Install, tmp_path: Path) -> None:
    done = install(*HERE, *NEEDED)
    assert done.returncode == 0, done.stderr
    assert f"send {tmp_path}/here/etc/client.pub to the operator" in done.stdout
    assert (tmp_path / "here/etc/client.key").read_text() == "private\n"
    run = tmp_path / "here/run-client"
    started = subprocess.run([run, "--role", "unseen"], capture_output=True, text=True, check=True, timeout=60)
    here = f"{tmp_path}/here"
    assert started.stdout == (
        f"<client><--superlink><fed.example.org:9092><--root-certificates><{here}/etc/ca.crt>"
        f"<--key><{here}/etc/client.key><--data><{tmp_path}/my photos><--device><auto>"
        "<--participation><><--set><><--limits><><--allow><>"
        f"<--state-dir><{here}/state/client><--connect-timeout><0><--role><unseen> 1 0\n"
    )
    assert (tmp_path / "here/state").stat().st_mode & 0o777 == 0o700
    installed = (tmp_path / "pip.log").read_text().splitlines()
    assert [line.split()[-1] for line in installed] == [str(INSTALL.parents[2])] * 2
    assert "--force-reinstall --no-deps" in installed[1]


def test_a_second_one_changes_what_is_named_and_nothing_else(install: Install, tmp_path: Path) -> None:
    policy = ("--participation", "defect", "--set", "defect.leave-below=0.3", "--allow", "mine,theirs")
    policy += ("--limits", "max-steps=2000 min-batch=4")
    install(*HERE, *NEEDED, *policy, "--options", "--priority --no-report-loss")
    before = (tmp_path / "here/etc/client.env").read_text()
    (tmp_path / "here/etc/client.key").write_text("mine\n")
    done = install(*HERE, "--superlink", "[2001:db8::1]:9092")
    assert done.returncode == 0, done.stderr
    assert "is new" not in done.stdout
    after = (tmp_path / "here/etc/client.env").read_text()
    assert 'PARTICIPATION="defect"\nSET="defect.leave-below=0.3"\nLIMITS="max-steps=2000 min-batch=4"\n' in after
    assert 'ALLOW="mine,theirs"\n' in after
    assert after == before.replace("fed.example.org:9092", "[2001:db8::1]:9092") != before
    assert (tmp_path / "here/etc/client.key").read_text() == "mine\n"
    assert install(*HERE, "--options", "", "--key", "old.key").returncode == 0
    assert 'OPTIONS=""' in (tmp_path / "here/etc/client.env").read_text()
    assert "OPENSSH" in (tmp_path / "here/etc/client.key").read_text()
    assert (tmp_path / "here/etc/client.key").stat().st_mode & 0o777 == 0o600


def test_what_the_owner_wrote_into_the_settings_stays(install: Install, tmp_path: Path) -> None:
    install(*HERE, *NEEDED, "--device", "cpu")
    settings = tmp_path / "here/etc/client.env"
    edited = settings.read_text().replace('OPTIONS=""', "OPTIONS='--no-report-loss --priority'")
    settings.write_text(edited.replace('DEVICE="cpu"', "DEVICE=cuda:1 ") + "OMP_NUM_THREADS=2\n")
    for _ in range(2):
        assert install(*HERE, "--superlink", "new.example.org:9092").returncode == 0
        lines = settings.read_text().splitlines()
        assert lines[1] == 'SUPERLINK="new.example.org:9092"'
        assert lines[5:] == [
            'DEVICE="cuda:1"',
            'PARTICIPATION=""',
            'SET=""',
            'LIMITS=""',
            'ALLOW=""',
            'OPTIONS="--no-report-loss --priority"',
            "OMP_NUM_THREADS=2",
        ]


def test_a_key_that_does_not_serve_does_not_replace_the_one_that_does(install: Install, tmp_path: Path) -> None:
    install(*HERE, *NEEDED)
    (tmp_path / "old.key").write_text("-----BEGIN OPENSSH PRIVATE KEY-----\nwith a passphrase\n")
    done = install(*HERE, "--key", "old.key")
    assert done.returncode == 2
    assert "key = 'old.key' is not allowed: it must hold an ECDSA key without a passphrase" in done.stderr
    assert (tmp_path / "here/etc/client.key").read_text() == "private\n"
    left = {path.name for path in (tmp_path / "here/etc").iterdir()}
    assert left == {"ca.crt", "client.env", "client.key", "client.pub"}


def test_pytorch_can_come_from_an_index_of_its_own(install: Install, tmp_path: Path) -> None:
    install(*HERE, *NEEDED, "--torch-index", "https://index.example.org/cpu", "--from", "fedappeal.whl")
    first, *others = (tmp_path / "pip.log").read_text().splitlines()
    assert first.endswith("install --index-url https://index.example.org/cpu torch>=2.6")
    assert all(line.endswith("fedappeal.whl") and "index" not in line for line in others)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (NEEDED[2:], "--superlink HOST:PORT is missing"),
        (NEEDED[:4], "--data PATH is missing"),
        ((*NEEDED[:2], *NEEDED[4:]), "--root-certificates FILE is missing"),
        ((*NEEDED, "--superlink", "fed.example.org"), "superlink = 'fed.example.org' is not allowed: HOST:PORT"),
        ((*NEEDED, "--superlink", "https://fed:9092"), "superlink = 'https://fed:9092' is not allowed"),
        ((*NEEDED, "--superlink", "fed:http"), "superlink = 'fed:http' is not allowed"),
        ((*NEEDED, "--superlink", ":9092"), "superlink = ':9092' is not allowed"),
        ((*NEEDED, "--data", "nowhere"), "/nowhere' is not allowed: no such file or folder"),
        ((*NEEDED, "--root-certificates", "old.key"), "root-certificates = 'old.key' is not allowed: no certificate"),
        ((*NEEDED, "--key", "ca.crt"), "key = 'ca.crt' is not allowed: no private key in OpenSSH's format"),
        ((*NEEDED, "--data", "$(id)"), "--data = '$(id)' is not allowed: no quotes"),
        ((*NEEDED, "--python", "python0"), "python = 'python0' is not allowed: no such command"),
        ((*NEEDED, "--prefix", "a b"), "is not allowed: no spaces"),
        ((*NEEDED, "--prefix", "my photos/../full"), "is not allowed: no spaces"),
        ((*NEEDED, "--prefix", "full"), "/full' is not allowed: the folder holds something else"),
        ((*NEEDED, "--data"), "--data needs a value"),
        ((*NEEDED, "--dta", "x"), "unknown option '--dta'"),
        ((*NEEDED, "--purge"), "--purge goes with --uninstall"),
        (("--prefix", "full", "--uninstall"), "/full' is not allowed: this script has not installed it"),
    ],
)
def test_what_is_wrong_is_one_line_and_nothing_is_written(
    arguments: tuple[str, ...], expected: str, install: Install, tmp_path: Path
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "precious").touch()
    before = sorted(tmp_path.rglob("*"))
    done = install(*HERE, *arguments)
    assert done.returncode == 2
    lines = [line for line in done.stderr.splitlines() if line.startswith("install.sh: ")]
    assert len(lines) == 1
    assert expected in lines[0]
    assert sorted(tmp_path.rglob("*")) == before


def test_a_python_that_is_too_old_is_named(install: Install) -> None:
    done = install(*HERE, *NEEDED, TOO_OLD="1")
    assert done.returncode == 2
    assert "python = './python' is not allowed: it is Python 3.9.1, 3.11 or newer is needed" in done.stderr


def test_uninstalling_keeps_key_and_state_unless_told_otherwise(install: Install, tmp_path: Path) -> None:
    install(*HERE, *NEEDED)
    (tmp_path / "here/state/client").mkdir(parents=True)
    assert install(*HERE, "--uninstall").returncode == 0
    left = sorted(path.name for path in (tmp_path / "here").iterdir())
    assert left == [".installed-by-fedappeal", "etc", "state"]
    assert install(*HERE).returncode == 0, "what it was told before is enough"
    assert install(*HERE, "--uninstall", "--purge").returncode == 0
    assert not (tmp_path / "here").exists()
    assert (tmp_path / "my photos").is_dir()


def test_the_unit_gives_the_client_what_install_writes(install: Install, tmp_path: Path) -> None:
    install(*HERE, *NEEDED)
    unit = UNIT.read_text().replace("\\\n", " ")
    (command,) = re.findall(r"^ExecStart=(.*)$", unit, re.MULTILINE)
    written = set(re.findall(r"^(\w+)=", (tmp_path / "here/etc/client.env").read_text(), re.MULTILINE))
    assert set(re.findall(r"\$\{?(\w+)", command)) == written
    known = {name for parameter in typer.main.get_command(client_app).params for name in parameter.opts}
    assert set(re.findall(r"--[a-z-]+", command)) <= known
    assert "--data" in known


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not installed")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text().replace("/opt/fedappeal/bin/fedappeal", shutil.which("true") or ""))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(copy)], capture_output=True, text=True, timeout=60, check=False
    )
    newer = re.compile(r"Unknown key( name)? '(RestartSteps|RestartMaxDelaySec)' in section .*ignoring")
    assert [line for line in done.stderr.splitlines() if UNIT.name in line and not newer.search(line)] == []
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not shutil.which("shellcheck"), reason="shellcheck is not installed")
def test_shellcheck_finds_nothing() -> None:
    done = subprocess.run(
        ["shellcheck", "--shell=sh", str(INSTALL)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout


def test_the_service_is_confined() -> None:
    wanted = {"UMask=0077", "NoNewPrivileges=yes", "ProtectSystem=strict", "PrivateTmp=yes", "CapabilityBoundingSet="}
    wanted |= {"StateDirectoryMode=0700", "MemoryMax=50%", "TasksMax=256"}
    assert wanted <= set(UNIT.read_text().splitlines())
