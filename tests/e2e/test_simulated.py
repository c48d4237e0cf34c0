"""A deployed run and a simulated one of the same settings: same clients, same decisions, same model."""

from pathlib import Path

import numpy as np
import pytest

from fedappeal.record.lines import MODEL
from fedappeal.record.reader import Record
from fedappeal.system.files import read_safetensors
from tests.e2e.conftest import BIN, Marked

pytestmark = pytest.mark.e2e


def test_a_deployed_run_and_a_simulated_one_agree(marked: Marked, tmp_path: Path) -> None:
    options = "--model logistic --clients 4 --clients-per-round 3 --rounds 5 --mandatory-rounds 2 --set solo.steps=20"
    options += " --influence bounded --seed 1 --data-seed 3"
    for command in ("local", "simulate"):
        done = marked.run(
            str(BIN / "fedappeal"), command, *options.split(), "--out", str(tmp_path / command), warm=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
    local, simulated = tmp_path / "local", tmp_path / "simulate"
    assert len(Record(local).history) == 5
    assert Record(local).decisions == Record(simulated).decisions
    for deployed, in_process in zip(Record(local).history, Record(simulated).history, strict=True):
        for key, value in deployed.items():
            if key != "seconds":
                assert in_process[key] == pytest.approx(value, rel=1e-4, abs=1e-5), key
    ours, theirs = (read_safetensors(folder / MODEL)[0] for folder in (local, simulated))
    for name, values in ours.items():
        np.testing.assert_allclose(values, theirs[name], rtol=1e-4, atol=1e-5)
