"""Noise (dropout) as a pure function of the run's seed, the client and the round."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch

from fedappeal.protocol.draws import TORCH_GENERATOR, draw_seed


class Noise(NamedTuple):
    """Arguments of which the noise (dropout) of one calculation is a pure function.

    Attributes:
        seed: the run's seed.
        client: whose noise it is, and what for: distinct names draw distinct noise.
        server_round: counted from 1; 0 outside a round.
    """

    seed: int
    client: str
    server_round: int


@contextmanager
def seeded_noise(seed: int, client: str, server_round: int, device: torch.device) -> Iterator[None]:
    """Make the noise inside (dropout) a pure function of (seed, client, round)."""
    number = draw_seed(seed, "noise", client=client, server_round=server_round)
    # Not `torch.manual_seed`: it seeds every accelerator too, and records a stack trace each time.
    with TORCH_GENERATOR:
        if device.type == "cuda":
            with torch.random.fork_rng(devices=[device]):
                torch.default_generator.manual_seed(number)
                torch.cuda.manual_seed(number)
                yield
            return
        before = torch.default_generator.get_state()
        torch.default_generator.manual_seed(number)
        try:
            yield
        finally:
            torch.default_generator.set_state(before)
