"""A federation of clients with their own data alone: an .npz, images, a CSV, a function, one that only looks on."""

import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedappeal.federation.remote import RemoteSuperLink
from fedappeal.federation.superlink import SuperLink
from fedappeal.record.reader import Record
from fedappeal.settings.config import RunConfig
from tests.e2e.conftest import BIN, Marked
from tests.warm import MARK, warm_superlinks

pytestmark = pytest.mark.e2e

RNG = np.random.default_rng(3)


def bars(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Images of a bright bar, whose column is the label: 0 to 4 of the ten labels."""
    labels = np.arange(count) % 5
    images = RNG.integers(0, 5, (count, 8, 8))
    images[np.arange(count), :, labels] = 16
    return images.astype(np.uint8), labels


def write_images(folder: Path, count: int) -> None:
    for number, (image, label) in enumerate(zip(*bars(count), strict=True)):
        (folder / str(label)).mkdir(parents=True, exist_ok=True)
        Image.fromarray((image * 15.9).astype(np.uint8)).resize((40, 40)).save(folder / str(label) / f"{number}.png")


def write_csv(path: Path, count: int) -> None:
    header = [*(f"p{k}" for k in range(64)), "digit"]
    rows = [[*image.ravel().tolist(), label] for image, label in zip(*bars(count), strict=True)]
    path.write_text("\n".join(",".join(map(str, row)) for row in [header, *rows]))


FUNCTION = """
import numpy

def load(task):
    found = numpy.load("{path}")
    return found["x"].reshape(-1, *task.input_shape), found["y"]
"""


def test_clients_with_their_own_data_make_a_federation(marked: Marked, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    write_csv(tmp_path / "table.csv", 40)
    write_csv(tmp_path / "wrong.csv", 40)
    (tmp_path / "wrong.csv").write_text((tmp_path / "wrong.csv").read_text().replace(",4\n", ",44\n"))
    (tmp_path / "loading_own.py").write_text(FUNCTION.format(path=tmp_path / "a.npz"))
    for name, count in (("a", 60), ("b", 50)):
        np.savez(tmp_path / f"{name}.npz", **dict(zip("xy", bars(count), strict=True)))
    write_images(tmp_path / "images", 40)
    np.savez(tmp_path / "wrong.npz", x=np.zeros((20, 9, 9), np.uint8), y=np.zeros(20, int))
    # The run wants more clients than there will be, and begins with those that fit.
    settings = {"clients": 6, "min-clients": 5, "unseen-clients": 1, "rounds": 2, "out": str(folder), "seed": 4}
    config = RunConfig.parse({**settings, "solo.steps": 20, "learning-rate": 0.3, "local-steps": 40})
    table = ("--label", "digit")
    options_of = {
        "a.npz": (),
        "images": (),
        "b.npz": ("--role", "unseen"),
        "table.csv": table,
        "loading_own:load": (),
        "wrong.npz": (),
        "wrong.csv": ("--client-id", "anna", *table),
    }
    environment = {MARK: marked.mark}
    with warm_superlinks(), SuperLink(tmp_path / "superlink", environment=environment) as superlink:
        ours = {
            name: marked.start(
                str(BIN / "fedappeal"),
                *("client", "--insecure", "--superlink", superlink.fleet_address, "--device", "cpu"),
                *("--data", name if ":" in name else str(tmp_path / name)),
                *("--state-dir", str(tmp_path / f"state-{name}"), *more),
                log=tmp_path / f"{name}.log",
                env={"FEDAPPEAL_PLUGIN_PATH": str(tmp_path)},
                warm=True,
            )
            for name, more in options_of.items()
        }
        remote = RemoteSuperLink(superlink.control_address)
        run_id = remote.submit(config)
        deadline = time.monotonic() + 200
        while not (status := remote.run_status(run_id)).finished:
            assert time.monotonic() < deadline, (tmp_path / "images.log").read_text()[-2000:]
            time.sleep(0.5)
        assert status.completed, status
        assert [process.poll() for process in ours.values()] == [None] * 7, (
            "one that does not fit waits for other runs"
        )
        for process in ours.values():
            process.terminate()
        assert [process.wait(80) for process in ours.values()] == [0] * 7
    rounds = Record(folder).history
    assert [(r["asked"], r["joined"], r["evaluated"]) for r in rounds] == [(4, 4, 5)] * 2
    assert min(rounds[-1]["accuracy"], rounds[-1]["unseen_accuracy"]) > 0.9, rounds[-1]
    assert "of 5 of the 10 labels, 36 to train on and 24 to test with" in (tmp_path / "a.npz.log").read_text()
    assert "40 of 40 images are resized to 8x8" in (tmp_path / "images.log").read_text()
    assert "x has shape (20, 9, 9)" in (tmp_path / "wrong.npz.log").read_text()
    refusals = [line for line in Record(folder).events if line["event"] == "refused"]
    problems = {line["client"]: (line["problem"], line["reason"]) for line in refusals}
    assert problems.pop("anna") == ("labels", "data is refused: labels out of range")
    assert list(problems.values()) == [("shape", "data is refused: shapes or lengths do not fit")]
    assert str(tmp_path) not in str(refusals)
    log = (tmp_path / "wrong.csv.log").read_text()
    assert "row 5 (line 6), column digit: label '44': 0 to 9" in log
    assert "roll call: declined, data is refused: labels out of range" in log
