"""What fedappeal.flower.bundle relies on: bundles of settings alone, and nested settings read by dots."""

import io
import struct
import subprocess
import sys
import tomllib
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import pytest
from flwr.cli.build import build_fab_from_disk
from flwr.common.config import get_fused_config_from_dir, get_fused_config_from_fab
from flwr.supercore.run import Run

from fedappeal.flower import bundle
from tests.project_copy import copy_project

CONFIG: dict[str, Any] = {"strategy": "maxfl", "lr": 0.1, "maxfl.server-lr": 0.5, "maxfl.on": True, "a.b.c": 3}


def built(config: dict[str, Any] = CONFIG) -> bytes:
    return bundle.build_fab(config, serverapp="server.app:app", clientapp="mine.app:app", version="1.2.3")


def pyproject(fab: bytes) -> dict[str, Any]:
    with zipfile.ZipFile(io.BytesIO(fab)) as archive:
        return tomllib.loads(archive.read("pyproject.toml").decode())


def test_it_holds_settings_and_no_code_and_is_always_the_same() -> None:
    assert built() == built()
    with zipfile.ZipFile(io.BytesIO(built())) as archive:
        assert sorted(archive.namelist()) == [".info/CONTENT", "LICENSE", "pyproject.toml"]
        assert archive.read("LICENSE").endswith(b"under its own license.\n")


def test_it_names_its_apps() -> None:
    app = pyproject(built())["tool"]["flwr"]["app"]
    assert app["components"] == {"serverapp": "server.app:app", "clientapp": "mine.app:app"}


def test_a_dotted_key_is_a_table_in_the_bundle_and_comes_back_dotted() -> None:
    stored = pyproject(built())["tool"]["flwr"]["app"]["config"]
    assert stored == {"strategy": "maxfl", "lr": 0.1, "maxfl": {"server-lr": 0.5, "on": True}, "a": {"b": {"c": 3}}}
    assert bundle.read_bundle(built(), {}) == bundle.RunSettings(CONFIG, "1.2.3")


def test_overrides_win_and_must_name_keys_that_the_bundle_has() -> None:
    settings = bundle.read_bundle(built(), {"lr": 0.5, "maxfl.server-lr": 2.0})
    assert settings.config == {**CONFIG, "lr": 0.5, "maxfl.server-lr": 2.0}
    with pytest.raises(ValueError, match=r"Key 'maxfl\.other' is not present"):
        bundle.read_bundle(built(), {"maxfl.other": 1.0})


def test_flowers_own_server_reads_the_same_settings(tmp_path: Path) -> None:
    """A ServerApp's context comes from the unpacked bundle, a stock SuperNode's from the bundle itself."""
    with zipfile.ZipFile(io.BytesIO(built())) as archive:
        archive.extractall(tmp_path)
    assert get_fused_config_from_dir(tmp_path, {"maxfl.server-lr": 2.0}) == {**CONFIG, "maxfl.server-lr": 2.0}
    assert get_fused_config_from_fab(built(), Run.create_empty(1)) == CONFIG


@pytest.mark.parametrize("config", [{"a": 1, "a.b": 2}, {"a.b": 2, "a": 1}])
def test_a_key_cannot_be_a_setting_and_a_table(config: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="is not allowed"):
        built(config)


@pytest.mark.parametrize("content", [b"", b"not a zip"])
def test_what_is_no_bundle_is_one_line(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"^it cannot be read: "):
        bundle.read_bundle(content, {})


def test_settings_are_scalars() -> None:
    with pytest.raises(ValueError, match="The value for key a needs to be of type"):
        built({"a": [1, 2]})


