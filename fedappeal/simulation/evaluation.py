"""The loss of one model on many clients' data, in float32 or bfloat16.

One forward pass, and a mean a client.
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from client.blend import Way
from client.learner import Job, Sent
from client.participant import Judge, Participant
from client.training.devices import Launched, on_device
from client.training.models import BFLOAT16, FLOAT32, evaluate, forward, load_arrays
from client.training.requests import EvaluateRequest
from fedappeal.core.policy import Situation
from fedappeal.core.requirement import Evaluation, Requirement
from fedappeal.protocol.keys import TRAIN_SPLIT, Decision
from fedappeal.protocol.packing import Arrays
from fedappeal.simulation.forms.batched import Examples
from fedappeal.simulation.forms.layered import example_losses
from fedappeal.tasks.examples import only_tensor

COMPARED_EVERY = 10
"""Decisions of one round in this many, the first among them, are made again from an evaluation in float32."""
CPU_INFO = Path("/proc/cpuinfo")


@dataclass
class Flips:
    """Decisions that were made again in float32.

    Attributes:
        compared: their number since the count was taken last.
        flipped: those of them that came out otherwise.
    """

    compared: int = 0
    flipped: int = 0

    def add(self, flipped: bool) -> None:
        """Count a decision."""
        self.compared += 1
        self.flipped += flipped

    def taken(self) -> dict[str, float]:
        """Return the counts for the history, and reset them; empty without compared decisions."""
        counts = {"compared_decisions": self.compared, "flipped_decisions": self.flipped} if self.compared else {}
        self.compared = self.flipped = 0
        return dict(counts)


class BFloat16Participant(Participant):
    """A client that judges models in bfloat16, in some rounds in float32 too.

    Args:
        flips: counts the decisions of all clients.
        given: what a participant takes.
    """

    def __init__(self, flips: Flips, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._flips = flips
        self.judges_by = copy.copy(self.learner)
        self.judges_by.precision = BFLOAT16
        self._in_float32: Callable[[], Evaluation] | None = None
        """Evaluates the model that is to be decided on."""

    def judge(self, arrays: Arrays, sent: Sent, split: str, after: Way = None) -> Evaluation:
        """Return the evaluation in bfloat16; every `COMPARED_EVERY` rounds also prepare one in float32."""
        if split == self.learner.judged_split and sent.server_round % COMPARED_EVERY == 1:
            self._in_float32 = partial(self.judge_with, self.learner, arrays, sent, split, after)
        return super().judge(arrays, sent, split, after)

    def best(
        self, arrays: Arrays, sent: Sent, run_key: str, before: int, adapting: Job | None, judge: Judge | None = None
    ) -> tuple[Way, Evaluation]:
        """Return the choice in bfloat16; in the same rounds also prepare one in float32."""
        chosen = super().best(arrays, sent, run_key, before, adapting, judge)
        if sent.server_round % COMPARED_EVERY == 1:
            exactly = partial(self.judge_with, self.learner)
            again = partial(super().best, arrays, sent, run_key, before, adapting, exactly)
            self._in_float32 = lambda: again()[1]
        return chosen

    def decision(self, situation: Situation, requirement: Requirement) -> Decision:
        """Return the policy's decision; count whether float32 had changed it."""
        again, self._in_float32 = self._in_float32, None  # a policy that measures would prepare another
        decision = super().decision(situation, requirement)
        # With dropout on a loss is measured in float32 anyway.
        by_loss = self.policy.needs_loss and self.config.loss_mode == "evaluation"
        if again is not None and by_loss and situation.server_round % COMPARED_EVERY == 1:
            exact = again()
            training = exact if self.learner.judged_split == TRAIN_SPLIT else situation.evaluation
            met, advantage = requirement.met(exact), requirement.advantage(exact)
            other = replace(situation, evaluation=training, judged=exact, met=met, advantage=advantage)
            self._flips.add(super().decision(other, requirement) is not decision)
        return decision


def missing_bfloat16(device: str) -> str:
    """Return a warning for a processor without bfloat16 instructions; empty if it has them."""
    if device != "cpu" or not CPU_INFO.exists():
        return ""
    fields = (line.partition(":") for line in CPU_INFO.read_text("utf-8").splitlines())
    features = {word for name, _, value in fields if name.strip() in ("flags", "Features") for word in value.split()}
    if any(word.endswith("bf16") for word in features):
        return ""
    return (
        f"evaluation-precision = {BFLOAT16}: this processor has no instructions for it (avx512_bf16, amx_bf16): "
        "evaluation takes several times as long as in float32"
    )


