"""A model on the wire: named arrays packed into one flat array per dtype.

A Flower message is a tree of objects and each object travels in a request of its own, so few large arrays are
much cheaper than one array per layer. The apps pack here; strategies work on any `ArrayRecord`.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from io import BytesIO
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from fedappeal.protocol import keys

if TYPE_CHECKING:
    from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict


Sums = Mapping[str, NDArray[np.floating]]
"""A weighted sum of models: one vector an array, by name."""


_OBJECTS, _BYTES = 64, 1 << 20
_TIMES_THE_MODEL = 2
"""A record besides the model may be of its values in float64."""
_OF_AN_ARRAY = 1024
"""Bytes for the name, the shape and the ids of one array."""
_SMALLEST_CHUNK = 1 << 20


@dataclass(frozen=True)
class Allowance:
    """The bounds of one reply; by default numbers and short texts, no model.

    Attributes:
        objects: parts that it may consist of, as Flower takes a message apart.
        bytes: their contents together.
        model: bytes of the model that it carries.
    """

    objects: int = _OBJECTS
    bytes: int = _BYTES
    model: int = field(default=0, compare=False)

    @classmethod
    def of_models(cls, model: "ArrayRecord", records: int = 1) -> "Allowance":
        """Return the bounds of a reply with records as large as a model.

        Args:
            model: the model that was sent.
            records: the ArrayRecords of the reply.
        """
        size = content_bytes(model)
        values = _TIMES_THE_MODEL * size
        objects = _OBJECTS + records * (1 + 2 * len(model) + values // _SMALLEST_CHUNK)
        return cls(objects, _BYTES + records * (values + _OF_AN_ARRAY * len(model)), size)


FLAT = "flat"
"""Name of the packed array that holds all float32 values."""

MOST_METRICS, LONGEST_KEY = 32, 80
"""Metrics of a record, and characters of their keys, whose size is remembered: a client wrote them."""

Arrays = Mapping[str, NDArray[np.generic]]


def _packed_name(dtype: np.dtype[np.generic]) -> str:
    return FLAT if dtype == np.float32 else f"{FLAT}-{dtype.name}"


@dataclass(frozen=True)
class Layout:
    """Names, shapes and dtypes of a model's arrays, in packing order (by name).

    Attributes:
        entries: ``(name, shape, dtype name)`` per array.
    """

    entries: tuple[tuple[str, tuple[int, ...], str], ...]

    @classmethod
    def of(cls, arrays: Arrays) -> "Layout":
        """Return the layout of named arrays."""
        return cls(tuple((n, tuple(int(s) for s in a.shape), a.dtype.name) for n, a in sorted(arrays.items())))

    @cached_property
    def names(self) -> list[str]:
        """Names of the arrays, in order."""
        return [name for name, _, _ in self.entries]

    @cached_property
    def hash(self) -> str:
        """Hash of names, shapes and dtypes: equal exactly where two models can be averaged."""
        return hashlib.sha256(repr(self.entries).encode()).hexdigest()[:16]

    @cached_property
    def _forms(self) -> Sequence[tuple[str, tuple[int, ...], np.dtype[np.generic], str]]:
        """Each array's name, shape and dtype, and the packed array that holds it."""
        kinds = [(name, shape, np.dtype(dtype)) for name, shape, dtype in self.entries]
        return [(name, shape, dtype, _packed_name(dtype)) for name, shape, dtype in kinds]

    def _check(self, arrays: Arrays) -> None:
        if len(arrays) == len(self._forms) and all(
            (array := arrays.get(name)) is not None and array.shape == shape and array.dtype == dtype
            for name, shape, dtype, _ in self._forms
        ):
            return
        if (other := Layout.of(arrays)) != self:
            raise ValueError(f"model layout {other.hash} does not match the run's layout {self.hash}")

    def pack(self, arrays: Arrays) -> "ArrayRecord":
        """Pack named arrays into one flat array per dtype.

        Raises:
            ValueError: if the arrays do not have this layout.
        """
        self._check(arrays)
        groups: dict[str, list[NDArray[np.generic]]] = {}
        for name, _, _, packed in self._forms:
            groups.setdefault(packed, []).append(np.ascontiguousarray(arrays[name]).reshape(-1))
        sizes = {name: sum(part.size for part in parts) for name, parts in groups.items()}
        return record_of_arrays({name: _array_of((sizes[name],), parts) for name, parts in groups.items()})

    def named(self, arrays: Arrays) -> "ArrayRecord":
        """Return named arrays as a record, one array a name.

        Raises:
            ValueError: if the arrays do not have this layout.
        """
        self._check(arrays)
        return array_record({name: arrays[name] for name in self.names})

    def is_packed(self, record: "ArrayRecord") -> bool:
        """Whether a record holds this layout's values packed, not as named arrays."""
        return set(record) != set(self.names)

    def unpack(self, record: "ArrayRecord") -> dict[str, NDArray[np.generic]]:
        """Return a record's arrays by name, as read-only views.

        Raises:
            ValueError: if the record does not hold exactly this layout's values.
        """
        if not self.is_packed(record):
            arrays = {name: view(record[name]) for name in self.names}
            self._check(arrays)
            return arrays
        flats = {name: view(array) for name, array in record.items()}
        sizes = dict.fromkeys(flats, 0)
        out: dict[str, NDArray[np.generic]] = {}
        for name, shape, dtype, packed in self._forms:
            start = sizes.get(packed, 0)
            stop = start + int(np.prod(shape, dtype=np.int64))
            if packed not in flats or flats[packed].dtype != dtype or stop > flats[packed].size:
                raise ValueError(f"array '{packed}' of the message does not hold the model's '{name}'")
            out[name] = flats[packed][start:stop].reshape(shape)
            sizes[packed] = stop
        for packed, size in sizes.items():
            if size != flats[packed].size:
                raise ValueError(f"array '{packed}' has {flats[packed].size} values, the model has {size}")
        return out


