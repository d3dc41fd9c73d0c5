"""Floating-point operations of a model per token, counted from its operators; a multiplication and an addition are two.

Counted are matrix products, convolutions and attention. Elementwise work, norms, softmax, reductions, look-ups and
copies are not, by convention. What else costs more than a pass over its input but has no formula is named.
Causal attention counts as its full square, and nothing is added for recomputation in the backward pass.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from lra_bench.contracts import Batch, Output

from .synthetic import tokens_in

META = ("meta", "meta")
ROUTES = (META, ("CPU math path", "cpu"))

# Operators of torch that do more than pass over their input a fixed number of times.
COSTLY = re.compile(
    r"_*(fft_|linalg_(?!vector_norm)|cholesky|lu_|triangular_solve|inverse|svd|qr|geqrf|orgqr|ormqr|matrix_exp"
    r"|cumsum|cumprod|cummax|cummin|logcumsumexp|sort|argsort|msort|topk|kthvalue|median|nanmedian|mode|unique"
    r"|searchsorted|bucketize|histc|bincount|cdist|pdist|euclidean_dist|dot|vdot|mv|addmv|addr|ger|outer|trilinear"
    r"|grouped_mm|int_mm|weight_int|mixed_dtypes_linear|scaled_grouped|scaled_dot_product|fused_sdp"
    r"|thnn_fused|mkldnn_rnn|cudnn_rnn|miopen_rnn|lstm|gru|rnn|grid_sampler|ctc_loss|sparse_)"
)


@dataclass(frozen=True)
class Flops:
    """FLOPs of one batch of ``tokens`` tokens in rows of ``length``; None where no route led to a count.

    ``training`` is forward and backward, without the optimizer. ``route`` says how they were counted or why not;
    ``uncounted`` are operators that ran and have no formula.
    """

    forward: int | None
    training: int | None
    tokens: int
    length: int
    route: str
    uncounted: tuple[str, ...] = ()

    def as_record(self) -> dict[str, Any]:
        """The record's ``flops`` section, without the device's peak of matrix products."""
        return {
            "per_token_forward": None if self.forward is None else self.forward / self.tokens,
            "per_token_training": None if self.training is None else self.training / self.tokens,
            "length": self.length,
            "route": self.route,
            "uncounted": list(self.uncounted),
        }


def count_flops(model: nn.Module, batch: Batch, routes: Sequence[tuple[str, str]] = ROUTES) -> Flops:
    """Count a forward and a backward pass of ``model`` on ``batch``, on copies; the model stays as it is.

    On ``meta`` tensors, which compute nothing; where the model looks at numbers, on the CPU. Attention takes its
    plain matrix form on both, because fused kernels hide their products. Mixers with ``extra_flops`` add what the
    counter cannot see, three times for training: the backward pass of a product is two.
    """
    tokens, length, reasons = tokens_in(batch), batch.width, []
    for route, device in routes:
        try:
            forward, training, uncounted, by_hand = _count(copy.deepcopy(model).to(device), batch.to(device))
        except Exception as error:
            reasons.append(f"{route}: {(str(error).strip() or type(error).__name__).splitlines()[0]}")
        else:
            named = f"{route} plus hand counts" if by_hand else route
            return Flops(forward, training, tokens, length, named, uncounted)
    return Flops(None, None, tokens, length, f"none ({'; '.join(reasons)})")


def _count(model: nn.Module, batch: Batch) -> tuple[int, int, tuple[str, ...], bool]:
    with sdpa_kernel(SDPBackend.MATH), Uncounted() as uncounted:
        with _hand_counts(model.train()) as training_by_hand, FlopCounterMode(display=False) as training:
            _scalar(model(batch)).backward()
        # Not by no_grad alone, under which the counter takes a view of a parameter for something to differentiate.
        model.eval().requires_grad_(False)
        with torch.no_grad(), _hand_counts(model) as forward_by_hand, FlopCounterMode(display=False) as forward:
            model(batch)
    return (
        forward.get_total_flops() + sum(forward_by_hand),
        training.get_total_flops() + 3 * sum(training_by_hand),
        tuple(sorted(uncounted.names)),
        bool(forward_by_hand),
    )


def _scalar(output: Output) -> Tensor:
    """A scalar that depends on all that is trained; which loss it is decides no matrix product."""
    return torch.stack([output.logits.sum(), *(loss.sum() for loss in output.losses.values())]).sum()


@contextmanager
def _hand_counts(model: nn.Module) -> Iterator[list[int]]:
    """Forward FLOPs that mixers count themselves, one entry for every call of one."""
    counts: list[int] = []

    def counter(extra_flops: Callable[[int, int, int], int]) -> Callable[[Any, Any, Any], None]:
        def count(mixer: Any, arguments: Any, _: Any) -> None:
            rows, length = arguments[0].shape[:2]
            counts.append(rows * int(extra_flops(length, mixer.width, mixer.heads)))

        return count

    handles = [
        module.register_forward_hook(counter(extra_flops))
        for module in model.modules()
        if (extra_flops := getattr(getattr(module, "spec", None), "extra_flops", None)) is not None
    ]
    try:
        yield counts
    finally:
        for handle in handles:
            handle.remove()


class Uncounted(TorchDispatchMode):
    """Names of operators that ran, cost more than a pass over their input, and have no formula."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note the operator and run it."""
        packet = func.overloadpacket
        if packet not in flop_registry and _is_costly(func):
            self.names.add(str(packet).removeprefix("aten."))
        return func(*args, **(kwargs or {}))


def _is_costly(func: Any) -> bool:
    """Kernels from outside torch are unknown, so they are named whatever they do."""
    namespace, _, name = func.name().partition("::")
    if namespace not in ("aten", "prim", "prims"):
        return True
    return COSTLY.match(name.partition(".")[0]) is not None
