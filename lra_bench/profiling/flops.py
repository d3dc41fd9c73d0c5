"""Floating-point operations of a model per token, counted from its operators.

A multiplication and an addition count as two operations. Matrix products, convolutions and attention are counted.
By convention, elementwise operations, norms, softmax, reductions, look-ups and copies are not. Other operators that
cost more than a pass over their input but have no formula are listed as uncounted. Causal attention counts as the full
N × N matrix, and recomputation in the backward pass is not counted.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from lra_bench.contracts import Batch, Output
from lra_bench.runtime.hardware import first_line

from .synthetic import tokens_in

META = ("meta", "meta")
ROUTES = (META, ("CPU math path", "cpu"))

# Operators of torch that cost more than a fixed number of passes over their input.
COSTLY = re.compile(
    r"_*(fft_|linalg_(?!vector_norm)|cholesky|lu_|triangular_solve|inverse|svd|qr|geqrf|orgqr|ormqr|matrix_exp"
    r"|cumsum|cumprod|cummax|cummin|logcumsumexp|sort|argsort|msort|topk|kthvalue|median|nanmedian|mode|unique"
    r"|searchsorted|bucketize|histc|bincount|cdist|pdist|euclidean_dist|dot|vdot|mv|addmv|addr|ger|outer|trilinear"
    r"|grouped_mm|int_mm|weight_int|mixed_dtypes_linear|scaled_grouped|scaled_dot_product|fused_sdp"
    r"|thnn_fused|mkldnn_rnn|cudnn_rnn|miopen_rnn|lstm|gru|rnn|grid_sampler|ctc_loss|sparse_)"
)


@dataclass(frozen=True)
class FlopCount:
    """FLOPs of one batch of ``tokens`` tokens in rows of ``length``, None if no route succeeded.

    ``training`` includes the forward and backward passes, not the optimizer. ``route`` states how FLOPs were counted,
    or why not. ``uncounted`` lists operators that ran and have no formula.
    """

    forward: int | None
    training: int | None
    tokens: int
    length: int
    route: str
    uncounted: tuple[str, ...] = ()

    def as_record(self) -> dict[str, Any]:
        """Return the record's ``flops`` section, without the matrix-product throughput of the device."""
        return {
            "per_token_forward": None if self.forward is None else self.forward / self.tokens,
            "per_token_training": None if self.training is None else self.training / self.tokens,
            "length": self.length,
            "route": self.route,
            "uncounted": list(self.uncounted),
        }


def count_flops(model: nn.Module, batch: Batch, routes: Sequence[tuple[str, str]] = ROUTES) -> FlopCount:
    """Count the FLOPs of a forward and a backward pass of ``model`` on ``batch``, using copies of both.

    ``routes`` are pairs of a name and a device, tried in order: first ``meta`` tensors, which compute nothing, then the
    CPU for models whose control flow depends on values. Attention uses the math backend, because the operations of
    fused kernels are not visible to the counter. Mixers with ``extra_flops`` add operations that the counter cannot
    see; for training these count three times, because the backward pass of a product consists of two products.
    """
    tokens, length, reasons = tokens_in(batch), batch.width, []
    for route, device in routes:
        try:
            forward, training, uncounted, has_extra = _count(copy.deepcopy(model).to(device), batch.to(device))
        except Exception as error:
            reasons.append(f"{route}: {first_line(error)}")
        else:
            description = f"{route} plus hand counts" if has_extra else route
            return FlopCount(forward, training, tokens, length, description, uncounted)
    return FlopCount(None, None, tokens, length, f"none ({'; '.join(reasons)})")


def _count(model: nn.Module, batch: Batch) -> tuple[int, int, tuple[str, ...], bool]:
    """Return forward FLOPs, training FLOPs, uncounted operators, and whether mixers added ``extra_flops``."""
    if batch.lengths.device.type == "meta":
        for network in model.modules():
            if isinstance(network, nn.LSTM | nn.GRU):
                network.forward = partial(_products, network, network.forward)  # type: ignore[method-assign]
    with sdpa_kernel(SDPBackend.MATH), Uncounted() as uncounted:
        with _extra_flops(model.train()) as extra, FlopCounterMode(display=False) as training:
            output: Output = model(batch)
            # Depends on all trained parameters; the choice of the loss does not affect the FLOPs.
            sum((loss.sum() for loss in output.losses.values()), output.logits.sum()).backward()
        forward = forward_flops(model, batch)
    return forward, training.get_total_flops() + 3 * sum(extra), tuple(sorted(uncounted.names)), bool(extra)


