"""Attention whose matrix of weights has a low rank."""

import torch

from lra_bench.models.low_rank.linformer import Linformer

SMALL = {"linformer": {"rank": 6}}


def projection_matrix(mixer, x, seen, weights):
    """What makes S rows of N, (B, G, S, N): zero where padding stands, windows of padding left out as None rows."""
    n = x.shape[1]
    real = seen[..., :1, :].to(x.dtype).expand(x.shape[0], 1, 1, n)
    if mixer.projection == "linear":
        return weights[..., :n] * real
    belongs = torch.arange(n) // mixer.window == torch.arange(-(-n // mixer.window))[:, None]
    matrix = belongs * real
    return matrix / matrix.sum(-1, keepdim=True).clamp(min=1)


def linformer(mixer, x, seen):
    """Scores against projected keys; the weights of projected values, spread over the tokens they were made of."""
    q, k, _ = mixer.project(x)
    weights = [None, None] if mixer.weights is None else mixer.weights
    keys, values = (projection_matrix(mixer, x, seen, weights[i]) for i in (0, -1))
    scores = q @ (keys @ k).mT * mixer.head_dim**-0.5
    if mixer.projection != "linear":
        scores = scores.masked_fill(~keys.any(-1)[:, :, None], -torch.inf)
    return scores.softmax(-1).nan_to_num(0) @ values


ORACLES = {Linformer: linformer}
