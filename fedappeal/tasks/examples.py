"""A client's examples: structures of tensors, splits, and what of them is held out to judge models by.

Importing this module loads no torch.
"""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Union

import numpy as np
from numpy.typing import NDArray

from fedappeal.data.scaling import Scaling

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Pixels = NDArray[np.uint8]
Features = NDArray[np.float32]
Labels = NDArray[np.int64]
Rows = NDArray[np.int64]
"""Rows of a data set: indices of its examples."""
Structure = Union["Tensor", Mapping[str, "Structure"], Sequence["Structure"]]
"""A tensor, or a dict, tuple or list of structures."""
_WITH_PARTS = (dict, list, tuple, Mapping)


def tensors_of(structure: Structure) -> "Iterator[tuple[str, Tensor]]":
    """Yield a structure's tensors with their paths: ``/input_ids``; ``""`` for a lone one."""
    if isinstance(structure, Mapping):
        for key, part in structure.items():
            yield from ((f"/{key}{path}", tensor) for path, tensor in tensors_of(part))
    elif isinstance(structure, list | tuple):
        for number, part in enumerate(structure):
            yield from ((f"/{number}{path}", tensor) for path, tensor in tensors_of(part))
    else:
        yield "", structure  # type: ignore[misc]


def form_text(structure: Structure) -> str:
    """Return type and shape of one example of a structure: ``float32 (1, 28, 28)``."""
    parts = [
        f"{path + ' ' if path else ''}{str(t.dtype).removeprefix('torch.')} {tuple(t.shape[1:])}"
        for path, t in tensors_of(structure)
    ]
    return ", ".join(parts)


def map_tensors(change: "Callable[[Tensor], Tensor]", structure: Structure) -> Structure:
    """Return a structure of the same form with each tensor changed."""
    lone = only_tensor(structure)
    return change(lone) if lone is not None else map_parts(lambda parts: change(parts[0]), [structure])


def map_parts(merge: "Callable[[Sequence[Tensor]], Tensor]", structures: Sequence[Structure]) -> Structure:
    """Return a structure whose tensors merge those at the same places of several.

    Args:
        merge: makes one tensor of those at one place.
        structures: of the same form, at least one.

    Raises:
        ValueError: structures of different form.
    """
    first = structures[0]
    if isinstance(first, Mapping):
        if any(not isinstance(other, Mapping) or other.keys() != first.keys() for other in structures):
            raise ValueError("examples of different form: their dicts have different keys")
        return {key: map_parts(merge, [other[key] for other in structures]) for key in first}  # type: ignore[call-overload, index]
    if isinstance(first, list | tuple):
        if any(not isinstance(other, list | tuple) or len(other) != len(first) for other in structures):
            raise ValueError("examples of different form: their tuples have different lengths")
        return tuple(map_parts(merge, [other[i] for other in structures]) for i in range(len(first)))  # type: ignore[index]
    if any(isinstance(other, Mapping | list | tuple) for other in structures):
        raise ValueError("examples of different form: a tensor in place of a dict or tuple")
    return merge(structures)  # type: ignore[arg-type]


def take(structure: Structure, rows: "Tensor | slice") -> Structure:
    """Return the given rows of each tensor."""
    if isinstance(rows, slice):
        return map_tensors(lambda tensor: tensor[rows], structure)
    flat = rows.flatten()
    # Faster than indexing: for images of several rows of indices, a third of the time.
    return map_tensors(lambda t: t.index_select(0, flat).view(*rows.shape, *t.shape[1:]), structure)


def only_tensor(structure: Structure) -> "Tensor | None":
    """Return a structure's tensor, where it is a lone one."""
    return None if isinstance(structure, _WITH_PARTS) else structure  # type: ignore[return-value]


@dataclass(frozen=True)
class Split:
    """Labelled examples.

    Attributes:
        x: inputs: a tensor ``(n, *input_shape)`` of any dtype, or a structure of tensors ``(n, ...)``.
        y: labels, in the same way; class labels are int64 ``(n,)``.

    Raises:
        ValueError: unequal numbers of examples, or no tensor.
    """

    x: Structure
    y: Structure

    def __post_init__(self) -> None:
        shapes = {
            f"{name}{path}": tuple(t.shape) for name in ("x", "y") for path, t in tensors_of(getattr(self, name))
        }
        if any(not shape for shape in shapes.values()) or len({shape[0] for shape in shapes.values()}) != 1:
            described = ", ".join(f"{name} {shape}" for name, shape in shapes.items()) or "nothing"
            raise ValueError(f"a Split has tensors with one row an example: {described}")

    def __len__(self) -> int:
        return int(next(tensors_of(self.y))[1].shape[0])

    @property
    def device(self) -> "torch.device":
        """The device of the examples."""
        return next(tensors_of(self.x))[1].device

    @classmethod
    def of_rows(cls, x: Structure, y: Structure, rows: "Tensor | slice") -> "Split":
        """Return some rows of checked inputs and labels, as for minibatches."""
        split = object.__new__(cls)
        split.__dict__.update(x=take(x, rows), y=take(y, rows))
        return split

    def take(self, rows: "Tensor | slice") -> "Split":
        """Return the examples of the given rows."""
        return self.of_rows(self.x, self.y, rows)

    def to(self, device: "torch.device") -> "Split":
        """Return the examples on a device."""
        return Split(map_tensors(lambda t: t.to(device), self.x), map_tensors(lambda t: t.to(device), self.y))


