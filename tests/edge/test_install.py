"""The installation of an edge device: with a Python that only pretends, so that nothing is downloaded."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

INSTALL = Path(__file__).parents[2] / "docker" / "edge" / "install.sh"
LINE = "fedappeal://fed.example.org:9094/c2VjcmV0"

PYTHON = """#!/bin/sh
case "$*" in
  "-m venv "*)
    mkdir -p "$3/bin"
    printf '#!/bin/sh\\necho "$@" >>"%s/pip.log"; env >>"%s/pip.env"\\n' \\
      "$PRETENDED" "$PRETENDED" >"$3/bin/python"
    cat >"$3/bin/fedappeal" <<'END'
#!/bin/sh
{ printf '<%s>' "$@" && echo && cat "$2"; } >>"$PRETENDED/joined"
[ -z "${REFUSES-}" ] || { echo "fedappeal: $REFUSES" >&2 && exit 2; }
END
    chmod +x "$3/bin/python" "$3/bin/fedappeal" ;;
  -V) echo Python 3.9.1 ;;
  *version_info*) exit ${TOO_OLD:-0} ;;
esac
"""

SYSTEMCTL = """#!/bin/sh
[ "$2" != show-environment ] || exit ${NO_SYSTEMD:-0}
echo "$@" >>"$PRETENDED/systemctl.log"
"""

Install = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def install(tmp_path: Path) -> Install:
    """Run install.sh in a folder with an invitation and a folder of data, by its user's systemd."""
    for name, text in (("python", PYTHON), ("bin/systemctl", SYSTEMCTL), ("laptop.invite", f"{LINE}\n")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "my photos").mkdir()

    def run(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
        env = {**os.environ, "PRETENDED": str(tmp_path), "HOME": str(tmp_path / "home")}
        env |= {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "XDG_CONFIG_HOME": "", **environment}
        return subprocess.run(
            ["sh", str(INSTALL), *arguments],
            cwd=tmp_path,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run


HERE = ("--prefix", "here", "--python", "./python")
NEEDED = ("laptop.invite", "--data", "my photos")


def said(done: "subprocess.CompletedProcess[str]") -> list[str]:
    return (done.stdout + done.stderr).splitlines()


def test_an_invitation_and_data_are_enough(install: Install, tmp_path: Path) -> None:
    """Options of the script stay here, all others are those of `fedappeal join`, in their order."""
    policy = ("--participation", "defect", "--set", "defect.leave-below=0.3", "--label=a b")
    done = install(*NEEDED, *HERE, *policy)
    assert (done.returncode, done.stderr) == (0, "")
    words = ("join", *NEEDED, *policy, "--service")
    assert (tmp_path / "joined").read_text() == "".join(f"<{word}>" for word in words) + f"\n{LINE}\n"
    expected = ["daemon-reload", "enable --quiet fedappeal-client.service", "restart fedappeal-client.service"]
    assert (tmp_path / "systemctl.log").read_text().splitlines() == [f"--user {line}" for line in expected]
    installed = (tmp_path / "pip.log").read_text().splitlines()
    assert [line.split()[-1] for line in installed] == [str(INSTALL.parents[2])] * 2
    assert "--force-reinstall --no-deps" in installed[1]


def test_without_a_systemd_of_the_user_nothing_is_started(install: Install, tmp_path: Path) -> None:
    done = install(*NEEDED, *HERE, NO_SYSTEMD="1")
    assert (done.returncode, (tmp_path / "joined").exists(), (tmp_path / "systemctl.log").exists()) == (
        0,
        True,
        False,
    )
    assert f"its commands: {tmp_path}/here/venv/bin/fedappeal client" in done.stdout
    home = install(*NEEDED, "--python", "./python")
    assert home.returncode == 0, home.stderr
    assert (tmp_path / "home/.local/share/fedappeal/venv/bin/fedappeal").exists()


def test_the_secret_is_no_word_of_a_command(install: Install, tmp_path: Path) -> None:
    """Every user of a machine sees the words of its processes."""
    done = install(LINE, "--data", "my photos", *HERE)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "joined").read_text() == (f"<join></dev/stdin><--data><my photos><--service>\n{LINE}\n")
    assert "PATH=" in (tmp_path / "pip.env").read_text()
    assert LINE not in (tmp_path / "pip.env").read_text(), "code that pip builds is not the operator's"


def test_a_folder_is_no_name_of_a_package(install: Install, tmp_path: Path) -> None:
    (tmp_path / "fedappeal").mkdir()
    assert install(*NEEDED, *HERE, "--from", "fedappeal").returncode == 0
    installed = (tmp_path / "pip.log").read_text().splitlines()
    assert {line.split()[-1] for line in installed} == {str(tmp_path / "fedappeal")}


def test_run_again_it_updates_and_joins_nothing(install: Install, tmp_path: Path) -> None:
    assert install(*NEEDED, *HERE).returncode == 0
    (tmp_path / "joined").unlink()
    assert install(*HERE).returncode == 0
    assert not (tmp_path / "joined").exists()
    assert len((tmp_path / "pip.log").read_text().splitlines()) == 4
    assert (tmp_path / "systemctl.log").read_text().count("restart") == 2


def test_what_join_refuses_starts_no_service(install: Install, tmp_path: Path) -> None:
    done = install(*NEEDED, *HERE, REFUSES="this invitation has been used")
    assert (done.returncode, said(done)[-1]) == (2, "fedappeal: this invitation has been used")
    assert not (tmp_path / "systemctl.log").exists()


def test_pytorch_can_come_from_an_index_of_its_own(install: Install, tmp_path: Path) -> None:
    install(*NEEDED, *HERE, "--torch-index", "https://index.example.org/cpu", "--from", "fedappeal.whl")
    first, *others = (tmp_path / "pip.log").read_text().splitlines()
    assert first.endswith("install --index-url https://index.example.org/cpu torch>=2.6")
    assert len(others) == 2
    assert all(line.endswith("fedappeal.whl") and "index" not in line for line in others)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), "invitation is missing: the operator's file"),
        (NEEDED[1:], "invitation is missing before '--data'"),
        (("nowhere.invite", *NEEDED[1:]), "invitation = 'nowhere.invite' is not allowed: no file that can be read"),
        (("-", *NEEDED[1:]), "invitation is missing before '--data'"),
        (("-x",), "unknown option '-x'"),
        ((*NEEDED[:2], "nowhere"), "data = 'nowhere' is not allowed: no such file or folder"),
        ((*NEEDED, "--python", "python0"), "python = 'python0' is not allowed: no such command"),
        ((*NEEDED, "--prefix", "full"), "/full' is not allowed: the folder holds something else"),
        ((*NEEDED, "--from"), "--from needs a value"),
        (NEEDED[:2], "--data needs a value"),
        (("--uninstall", "--prefix", "full"), "/full' is not allowed: this script has not installed it"),
    ],
)
def test_what_is_wrong_is_one_line_and_nothing_is_written(
    arguments: tuple[str, ...], expected: str, install: Install, tmp_path: Path
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "precious").touch()
    before = sorted(tmp_path.rglob("*"))
    first = [word for word in arguments[:1] if not word.startswith("--")]
    done = install(*first, *HERE, *arguments[len(first) :])
    assert done.returncode == 2
    lines = [line for line in said(done) if line.startswith("install.sh: ")]
    assert len(lines) == 1
    assert expected in lines[0]
    assert sorted(tmp_path.rglob("*")) == before