def _products(network: nn.LSTM | nn.GRU, forward: Callable[..., Any], x: Any, state: Any = None) -> Any:
    """Compute the matrix products of a recurrent network in one operator per layer, for tensors without values.

    On meta tensors torch runs hundreds of operators per token. The outputs and the final state have the right shapes.
    Other inputs than (B, N, E), and projections, are passed to ``forward``.
    """
    if not (isinstance(x, Tensor) and x.dim() == 3 and network.batch_first) or network.proj_size:
        return forward(x, state)
    initial = state[0] if isinstance(state, tuple) else state
    directions, final = ("", "_reverse") if network.bidirectional else ("",), list[Tensor]()
    for layer in range(network.num_layers):
        outputs = []
        for direction in directions:
            inner, recurrent = (getattr(network, f"weight_{part}_l{layer}{direction}") for part in ("ih", "hh"))
            hidden = nn.functional.linear(x, inner)[..., : network.hidden_size]
            first = torch.zeros_like(hidden[:, 0]).detach() if initial is None else initial[len(final)]
            steps = [nn.functional.linear(first, recurrent)[:, None], nn.functional.linear(hidden[:, :-1], recurrent)]
            outputs.append(hidden + torch.cat(steps, dim=1)[..., : network.hidden_size])
            final.append(outputs[-1][:, -1])
        x = torch.cat(outputs, dim=-1)
    last = torch.stack(final)
    return x, (last, last) if isinstance(network, nn.LSTM) else last


def forward_flops(model: nn.Module, batch: Batch) -> int:
    """Return the FLOPs that a forward pass of ``model`` executes on ``batch``, in evaluation mode and on its device.

    For models whose control flow depends on the values of the batch. Attention uses the math backend.
    """
    was_training, trained = model.training, [each for each in model.parameters() if each.requires_grad]
    model.eval()
    for parameter in trained:  # otherwise the counter treats a view of a parameter as differentiable
        parameter.requires_grad_(False)
    try:
        counter = FlopCounterMode(display=False)
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), _extra_flops(model) as extra, counter:
            model(batch)
    finally:
        model.train(was_training)
        for parameter in trained:
            parameter.requires_grad_()
    return int(counter.get_total_flops() + sum(extra))


@contextmanager
def _extra_flops(model: nn.Module) -> Iterator[list[int]]:
    """Yield a list to which every call of a mixer with ``extra_flops`` appends its additional forward FLOPs."""
    counts: list[int] = []

    def counter(extra_flops: Callable[[int, int, int], int]) -> Callable[[Any, Any, Any], None]:
        def count(mixer: Any, arguments: Any, _: Any) -> None:
            rows, length = arguments[0].shape[:2]
            counts.append(rows * int(extra_flops(length, mixer.width, mixer.heads)))

        return count

    with ExitStack() as hooks:
        for module in model.modules():
            if (extra_flops := getattr(getattr(module, "spec", None), "extra_flops", None)) is not None:
                hooks.enter_context(module.register_forward_hook(counter(extra_flops)))
        yield counts


class Uncounted(TorchDispatchMode):
    """Collect the names of operators that run, cost more than a pass over their input, and have no formula."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator and record its name if it is costly and has no formula."""
        packet, (namespace, _, name) = func.overloadpacket, func.name().partition("::")
        # Kernels from outside torch are unknown and always count as costly.
        costly = namespace not in ("aten", "prim", "prims") or COSTLY.match(name.partition(".")[0])
        if packet not in flop_registry and costly:
            self.names.add(str(packet).removeprefix("aten."))
        return func(*args, **(kwargs or {}))
