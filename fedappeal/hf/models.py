"""Models of a folder: pretrained or drawn, whole or frozen under LoRA adapters.

What the folder does not hold, such as a new classifier, is drawn and trained beside the adapters. So all that is
trained travels, and all that is frozen is the folder's own.
"""

import contextlib
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from fedappeal.hf.folder import ITS_FILES_ALONE, ModelFolder, require_hf
from fedappeal.hf.texts import TextSettings
from fedappeal.settings.config import ConfigError
from fedappeal.tasks.models import check_images, seeded


class Logits(nn.Module):
    """A model of transformers or PEFT as a module that returns its logits alone.

    The wrapped model stays an attribute: ``wrapped.model.save_pretrained(folder)`` writes it as Hugging Face does.

    Args:
        model: returns an object with ``logits``; it gets the arguments as they are given.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *args: Any, **inputs: Any) -> Tensor:
        """Return the logits, in the form that the model gives them."""
        logits: Tensor = self.model(*args, **inputs).logits
        return logits


def of_transformers(name: str, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Return a new image classifier of a transformers family (``vit``), of its usual size.

    Raises:
        ConfigError: one line: no such family, inputs that are no images, or images that it does not take.
    """
    require_hf("transformers")
    check_images(f"transformers:{name}", input_shape)
    from transformers import AutoModelForImageClassification

    sizes = {"num_labels": num_classes, "num_channels": input_shape[0], "image_size": input_shape[-1]}
    config = family(name, **sizes)
    try:
        return Logits(AutoModelForImageClassification.from_config(config, attn_implementation="eager"))
    except (ValueError, RuntimeError, ZeroDivisionError) as error:
        reason = " ".join(str(error).split())[:80]
        raise ConfigError(
            f"model = 'transformers:{name}' is not allowed: no classifier of these images ({reason})"
        ) from None


def family(name: str, **sizes: Any) -> Any:
    """Return the usual configuration of one of transformers' families, with some sizes.

    Raises:
        ConfigError: one line: there is none of that name.
    """
    from transformers import AutoConfig

    try:
        return AutoConfig.for_model(name, **sizes)
    except ValueError:
        raise ConfigError(f"model = 'transformers:{name}' is not allowed: transformers has no such family") from None


def pretrained(model: nn.Module, adapter: bool) -> Any:
    """Return the model that ``save_pretrained`` writes: merged, or its adapters alone.

    Args:
        model: of transformers or PEFT, as it is or in `Logits`; it is changed.
        adapter: whether the adapters alone are wanted.

    Raises:
        ConfigError: a model of another kind, or without adapters.
    """
    inner: Any = model.model if isinstance(model, Logits) else model
    if not hasattr(inner, "save_pretrained"):
        raise ConfigError("to = 'huggingface' is not allowed: the model is none of transformers (onnx, safetensors)")
    if adapter:
        if not hasattr(inner, "merge_and_unload"):
            raise ConfigError("to = 'adapter' is not allowed: the model has no adapters (huggingface)")
        return inner
    if hasattr(inner, "merge_and_unload"):
        inner = inner.merge_and_unload()
    inner.config.use_cache = True
    return inner


CLASSIFIER, CAUSAL_LM = "SEQ_CLS", "CAUSAL_LM"
"""PEFT's names of the kinds of task."""


def build(folder: ModelFolder, text: TextSettings, kind: str, seed: int, name: str, **config: Any) -> nn.Module:
    """Return a model on the CPU in float32, determined by folder and seed.

    Args:
        folder: the model's.
        text: says whether the weights are drawn, and which adapters there are.
        kind: `CLASSIFIER` or `CAUSAL_LM`.
        seed: of the run.
        name: the task's, for messages.
        config: what replaces values of the model's configuration: ``num_labels``.

    Raises:
        ConfigError: the folder's model cannot be loaded, or has no layer for an adapter.
    """
    with seeded(seed), quiet():
        try:
            model, new = _load(folder, kind, config)
        except ConfigError:
            raise
        except (OSError, ValueError, KeyError, RuntimeError, ImportError) as error:
            raise folder.refused(f"transformers cannot load it: {error}") from None
        model = model.float()  # NumPy knows no bfloat16
        model.config.use_cache = False
        if text.lora_rank:
            try:
                model = _with_adapters(model, text, kind, new)
            except ValueError as error:
                reason = " ".join(str(error).split())
                raise ConfigError(f"{name}.lora-targets = '{text.lora_targets}' is not allowed: {reason}") from None
    built: nn.Module = model
    return built


def _load(folder: ModelFolder, kind: str, config: dict[str, Any]) -> tuple[Any, list[str]]:
    """Return a model, and the names of its modules without weights in the folder."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification

    makers = AutoModelForSequenceClassification if kind == CLASSIFIER else AutoModelForCausalLM
    if folder.family:
        settings = family(folder.family, vocab_size=len(folder.tokenizer), **config)
    else:
        settings = AutoConfig.from_pretrained(folder.path, **ITS_FILES_ALONE, **config)  # nosec B615 # no download
    # No kernel that looks at the values: so the clients of a simulation can be trained as one batch.
    if folder.random_weights or torch.get_default_device().type == "meta":  # its size alone is asked for
        return makers.from_config(settings, attn_implementation="eager"), []
    model, loading = makers.from_pretrained(
        folder.path,
        config=settings,
        attn_implementation="eager",
        **ITS_FILES_ALONE,
        use_safetensors=True,
        output_loading_info=True,
    )
    return model, list(new_modules(model, loading["missing_keys"]))


def new_modules(model: nn.Module, missing: Iterable[str]) -> Iterator[str]:
    """Yield the names of the outermost modules all of whose parameters are missing.

    Raises:
        ValueError: all parameters of the model are.
    """
    left = set(missing)
    outermost: list[str] = []
    for name, module in model.named_modules():
        parameters = {f"{name}.{key}".lstrip(".") for key, _ in module.named_parameters()}
        inside = any(name.startswith(f"{outer}.") for outer in outermost)
        if parameters and parameters <= left and not inside:
            if not name:
                raise ValueError("it holds none of this model's weights")
            outermost.append(name)
    yield from outermost


def _with_adapters(model: Any, text: TextSettings, kind: str, new: list[str]) -> nn.Module:
    from peft import LoraConfig, get_peft_model

    targets: Any = [target.strip() for target in text.lora_targets.split(",") if target.strip()] or None
    if text.lora_targets.strip() == "all-linear":
        targets = "all-linear"
    adapters = LoraConfig(
        r=text.lora_rank,
        lora_alpha=text.lora_alpha,
        target_modules=targets,
        modules_to_save=new or None,
        task_type=kind,
    )
    adapted: nn.Module = get_peft_model(model, adapters)
    return adapted


@contextmanager
def quiet() -> Iterator[None]:
    """Show neither progress bars nor reports of transformers and PEFT."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    with contextlib.ExitStack() as after, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        after.callback(logging.set_verbosity, level)
        logging.set_verbosity(logging.CRITICAL)
        if bars:
            after.callback(logging.enable_progress_bar)
            logging.disable_progress_bar()
        yield