def array_record(arrays: Arrays) -> "ArrayRecord":
    """Return named NumPy arrays as a Flower record."""
    return record_of_arrays({name: flower_array(values) for name, values in arrays.items()})


def model_of(content: "RecordDict", name: str = keys.ARRAYS) -> "ArrayRecord":
    """Return a model-shaped record of a message.

    Raises:
        ValueError: if there is none of that name.
    """
    record = content.get(name)
    if not isinstance(record, _record_kinds()[0]):
        raise ValueError(f"message has no ArrayRecord '{name}'")
    return record


@cache
def _record_kinds() -> "tuple[type[ArrayRecord], type[MetricRecord]]":
    """Return Flower's classes: where settings are read, Flower need not be loaded."""
    from flwr.app import ArrayRecord, MetricRecord

    return ArrayRecord, MetricRecord


def record_of_arrays(arrays: Mapping[str, "Array"]) -> "ArrayRecord":
    """Return named Flower arrays as a record."""
    from flwr.app import ArrayRecord  # where settings are read, Flower need not be loaded

    return ArrayRecord(dict(arrays))


def view(array: "Array") -> NDArray[np.generic]:
    """Return a read-only view of a Flower array's bytes, without a copy.

    Raises:
        ValueError: if the bytes are not a NumPy array, or are cut short.
    """
    if array.stype != "numpy.ndarray":
        raise ValueError(f"array has serialization type {array.stype!r}; allowed: 'numpy.ndarray'")
    data = memoryview(array.data).toreadonly()
    # NumPy parses the header as Python, which takes longer than all else here: equal headers are parsed once.
    size = 10 + int.from_bytes(data[8:10], "little") if bytes(data[6:8]) == b"\x01\x00" else 4096
    shape, dtype, offset, order = _parsed_header(bytes(data[: min(size, 4096)]))
    count = math.prod(shape)
    if len(data) - offset != count * dtype.itemsize:
        raise ValueError(f"array of shape {shape} and dtype {dtype} has {len(data) - offset} bytes")
    return np.frombuffer(data, dtype=dtype, count=count, offset=offset).reshape(shape, order=order)


