"""A model on the wire: packing, reading in place, and what is refused."""

from contextlib import suppress
from io import BytesIO
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from fedappeal.protocol.packing import Layout, content_bytes, content_hash, content_size, view

DTYPES = [np.float32, np.float64, np.float16, np.int64, np.int32, np.uint8, np.bool_]
any_array = st.sampled_from(DTYPES).flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
)
models = st.dictionaries(st.text("abc.", min_size=1, max_size=6), any_array, min_size=1, max_size=6)


def npy(array: NDArray[np.generic]) -> bytes:
    out = BytesIO()
    np.save(out, array)
    return out.getvalue()


def raw(data: bytes, stype: str = "numpy.ndarray") -> Array:
    return Array(dtype="float32", shape=(3,), stype=stype, data=data)


@given(models)
def test_packing_gives_back_the_same_model(arrays: dict[str, NDArray[np.generic]]) -> None:
    layout = Layout.of(arrays)
    record = layout.pack(arrays)
    assert len(record) == len({a.dtype for a in arrays.values()})
    back = layout.unpack(record)
    assert list(back) == sorted(arrays)
    for name, array in arrays.items():
        assert back[name].dtype == array.dtype
        assert back[name].shape == array.shape
        assert back[name].tobytes() == array.tobytes()
        assert not back[name].flags.writeable


@given(models)
def test_named_arrays_give_back_the_same_model(arrays: dict[str, NDArray[np.generic]]) -> None:
    layout = Layout.of(arrays)
    record = layout.named(arrays)
    assert set(record) == set(arrays)
    assert not layout.is_packed(record)
    back = layout.unpack(record)
    assert list(back) == sorted(arrays)
    for name, array in arrays.items():
        assert (back[name].dtype, back[name].shape, back[name].tobytes()) == (
            array.dtype,
            array.shape,
            array.tobytes(),
        )
        assert not back[name].flags.writeable


def test_all_float32_values_travel_as_one_array_called_flat() -> None:
    arrays = {"a": np.ones((2, 3), np.float32), "n": np.array(7), "b": np.zeros(4, np.float32)}
    record = Layout.of(arrays).pack(arrays)
    assert list(record) == ["flat", "flat-int64"]
    assert record["flat"].numpy().tolist() == [1] * 6 + [0] * 4
    assert record["flat-int64"].numpy().tolist() == [7]


@given(any_array)
def test_view_is_what_flower_reads(array: NDArray[np.generic]) -> None:
    sent = Array(array)
    seen = view(sent)
    assert seen.dtype == sent.numpy().dtype
    assert seen.shape == sent.numpy().shape
    assert seen.tobytes() == sent.numpy().tobytes()
    assert not seen.flags.writeable


@given(st.data())
def test_view_refuses_bytes_that_are_cut_short_or_too_long(data: st.DataObject) -> None:
    whole = npy(np.arange(3, dtype=np.float32))
    cut = data.draw(st.integers(0, len(whole) - 1))
    for wrong in (whole[:cut], whole + b"\0"):
        with pytest.raises(ValueError):
            view(raw(wrong))


@given(position=st.integers(0, 127), byte=st.integers(0, 255))
def test_view_of_a_garbled_header_is_a_value_error_or_the_same_bytes(position: int, byte: int) -> None:
    garbled = bytearray(npy(np.arange(3, dtype=np.float32)))
    garbled[position] = byte
    with suppress(ValueError):
        assert view(raw(bytes(garbled))).nbytes == 12


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<f4', 'fortran_order': False, 'shape': (" + "9" * 30 + ",), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-1, -3), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (3,",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (True, 3), }",
        "{'descr': '|O', 'fortran_order': False, 'shape': (3,), }",
        "{'descr': '<f4', 'fortran_order': True, 'shape': (3, 2), }",
        "{'descr': '|V0', 'fortran_order': False, 'shape': (3,), }",
        "(" * 3000,
    ],
)
def test_view_refuses_a_hostile_header(header: str) -> None:
    text = header.encode() + b"\n"
    start = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little")
    with pytest.raises(ValueError):
        view(raw(start + text + bytes(12)))


