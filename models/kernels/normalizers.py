"""Functions from scores to attention weights that can take the place of softmax.

Each is a ``weigh`` function of ``kernels.rows``: scores (..., M) to weights (..., M), zero for the most negative finite
scores, which are those of masked keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .rows import Weigh, softmax


def relu(scores: Tensor) -> Tensor:
    """Return the ReLU of s, divided by the number n of visible keys (Wortsman et al. 2023, arXiv 2309.08586)."""
    return scores.relu() / _visible(scores)


def sigmoid(scores: Tensor) -> Tensor:
    """Return the sigmoid of s − log n for n visible keys (Ramapuram et al. 2024, arXiv 2409.04431)."""
    return (scores - _visible(scores).log()).sigmoid()


def entmax15(scores: Tensor) -> Tensor:
    """Return the weights p that maximise p · s + 4/3 Σ_j (p_j − p_j^1.5); they sum to one, and some are zero.

    1.5-entmax (Peters, Niculae, Martins 2019, arXiv 1905.05702): p_j = max(s_j / 2 − τ, 0)². The threshold τ is
    computed exactly, from the sorted scores. O(M log M) time.
    """
    weights: Tensor = _Entmax15.apply(scores.float() if scores.dtype.itemsize < 4 else scores)
    return weights


NORMALIZERS: Mapping[str, Weigh] = {"softmax": softmax, "relu": relu, "sigmoid": sigmoid, "entmax15": entmax15}


def _visible(scores: Tensor) -> Tensor:
    """Return the number of visible keys of each query (..., 1), at least one."""
    seen = scores > torch.finfo(scores.dtype).min / 2
    return seen.sum(-1, keepdim=True).clamp(min=1).to(torch.promote_types(scores.dtype, torch.float32))


class _Entmax15(torch.autograd.Function):
    """1.5-entmax over the last axis, and its gradient in closed form."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor) -> Tensor:
        """Compute the weights.

        With halved scores z of which the largest is zero, τ is at least −1, so that all z below −1 have no weight; they
        are raised to −2, since squares of those of masked keys would be infinite. For the k
        largest z, of mean m and variance v, the weights sum to one for τ = m − √(1/k − v); k is the largest number for
        which the k-th z is at least this τ.
        """
        halved = ((scores - scores.amax(-1, keepdim=True)) / 2).clamp_(min=-2)
        ordered = halved.sort(-1, descending=True).values
        count = torch.arange(1, scores.shape[-1] + 1, device=scores.device, dtype=scores.dtype)
        mean = ordered.cumsum(-1) / count
        variance = (ordered.square().cumsum(-1) / count - mean.square()).clamp(min=0)
        thresholds = mean - (1 / count - variance).clamp(min=0).sqrt()
        support = (thresholds <= ordered).sum(-1, keepdim=True)
        roots = (halved - thresholds.gather(-1, support - 1)).clamp_(min=0)
        ctx.save_for_backward(roots)
        return roots.square()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """Return the gradient of the scores: r g minus its mean over the support, weighted by the roots r = √p."""
        (roots,) = ctx.saved_tensors
        weighted = roots * gradient
        return weighted - roots * (weighted.sum(-1, keepdim=True) / roots.sum(-1, keepdim=True))
