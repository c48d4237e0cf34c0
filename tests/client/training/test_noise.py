"""The noise of dropout: a pure function of seed, client and round."""

import torch

from client.training.noise import Noise, seeded_noise

CPU = torch.device("cpu")


def noise(*key: object) -> list[float]:
    with seeded_noise(Noise(*key), CPU):  # type: ignore[arg-type]
        return torch.rand(3).tolist()


def test_noise_is_a_pure_function_and_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    drawn = [noise(*key) for key in [(0, "a", 1), (0, "a", 1), (1, "a", 1), (0, "b", 1), (0, "a", 2)]]
    assert torch.equal(torch.get_rng_state(), before)
    assert drawn[0] == drawn[1]
    assert len({tuple(d) for d in drawn}) == 4
