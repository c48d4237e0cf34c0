"""The third of its training data by which a client judges models."""

import torch

from fedappeal.settings.config import RunConfig
from fedappeal.tasks import load_task
from fedappeal.tasks.examples import FEWEST, ClientData, Split, held_out_rows, with_held_out


def split_of(values: list[float], labels: list[int] | None = None) -> Split:
    x = torch.tensor(values).reshape(-1, 1)
    return Split(x, torch.tensor(labels if labels is not None else [0] * len(values)))


def test_a_third_is_held_out_and_the_rest_is_trained_on() -> None:
    data = ClientData(split_of([float(v) for v in range(60)]), split_of([99.0]))
    parted = with_held_out(data)
    assert parted.held_out is not None
    assert (len(parted.train), len(parted.held_out), parted.counts) == (40, 20, (40, 1))
    together = torch.cat([parted.train.x, parted.held_out.x]).flatten().sort().values
    assert together.tolist() == [float(v) for v in range(60)]
    assert parted.test is data.test
    assert parted.fingerprint != data.fingerprint
    assert with_held_out(parted) is parted


def test_an_example_is_held_out_wherever_it_stands() -> None:
    values = [float(v) for v in range(300)]
    order = torch.randperm(300, generator=torch.Generator().manual_seed(3)).tolist()
    held = {values[row] for row in held_out_rows(split_of(values))}
    assert {values[order[row]] for row in held_out_rows(split_of([values[o] for o in order]))} == held
    # Of a part of the data nearly the same are: what one run holds out another does not train on.
    part = {values[row] for row in held_out_rows(split_of(values[:200]))}
    assert len(part - held) <= 15


def test_equal_inputs_stay_together_whatever_their_labels() -> None:
    values = [float(v % 25) for v in range(100)]
    held = set(held_out_rows(split_of(values, list(range(100)))))
    assert 20 <= len(held) <= 33
    for row in held:
        assert {other for other in range(100) if values[other] == values[row]} <= held


def test_few_or_equal_examples_are_all_trained_on() -> None:
    few = ClientData(split_of([float(v) for v in range(FEWEST - 1)]), split_of([0.0]))
    assert with_held_out(few) is few
    equal = ClientData(split_of([1.0] * 50), split_of([0.0]))
    assert with_held_out(equal).held_out is None


def test_no_test_example_is_held_out_of_a_task_and_the_seed_of_training_does_not_matter() -> None:
    config = RunConfig.parse({"task": "digits", "clients": 4})
    data = load_task(config.task_settings()).load(1)
    parted = with_held_out(data)
    assert parted.held_out is not None
    assert len(parted.train) + len(parted.held_out) == len(data.train)
    assert len(parted.held_out) in range(len(data.train) // 3 - 3, len(data.train) // 3 + 1)
    assert torch.equal(parted.test.x, data.test.x)