def test_settings_that_unpack_to_more_than_a_megabyte_are_not_read() -> None:
    """A bundle of kilobytes can hold gigabytes of them."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("pyproject.toml", "#" * 2_000_000)
    assert len(packed.getvalue()) < 5000
    with pytest.raises(ValueError, match=r"'pyproject.toml' has more than 1048576 bytes"):
        bundle.read_bundle(packed.getvalue(), {})


def test_the_projects_own_bundle_holds_all_that_its_apps_import(tmp_path: Path) -> None:
    built_from, unpacked = copy_project(tmp_path / "project"), tmp_path / "unpacked"
    with zipfile.ZipFile(io.BytesIO(build_fab_from_disk(built_from))) as archive:
        archive.extractall(unpacked)
    apps = "import server.app, client.app, fedappeal.record.columns, fedappeal.tasks as t; print(t.__file__)"
    ran = subprocess.run([sys.executable, "-c", apps], cwd=unpacked, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert Path(ran.stdout.strip()).is_relative_to(unpacked)


SETTINGS = b'[project]\nversion = "1"\n[tool.flwr.app.components]\nclientapp = "a:b"\n'


def zipped(content: bytes) -> bytearray:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("pyproject.toml", SETTINGS + content)
    return bytearray(packed.getvalue())


def encrypted() -> bytes:
    content = zipped(b"")
    content[6] |= 1
    content[content.rindex(b"PK\x01\x02") + 8] |= 1
    return bytes(content)


def of_another_method() -> bytes:
    content = zipped(b"")
    content[8] = content[content.rindex(b"PK\x01\x02") + 10] = 99
    return bytes(content)


def damaged() -> bytes:
    content = zipped(b"# " + bytes(range(32, 127)) * 5)
    content[60:90] = b"\xff" * 30
    return bytes(content)


def lying() -> bytes:
    size = 200_000_000
    content = bytes(zipped(b"#" * (size - len(SETTINGS))))
    return content.replace(struct.pack("<L", size), struct.pack("<L", 100))


GARBAGE = {
    "encrypted": encrypted,
    "of another method": of_another_method,
    "damaged": damaged,
    "without tables": lambda: plain(b"tool = 3\n"),
    "of a deep table": lambda: bytes(zipped(b"[tool.flwr.app.config]\n" + b".".join([b"a"] * 200_000) + b" = 1\n")),
    "of deep lists": lambda: bytes(zipped(b"x = " + b"[" * 100_000)),
    "of no text": lambda: bytes(zipped(b"\xff")),
}


def plain(content: bytes) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("pyproject.toml", content)
    return packed.getvalue()


@pytest.mark.parametrize("case", GARBAGE)
def test_a_bundle_of_garbage_is_one_line_and_no_other_error(case: str) -> None:
    with pytest.raises(ValueError, match=r"^it cannot be read: ") as error:
        bundle.read_bundle(GARBAGE[case](), {})
    assert "\n" not in str(error.value)


def test_a_header_that_lies_unpacks_no_more_than_it_says() -> None:
    content = lying()
    tracemalloc.start()
    with pytest.raises(ValueError, match="Bad CRC-32"):
        bundle.read_bundle(content, {})
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 20_000_000


@pytest.mark.parametrize(
    "name", ["it's", "#1", "~", "a:b", "über/größe", "x" * 190, "...", "a'#~;&|$`\"<>?*{}%!^", " "]
)
def test_a_file_may_have_any_name_that_a_file_system_takes_and_a_person_can_read(name: str, tmp_path: Path) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("pyproject.toml", SETTINGS)
        archive.writestr("b.py", "")
        archive.writestr(f"data/{name}.txt", "content")
    bundle.check_app(packed.getvalue(), "b:app")
    bundle.unpack_app(packed.getvalue(), tmp_path)
    assert (tmp_path / "data" / f"{name}.txt").read_text() == "content"


@pytest.mark.parametrize(
    "name", ["../x", "/x", "a/../x", "a//x", "./x", "a\\..\\x", "a\x1b[31m", "\u202egnp", "x" * 201, "é" * 128]
)
def test_a_file_whose_name_leads_elsewhere_or_cannot_be_read_is_refused(name: str, tmp_path: Path) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr(name, "content")
    with pytest.raises(bundle.BundleRefused, match=r"^the file .* is not allowed: a plain file in a folder of it"):
        bundle.unpack_app(packed.getvalue(), tmp_path / "into")
    assert list(tmp_path.iterdir()) == []