class _OneDnnLinear(nn.Linear):
    """A linear layer by oneDNN, with a rectifier that follows it."""

    _then = "none"

    def forward(self, input: Tensor) -> Tensor:
        y: Tensor = torch.ops.mkldnn._linear_pointwise(input, self.weight, self.bias, self._then, [], "")
        return y

    @classmethod
    def of(cls, layer: nn.Linear, then: str = "none") -> "_OneDnnLinear":
        """Return a layer with the same parameters."""
        fast = copy.copy(layer)
        fast.__class__ = cls
        assert isinstance(fast, cls)
        fast._then = then
        return fast


_PYTORCHS_OWN: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()


def is_pytorchs_own(model: nn.Module) -> bool:
    """Return whether a model consists of PyTorch's modules alone.

    What these do in evaluation mode is known. A model is looked at once.
    """
    if model not in _PYTORCHS_OWN:
        of_pytorch = (
            type(module).__module__.startswith("torch.nn.modules.") and "forward" not in vars(module)
            for module in model.modules()
        )
        _PYTORCHS_OWN[model] = all(of_pytorch)
    return _PYTORCHS_OWN[model]


def for_inference(model: nn.Module) -> nn.Module:
    """Return a model over the same parameters that is faster in large forward passes.

    PyTorch multiplies float32 matrices on a CPU by MKL, which does not use AMD's vectors in full; oneDNN does, and
    rectifies while it writes. PyTorch's compiler calls the same operator for the same reason.

    Args:
        model: in the mode in which the result is to be; where it has no linear layer in float32 on a CPU, it is the
            result.
    """
    layers = [module for module in model.modules() if type(module) is nn.Linear]
    plain = all(layer.weight.device.type == "cpu" and layer.weight.dtype == torch.float32 for layer in layers)
    if not layers or not plain or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return model
    shared: dict[int, object] = {id(t): t for t in chain(model.parameters(), model.buffers())}
    shared |= {id(layer): _OneDnnLinear.of(layer) for layer in layers}
    fast = copy.deepcopy(model, shared)
    if is_pytorchs_own(model):  # code of a user's may call a listed layer without the next one
        for layers_in_turn, i in _rectifiers(fast):
            layer = layers_in_turn[i]
            assert isinstance(layer, nn.Linear)
            layers_in_turn[i], layers_in_turn[i + 1] = _OneDnnLinear.of(layer, "relu"), nn.Identity()
    return fast


def _rectifiers(model: nn.Module) -> Iterator[tuple[nn.Sequential, int]]:
    """Yield the places of rectifiers after linear layers, neither with hooks."""
    for module in list(model.modules()):
        if type(module) is not nn.Sequential:
            continue
        for i in range(len(module) - 1):
            pair = module[i], module[i + 1]
            hooked = any(layer._forward_hooks or layer._forward_pre_hooks for layer in pair)
            if tuple(map(type, pair)) == (_OneDnnLinear, nn.ReLU) and not hooked:
                yield module, i


CHUNK = 2048
"""Examples a forward pass: large enough for the products, small enough for the caches."""
SHORT = 128
"""Examples in a row, on average, below which those of clients that are apart are copied together first."""


