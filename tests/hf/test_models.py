"""Models of a folder: what is frozen, what is trained, and what a seed draws."""

import json
import shutil
import socket
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from fedappeal.hf import Logits
from fedappeal.hf.folder import ModelFolder
from fedappeal.hf.models import new_modules
from fedappeal.hf.text_task import TextTask
from fedappeal.settings.config import ConfigError, TaskSettings
from fedappeal.tasks import load_task
from fedappeal.tasks.share import parts_of, share_of
from fedappeal.tasks.size import size_before


def task_of(data: Path, name: str = "hf-text", /, **own: Any) -> TextTask:
    kind = {"hf-text": "TextClassification", "hf-lm": "CausalLM"}[name]
    given = {"model-dir": "bert", "data": "texts.csv", "max-length": 12, "labels": "bad,good"} | {
        key.replace("_", "-"): value for key, value in own.items()
    }
    if name == "hf-lm":
        del given["labels"]
    settings = {"task": f"fedappeal.hf:{kind}", "clients": 3, "partition": "iid"}
    settings |= {key: given.pop(key) for key in ("partition", "flip-share", "model", "min-examples") if key in given}
    found = load_task(TaskSettings.parse(settings | {f"{name}.{key}": value for key, value in given.items()}), data)
    assert isinstance(found, TextTask)
    return found


def trained(model: nn.Module) -> set[str]:
    return {name for name, p in model.named_parameters() if p.requires_grad}


def test_adapters_and_what_the_folder_lacks_are_trained_and_all_else_is_the_folders(data: Path) -> None:
    task = task_of(data, lora_rank=2, lora_targets="query, value")
    model = task.initial_model(5)
    heads = ("bert.pooler", "classifier")  # what is saved is a language model
    layers = [f"bert.encoder.layer.{n}.attention.self.{of}" for n in (0, 1) for of in ("query", "value")]
    expected = {f"base_model.model.{layer}.lora_{part}.default.weight" for layer in layers for part in "AB"}
    rest = trained(model) - expected
    assert expected < trained(model)
    assert {name.split(".modules_to_save.")[0].removeprefix("base_model.model.") for name in rest} == set(heads)
    assert set(parts_of(model, share_of(task)).shared) == trained(model)

    saved, frozen = load_file(data / "bert" / "model.safetensors"), 0
    for name, p in model.named_parameters():
        own = name.removeprefix("base_model.model.").replace(".base_layer", "")
        if name not in trained(model) and not own.startswith(heads):
            assert torch.equal(p, saved[own]), name
            frozen += 1
    assert frozen == sum(name.startswith("bert.") for name in saved)


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("hf-text", {"lora_rank": 0}),
        ("hf-text", {"lora_rank": 2, "random_weights": True}),
        ("hf-lm", {"lora_rank": 2, "model_dir": "gpt2"}),
    ],
)
def test_a_size_is_known_before_weights_are_read(data: Path, name: str, own: dict[str, Any]) -> None:
    task = task_of(data, name, **own)
    size = size_before(task, 0)
    assert size is not None
    state, model = task.initial_model(0).state_dict(), task.initial_model(0)
    assert size.shared == sum(state[key].nbytes for key in parts_of(model, share_of(task)).shared)
    assert size.whole >= sum(p.nbytes for p in model.parameters())


def test_a_seed_draws_the_same_model_twice_and_leaves_the_generator_alone(data: Path) -> None:
    before = torch.get_rng_state()
    first, again, other = (task_of(data, lora_rank=2).initial_model(seed).state_dict() for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(first[name], again[name]) for name in first)
    differ = {name for name in first if not torch.equal(first[name], other[name])}
    assert any("lora_A" in name for name in differ)
    assert any("classifier" in name for name in differ)
    assert not any("lora_" not in name and "pooler" not in name and "classifier" not in name for name in differ)


