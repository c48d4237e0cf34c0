"""How raw inputs are scaled, by hand."""

import numpy as np
import pytest

from fedappeal.tasks.task import Normalisation


def test_integers_are_divided_by_the_scale_and_floats_are_not() -> None:
    formula = Normalisation(4.0, 0.25, 0.5)
    assert formula.inputs(np.array([[0, 1, 4]]), "mine").tolist() == [[-0.5, 0.0, 1.5]]
    assert formula.inputs(np.array([[0.0, 0.25, 1.0]]), "mine").tolist() == [[-0.5, 0.0, 1.5]]
    for wrong in (np.array([[5]]), np.array([[-1]]), np.array([[1.5]])):
        with pytest.raises(ValueError, match="for task 'mine' they are integers from 0 to 4, or floats from 0 to 1"):
            formula.inputs(wrong, "mine")


def test_a_constant_a_channel() -> None:
    raw = np.array([[[[2, 4]], [[2, 4]]]])  # one image of two channels, 1x2
    x = Normalisation(4.0, (0.5, 0.0), (0.5, 2.0)).apply(raw)
    assert x.tolist() == [[[[0.0, 1.0]], [[0.25, 0.5]]]]
