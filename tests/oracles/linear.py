"""Attention whose weights are inner products of features."""

import torch

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


def favor(mixer, x, seen):
    """Products of the features as the paper writes them, normalised over what is seen."""
    q, k, _ = (part * mixer.head_dim**-0.25 for part in mixer.project(x))

    def features(y):
        along = y @ mixer.projection.T
        along = torch.cat((along, -along), -1) if mixer.hyperbolic else along
        return (along - y.square().sum(-1, keepdim=True) / 2).exp() * along.shape[-1] ** -0.5

    return products(features(q), features(k), seen)


ORACLES = {LinearTransformer: elu_plus_one, Performer: favor}
