"""What a client remembers: the same on disk and in memory, and never half written."""

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import RecordDict
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from client.state.store import ContextStore, DiskStore, tidy
from fedappeal.core.local_rule import Store, StoredRecord
from fedappeal.settings.config import ConfigError, Scalar
from fedappeal.system.files import Array, read_safetensors, write_safetensors

scalars = st.one_of(
    st.booleans(), st.integers(-(2**60), 2**60), st.floats(allow_nan=False), st.text(st.characters(codec="ascii"))
)
records = st.builds(
    StoredRecord,
    st.dictionaries(st.text("abc-", min_size=1, max_size=5), scalars, max_size=4),
    st.dictionaries(
        st.text("abc.", min_size=1, max_size=5),
        st.sampled_from([np.float32, np.float64, np.int64]).flatmap(
            lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=2, max_side=3))
        ),
        max_size=3,
    ),
)


def assert_same(one: StoredRecord | None, other: StoredRecord) -> None:
    assert one is not None
    assert dict(one.values) == dict(other.values)
    assert {k: type(v) for k, v in one.values.items()} == {k: type(v) for k, v in other.values.items()}
    assert set(one.arrays) == set(other.arrays)
    for name, array in other.arrays.items():
        assert one.arrays[name].dtype == array.dtype
        assert one.arrays[name].shape == array.shape
        assert one.arrays[name].tobytes() == array.tobytes()


@given(records, records)
def test_both_stores_give_back_what_was_written_last(
    tmp_path_factory, first: StoredRecord, second: StoredRecord
) -> None:  # type: ignore[no-untyped-def]
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
    store.write("a", StoredRecord({"n": 1}, {"w": np.ones(2)}))
    store.write("b", StoredRecord({"n": 2}))
    assert_same(store.read("a"), StoredRecord({"n": 1}, {"w": np.ones(2)}))
    assert_same(store.read("b"), StoredRecord({"n": 2}))


def test_arrays_that_are_not_in_c_order_are_kept(store: Store) -> None:
    turned = np.arange(6.0).reshape(2, 3).T
    store.write("a", StoredRecord({}, {"w": turned}))
    read = store.read("a")
    assert read is not None
    np.testing.assert_array_equal(read.arrays["w"], turned)


def test_not_a_number_is_remembered(store: Store) -> None:
    store.write("a", StoredRecord({"x": float("nan")}))
    read = store.read("a")
    assert read is not None
    assert np.isnan(float(read.values["x"]))


@pytest.mark.parametrize("moment", ["fsync", "replace"])
def test_a_client_killed_while_it_writes_finds_the_old_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    store = DiskStore(tmp_path)
    store.write("it", StoredRecord({"n": 1}, {"w": np.ones(1000)}))

    def die(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, moment, die)
        with pytest.raises(KeyboardInterrupt):
            store.write("it", StoredRecord({"n": 2}, {"w": np.zeros(1000)}))
    again = DiskStore(tmp_path)
    assert_same(again.read("it"), StoredRecord({"n": 1}, {"w": np.ones(1000)}))
    assert again.names() == ["it"]
    again.write("it", StoredRecord({"n": 3}))
    assert_same(again.read("it"), StoredRecord({"n": 3}))


def test_a_file_that_is_no_record_is_one_line(tmp_path: Path) -> None:
    store = DiskStore(tmp_path)
    store.write("it", StoredRecord({"n": 1}, {"w": np.ones(100)}))
    path = tmp_path / "it.safetensors"
    for content in (path.read_bytes()[:50], b"", b"garbage" * 10):
        path.write_bytes(content)
        with pytest.raises(ConfigError, match=r"it\.safetensors' cannot be read") as error:
            store.look("it")
        assert "\n" not in str(error.value)
        assert path.read_bytes() == content, "looking changes nothing"


@pytest.mark.parametrize("name", ["model", "identity"])
def test_a_record_that_is_deleted_while_it_is_read_is_none(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An owner's `reset` is another process."""
    store = DiskStore(tmp_path)
    store.write(name, StoredRecord({"number": 1}))

    def read(path: Path) -> tuple[dict[str, Array], dict[str, Scalar]]:
        store.delete(name)
        return read_safetensors(path)

    monkeypatch.setattr("client.state.store.read_safetensors", read)
    assert store.look(name) is None
    assert store.read(name) is None
    assert store.written_at(name) == 0


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ConfigError, match="state-dir = "):
            DiskStore(folder)


def test_a_file_that_vanishes_while_a_client_tidies_leaves_no_other_to_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [tmp_path / "deep" / name for name in "abc"]
    files[0].parent.mkdir()
    for file in files:
        file.touch(mode=0o644)
    change, asked = os.chmod, []

    def vanishing(path: str | Path, mode: int) -> None:
        if Path(path) in files:
            asked.append(path)
            if len(asked) == 1:
                os.unlink(path)
        change(path, mode)

    monkeypatch.setattr(os, "chmod", vanishing)
    tidy(tmp_path)
    assert [file.stat().st_mode & 0o777 for file in files if file.exists()] == [0o600, 0o600]


def test_files_of_earlier_versions_are_deleted(tmp_path: Path) -> None:
    for name in ("resting", "name", "paused"):
        (tmp_path / name).touch()
    tidy(tmp_path)
    assert not (tmp_path / "resting").exists()
    assert not (tmp_path / "name").exists()
    assert (tmp_path / "paused").exists()


def test_names_and_forgetting(tmp_path: Path) -> None:
    store = DiskStore(tmp_path / "deep" / "folder")
    for name in ("b", "a"):
        store.write(name, StoredRecord({}))
    assert store.names() == ["a", "b"]
    store.delete("a")
    store.delete("a")
    assert store.names() == ["b"]


def test_a_record_that_has_room_and_its_copy_has_none_is_written_and_nothing_older_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store, write = DiskStore(tmp_path), write_safetensors

    def full(path: Path, *rest: Any, **named: Any) -> None:
        if path.parent != tmp_path:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, *rest, **named)

    store.write("run-k", StoredRecord({"left-round": 0}))
    with monkeypatch.context() as patch:
        patch.setattr("client.state.store.write_safetensors", full)
        store.write("run-k", StoredRecord({"left-round": 3}))
    (warning,) = caplog.messages
    assert warning.startswith(f"'{tmp_path}/run-k.safetensors' has no copy until it is written again: [Errno 28]")
    assert_same(store.read("run-k"), StoredRecord({"left-round": 3}))
    store.path("run-k").write_bytes(b"damaged")
    with pytest.raises(ConfigError):
        store.read("run-k")