def test_view_reads_an_array_in_fortran_order() -> None:
    values = np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3))
    seen = view(Array(values))
    assert seen.tolist() == values.tolist()
    assert seen.reshape(-1).tolist() == list(range(6))


def test_view_refuses_another_serialization() -> None:
    with pytest.raises(ValueError, match=r"allowed: 'numpy\.ndarray'"):
        view(raw(npy(np.zeros(3, np.float32)), stype="pickle"))


BASE = {"a": np.zeros((2, 3), np.float32), "b": np.zeros(4, np.float32)}


@pytest.mark.parametrize(
    "other",
    [
        {"a": BASE["a"], "c": BASE["b"]},
        {"a": BASE["a"].reshape(3, 2), "b": BASE["b"]},
        {"a": BASE["a"], "b": np.zeros(4, np.float64)},
        {"a": BASE["a"]},
    ],
)
def test_another_layout_has_another_hash_and_is_not_packed(other: dict[str, NDArray[np.generic]]) -> None:
    assert Layout.of(other).hash != Layout.of(BASE).hash
    assert Layout.of({k: v + 1 for k, v in BASE.items()}).hash == Layout.of(BASE).hash
    for form in (Layout.of(BASE).pack, Layout.of(BASE).named):
        with pytest.raises(ValueError, match="does not match"):
            form(other)


def test_the_order_in_which_arrays_are_named_does_not_count() -> None:
    layout, turned = Layout.of(BASE), {"b": BASE["b"] + 1, "a": BASE["a"]}
    assert Layout.of(turned) == layout
    assert layout.pack(turned)["flat"].numpy().tolist() == [0.0] * 6 + [1.0] * 4


@pytest.mark.parametrize(
    "record",
    [
        {"flat": np.zeros(9, np.float32)},
        {"flat": np.zeros(11, np.float32)},
        {"flat": np.zeros(10, np.float64)},
        {"other": np.zeros(10, np.float32)},
        {"flat": np.zeros(10, np.float32), "flat-int64": np.zeros(1, np.int64)},
    ],
)
def test_unpack_refuses_what_is_not_exactly_the_model(record: dict[str, NDArray[np.generic]]) -> None:
    with pytest.raises(ValueError, match="array"):
        Layout.of(BASE).unpack(ArrayRecord({k: Array(v) for k, v in record.items()}))


@pytest.mark.parametrize(
    "record",
    [
        {"a": BASE["a"].reshape(3, 2), "b": BASE["b"]},
        {"a": BASE["a"], "b": np.zeros(4, np.float64)},
        {"a": BASE["a"], "b": np.zeros(5, np.float32)},
    ],
)
def test_named_arrays_of_another_model_are_refused(record: dict[str, NDArray[np.generic]]) -> None:
    with pytest.raises(ValueError, match="does not match"):
        Layout.of(BASE).unpack(ArrayRecord({k: Array(v) for k, v in record.items()}))


def test_content_hash_follows_values_and_names() -> None:
    record = Layout.of(BASE).pack(BASE)
    assert content_hash(record) == content_hash(Layout.of(BASE).pack(BASE))
    assert content_hash(record) != content_hash(Layout.of(BASE).pack({k: v + 1 for k, v in BASE.items()}))
    assert content_hash(record) != content_hash(ArrayRecord({"other": record["flat"]}))
    assert content_bytes(record) == 128 + 10 * 4


@pytest.mark.parametrize(
    "metrics",
    [
        {},
        {"loss": 0.0, "num-examples": 0},
        {"loss": float("nan"), "num-examples": 1},
        {"loss": -1e300, "num-examples": 2**40, "decision": -1},
        {"losses": [0.5, 1.5], "num-examples": 3},
        {"a" * 500: 1},
        {f"metric-{k}": k for k in range(40)},
    ],
    ids=str,
)
def test_the_size_of_metrics_is_that_of_what_flower_sends(metrics: dict[str, Any]) -> None:
    record = MetricRecord(metrics)
    for _ in range(2):
        assert content_size(RecordDict({"metrics": record})) == len("metrics") + len(record.deflate())
