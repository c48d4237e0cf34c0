"""What a client remembers: the same on disk and in memory, and never half written."""

import os
from pathlib import Path

import numpy as np
import pytest
from flwr.app import RecordDict
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from client.state.store import ContextStore, DiskStore
from fedappeal.core.local_rule import Record, Store
from fedappeal.settings.config import ConfigError

scalars = st.one_of(
    st.booleans(), st.integers(-(2**60), 2**60), st.floats(allow_nan=False), st.text(st.characters(codec="ascii"))
)
records = st.builds(
    Record,
    st.dictionaries(st.text("abc-", min_size=1, max_size=5), scalars, max_size=4),
    st.dictionaries(
        st.text("abc.", min_size=1, max_size=5),
        st.sampled_from([np.float32, np.float64, np.int64]).flatmap(
            lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=2, max_side=3))
        ),
        max_size=3,
    ),
)


def assert_same(one: Record | None, other: Record) -> None:
    assert one is not None
    assert dict(one.values) == dict(other.values)
    assert {k: type(v) for k, v in one.values.items()} == {k: type(v) for k, v in other.values.items()}
    assert set(one.arrays) == set(other.arrays)
    for name, array in other.arrays.items():
        assert one.arrays[name].dtype == array.dtype
        assert one.arrays[name].shape == array.shape
        assert one.arrays[name].tobytes() == array.tobytes()


@given(records, records)
def test_both_stores_give_back_what_was_written_last(tmp_path_factory, first: Record, second: Record) -> None:  # type: ignore[no-untyped-def]
    for store in (DiskStore(tmp_path_factory.mktemp("state")), ContextStore(RecordDict())):
        assert store.read("it") is None
        store.write("it", first)
        assert_same(store.read("it"), first)
        store.write("it", second)
        assert_same(store.read("it"), second)


@pytest.fixture(params=["disk", "context"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return DiskStore(tmp_path) if request.param == "disk" else ContextStore(RecordDict())


def test_records_of_other_names_are_left_alone(store: Store) -> None:
    store.write("a", Record({"n": 1}, {"w": np.ones(2)}))
    store.write("b", Record({"n": 2}))
    assert_same(store.read("a"), Record({"n": 1}, {"w": np.ones(2)}))
    assert_same(store.read("b"), Record({"n": 2}))


def test_arrays_that_are_not_in_c_order_are_kept(store: Store) -> None:
    turned = np.arange(6.0).reshape(2, 3).T
    store.write("a", Record({}, {"w": turned}))
    read = store.read("a")
    assert read is not None
    np.testing.assert_array_equal(read.arrays["w"], turned)


def test_not_a_number_is_remembered(store: Store) -> None:
    store.write("a", Record({"x": float("nan")}))
    read = store.read("a")
    assert read is not None
    assert np.isnan(float(read.values["x"]))


@pytest.mark.parametrize("moment", ["fsync", "replace"])
def test_a_client_killed_while_it_writes_finds_the_old_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    store = DiskStore(tmp_path)
    store.write("it", Record({"n": 1}, {"w": np.ones(1000)}))

    def die(*args: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, moment, die)
        with pytest.raises(KeyboardInterrupt):
            store.write("it", Record({"n": 2}, {"w": np.zeros(1000)}))
    again = DiskStore(tmp_path)
    assert_same(again.read("it"), Record({"n": 1}, {"w": np.ones(1000)}))
    assert again.names() == ["it"]
    again.write("it", Record({"n": 3}))
    assert_same(again.read("it"), Record({"n": 3}))


def test_a_file_that_is_no_record_is_one_line(tmp_path: Path) -> None:
    store = DiskStore(tmp_path)
    store.write("it", Record({"n": 1}, {"w": np.ones(100)}))
    path = tmp_path / "it.safetensors"
    for content in (path.read_bytes()[:50], b"", b"garbage" * 10):
        path.write_bytes(content)
        with pytest.raises(ConfigError, match=r"it\.safetensors' cannot be read") as error:
            store.look("it")
        assert "\n" not in str(error.value)
        assert path.read_bytes() == content, "looking changes nothing"


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ConfigError, match="state-dir = "):
            DiskStore(folder)


def test_names_and_forgetting(tmp_path: Path) -> None:
    store = DiskStore(tmp_path / "deep" / "folder")
    for name in ("b", "a"):
        store.write(name, Record({}))
    assert store.names() == ["a", "b"]
    store.delete("a")
    store.delete("a")
    assert store.names() == ["b"]
