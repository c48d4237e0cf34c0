"""A federation of clients with their own data alone: an .npz, a folder of images, one that only looks on."""

import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedappeal.federation.submit import build_fab, run_status, submit
from fedappeal.federation.superlink import SuperLink
from fedappeal.protocol.config import RunConfig
from server.run_folder import EVENTS, HISTORY, read_lines
from tests.e2e.conftest import BIN, Marked

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


def test_clients_with_their_own_data_make_a_federation(marked: Marked, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    for name, count in (("a", 60), ("b", 50)):
        np.savez(tmp_path / f"{name}.npz", **dict(zip("xy", bars(count), strict=True)))
    write_images(tmp_path / "images", 40)
    np.savez(tmp_path / "wrong.npz", x=np.zeros((20, 9, 9), np.uint8), y=np.zeros(20, int))
    settings = {"clients": 2, "unseen-clients": 1, "rounds": 2, "out": str(folder), "seed": 4, "solo.steps": 20}
    config = RunConfig.parse({**settings, "learning-rate": 0.3, "local-steps": 40})
    with SuperLink(tmp_path / "superlink", environment={"FEDAPPEAL_TEST_MARK": marked.mark}) as superlink:
        ours = {
            name: marked.start(
                str(BIN / "fedappeal"),
                *("client", "--insecure", "--superlink", superlink.fleet_address, "--device", "cpu"),
                *("--data", str(tmp_path / name), "--state-dir", str(tmp_path / f"state-{name}"), *more),
                log=tmp_path / f"{name}.log",
            )
            for name, more in (("a.npz", ()), ("images", ()), ("b.npz", ("--role", "unseen")), ("wrong.npz", ()))
        }
        run_id = submit(superlink.control_address, build_fab(config.as_config()))
        deadline = time.monotonic() + 200
        while not (status := run_status(superlink.control_address, run_id)).finished:
            assert time.monotonic() < deadline, (tmp_path / "images.log").read_text()[-2000:]
            time.sleep(0.5)
        assert status.completed, status
        assert [process.poll() for process in ours.values()] == [None] * 4, (
            "one that does not fit waits for other runs"
        )
        for process in ours.values():
            process.terminate()
        assert [process.wait(20) for process in ours.values()] == [0] * 4
    rounds = read_lines(folder / HISTORY)
    assert [(r["asked"], r["joined"], r["evaluated"]) for r in rounds] == [(2, 2, 3)] * 2
    assert min(rounds[-1]["accuracy"], rounds[-1]["unseen_accuracy"]) > 0.9, rounds[-1]
    assert "of 5 of the 10 labels, 36 to train on and 24 to test with" in (tmp_path / "a.npz.log").read_text()
    assert "40 of 40 images are resized to 8x8" in (tmp_path / "images.log").read_text()
    assert "x has shape (20, 9, 9)" in (tmp_path / "wrong.npz.log").read_text()
    told = [line for line in read_lines(folder / EVENTS) if line["event"] == "refused"]
    assert len(told) == 1
    assert "this client's own data do not fit task = 'digits': its log says why" in told[0]["reason"]
    assert str(tmp_path) not in told[0]["reason"]
