"""Attention whose weights are inner products of features."""

import math

import torch

from lra_bench.models.linear.cosformer import CosFormer
from lra_bench.models.linear.linear_transformer import LinearTransformer
from lra_bench.models.linear.performer import Performer


def products(a, b, seen):
    """Inner products of features, normalised over what is seen."""
    weights = (a @ b.mT).masked_fill(~seen, 0)
    return weights / weights.sum(-1, keepdim=True)


def elu_plus_one(mixer, x, seen):
    q, k, _ = mixer.project(x)

    def features(y):
        return torch.where(y > 0, y + 1, y.clamp(max=0).exp())

    return products(features(q), features(k), seen)


def cosine(mixer, x, seen):
    """One weight at a time would be cos(π (i − j) / 2M); M by row, or by query where the mixer is causal."""
    q, k, _ = mixer.project(x)
    n = x.shape[1]
    places = torch.arange(n, dtype=x.dtype)
    if mixer.causal:
        most = torch.full((n, 1), float(mixer.distance or mixer.max_length), dtype=x.dtype)
        while (places[:, None] >= most).any():
            most = torch.where(places[:, None] >= most, 2 * most, most)
    else:
        most = seen.expand(x.shape[0], 1, n, n)[:, :, :1].sum(-1, keepdim=True).clamp(min=mixer.distance or 1)
    fading = (math.pi / 2 * (places[:, None] - places) / most).cos()
    weights = (q.relu() @ k.relu().mT * fading).masked_fill(~seen, 0)
    total = weights.sum(-1, keepdim=True)
    return torch.where(total == 0, 0, weights / total)


def favor(mixer, x, seen):
    """Products of the features as the paper writes them, normalised over what is seen."""
    q, k, _ = (part * mixer.head_dim**-0.25 for part in mixer.project(x))

    def features(y):
        along = y @ mixer.projection.T
        along = torch.cat((along, -along), -1) if mixer.hyperbolic else along
        return (along - y.square().sum(-1, keepdim=True) / 2).exp() * along.shape[-1] ** -0.5

    return products(features(q), features(k), seen)


ORACLES = {CosFormer: cosine, LinearTransformer: elu_plus_one, Performer: favor}
