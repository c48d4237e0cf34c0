"""Clients side by side by batched layers: one model of many clients, with the backward pass written out."""

import copy
import math
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from client.training.noise import dropout, torch_dropout
from fedappeal.simulation.forms.batched import Cohort, NotBatchable, Parameters, Target
from fedappeal.simulation.forms.layers import (
    EACH_EXAMPLE,
    Dropout,
    Layer,
    MaxPool2d,
    ReLU,
    Reshape,
    batched_layer,
    is_altered,
)
from fedappeal.tasks.examples import Split, only_tensor
from fedappeal.tasks.task import Task

_TRACING = threading.Lock()
"""Held while a forward pass is traced: torch.fx then replaces the call of all modules of the process."""


class BatchedModel:
    """A module's layers, in order, over parameters with a leading axis of clients.

    Attributes:
        layers: in training and in evaluation mode, by whether it is training.
    """

    def __init__(self, module: nn.Module) -> None:
        """Take the layers of a module that calls them one after another.

        Raises:
            NotBatchable: names the layer that has no batched form.
        """
        _check_parameters(module)
        try:
            both = _pooled_first(_in_sequence(module, ""))
            self.layers = {True: both, False: both}
        except NotBatchable as reason:
            try:
                self.layers = {training: _layers_of(module, training) for training in (True, False)}
            except NotBatchable as other:
                # Of PyTorch's own modules, a container or not, the layer says more.
                ours = type(module).__module__.startswith("torch.nn.")
                raise (reason if ours else other) from None
        self._first_trained = {
            training: next(i for i, layer in enumerate(layers) if hasattr(layer, "_weight"))
            for training, layers in self.layers.items()
        }
        self._training = True

    def forward(self, x: Tensor, parameters: Parameters, training: bool) -> Tensor:
        """Return logits ``(clients, batch, C)`` of inputs ``(clients, batch, *input_shape)``."""
        self._training = training
        for layer in self.layers[training]:
            x = layer.forward(x, parameters, training)
        return x

    def backward(self, grad: Tensor, parameters: Parameters, target: Target) -> None:
        """Add the gradient to its target, by backpropagation.

        Given the gradient of the logits of the last `forward`.
        """
        layers, first = self.layers[self._training], self._first_trained[self._training]
        for i in range(len(layers) - 1, first - 1, -1):
            grad = layers[i].backward(grad, parameters, target, i == first)


def _pooled_first(layers: Iterable[Layer]) -> list[Layer]:
    """Return layers with max pooling moved before the rectifier.

    The same values, and fewer to rectify.

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
    """Yield the layers of nested `nn.Sequential`s, one that stands in several places in each of them."""
    if type(module) is nn.Sequential and not is_altered(module):
        for key, child in module._modules.items():
            if child is not None:
                yield from _in_sequence(child, f"{name}{key}.")
    else:
        yield _layer(name, module)


def _layer(name: str, module: nn.Module) -> Layer:
    """Return a module's batched layer; ``name`` is empty or ends with a dot."""
    layer = batched_layer(name, module)
    if layer is None or is_altered(module):
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
        """Return a module call's graph node; in another thread its outputs."""
        if threading.get_ident() != self._thread:
            return forward(*args, **kwargs)
        return super().call_module(m, forward, args, kwargs)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        """Return a module attribute's graph node; in another thread its value."""
        if threading.get_ident() != self._thread:
            return attr_val
        return super().getattr(attr, attr_val, parameter_proxy_cache)


def _layers_of(module: nn.Module, training: bool) -> list[Layer]:
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
        """Record a node that reads a shape."""
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
        name = node.target if isinstance(node.target, str) else _NAMES.get(node.target, "")
        arguments, keywords = list(node.args[1:]), dict(node.kwargs)
        if name == "dropout":
            settings: dict[str, Any] = {"p": 0.5, "training": True}
            settings |= dict(zip(("p", "training"), arguments, strict=False)) | keywords
            if settings["training"] and not self._training:
                raise NotBatchable(f"dropout in the forward pass of {self._kind} stays on in evaluation mode")
            return [Dropout(settings["p"])] if settings["training"] else []
        if (layer := _by_name(name, arguments, keywords, self._counts)) is not None:
            return [layer]
        called = name or getattr(node.target, "__name__", str(node.target))
        raise NotBatchable(f"'{called}' in the forward pass of {self._kind} has no batched form")


_KINDS = {kind.__name__.lower(): kind for kind in (*EACH_EXAMPLE, nn.ReLU, nn.Flatten)}
"""Modules by the names of their functions, without underscores."""
_FUNCTIONS = (
    *(
        "flatten",
        "reshape",
        "relu",
        "dropout",
        "tanh",
        "sigmoid",
        "gelu",
        "leaky_relu",
        "elu",
        "selu",
        "silu",
        "mish",
    ),
    *("softplus", "relu6", "hardtanh", "hardswish", "hardsigmoid", "softsign"),
    *("max_pool2d", "avg_pool2d", "adaptive_avg_pool2d"),
)
_NAMES = {getattr(where, name): name for where in (torch, functional) for name in _FUNCTIONS if hasattr(where, name)}
_NAMES |= dict.fromkeys((dropout, torch_dropout), "dropout")
_ORDER = {
    "flatten": ("start_dim", "end_dim"),
    "max_pool2d": ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices"),
}
"""Arguments of functions that have another order, or another default, than their module's."""


