"""Whether a model's batched form gives what its clients give one by one: a dry run of two small minibatches."""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from client.training.noise import Noise, begin_forward_pass, keyed_dropout
from fedappeal.simulation.forms import batched
from fedappeal.simulation.forms.batched import BatchedForm, Cohort, Examples, NotBatchable, line_up
from fedappeal.simulation.forms.vectorised import VmapForm
from fedappeal.tasks.task import Split, Task

SIZES = (3, 2)
"""Examples of each of the two clients, where a form takes unequal sizes."""
LONGEST = 140
"""Characters of a reason."""
CLOSE = 0.02
"""Largest difference of two gradients over their size: a unit that rounds to the other side of 0 makes 0.002."""


DRY_RUN = Noise(0, "dry run", 0)


def check_form(form: BatchedForm, task: Task, module: nn.Module, data: Split, noise: Noise = DRY_RUN) -> None:
    """Check a batched form's gradients against those of clients one by one.

    In training and in evaluation mode.

    Args:
        form: the batched form.
        task: gives the loss.
        module: the model; it stays as it is.
        data: any client's training examples, on the device of the model.
        noise: by which the clients draw.

    Raises:
        NotBatchable: says in one line why clients cannot train side by side.
    """
    sizes = [min(SIZES[-1 if form.one_size else k], len(data)) for k in range(len(SIZES))]
    rows = torch.arange(sum(sizes), device=data.device) % len(data)
    two = data.take(rows)
    examples = Examples(two.x, two.y, [0, sizes[0], sum(sizes)])
    models = [copy.deepcopy(module), copy.deepcopy(module)]
    with torch.no_grad():
        for p in models[1].parameters():  # a model that does not take its parameters from outside shows here
            p.mul_(0.9)
    noises = [noise._replace(client=f"{noise.client} {k}") for k in range(len(models))]
    for training in (True, False):
        alone = []
        for k, model in enumerate(models):
            with keyed_dropout([noises[k]]):
                alone.append(_one_by_one(task, model, examples.of_client(k), training))
        with keyed_dropout(noises, side_by_side=True):
            side_by_side = _side_by_side(form, models, examples, training)
        if noise.keyed and any(drawn for _, drawn in alone):
            raise NotBatchable(f"{type(module).__name__} draws numbers of its own, not by dropout")
        # Where noise is drawn, it is other noise.
        if not any(drawn for _, drawn in alone) and not _equal([gradient for gradient, _ in alone], side_by_side):
            raise NotBatchable("side by side the gradients are others than one by one")


def _one_by_one(task: Task, model: nn.Module, part: Split, training: bool) -> tuple[list[Tensor], bool]:
    """Return a client's gradient, and whether noise was drawn.

    Raises:
        NotBatchable: a buffer changed.
    """
    model.train(training)
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    noise = _generator(part.device)
    begin_forward_pass(0)
    loss = task.loss(task.forward(model, part.x), part.y)
    parameters = [p for p in model.parameters() if p.requires_grad]
    of_parameters = torch.autograd.grad(loss, parameters, materialize_grads=True)
    for name, buffer in model.named_buffers():
        if name not in before or not torch.equal(buffer, before[name]):
            layer = name.rpartition(".")[0]
            kind = type(model.get_submodule(layer)).__name__
            raise NotBatchable(
                f"layer '{layer or 'model'}' ({kind}) changes its '{name.rpartition('.')[2]}' in training"
            )
    return list(of_parameters), not torch.equal(noise, _generator(part.device))


def _generator(device: torch.device) -> Tensor:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def _side_by_side(
    form: BatchedForm, models: Sequence[nn.Module], examples: Examples, training: bool
) -> dict[str, Tensor]:
    """Return the clients' gradients by the form.

    Raises:
        NotBatchable: says which layer cannot be calculated side by side.
    """
    states = [dict([*model.named_parameters(), *model.named_buffers()]) for model in models]
    stacked = {name: torch.stack([state[name].detach() for state in states]) for name in states[0]}
    clients = Cohort(
        {name: stacked[name] for name in form.trained},
        {name: tensor for name, tensor in stacked.items() if name not in form.trained},
    )
    rows = [torch.arange(examples.start[k], examples.start[k + 1]).unsqueeze(0) for k in range(len(models))]
    batches, _ = line_up(rows, examples.device)
    entered: list[str] = []
    hooks: list[torch.utils.hooks.RemovableHandle] = []
    try:
        if isinstance(form, VmapForm):
            hooks = _note_layers(form.objective.model, entered)  # a ScriptModule takes none
        with torch.no_grad():
            return batched.gradients(form, clients, examples, batches, training)
    except NotBatchable:
        raise
    except Exception as error:
        where = "the loss: "
        if entered:
            kind = type(models[0].get_submodule(entered[-1])).__name__
            where = f"layer '{entered[-1] or 'model'}' ({kind}): "
        raise NotBatchable(where + short_reason(str(error) or type(error).__name__)) from None
    finally:
        for hook in hooks:
            hook.remove()


def _note_layers(model: nn.Module, entered: list[str]) -> list[torch.utils.hooks.RemovableHandle]:
    """Keep the names of the layers that are being calculated, the innermost last."""
    hooks: list[torch.utils.hooks.RemovableHandle] = []
    for name, layer in model.named_modules():
        hooks.append(layer.register_forward_pre_hook(lambda layer, inputs, name=name: entered.append(name)))
        hooks.append(layer.register_forward_hook(lambda layer, inputs, outputs: (entered.pop(), None)[1]))
    return hooks


_REASONS = (
    (".item()", "reads a value out of a tensor (`.item()`, or an `if` on one)"),
    ("data-dependent", "branches on the values of a tensor"),
    ("setup_context", "a custom autograd function without a vmap form"),
    ("generate_vmap_rule", "a custom autograd function without a vmap form"),
    ("doesn't match the broadcast shape", "writes into a tensor that all clients share"),
    ("inplace arithmetic", "writes into a tensor that all clients share"),
    ("dynamic shape", "its output's shape depends on the values of a tensor"),
)
"""What PyTorch says, and the same in a few words."""


def short_reason(message: str) -> str:
    """Return an error of vmap in one short line."""
    for pattern, reason in _REASONS:
        if pattern in message:
            return reason
    missing = message.partition("Batching rule not implemented for ")[2]
    if missing:
        return f"PyTorch has no batched {missing.partition(' ')[0].partition('. ')[0].rstrip('.')}"
    first = next(iter(message.strip().splitlines()), "")
    return first if len(first) <= LONGEST else first[: LONGEST - 3] + "..."


def _equal(expected: Sequence[Sequence[Tensor]], side_by_side: dict[str, Tensor]) -> bool:
    for k, of_client in enumerate(expected):
        of_form = [gradient[k] for gradient in side_by_side.values()]
        difference = sum(float((a - b).cpu().double().norm() ** 2) for a, b in zip(of_client, of_form, strict=True))
        size = sum(float(a.cpu().double().norm() ** 2) for a in of_client)
        if not difference <= CLOSE**2 * size + 1e-12:  # a value that is not finite is no match either
            return False
    return True
