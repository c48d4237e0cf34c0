"""A model as a chain of batched layers: an `nn.Sequential`, or any forward pass that calls one after another."""

import copy
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional

from fedappeal.simulation.forms.batched import NotBatchable
from fedappeal.simulation.forms.layers import Dropout, EachExample, Flatten, Layer, ReLU, View, batched_layer
from fedappeal.simulation.forms.pooling import MaxPool2d, max_pool2d

_TRACING = threading.Lock()
"""Held while a forward pass is traced: torch.fx then replaces the call of all modules of the process."""


class Chain:
    """The layers of a module, in their order.

    Attributes:
        layers: in training and in evaluation mode, by whether it is training.
        traced: whether they were found by tracing the forward pass.
    """

    def __init__(self, module: nn.Module) -> None:
        """Take the layers of a module.

        Raises:
            NotBatchable: names the layer that has no batched form.
        """
        self.traced = False
        _check_parameters(module)
        try:
            both = _pooled_first(_in_sequence(module, ""))
            self.layers = {True: both, False: both}
        except NotBatchable as reason:
            try:
                self.layers = {training: _traced(module, training) for training in (True, False)}
            except NotBatchable as other:
                # Of PyTorch's own modules, a container or not, the layer says more.
                ours = type(module).__module__.startswith("torch.nn.")
                raise (reason if ours else other) from None
            self.traced = True


def _pooled_first(layers: Iterable[Layer]) -> list[Layer]:
    """Return layers with max pooling before the rectifier, not after it: the same values, and fewer to rectify.

    The gradient is the same too: where the maximum is positive it is the rectifier's only place, and elsewhere none
    has a gradient.
    """
    ordered = list(layers)
    for i in range(1, len(ordered)):
        if isinstance(ordered[i], MaxPool2d) and isinstance(ordered[i - 1], ReLU):
            ordered[i - 1], ordered[i] = ordered[i], ordered[i - 1]
    return ordered


def _check_parameters(module: nn.Module) -> None:
    frozen = [name for name, p in module.named_parameters() if not p.requires_grad]
    if len(frozen) == len(list(module.parameters())):
        raise NotBatchable("there is nothing to train")
    if frozen:
        raise NotBatchable(f"parameter '{frozen[0]}' is not trained")
    if len(list(module.named_parameters(remove_duplicate=False))) != len(list(module.parameters())):
        raise NotBatchable("layers share parameters")


def _in_sequence(module: nn.Module, name: str) -> Iterator[Layer]:
    """Yield the layers of nested `nn.Sequential`s."""
    if type(module) is nn.Sequential:
        for key, child in module.named_children():
            yield from _in_sequence(child, f"{name}{key}.")
    else:
        yield _layer(name, module)


def _layer(name: str, module: nn.Module) -> Layer:
    """Return a module's batched layer; ``name`` is empty or ends with a dot."""
    layer = batched_layer(name, module)
    # A hook may change anything: weight norm of the older kind computes the weight in one.
    if layer is None or module._forward_hooks or module._forward_pre_hooks:
        raise NotBatchable(f"layer '{name.rstrip('.') or 'model'}' ({type(module).__name__}) has no batched form")
    return layer


