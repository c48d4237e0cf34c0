"""What a device says of power and network, from folders and answers made by hand."""

from pathlib import Path

import pytest

from client.limits.rest import battery, metered_answer, on_mains, on_unmetered_network


def supplies(folder: Path, *each: dict[str, str]) -> Path:
    for number, supply in enumerate(each):
        (folder / f"supply{number}").mkdir()
        for name, value in supply.items():
            (folder / f"supply{number}" / name).write_text(value + "\n")
    return folder


AC_ON, AC_OFF = {"type": "Mains", "online": "1"}, {"type": "Mains", "online": "0"}
MOUSE = {"type": "Battery", "status": "Discharging", "scope": "Device"}


@pytest.mark.parametrize(
    ("devices", "mains"),
    [
        ([], True),  # a machine without a battery
        ([AC_ON, {"type": "Battery", "status": "Charging"}], True),
        ([AC_ON, {"type": "Battery", "status": "Discharging"}], True),  # more is used than comes in
        ([AC_OFF, {"type": "Battery", "status": "Discharging"}], False),
        ([AC_OFF, {"type": "Battery", "status": "Unknown"}], False),
        ([{"type": "Battery", "status": "Discharging"}], False),
        ([{"type": "Battery", "status": "Full"}], True),
        ([MOUSE], True),
        ([{"type": "USB", "online": "1"}, {"type": "Battery", "status": "Discharging"}], True),
    ],
)
def test_mains_power_is_read_off_the_supplies(tmp_path: Path, devices: list[dict[str, str]], mains: bool) -> None:
    assert on_mains(supplies(tmp_path, *devices)) is mains


def test_a_system_without_that_folder_does_not_say(tmp_path: Path) -> None:
    assert on_mains(tmp_path / "none") is None


def test_a_battery_says_how_full_it_is(tmp_path: Path) -> None:
    assert battery(tmp_path) is None
    assert battery(tmp_path / "none") is None
    supplies(tmp_path, {**MOUSE, "capacity": "3"}, AC_ON, {"type": "Battery", "capacity": "83"})
    assert battery(tmp_path) == 83
    (tmp_path / "supply2" / "capacity").write_text("much")
    assert battery(tmp_path) is None


@pytest.mark.parametrize(
    ("answer", "unmetered"),
    [
        *(("u 1\n", False), ("u 2\n", True), ("u 3", False), ("u 4", True)),
        *(("u 0", None), ("", None), ("s 4", None), ("u x", None)),
    ],
)
def test_networkmanagers_answer_is_read(answer: str, unmetered: bool | None) -> None:
    assert metered_answer(answer) is unmetered


def test_without_busctl_the_network_is_not_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert on_unmetered_network() is None
    busctl = tmp_path / "busctl"
    busctl.write_text("#!/bin/sh\necho u 2\n")
    busctl.chmod(0o755)
    assert on_unmetered_network() is True
    busctl.write_text("#!/bin/sh\nexit 1\n")
    assert on_unmetered_network() is None
