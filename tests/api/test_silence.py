"""A quiet run shows nothing of libraries; fedappeal's own notices stay."""

import threading
import warnings
from pathlib import Path

import pytest
from tqdm import tqdm

import fedappeal
from fedappeal.api.silence import silence
from tests.api.blobs import QUICK, Net, pairs


@pytest.mark.parametrize("quiet", [True, False])
def test_quiet_is_quiet(quiet: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def on_round(each: fedappeal.FinishedRound) -> None:
        warnings.warn("a library's", DeprecationWarning, stacklevel=1)
        list(tqdm(range(3), disable=False))

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        settings = {**QUICK, "quiet": quiet, "set": {"solo.steps": 3, "maxfl.server_lr": 1.0}}
        fedappeal.simulate("fedavg", model=Net, data=pairs(), on_round=on_round, out=tmp_path / "run", **settings)
    said = [str(each.message) for each in caught]
    assert "maxfl.server-lr is not used by this run" in said
    assert ("a library's" in said) == (not quiet)
    assert ("3/3" in capfd.readouterr().err) == (not quiet)


def test_all_is_put_back_when_the_last_of_several_runs_is_over(capfd: pytest.CaptureFixture[str]) -> None:
    before = tqdm.__init__, list(warnings.filters)
    entered, over = threading.Event(), threading.Event()

    def other() -> None:
        with silence(True):
            entered.set()
            over.wait(30)

    with silence(True):
        thread = threading.Thread(target=other)
        thread.start()
        assert entered.wait(30)
    list(tqdm(range(3)))
    over.set()
    thread.join()
    assert capfd.readouterr().err == ""
    assert (tqdm.__init__, list(warnings.filters)) == before