@dataclass(frozen=True)
class ClientData:
    """One client's data.

    Attributes:
        train: what it trains on.
        test: what it keeps for testing.
        held_out: what of its training data it never trains on, to judge models by; None: it judges by what it trains
            on.
        scaling: how its table's columns were scaled; None: they were not.
    """

    train: Split
    test: Split
    held_out: Split | None = None
    scaling: Scaling | None = field(default=None, kw_only=True)

    @cached_property
    def counts(self) -> tuple[int, int]:
        """The numbers of a client's training and test examples."""
        return len(self.train), len(self.test)

    @cached_property
    def halves(self) -> "tuple[Split, Split] | None":
        """The held-out data in two halves, to choose by one and judge by the other; None: they are too few."""
        return None if self.held_out is None else halves_of(self.held_out)

    @cached_property
    def fingerprint(self) -> str:
        """Hash of forms, shapes and bytes, 16 hex digits: equal data, equal fingerprint."""
        digest = hashlib.blake2b(digest_size=8)
        for structure in (part for split in self.splits for part in (split.x, split.y)):
            for path, tensor in tensors_of(structure):
                usual = str(tensor.dtype) in ("torch.float32", "torch.int64")
                digest.update(f"{path}{'' if usual else tensor.dtype}{tuple(tensor.shape)}".encode())
                digest.update(bytes_of(tensor))
        return digest.hexdigest()

    def to(self, device: "torch.device") -> "ClientData":
        """Return the data on a device."""
        return self.changed(lambda split: split.to(device))

    def changed(self, change: Callable[[Split], Split]) -> "ClientData":
        """Return the data with each of its splits changed."""
        return ClientData(*map(change, self.splits), scaling=self.scaling)

    @property
    def splits(self) -> list[Split]:
        """The client's training, test and held-out data, if any."""
        return [self.train, self.test, *([] if self.held_out is None else [self.held_out])]


def bytes_of(tensor: "Tensor") -> memoryview:
    """Return a tensor's values as bytes, row after row."""
    import torch

    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data  # NumPy knows no bfloat16


FEWEST = 20
"""Training examples below which a client holds none out, and judges models by its training loss."""
ONE_IN = 3
"""Number of training examples of which one is held out."""
FEWEST_HALVED = 12
"""Held-out examples below which they are not halved: a client then chooses and judges by all of them."""
_PURPOSE = b"fedappeal-held-out"


def with_held_out(data: ClientData) -> ClientData:
    """Return a client's data with a third of its training examples held out.

    Few examples stay as they are, and so do data that hold some out already.

    By this third the client judges models, and it never trains on it. Which examples these are follows from the
    examples alone: the same in every run and for every seed. Each input is hashed; inputs go to the third in the
    order of their hashes while they fit. Equal inputs have one hash and stay together, so that no held-out example
    was trained on under another row.
    """
    rows = held_out_rows(data.train) if data.held_out is None else []
    if not rows:
        return data
    taken, trained = _parted(data.train, rows)
    return ClientData(trained, data.test, taken, scaling=data.scaling)


def _parted(split: Split, rows: list[int]) -> tuple[Split, Split]:
    """Return the examples of these rows, and the others."""
    import torch

    first = torch.zeros(len(split), dtype=torch.bool)
    first[rows] = True
    one, other = (mask.nonzero().flatten().to(split.device) for mask in (first, ~first))
    return split.take(one), split.take(other)


def held_out_rows(train: Split) -> list[int]:
    """Return the rows that are held out, in ascending order: at most a third.

    None are held out of fewer than `FEWEST`, nor where too many inputs are equal.
    """
    count = len(train)
    if count < FEWEST:
        return []
    held_out, inputs, different = _first_rows(train, count // ONE_IN)
    varied = 2 * inputs <= different  # else what is left to train on has hardly any input but one
    return held_out if varied and len(held_out) >= FEWEST // ONE_IN else []


def halves_of(held_out: Split) -> tuple[Split, Split] | None:
    """Return held-out data in two halves that share no input, the first at most as large as the second.

    None for fewer than `FEWEST_HALVED` examples, and where equal inputs leave less than a third for the first.
    """
    rows = _first_rows(held_out, len(held_out) // 2)[0]
    if len(held_out) < FEWEST_HALVED or len(rows) < len(held_out) // ONE_IN:
        return None
    return _parted(held_out, rows)


def _first_rows(split: Split, most: int) -> tuple[list[int], int, int]:
    """Return the rows of the inputs that come first by their hashes, and fit; in ascending order.

    Also how many inputs these are, and how many different ones there are.
    """
    count = len(split)
    digests = [hashlib.blake2b(_PURPOSE, digest_size=8) for _ in range(count)]
    for path, tensor in tensors_of(split.x):
        values = bytes_of(tensor)
        size = len(values) // count
        for row, digest in enumerate(digests):
            digest.update(path.encode())
            digest.update(values[row * size : (row + 1) * size])
    equal: dict[bytes, list[int]] = defaultdict(list)
    for row, digest in enumerate(digests):
        equal[digest.digest()].append(row)
    taken: list[int] = []
    inputs = 0
    for _, rows in sorted(equal.items()):
        if len(taken) + len(rows) <= most:
            taken += rows
            inputs += 1
    return sorted(taken), inputs, len(equal)
