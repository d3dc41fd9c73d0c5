"""Pooling of pairs of neighbouring tokens between layers."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor

from lra_bench.contracts import TaskSpec, UserError
from lra_bench.options.backbone import BackboneOptions

from .mixer import Context, Mixer, Padding


def pool_pairs(x: Tensor, context: Context) -> tuple[Tensor, Context]:
    """Average pairs of neighbouring tokens of x (B, P + N, E) to (B, P + ⌈N / 2⌉, E); return it with its context.

    Dai et al. 2020, arXiv 2006.03236 (Funnel-Transformer). Padding has no effect: the mean of a pair is that of its
    real tokens. The P prefix positions are left as they are. A pair has the position of its first token, and no place
    on a grid. Code: laiguokun/Funnel-Transformer@1085523:pytorch/modeling.py.

    Deviation from the paper: keys and values are pooled as well as queries.
    """
    prefix, padding = context.prefix, context.padding
    tokens = x[:, prefix:]
    count = tokens.shape[1]
    valid = x.new_ones(x.shape[0], count) if padding is None else padding.valid[:, prefix:].to(x.dtype)
    tokens, valid = F.pad(tokens, (0, 0, 0, count % 2)), F.pad(valid, (0, count % 2))
    # Padding may contain any number, which a product with zero would not remove.
    tokens = tokens.masked_fill(valid.unsqueeze(-1) == 0, 0)
    means = tokens.unflatten(1, (-1, 2)).sum(2) / valid.unflatten(1, (-1, 2)).sum(2).clamp(min=1).unsqueeze(-1)
    pooled = torch.cat((x[:, :prefix], means), 1)
    positions = context.positions
    positions = torch.cat((positions[..., :prefix], positions[..., prefix::2]), -1)
    if padding is not None:
        padding = Padding.from_lengths(prefix + (padding.lengths - prefix + 1) // 2, pooled.shape[1])
    return pooled, context.replace(padding=padding, positions=positions, grid=None)


def check_funnel(options: BackboneOptions, spec: TaskSpec, causal: bool, mixers: Iterable[type[Mixer]]) -> None:
    """Raise ``UserError`` if a network cannot be divided into ``funnel`` blocks with pooling between them."""
    blocks, depth = options.funnel, options.depth
    if blocks is None:
        return
    option = f"backbone.funnel={blocks}"
    if not 2 <= blocks <= depth or depth % blocks:
        raise UserError(f"{option}: must be at least 2 and divide the number of layers, backbone.depth={depth}")
    reasons = {
        f"{spec.name} scores every token": spec.per_token,
        "a mean of two tokens would pass on the later one in a causal model": causal,
        "reversible blocks and mix_layers need the same length in all layers": options.reversible or options.mix_layers,
    }
    for mixer in mixers:
        name = mixer.__name__
        reasons[f"{name} takes sequences of one length"] = mixer.spec.length == "fixed"
        reasons[f"{name} passes values of every token from layer to layer"] = bool(mixer.spec.carries)
    for reason, applies in reasons.items():
        if applies:
            raise UserError(f"{option}: {reason}; leave it out")