def test_a_python_that_is_too_old_is_named(install: Install) -> None:
    done = install(*NEEDED, *HERE, TOO_OLD="1")
    assert done.returncode == 2
    assert "python = './python' is not allowed: it is Python 3.9.1, 3.11 or newer is needed" in done.stderr


def test_uninstalling_keeps_key_and_state(install: Install, tmp_path: Path) -> None:
    install(*NEEDED, *HERE)
    unit, state = tmp_path / "home/.config/systemd/user/fedappeal-client.service", tmp_path / "home/.fedappeal/client"
    unit.parent.mkdir(parents=True)
    unit.touch()
    state.mkdir(parents=True)
    done = install("--uninstall", *HERE)
    assert (done.returncode, "key and state stay" in done.stdout) == (0, True), done.stderr
    assert (unit.exists(), state.exists(), (tmp_path / "here").exists()) == (False, True, False)
    assert "--user disable --now --quiet fedappeal-client.service" in (tmp_path / "systemctl.log").read_text()
    assert (tmp_path / "my photos").is_dir()


@pytest.mark.skipif(not shutil.which("shellcheck"), reason="shellcheck is not installed")
def test_shellcheck_finds_nothing() -> None:
    done = subprocess.run(
        ["shellcheck", "--shell=sh", str(INSTALL)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout
