"""Oracles of attention whose weights are inner products of features."""

import math

import torch

from lra_bench.models.linear.cosformer import CosFormer
from lra_bench.models.linear.linear_transformer import LinearTransformer
from lra_bench.models.linear.performer import Performer
from lra_bench.models.linear.performer_relu import ReluPerformer
from lra_bench.models.linear.rfa import RFA
from lra_bench.models.linear.rfa_gated import GatedRFA
from tests.oracles.positions import rotated

SMALL = {"rfa": {"features": 24}, "rfa_gated": {"features": 24}}


def products(a, b, seen):
    """Return inner products of features, normalised over visible keys."""
    weights = (a @ b.mT).masked_fill(~seen, 0)
    return weights / weights.sum(-1, keepdim=True)


def elu_plus_one(mixer, x, seen):
    q, k, _ = mixer.project(x)

    def features(y):
        return torch.where(y > 0, y + 1, y.clamp(max=0).exp())

    return products(features(q), features(k), seen)


def cosine(mixer, x, seen):
    """Compute weights with the factor cos(π (i − j) / 2M), where M is per example, or per query if causal."""
    q, k, _ = mixer.project(x)
    n = x.shape[1]
    positions = torch.arange(n, dtype=x.dtype)
    if mixer.causal:
        horizon = torch.full((n, 1), float(mixer.distance or mixer.max_length), dtype=x.dtype)
        while (positions[:, None] >= horizon).any():
            horizon = torch.where(positions[:, None] >= horizon, 2 * horizon, horizon)
    else:
        horizon = seen.expand(x.shape[0], 1, n, n)[:, :, :1].sum(-1, keepdim=True).clamp(min=mixer.distance or 1)
    factors = (math.pi / 2 * (positions[:, None] - positions) / horizon).cos()
    weights = (q.relu() @ k.relu().mT * factors).masked_fill(~seen, 0)
    total = weights.sum(-1, keepdim=True)
    return torch.where(total == 0, 0, weights / total)


def favor(mixer, x, seen):
    """Compute inner products of the features as defined in the paper, normalised over visible keys."""
    q, k = (part * mixer.head_dim**-0.25 for part in rotated(mixer, *mixer.project(x)[:2]))

    def features(y):
        projections = y @ mixer.directions.T
        projections = torch.cat((projections, -projections), -1) if mixer.hyperbolic else projections
        return (projections - y.square().sum(-1, keepdim=True) / 2).exp() * projections.shape[-1] ** -0.5

    return products(features(q), features(k), seen)


def rectified(mixer, x, seen):
    """Add up the weights direction by direction."""
    q, k = rotated(mixer, *mixer.project(x)[:2])
    weights, count = torch.zeros(*q.shape[:3], x.shape[1], dtype=x.dtype), len(mixer.directions)
    for w in mixer.directions:
        a, b = ((y @ w).clamp(min=0) / math.sqrt(count) + 1e-3 for y in (q, k))
        weights = weights + a[..., :, None] * b[..., None, :]
    weights = weights.masked_fill(~seen, 0)
    return weights / weights.sum(-1, keepdim=True)


def fourier(mixer, x, seen):
    """Return the similarities of all pairs: for the Gaussian kernel, the mean over directions of cos(w·(q − k))."""
    q, k = (part / (part.norm(dim=-1, keepdim=True) + 1e-3) for part in rotated(mixer, *mixer.project(x)[:2]))
    w = mixer.directions * mixer.scale / mixer.temperature
    a, b = q @ w.mT, k @ w.mT
    if mixer.kernel == "arccos":
        return (a.relu()[:, :, :, None] * b.relu()[:, :, None]).mean(-1)
    return (a[:, :, :, None] - b[:, :, None]).cos().mean(-1)


def away_from_zero(total):
    return torch.where(total.abs() < 1e-3, torch.where(total < 0, -1e-3, 1e-3), total)


def random_features(mixer, x, seen):
    weights = fourier(mixer, x, seen).masked_fill(~seen, 0)
    return weights / away_from_zero(weights.sum(-1, keepdim=True))


def gated(mixer, x, seen):
    """Compute outputs token by token."""
    weights, (_, _, v) = fourier(mixer, x, seen), mixer.project(x)
    gate = mixer.gate(x).sigmoid().mT
    decays, outputs = torch.zeros_like(gate), []
    for t in range(x.shape[1]):
        decays = decays * gate[:, :, t, None]
        decays[:, :, t] = 1 - gate[:, :, t]
        row_weights = weights[:, :, t] * decays
        outputs.append((row_weights[:, :, None] @ v)[:, :, 0] / away_from_zero(row_weights.sum(-1, keepdim=True)))
    return mixer.merge(torch.stack(outputs, 2))


ORACLES = {
    CosFormer: cosine,
    LinearTransformer: elu_plus_one,
    Performer: favor,
    ReluPerformer: rectified,
    RFA: random_features,
}
OUTPUTS = {GatedRFA: gated}