def flower_array(values: NDArray[np.generic]) -> "Array":
    """Return a Flower array of the values, with one copy where Flower makes two.

    Args:
        values: any shape, no objects.
    """
    values = np.asarray(values, order="C")
    return _array_of(tuple(values.shape), [values.reshape(-1)])


def _array_of(shape: tuple[int, ...], parts: Sequence[NDArray[np.generic]]) -> "Array":
    """Return vectors of one dtype as one Flower array, with one copy."""
    from flwr.app import Array

    dtype = parts[0].dtype
    data = b"".join((_npy_head(dtype, shape), *(part.view(np.uint8).data for part in parts)))
    return Array(str(dtype), shape, "numpy.ndarray", data)


@lru_cache(maxsize=256)
def _npy_head(dtype: np.dtype[np.generic], shape: tuple[int, ...]) -> bytes:
    """Return the header of NumPy's format, which stands before the values."""
    head = BytesIO()
    described = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(head, described)
    return head.getvalue()


@lru_cache(maxsize=256)
def _parsed_header(start: bytes) -> tuple[tuple[int, ...], np.dtype[np.generic], int, Literal["C", "F"]]:
    head = BytesIO(start)
    try:
        version = np.lib.format.read_magic(head)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran_order, dtype = read(head)
    except Exception as error:  # a hostile header raises almost anything
        raise ValueError(f"array has an unreadable header: {type(error).__name__}") from None
    if not all(type(n) is int and n >= 0 for n in shape):
        raise ValueError(f"array with shape {shape} is not allowed")
    if dtype.hasobject:
        raise ValueError(f"array with dtype {dtype} is not allowed")
    return shape, dtype, head.tell(), "F" if fortran_order else "C"  # as scikit-learn's coefficients are


def content_hash(record: "ArrayRecord") -> str:
    """Hash of a record's names and bytes: equal for equal models."""
    digest = hashlib.sha256()
    for name, array in record.items():
        digest.update(name.encode() + b"\x1f")
        digest.update(array.data)
    return digest.hexdigest()[:16]


def content_bytes(record: "ArrayRecord") -> int:
    """Size in bytes of a record's raw array data."""
    return sum(len(array.data) for array in record.values())


def content_size(content: "RecordDict", sizes: dict[int, int] | None = None) -> int:
    """Return the serialized bytes of a message's content, without Flower's framing.

    Args:
        content: the records.
        sizes: sizes of records already measured, by identity (one model goes to many clients).
    """
    sizes = {} if sizes is None else sizes
    total = 0
    for name, record in content.items():
        if id(record) not in sizes:
            sizes[id(record)] = _record_size(record)
        total += len(name) + sizes[id(record)]
    return total


def _record_size(record: "ArrayRecord | MetricRecord | ConfigRecord") -> int:
    of_arrays, of_metrics = _record_kinds()
    if isinstance(record, of_metrics):
        return _metrics_size(record)
    if isinstance(record, of_arrays):
        return content_bytes(record) + sum(len(key) + len(array.dtype) for key, array in record.items())
    return len(record.deflate())


def _metrics_size(record: "MetricRecord") -> int:
    """Return the serialized size of metrics.

    Floats take as much whatever they are, other numbers by their value.
    """
    metrics = dict(record.items())
    kinds, longest = {*map(type, metrics.values())}, max(map(len, metrics), default=0)
    if len(metrics) > MOST_METRICS or longest > LONGEST_KEY or kinds - {int, float}:
        return len(record.deflate())
    return _size_of_form(tuple([(k, type(v), 0 if type(v) is float else v) for k, v in metrics.items()]))


@lru_cache(maxsize=4096)
def _size_of_form(form: tuple[tuple[str, type, float], ...]) -> int:
    from flwr.app import MetricRecord

    return len(MetricRecord({key: kind(value) for key, kind, value in form}).deflate())
