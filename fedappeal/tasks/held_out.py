"""The third of a client's training data by which it judges models, and on which it never trains.

Which examples these are follows from the examples alone: the same in every run and for every seed. Each input is
hashed; inputs go to the third in the order of their hashes while they fit. Equal inputs have one hash and stay
together, so that no held-out example was trained on under another row.
"""

import hashlib
from collections import defaultdict

from fedappeal.tasks.examples import ClientData, Split, bytes_of, tensors_of

FEWEST = 20
"""Training examples below which a client holds none out, and judges models by its training loss."""
ONE_IN = 3
"""Number of training examples of which one is held out."""
_PURPOSE = b"fedappeal-held-out"


def with_held_out(data: ClientData) -> ClientData:
    """Return a client's data with a third of its training examples held out; few examples stay as they are."""
    import torch

    rows = held_out_rows(data.train)
    if not rows:
        return data
    held = torch.zeros(len(data.train), dtype=torch.bool)
    held[rows] = True
    device = data.train.device
    trained, taken = (mask.nonzero().flatten().to(device) for mask in (~held, held))
    return ClientData(data.train.take(trained), data.test, data.train.take(taken))


def held_out_rows(train: Split) -> list[int]:
    """Return the rows that are held out, in ascending order: at most a third.

    None are held out of fewer than `FEWEST`, nor where too many inputs are equal.
    """
    count = len(train)
    if count < FEWEST:
        return []
    digests = [hashlib.blake2b(_PURPOSE, digest_size=8) for _ in range(count)]
    for path, tensor in tensors_of(train.x):
        values = bytes_of(tensor)
        size = len(values) // count
        for row, digest in enumerate(digests):
            digest.update(path.encode())
            digest.update(values[row * size : (row + 1) * size])
    equal: dict[bytes, list[int]] = defaultdict(list)
    for row, digest in enumerate(digests):
        equal[digest.digest()].append(row)
    held: list[int] = []
    inputs = 0
    for _, rows in sorted(equal.items()):
        if len(held) + len(rows) <= count // ONE_IN:
            held += rows
            inputs += 1
    varied = 2 * inputs <= len(equal)  # else what is left to train on has hardly any input but one
    return sorted(held) if varied and len(held) >= FEWEST // ONE_IN else []
