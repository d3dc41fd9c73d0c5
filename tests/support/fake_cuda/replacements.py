"""Replace functions of torch that call the CUDA driver, or whose operators depend on the GPU.

Attention, LSTM and GRU are replaced by functions whose results have the same shapes, types and devices. FLOPs of fused
attention, and calls of it that are slow or wrong on some GPUs, are reported to the active ``Watch``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.utils._pytree import tree_leaves

from .watch import active, site

DEVICE = torch.device("cuda:0")
LARGEST_GRID = 65535
"""Largest second and third dimension of the grid of a CUDA kernel."""


def install() -> None:
    """Install all replacements in this process."""
    # Run the backward pass in the calling thread. A thread of the device that still holds Python objects at exit can
    # abort the process.
    torch.autograd.set_multithreading_enabled(False)
    _answer_for_the_driver()
    _replace_attention()
    _replace_networks()
    _trace_custom_operators()
    _keep_host_tables()


def _answer_for_the_driver() -> None:
    """Replace the functions of ``torch.cuda`` that autocast, checkpointing and optimizers call."""
    for module in (torch.cuda.amp.common, torch.amp.autocast_mode):
        vars(module)["amp_definitely_not_available"] = lambda: False
    # Otherwise FakeTensorMode initialises a device that torch.cuda reports as available.
    FakeTensorMode.avoid_device_init = True  # type: ignore[method-assign, assignment]
    answers: dict[str, Callable[..., Any]] = {
        "is_available": lambda: True,
        "is_bf16_supported": lambda *_, **__: True,
        "is_current_stream_capturing": lambda: False,
        "get_rng_state": lambda *_, **__: torch.get_rng_state(),
        "set_rng_state": lambda *_, **__: None,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
    }
    vars(torch.cuda).update(answers)
    Tensor.pin_memory = _pinned  # type: ignore[method-assign, assignment]


def _pinned(tensor: Tensor) -> Tensor:
    """Return a copy with the attribute ``pinned``, by which ``Watch`` recognises it."""
    copied = tensor.clone()
    copied.pinned = True  # type: ignore[attr-defined]
    return copied


@torch.library.custom_op("lra_bench_fake_cuda::attention", mutates_args=())
def _attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """Return fake outputs of the forward pass, which counts as one operator."""
    raise NotImplementedError("attention of fake tensors only")


@_attention.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    return q.new_empty(*q.shape[:-1], v.shape[-1])


@torch.library.custom_op("lra_bench_fake_cuda::attention_backward", mutates_args=())
def _attention_backward(
    gradient: Tensor, o: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, learned: bool
) -> list[Tensor]:
    """Return fake gradients, as one operator; ``learned`` is whether the mask has a gradient."""
    raise NotImplementedError("attention of fake tensors only")


@_attention_backward.register_fake
def _(gradient: Tensor, o: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, learned: bool) -> list[Tensor]:
    found = [torch.empty_like(each) for each in (q, k, v)]
    # Torch computes the gradient of a mask for each example and head, and sums it if the mask is broadcast.
    return [*found, mask.new_empty(mask.shape)] if learned and mask is not None else found


class _Attention(torch.autograd.Function):
    """Fused attention with one operator in the forward pass and one in the backward pass."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, flops: int) -> Tensor:
        out: Tensor = _attention(q, k, v, mask)
        ctx.save_for_backward(q, k, v, mask, out)
        ctx.flops = flops
        active().add_flops(q.dtype, flops)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, mask, out = ctx.saved_tensors
        # Five products of the size of the two of the forward pass.
        active().add_flops(q.dtype, 5 * ctx.flops // 2)
        learned = ctx.needs_input_grad[3]
        found = _attention_backward(*gradients, out, q, k, v, mask, learned)
        return *found[:3], found[3] if learned else None, None


def attention_risks(
    q: Tensor, k: Tensor, mask: Tensor | None, dropout: float, shared: bool, cudnn: bool | None = None
) -> list[str]:
    """Return the reasons why a call of torch's fused attention may fail or be slow on CUDA.

    ``cudnn`` is whether the cuDNN kernel is enabled, by default the setting of this process.
    """
    found = []
    cudnn = torch.backends.cuda.cudnn_sdp_enabled() if cudnn is None else cudnn
    if mask is not None and shared:
        found.append("mask and shared keys: the math kernel stores all scores")
    if q.dtype.itemsize > 2 and shared:
        found.append("shared keys in 32 bits: the math kernel stores all scores")
    if mask is not None and cudnn and q.dtype.itemsize == 2 and k.shape[-2] % 128 == 64:
        found.append("mask and keys % 128 == 64 in 16 bits: cuDNN returns NaN gradients (pytorch issue 196678)")
    if q.dim() != 4:
        found.append(f"{q.dim()} dimensions: the math kernel stores all scores")
    if q.shape[-1] != k.shape[-1] or q.shape[-1] > 256:
        found.append("head dimension above 256: the math kernel stores all scores")
    if dropout and max(q.shape[:2]) > LARGEST_GRID:
        found.append(f"dropout and more than {LARGEST_GRID} examples or heads: the grid of the kernel is too large")
    return found


def _replace_attention() -> None:
    plain = F.scaled_dot_product_attention

    def attention(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        if q.device.type != "cuda":
            return plain(q, k, v, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
        if torch.is_autocast_enabled("cuda"):
            q, k, v = (x.to(torch.get_autocast_dtype("cuda")) if x.dtype == torch.float32 else x for x in (q, k, v))
        _require_one_device("attention", q, k, v, attn_mask)
        if attn_mask is not None and attn_mask.dtype not in (torch.bool, q.dtype):
            raise RuntimeError(f"attention with a mask of type {attn_mask.dtype} and queries of type {q.dtype}")
        for risk in attention_risks(q, k, attn_mask, dropout_p, enable_gqa):
            active().risks[f"{risk} ({site()})"] += 1
        if attn_mask is not None:
            attn_mask = attn_mask.expand(*q.shape[:-1], k.shape[-2])
        pairs = q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2] // (2 if is_causal else 1)
        out: Tensor = _Attention.apply(q, k, v, attn_mask, 2 * pairs * (q.shape[3] + v.shape[3]))
        return out

    F.scaled_dot_product_attention = attention  # type: ignore[assignment]


def _require_one_device(name: str, *tensors: Tensor | None) -> None:
    devices = {str(tensor.device) for tensor in tensors if tensor is not None}
    if len(devices) > 1:
        raise RuntimeError(f"{name}: tensors on {' and '.join(sorted(devices))}")


@dataclass
class _Packed:
    x: Tensor


def _replace_networks() -> None:
    """Replace LSTM and GRU, which cuDNN computes on a GPU, and the functions that pack sequences."""

    def pack(x: Tensor, lengths: Tensor, *_: Any, **__: Any) -> _Packed:
        if lengths.device.type != "cpu":
            raise RuntimeError("lengths of packed sequences must be on the CPU")
        return _Packed(x)

    def pad(packed: _Packed, *_: Any, **__: Any) -> tuple[Tensor, None]:
        return packed.x, None

    def forward(self: nn.RNNBase, inputs: Any, state: Any = None) -> Any:
        x = inputs.x if isinstance(inputs, _Packed) else inputs
        _require_one_device(type(self).__name__, x, *tree_leaves(state), *self._flat_weights)
        ways = 2 if self.bidirectional else 1
        # The outputs depend on all inputs and weights, so that all of them get gradients.
        scale = sum(weight.float().sum() for weight in self._flat_weights)
        out = (x.float().mean(-1, keepdim=True) * scale).to(x.dtype).expand(*x.shape[:-1], ways * self.hidden_size)
        after = scale.to(x.dtype).expand(ways * self.num_layers, x.shape[0], self.hidden_size).contiguous()
        result = _Packed(out) if isinstance(inputs, _Packed) else out
        return result, (after, after) if isinstance(self, nn.LSTM) else after

    nn.utils.rnn.pack_padded_sequence = pack  # type: ignore[assignment]
    nn.utils.rnn.pad_packed_sequence = pad  # type: ignore[assignment]
    nn.LSTM.forward = nn.GRU.forward = forward  # type: ignore[method-assign,assignment]


def _trace_custom_operators() -> None:
    """Run the operators that ``scan`` uses on CUDA, which its custom operator hides from fake tensors."""
    from lra_bench.models.kernels import scan

    class Scan(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, factors: Tensor, inputs: Tensor, state: Tensor) -> Tensor:
            h = scan.in_levels(factors, inputs, state)
            ctx.save_for_backward(factors, state, h)
            return h

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
            factors, state, h = ctx.saved_tensors
            grad_factors, *others = scan.in_levels_backward(gradients[0], factors, state, h)
            return grad_factors.sum_to_size(factors.shape), *others

    vars(scan)["_scan"] = Scan.apply


def _keep_host_tables() -> None:
    """Compute the tables of tree attention with real tensors, as on a CPU, and place fake copies of them."""
    from lra_bench.models.kernels import tree

    compute = tree.edges

    def edges(*arguments: Any) -> tree.Edges:
        mode, device = detect_fake_mode(), arguments[-1]
        if mode is None or device.type != "cuda":
            return compute(*arguments)
        with unset_fake_temporarily():
            found = compute(*arguments[:-1], torch.device("cpu"))
            return tree.Edges(*(FakeTensor(mode, part.to("meta"), DEVICE) for part in vars(found).values()))

    vars(tree)["edges"] = edges