class ClientsEvaluation:
    """Evaluates one model on many clients' data.

    Args:
        workers: share the forward passes on a CPU, each on one thread; None: one pass after another.
    """

    def __init__(self, workers: Executor | None = None) -> None:
        self._workers = workers
        self._fast: dict[nn.Module, nn.Module] = {}
        """By model: one over the same parameters that is faster in large passes."""

    @torch.no_grad()
    def of(self, request: EvaluateRequest, examples: Examples, clients: Sequence[int]) -> Launched:
        """Evaluate one model on several clients' data, as `client.training.models.evaluate` does for one.

        Args:
            request: of any of the clients, for the same model; the values that its module holds are replaced.
            examples: all clients' examples.
            clients: whose examples, without repetition.

        Returns:
            The calculation of each client's mean loss and metrics, in evaluation mode.
        """
        task, model, precision = request.task, request.model, request.precision
        load_arrays(model, request.arrays)
        model.eval()
        inputs, labels = only_tensor(examples.x), only_tensor(examples.y)
        fast = self._for_inference(model) if precision == FLOAT32 else model
        if inputs is None or labels is None or not task.is_plain():
            alone = [evaluate(task, fast, examples.of_client(k), precision=precision) for k in clients]
            return Launched({}, lambda _: alone)
        rows = [examples.span(k) for k in clients]
        counts = np.array([stop - start for start, stop in rows])
        count, spans = int(counts.sum()), merge_spans(rows)
        losses, right = torch.empty((2, count), device=labels.device)
        if count < SHORT * len(spans):
            index = on_device(torch.cat([torch.arange(*span) for span in rows]), labels.device)
            inputs, labels, spans = inputs[index], labels[index], [(0, count)]

        @torch.no_grad()  # each thread has its own mode
        def measure(piece: tuple[int, int, int]) -> None:
            start, stop, at = piece
            x, y = inputs[start:stop], labels[start:stop]
            logits = forward(task, fast, x, precision)
            losses[at : at + len(y)] = example_losses(task, logits, y)
            torch.eq(logits.argmax(dim=1), y, out=right[at : at + len(y)])

        on_cpu = all(p.device.type == "cpu" for p in model.parameters())
        workers = self._workers if on_cpu and is_pytorchs_own(model) else None
        list(map(measure, pieces(spans)) if workers is None else workers.map(measure, pieces(spans)))
        return Launched({"loss": losses, "correct": right}, partial(_means, counts))

    def _for_inference(self, model: nn.Module) -> nn.Module:
        """Return a model optimised for large passes, made once for PyTorch's own modules."""
        if not is_pytorchs_own(model):
            return for_inference(model)
        if model not in self._fast:
            self._fast[model] = for_inference(model)
        return self._fast[model]


def _means(counts: NDArray[np.int64], measured: Mapping[str, NDArray[Any]]) -> list[Evaluation]:
    """Return each client's evaluation, given those of its examples, one client's after another's."""
    first = np.cumsum(counts) - counts
    wide = (measured[name].astype(np.float64) for name in ("loss", "correct"))
    loss, correct = (np.add.reduceat(values, first) / counts for values in wide)
    return list(map(Evaluation, loss.tolist(), correct.tolist()))


def evaluates_own(request: EvaluateRequest) -> bool:
    """Return whether `own_evaluations` may answer a request."""
    plain = request.noise is None and request.precision == FLOAT32 and request.task.is_plain()
    few = only_tensor(request.data.x) is not None and len(request.data) <= CHUNK
    return plain and few and is_pytorchs_own(request.model)


@torch.no_grad()
def own_evaluations(requests: Sequence[EvaluateRequest]) -> Launched:
    """Begin to evaluate clients' own models; their module is called with their arrays, and has its own afterwards."""
    model, task = requests[0].model.eval(), requests[0].task
    device = requests[0].data.device
    logits, labels = [], []
    tensors = chain(model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False))
    held = {name: (tensor, tensor.data) for name, tensor in tensors}
    try:
        for request in requests:
            of_client = only_tensor(request.data.y)
            assert of_client is not None
            labels.append(of_client)
            for name, array in request.arrays.items():
                # PyTorch warns of arrays that it may not write to.
                values = torch.from_numpy(array if array.flags.writeable else np.array(array))
                held[name][0].data = on_device(values, device)
            logits.append(model(request.data.x))
    finally:
        for tensor, data in held.values():
            tensor.data = data
    outputs, expected = torch.cat(logits), torch.cat(labels)
    losses = example_losses(task, outputs, expected)
    counts = np.array([len(request.data) for request in requests])
    right = (outputs.argmax(dim=1) == expected).to(losses.dtype)
    return Launched({"loss": losses, "correct": right}, partial(_means, counts))


def merge_spans(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return spans of rows with those that follow each other as one."""
    whole: list[tuple[int, int]] = []
    for start, stop in spans:
        if whole and whole[-1][1] == start:
            whole[-1] = whole[-1][0], stop
        else:
            whole.append((start, stop))
    return whole


def pieces(spans: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int, int]]:
    """Yield start, end and offset of pieces of at most `CHUNK` rows.

    The offset is the number of rows before a piece.
    """
    before = 0
    for start, stop in spans:
        for first in range(start, stop, CHUNK):
            last = min(first + CHUNK, stop)
            yield first, last, before
            before += last - first
