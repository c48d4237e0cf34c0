"""Promise: what a run would take of a device's memory is known before it is taken, and what is refused is given back.

Each roll call is answered in a forked child, which may map 1.5 GB more than its parent: so no test harms the machine.
"""

import gc
import json
import os
import re
import resource
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from client.limits.guard import memory_held
from client.limits.limits import MEGABYTE
from client.training.models import arrays_of
from fedappeal.settings.config import RunConfig
from fedappeal.system.tuning import give_back_memory
from fedappeal.tasks import load_task
from fedappeal.tasks.size import size_before
from tests.node import Node, changed, run_config
from tests.plugin_folder import write_module

HONEST = run_config(task="digits", strategy="fedavg", model="logistic", clients=4, local_steps=2, requirement="fixed")
ROOM = 1500 * MEGABYTE
PACKAGE = "large_package"
LARGE = """
import torch
class Large(torch.nn.Linear):
    def __init__(self, num_classes): super().__init__(6_000_000, num_classes)
"""


def in_child(work: Callable[[], Any]) -> Any:
    """Return what some work returns in a forked child with little room; an error of it is one of the test's."""
    reader, writer = os.pipe()
    if not (child := os.fork()):
        try:
            signal.alarm(120)
            torch.set_num_threads(1)  # a pool of threads does not survive a fork
            mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (mapped + ROOM,) * 2)
            os.write(writer, json.dumps(work()).encode())
        except BaseException:
            os.write(writer, json.dumps(traceback.format_exc()).encode())
        os._exit(0)
    os.close(writer)
    with open(reader, "rb") as file:
        said = file.read()
    os.waitpid(child, 0)
    return json.loads(said)


def peak() -> int:
    """Return the most bytes that this process has held since `/proc/self/clear_refs` was written to."""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024


def asked(config: RunConfig, folder: Path, limits: str, **node: Any) -> dict[str, Any]:
    """Call the roll for a run, then for an honest one; return the answers, and the memory that the first took."""
    honest = Node(HONEST, folder, limits=limits, **node)
    honest("query")
    hostile = Node(config, folder, honest.participants, limits=limits, **node)
    hostile.layout, hostile.initial = honest.layout, honest.initial
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    before, refused = memory_held(), ""
    try:
        hostile("query")
    except Exception as error:
        refused = f"{type(error).__name__}: {error}"
    most = peak() - before
    give_back_memory()  # as the process that serves does
    left = memory_held() - before
    served = sorted(honest("query"))
    return {"refused": refused, "peak": most / MEGABYTE, "left": left / MEGABYTE, "served": served}


@pytest.fixture(scope="module", autouse=True)
def loaded() -> None:
    """Load in the parent what would count as memory that a run takes."""
    import torchvision.models

    assert torchvision.models


pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the kernel tells a process's peak in /proc")


@pytest.mark.parametrize(
    ("settings", "limits", "line"),
    [
        ({"model": "torchvision:vit_l_16"}, "max-memory=1000 max-model=20", "of it travel, .* max-model = 20 MB"),
        ({"model": "torchvision:vit_h_14"}, "max-steps=1000", r"2,5\d\d MB of it travel, .* max-model = 1000 MB"),
        ({"model": "torchvision:regnet_y_128gf"}, "max-model=0", "it takes about 15,.* max-memory = 8000 MB"),
        ({"model": "torchvision:vgg19"}, "max-memory=1000", "about 3,.* max-memory = 1000 MB"),
        ({"task": "synth", "synth__examples": 10**10}, "max-steps=1000", "the data of task = 'synth' .* max-memory"),
        ({"task": "synth", "synth__noisy": 1, "clients": 10**9}, "max-steps=1000", "the data of task = 'synth' "),
        ({"clients": 10**10, "flip_share": 1.0}, "max-steps=1000", "clients = 10000000000 is not allowed"),
        ({"clients": 10**10, "flip_share": 0.1}, "max-steps=1000", "clients = 10000000000 is not allowed"),
    ],
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else "",
)
def test_a_run_that_is_too_large_is_refused_before_it_takes_memory(
    tmp_path: Path, settings: dict[str, Any], limits: str, line: str
) -> None:
    """Of the first the peak was 4.4 GB, of which 3.4 GB stayed, and the honest run was refused."""
    answer = in_child(lambda: asked(changed(HONEST, **settings), tmp_path, limits))
    assert isinstance(answer, dict), answer
    assert answer["refused"].startswith("LimitReached: ")
    assert re.search(line, answer["refused"]), answer
    assert answer["peak"] < 60
    assert answer["left"] < 30
    assert answer["served"] == ["info", "metrics"]


def test_a_model_of_foreign_code_is_measured_once_it_is_built_and_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """240 MB of one that its owner's package makes."""
    write_module(tmp_path, PACKAGE, LARGE)
    monkeypatch.syspath_prepend(str(tmp_path))
    config = changed(HONEST, model=f"{PACKAGE}:Large")
    answer = in_child(lambda: asked(config, tmp_path / "state", "max-memory=1000", allow=PACKAGE))
    assert isinstance(answer, dict), answer
    assert "it takes about 1,440 MB, and this client's max-memory = 1000 MB" in answer["refused"]
    assert 200 < answer["peak"] < 400
    assert answer["left"] < 30
    assert answer["served"] == ["info", "metrics"]


def test_a_run_whose_roll_call_is_refused_leaves_nothing(tmp_path: Path) -> None:
    """Its model is within the limits, but is not the one that was sent."""
    config = changed(HONEST, model="torchvision:resnet18")
    answer = in_child(lambda: asked(config, tmp_path, "max-steps=1000"))
    assert isinstance(answer, dict), answer
    assert "does not match this client's" in answer["refused"]
    assert answer["peak"] > 90  # two copies of 45 MB
    assert answer["left"] < 45
    assert answer["served"] == ["info", "metrics"]


def test_what_the_process_held_before_is_not_the_runs(tmp_path: Path) -> None:
    def asked_beside(ballast: int, later: int) -> str:
        held = [bytearray(ballast)]
        node = Node(HONEST, tmp_path, limits="max-memory=60")
        node("query")
        held.append(bytearray(later))
        try:
            node("query")
        except Exception as error:
            return str(error)
        return f"served beside {len(held)}"

    assert in_child(lambda: asked_beside(200 * MEGABYTE, 0)) == "served beside 2"
    assert "max-memory = 60 MB" in in_child(lambda: asked_beside(0, 200 * MEGABYTE))


@pytest.mark.parametrize(
    "model", ["mlp", "cnn", "torchvision:squeezenet1_1", "torchvision:regnet_x_400mf", "torchvision:swin_t"]
)
def test_a_size_is_that_of_the_model_that_is_built(model: str) -> None:
    task = load_task(changed(HONEST, model=model, task="fmnist").task_settings())
    expected = sum(array.nbytes for array in arrays_of(task.initial_model(0)).values())
    size = size_before(task, 0)
    assert size is not None
    assert size.shared == expected
    assert size.whole >= expected  # and buffers that are not saved
