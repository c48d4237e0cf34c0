"""The one table of how decisions look: told apart by every reader, and taken by every view."""

import re
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from client.page import app
from fedappeal.record.looks import LOOK_FIELDS, LOOKS, NOT_ASKED, look_of
from fedappeal.views.comparison import stayed
from fedappeal.views.live.view import View
from fedappeal.views.report import charts

ROOT = Path(__file__).parents[2]
# Machado, Oliveira and Fernandes, IEEE Transactions on Visualization and Computer Graphics 15 (2009): severity 1.
VISION = {
    "normal": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]]
    ),
}
XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.072175], [0.0193339, 0.119192, 0.9503041]]
)
WHITE, DARK = "#ffffff", "#16181b"
"""Grounds of the pages."""


def linear(colour: str) -> NDArray[np.float64]:
    values = np.array([int(colour[n : n + 2], 16) for n in (1, 3, 5)]) / 255
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def lab(rgb: NDArray[np.float64]) -> NDArray[np.float64]:
    x, y, z = np.cbrt(XYZ @ np.clip(rgb, 0, 1) / np.array([0.95047, 1.0, 1.08883]))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def contrast(one: str, other: str) -> float:
    low, high = sorted(float(XYZ[1] @ linear(colour)) for colour in (one, other))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("vision", VISION)
def test_colours_are_told_apart(vision: str) -> None:
    seen = {look.colour: lab(VISION[vision] @ linear(look.colour)) for look in LOOKS.values()}
    assert len(seen) == len(LOOKS)
    for one, other in combinations(seen, 2):
        assert np.linalg.norm(seen[one] - seen[other]) > 15, (one, other)  # 2.3 is just noticeable


@pytest.mark.parametrize("ground", [WHITE, DARK])
def test_colours_stand_out_from_the_page(ground: str) -> None:
    assert {look.colour for look in LOOKS.values() if contrast(look.colour, ground) < 2} == set()
    pages = (ROOT / "fedappeal/views/report/page.html", ROOT / "client/page/static/page.css")
    assert all(f"--ground: {ground}" in page.read_text().replace("#fff;", "#ffffff;") for page in pages)


def test_a_decision_has_one_look_in_every_view() -> None:
    assert look_of("joined") == LOOKS["joined"]
    assert look_of("joined", mandatory=True) == LOOKS["on-request"]
    assert look_of("nonsense") is None
    for word, look in LOOKS.items():
        assert charts._look(word) == (look.colour, look.title)
        assert LOOK_FIELDS[word] == {"title": look.title, "sign": look.sign, "colour": look.colour}
        assert app._COLOURS[look.title] == look.colour
    assert set(stayed._LOOKS.values()) <= {*LOOKS.values(), NOT_ASKED}
    assert View.news.__globals__["LOOK_FIELDS"] is LOOK_FIELDS, "the live page is told of the same table"


def test_no_other_file_has_colours_or_signs_of_decisions() -> None:
    files = [*ROOT.glob("fedappeal/views/live/static/*"), *ROOT.glob("client/page/static/*")]
    files += [ROOT / "fedappeal/views/terminal/view.py", ROOT / "fedappeal/views/comparison/stayed.py"]
    colours = {look.colour for look in LOOKS.values()}
    for file in files:
        if file.suffix != ".svg":
            text = file.read_text()
            assert not colours.intersection(re.findall(r"#[0-9a-f]{6}", text)), file
            assert not {"●", "○", "×"}.intersection(text), file