def _by_name(name: str, arguments: Sequence[Any], keywords: dict[str, Any], counts: set[fx.Node]) -> Layer | None:
    """Return the batched layer of a function or method; None if it has none."""
    if name in ("view", "reshape"):
        shape = arguments[0] if len(arguments) == 1 and isinstance(arguments[0], list | tuple) else arguments
        return _view(shape, counts) if not keywords else None
    kind = _KINDS.get(name.replace("_", ""))
    if kind is None or any(isinstance(value, fx.Node) for value in [*arguments, *keywords.values()]):
        return None
    if name in _ORDER:
        default = {"start_dim": 0} if name == "flatten" else {}
        arguments, keywords = [], default | dict(zip(_ORDER[name], arguments, strict=False)) | keywords
    try:
        return batched_layer("", kind(*arguments, **keywords))
    except TypeError:
        return None


def _view(shape: Sequence[Any], counts: set[fx.Node]) -> Layer | None:
    """Return a view whose first axis still counts the examples."""
    first, *rest = shape
    if not rest or not all(isinstance(size, int) for size in rest):
        return None
    keeps = first in counts if isinstance(first, fx.Node) else first == -1 and math.prod(rest) > 0
    return Reshape(lambda x: x.reshape(*x.shape[:2], *rest)) if keeps else None


class LayeredForm:
    """Batched layers, and the gradient of a task's loss by the logits; see `BatchedForm`."""

    name = "layers"
    largest_batch = 32
    """More would push each other's parameters out of the caches."""
    smallest_batch = 1
    one_size = False
    unused: Collection[str] = ()

    def __init__(self, task: Task, module: nn.Module) -> None:
        """Take a task's loss and a model's layers.

        Raises:
            NotBatchable: names the layer that has no batched form.
        """
        if type(task).forward is not Task.forward:
            raise NotBatchable(f"task '{task.name}' calls its model in a way of its own")
        self.trained: Sequence[str] = [name for name, _ in module.named_parameters()]
        self.model = BatchedModel(module)
        self._task, self._loss_gradient = task, loss_gradient(task)
        self._adds_up = task.loss_is_mean

    def add_gradient(self, clients: Cohort, batch: Split, weights: Tensor, target: Target, training: bool) -> None:
        """Add the gradients of all clients' weighted losses, layer by layer.

        Each layer is used in each step.
        """
        x, y = self._tensors(batch)
        logits = self.model.forward(x, clients.trained, training)
        if self._adds_up:
            gradient = self._loss_gradient(logits.flatten(0, 1), y.flatten(0, 1)).view_as(logits)
        else:  # client by client: a loss that is no mean over examples is another one for all clients' together
            gradient = torch.zeros_like(logits)
            for of_client, count in enumerate((weights > 0).sum(1).tolist()):
                part = logits[of_client, :count], y[of_client, :count]
                gradient[of_client, :count] = self._loss_gradient(*part)
        gradient.mul_(weights.view(*weights.shape, *[1] * (logits.ndim - weights.ndim)))
        self.model.backward(gradient, clients.trained, target)

    def loss(self, clients: Cohort, batch: Split, weights: Tensor) -> Tensor:
        """Return the sum of the clients' mean losses: autograd goes through the same layers."""
        x, y = self._tensors(batch)
        logits, task = self.model.forward(x, clients.trained, training=True), self._task
        if task.is_plain():
            return example_losses(task, logits.flatten(0, 1), y.flatten()).dot(weights.flatten())
        counts = (weights > 0).sum(1).tolist()
        return torch.stack([task.loss(logits[k, :n], y[k, :n]) for k, n in enumerate(counts)]).sum()

    @staticmethod
    def _tensors(batch: Split) -> tuple[Tensor, Tensor]:
        x, y = only_tensor(batch.x), only_tensor(batch.y)
        if x is None or y is None or not x.is_floating_point():
            raise NotBatchable("inputs are no lone tensor of floats")
        return x, y


def _has_few_classes(logits: Tensor) -> bool:
    """Whether a softmax is faster along the first axis: 16 numbers fill a processor's vector."""
    return logits.device.type == "cpu" and logits.shape[-1] < 16


def example_losses(task: Task, logits: Tensor, y: Tensor) -> Tensor:
    """Return the cross-entropy of each example, shape ``(n,)``, of a task that `is_plain`."""
    if logits.ndim == 2 and _has_few_classes(logits) and y.shape == logits.shape[:1]:
        # As one example with a class at each of n places: the same bits in a ninth of the time.
        return task.loss(logits.T.unsqueeze(0), y.unsqueeze(0), reduction="none")[0]
    return task.loss(logits, y, reduction="none")


LossGradient = Callable[[Tensor, Tensor], Tensor]
"""Per-example gradient of the loss by the logits ``(n, C)``, given labels ``(n,)``."""


def cross_entropy_gradient(logits: Tensor, y: Tensor) -> Tensor:
    """Return ``softmax(logits) - onehot(y)``, shape ``(n, C)``: the gradient of cross-entropy, example by example."""
    gradient = logits.T.softmax(0).T.contiguous() if _has_few_classes(logits) else logits.softmax(-1)
    return gradient.scatter_add_(1, y.unsqueeze(1), gradient.new_full((1, 1), -1.0).expand(len(y), 1))


def loss_gradient(task: Task) -> LossGradient:
    """Return the function of each example's loss gradient by its logits.

    Written out for cross-entropy, else by autograd.
    """
    if type(task).loss is Task.loss:
        return cross_entropy_gradient

    def gradient(logits: Tensor, y: Tensor) -> Tensor:
        with torch.enable_grad():
            at = logits.detach().requires_grad_()
            return torch.autograd.grad(task.loss(at, y, reduction="sum"), at)[0]

    return gradient