class _Tracer(fx.Tracer):
    """Traces one module, and leaves the forward passes of other threads alone."""

    def __init__(self) -> None:
        super().__init__()
        self._thread = threading.get_ident()

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Return what a call of a module gives: a node of the graph, in another thread its outputs."""
        if threading.get_ident() != self._thread:
            return forward(*args, **kwargs)
        return super().call_module(m, forward, args, kwargs)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        """Return an attribute of a module: a node of the graph, in another thread its value."""
        if threading.get_ident() != self._thread:
            return attr_val
        return super().getattr(attr, attr_val, parameter_proxy_cache)


def _traced(module: nn.Module, training: bool) -> list[Layer]:
    """Return the layers that a forward pass calls one after another.

    Raises:
        NotBatchable: it does something else.
    """
    kind = type(module).__name__
    module = copy.deepcopy(module).train(training)
    try:
        with _TRACING:
            graph = _Tracer().trace(module)
    except Exception:  # whatever the model's own code raises where its input is no tensor
        raise NotBatchable(f"the forward pass of {kind} cannot be traced") from None
    layers = _pooled_first(_Trace(module, kind, training).layers(graph))
    called = {str(node.target) for node in graph.nodes if node.op == "call_module"}
    unused = [name for name, _ in module.named_parameters() if name.rpartition(".")[0] not in called]
    if unused:
        raise NotBatchable(f"parameter '{unused[0]}' is not used by a layer")
    return layers


class _Trace:
    """Reads a traced forward pass."""

    def __init__(self, module: nn.Module, kind: str, training: bool) -> None:
        self._module, self._kind, self._training = module, kind, training
        self._shapes: set[fx.Node] = set()
        self._counts: set[fx.Node] = set()
        """Nodes that are the number of examples."""
        self._seen: set[fx.Node] = set()
        self._called: set[str] = set()

    def layers(self, graph: fx.Graph) -> list[Layer]:
        """Return the layers, in their order."""
        steps: list[Layer] = []
        latest: fx.Node | None = None
        for node in graph.nodes:
            if node.op == "placeholder":
                if latest is None:
                    latest = node
                    self._seen.add(node)
                elif node.users:
                    raise NotBatchable(f"the forward pass of {self._kind} has several inputs")
            elif node.op == "output":
                if node.args[0] is not latest:
                    raise NotBatchable(f"the forward pass of {self._kind} is no chain of layers")
            elif not self._is_shape(node):
                if not node.args or node.args[0] is not latest:
                    raise NotBatchable(f"the forward pass of {self._kind} is no chain of layers")
                steps += self._step(node)
                latest = node
                self._seen.add(node)
        return steps

    def _is_shape(self, node: fx.Node) -> bool:
        """Take in a node that reads a shape."""
        of = node.args[0] if node.args else None
        reads_shape = node.target is getattr and node.args[1:] == ("shape",)
        if of in self._seen and (reads_shape or (node.target == "size" and len(node.args) == 1)):
            self._shapes.add(node)
            return True
        first = node.target == "size" and of in self._seen and node.args[1:] == (0,)
        if first or (of in self._shapes and getattr(node.target, "__name__", "") == "getitem" and node.args[1] == 0):
            self._counts.add(node)
            return True
        return False

    def _step(self, node: fx.Node) -> list[Layer]:
        if node.op == "call_module":
            name = str(node.target)
            if name in self._called:
                raise NotBatchable(f"layer '{name}' is called twice")
            self._called.add(name)
            return [_layer(f"{name}.", self._module.get_submodule(name))]
        target = node.target if isinstance(node.target, str) else _NAMES.get(node.target, "")
        arguments, named = list(node.args[1:]), dict(node.kwargs)
        if target == "dropout":
            settings: dict[str, Any] = {"p": 0.5, "training": True}
            settings |= dict(zip(("p", "training"), arguments, strict=False)) | named
            if settings["training"] and not self._training:
                raise NotBatchable(f"dropout in the forward pass of {self._kind} stays on in evaluation mode")
            return [Dropout(settings["p"])] if settings["training"] else []
        if (layers := _by_name(target, arguments, named, self._counts)) is not None:
            return layers
        called = target or getattr(node.target, "__name__", str(node.target))
        raise NotBatchable(f"'{called}' in the forward pass of {self._kind} has no batched form")


_NAMES = {
    torch.flatten: "flatten",
    torch.reshape: "reshape",
    torch.relu: "relu",
    functional.relu: "relu",
    functional.dropout: "dropout",
}

_EACH = {
    **{name: getattr(functional, name) for name in ("gelu", "leaky_relu", "elu", "selu", "silu", "mish", "softplus")},
    **{name: getattr(functional, name) for name in ("relu6", "hardtanh", "hardswish", "hardsigmoid", "softsign")},
    **{name: getattr(functional, name) for name in ("max_pool2d", "avg_pool2d", "adaptive_avg_pool2d")},
    **{"tanh": torch.tanh, "sigmoid": torch.sigmoid},
}
"""Functions that treat each example alone, whatever their other arguments."""
_NAMES |= {function: name for name, function in _EACH.items()}
_NAMES |= {torch.max_pool2d: "max_pool2d", torch.nn.functional.tanh: "tanh", torch.nn.functional.sigmoid: "sigmoid"}


def _by_name(
    name: str, arguments: Sequence[Any], named: Mapping[str, Any], counts: set[fx.Node]
) -> list[Layer] | None:
    """Return the layers of a function or method by its name; None where it has no batched form."""
    if name in ("view", "reshape"):
        shape = arguments[0] if len(arguments) == 1 and isinstance(arguments[0], list | tuple) else arguments
        return _view(shape, counts) if not named else None
    if any(isinstance(value, fx.Node) for value in [*arguments, *named.values()]):
        return None
    if name == "flatten":
        axes = {"start_dim": 0, "end_dim": -1} | dict(zip(("start_dim", "end_dim"), arguments, strict=False))
        axes |= named
        return [Flatten(nn.Flatten(**axes))] if axes["start_dim"] != 0 else None
    if name in ("relu", "relu_"):
        return [ReLU()]
    if name == "max_pool2d" and not named.get("return_indices"):
        pooling = max_pool2d(*arguments, **{key: value for key, value in named.items() if key != "return_indices"})
        if pooling is not None:
            return [pooling]
    if name in _EACH and not named.get("return_indices"):
        return [EachExample(partial(_applied, _EACH[name], tuple(arguments), dict(named)))]
    return None


def _applied(function: Any, arguments: tuple[Any, ...], named: Mapping[str, Any], x: torch.Tensor) -> torch.Tensor:
    y: torch.Tensor = function(x, *arguments, **named)
    return y


def _view(shape: Sequence[Any], counts: set[fx.Node]) -> list[Layer] | None:
    """Return a view whose first axis still counts the examples."""
    first, *rest = shape
    if not rest or not all(isinstance(size, int) for size in rest):
        return None
    keeps = first in counts if isinstance(first, fx.Node) else first == -1 and math.prod(rest) > 0
    return [View(rest)] if keeps else None
