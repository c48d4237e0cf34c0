"""Which device a client trains on: the one that its owner names has to be there."""

import pytest
import torch

from client.training.devices import pick_device
from fedappeal.settings.config import ConfigError


@pytest.mark.parametrize(
    ("devices", "allowed"), [(0, []), (1, ["cuda", "cuda:0"]), (2, ["cuda", "cuda:0", "cuda:1"])]
)
def test_a_device_that_is_not_there_is_one_line(
    devices: int, allowed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: devices > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: devices)
    for wanted in ("cuda", "cuda:0", "cuda:1", "cuda:2"):
        if wanted in allowed:
            assert pick_device(wanted) == torch.device(wanted)
        else:
            with pytest.raises(
                ConfigError, match=f"device = '{wanted}' is not allowed: PyTorch finds no such device"
            ):
                pick_device(wanted)
    assert pick_device("cpu") == torch.device("cpu")
    assert pick_device("auto").type == ("cuda" if devices else "cpu")