def test_weights_are_drawn_where_the_run_asks_for_it(data: Path) -> None:
    one, other = (task_of(data, model_dir="empty", random_weights=True, lora_rank=0) for _ in range(2))
    model, again = one.initial_model(3), other.initial_model(3)
    pairs = list(zip(model.parameters(), again.parameters(), strict=True))
    assert all(torch.equal(p, q) for p, q in pairs)
    assert trained(model) == {name for name, _ in model.named_parameters()}
    with pytest.raises(
        ConfigError, match=r"^hf-text.model-dir = 'empty' is not allowed: it holds no weights [^\n]*$"
    ):
        task_of(data, model_dir="empty").check()


def test_nothing_is_downloaded(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a connection was tried")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    task = task_of(data)
    task.check()
    task.initial_model(0)
    task.load(0)
    with pytest.raises(ConfigError, match=r"model-dir = 'bert-base-uncased' is not allowed: it is not in data-dir"):
        task_of(data, model_dir="bert-base-uncased").check()


@pytest.mark.parametrize("kind", ["config", "tokenizer"])
def test_a_folders_own_code_never_runs(
    data: Path, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # transformers itself would ask on the terminal; a yes there would run what a stranger wrote.
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    shutil.copytree(data / "bert", tmp_path / "evil")
    mark, file = tmp_path / "ran", tmp_path / "evil" / f"{'tokenizer_' * (kind == 'tokenizer')}config.json"
    own = {"AutoConfig": "own.C"} if kind == "config" else {"AutoTokenizer": ["own.T", None]}
    settings = json.loads(file.read_text()) | {"auto_map": own, "model_type": "own", "tokenizer_class": "T"}
    file.write_text(json.dumps(settings))
    (tmp_path / "evil" / "own.py").write_text(f"import pathlib; pathlib.Path({str(mark)!r}).touch(); C = T = int\n")
    shutil.copy(data / "texts.csv", tmp_path)
    # Its tokenizer's other files suffice for one of transformers' own.
    with pytest.raises(ConfigError) if kind == "config" else nullcontext():
        task_of(tmp_path, model_dir="evil").initial_model(0)
    assert not mark.exists()


def test_the_outermost_new_modules_by_hand() -> None:
    model = nn.Sequential(
        nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)), nn.LayerNorm(2)
    )
    missing = ["1.0.weight", "1.0.bias", "1.2.weight", "1.2.bias", "2.weight"]
    assert list(new_modules(model, missing)) == ["1"]
    with pytest.raises(ValueError, match="none of this model's weights"):
        list(new_modules(model, [name for name, _ in model.named_parameters()]))


def test_layers_that_are_not_there_are_refused_in_one_line(data: Path) -> None:
    with pytest.raises(ConfigError, match=r"^hf-text.lora-targets = 'nothing' is not allowed: [^\n]+$"):
        task_of(data, lora_targets="nothing").initial_model(0)


def test_logits_of_a_model(data: Path) -> None:
    task = task_of(data, lora_rank=0)
    model, x = task.initial_model(0).eval(), task.load(0).test.x
    assert torch.equal(Logits(model)(**x), model(**x).logits)  # type: ignore[arg-type]
    assert torch.equal(task.forward(model, x), model(**x).logits)  # type: ignore[arg-type]


def sized(data: Path, name: str) -> object:
    return size_before(task_of(data, model_dir=name), 0)


def labelled(data: Path, name: str) -> object:
    return ModelFolder(data / name, "model-dir", random_weights=False).label_names


@pytest.mark.parametrize(
    ("key", "value", "read", "line"),
    [
        ("num_hidden_layers", 10**7, sized, r"it is built in more than 100,000 steps"),
        ("max_position_embeddings", "many", sized, r"its most tokens are no number \(\['many', None"),
        ("id2label", [1], labelled, "its id2label is no table of numbers and names"),
    ],
)
def test_a_strangers_config_is_refused_in_a_line_before_it_takes_time_or_memory(
    key: str, value: object, read: Callable[[Path, str], object], line: str, data: Path
) -> None:
    folder = data / f"odd-{key}"
    shutil.copytree(data / "bert", folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {key: value}))
    with pytest.raises(ConfigError, match=line):
        read(data, folder.name)
