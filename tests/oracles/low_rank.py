"""Oracles of attention whose weight matrix has low rank."""

import torch

from lra_bench.models.low_rank.csalr import CSALR
from lra_bench.models.low_rank.linformer import Linformer
from lra_bench.models.low_rank.lowrank_band import LowRankBand
from lra_bench.models.low_rank.nystromformer import Nystromformer
from tests.oracles.positions import rotated

SMALL = {
    "linformer": {"rank": 6},
    "nystrom": {"landmarks": 6, "convolution": 5},
    "csalr": {"landmarks": 6},
    "lowrank_band": {"rank": 3, "window": 5},
}


def projection_matrix(mixer, x, seen, weights):
    """Return the matrix (B, G, S, N) that projects N positions to S; columns of padding are zero."""
    n = x.shape[1]
    real = seen[..., :1, :].to(x.dtype).expand(x.shape[0], 1, 1, n)
    if mixer.projection == "linear":
        return weights[..., :n] * real
    belongs = torch.arange(n) // mixer.window == torch.arange(-(-n // mixer.window))[:, None]
    matrix = belongs * real
    return matrix / matrix.sum(-1, keepdim=True).clamp(min=1)


def linformer(mixer, x, seen):
    """Compute weights of projected keys, and distribute those of projected values over their tokens."""
    q, k, _ = mixer.project(x)
    weights = [None, None] if mixer.weights is None else mixer.weights
    keys, values = (projection_matrix(mixer, x, seen, weights[i]) for i in (0, -1))
    scores = q @ (keys @ k).mT * mixer.head_dim**-0.5
    if mixer.projection != "linear":
        scores = scores.masked_fill(~keys.any(-1)[:, :, None], -torch.inf)
    return scores.softmax(-1).nan_to_num(0) @ values


def iterated_inverse(a, iterations):
    z, one = a.mT / a.sum(0).max() / a.sum(1).max(), torch.eye(len(a), dtype=a.dtype)
    for _ in range(iterations):
        z = z @ (13 * one - a @ z @ (15 * one - a @ z @ (7 * one - a @ z))) / 4
    return z


def nystrom(mixer, x, seen):
    """Compute weights per example, cut to its own length, and per head."""
    q, k = rotated(mixer, *mixer.project(x)[:2])
    k = k.repeat_interleave(mixer.heads // mixer.kv_heads, 1)
    batch, n, _ = x.shape
    lengths = seen.expand(batch, 1, n, n)[:, 0, 0].sum(-1).tolist()
    weights = torch.zeros(batch, mixer.heads, n, n, dtype=x.dtype)
    for b, length in enumerate(lengths):
        count = min(mixer.landmarks, length)
        mean = torch.zeros(count, length, dtype=x.dtype)
        for token in range(length):
            mean[token * count // length, token] = 1
        mean = mean / mean.sum(-1, keepdim=True)
        for h in range(mixer.heads):
            queries, keys = q[b, h, :length] * mixer.head_dim**-0.25, k[b, h, :length] * mixer.head_dim**-0.25
            if count == length:
                head_weights = (queries @ keys.T).softmax(-1)
            else:
                middle = iterated_inverse((mean @ queries @ (mean @ keys).T).softmax(-1), mixer.iterations)
                head_weights = (queries @ (mean @ keys).T).softmax(-1) @ middle @ (mean @ queries @ keys.T).softmax(-1)
            for tap in range(0 if mixer.filters is None else mixer.filters.shape[1]):
                shift = tap - mixer.filters.shape[1] // 2
                diagonal = torch.ones(max(0, length - abs(shift)), dtype=x.dtype).diag(shift)
                if abs(shift) < length:
                    head_weights = head_weights + mixer.filters[h * mixer.kv_heads // mixer.heads, tap] * diagonal
            weights[b, h, :length, :length] = head_weights
    return weights


def csalr(mixer, x, seen):
    """Compute weights per example, cut to its own length, and per head, with an explicit inverse."""
    q, k = rotated(mixer, *mixer.project(x)[:2])
    batch, n, _ = x.shape
    lengths = seen.expand(batch, 1, n, n)[:, 0, 0].sum(-1).tolist()
    weights = torch.zeros(batch, mixer.heads, n, n, dtype=x.dtype)
    for b, length in enumerate(lengths):
        count = min(mixer.landmarks, length)
        for h in range(mixer.heads):
            queries, keys = q[b, h, :length], k[b, h * mixer.kv_heads // mixer.heads, :length]
            parts = [[t for t in range(length) if t * count // length == segment] for segment in range(count)]
            few_queries, few_keys = (
                torch.stack([tokens[part].mean(0) for part in parts]) for tokens in (queries, keys)
            )
            up, between, down = (
                (a @ b.T / mixer.head_dim**0.5).softmax(-1)
                for a, b in ((queries, few_keys), (few_queries, few_keys), (few_queries, keys))
            )
            inverse = (between + torch.eye(count, dtype=x.dtype)).inverse()
            weights[b, h, :length, :length] = up @ inverse @ down
    return weights


def lowrank_band(mixer, x, seen):
    """Compute weights head by head; channels that a head lacks are zero for a rotary position."""
    (n, low, rank, wide), weights = (x.shape[1], mixer.low, mixer.rank, mixer.head_dim), []
    behind = torch.arange(n)[:, None] - torch.arange(n)
    for head in range(mixer.heads):
        head_width, start = (rank, head * rank) if head < low else (wide, low * rank + (head - low) * wide)
        query_and_key = []
        for projection in (mixer.query, mixer.key):
            channels = torch.zeros(x.shape[0], 1, n, wide, dtype=x.dtype)
            channels[..., :head_width] = projection(x)[:, None, :, start : start + head_width]
            query_and_key.append(channels)
        q, k = rotated(mixer, *query_and_key)
        visible = seen if head < low else seen & (behind.abs() <= mixer.window)
        weights.append((q @ k.mT / head_width**0.5).masked_fill(~visible, -torch.inf).softmax(-1).nan_to_num(0))
    return torch.cat(weights, 1)


ORACLES = {Linformer: linformer, Nystromformer: nystrom, CSALR: csalr, LowRankBand: lowrank_band}
