"""Oracles of attention with a prior added to its scores, or in place of its content scores."""

import math

import torch
import torch.nn.functional as F

from lra_bench.models.prior.average_attention import AverageAttention
from lra_bench.models.prior.camtl import ConditionalPrior
from lra_bench.models.prior.forgetting import Forgetting
from lra_bench.models.prior.gaussian_transformer import GaussianTransformer
from lra_bench.models.prior.hardcoded_gaussian import HardcodedGaussian
from lra_bench.models.prior.local_gaussian import LocalGaussian
from tests.oracles.softmax import heads_of, positioned_scores, softmax_of

SMALL = {"camtl": {"blocks": 8}}


def visible_counts(x, seen):
    """Return the number of tokens visible to each query of each example (B, N), at least one."""
    return seen.expand(x.shape[0], 1, x.shape[1], x.shape[1])[:, 0].sum(-1).clamp(min=1)


def predicted(mixer, x, seen):
    """Return the centre and the width of the region of every query (B, H, N), head by head."""
    q, k = heads_of(mixer, x)
    counts = visible_counts(x, seen)
    visible = seen.expand(x.shape[0], 1, x.shape[1], x.shape[1])[:, 0]
    centres, widths = [], []
    for h in range(mixer.heads):
        hidden = torch.tanh(q[:, h] @ mixer.centre_hidden[h])
        centres.append(counts * torch.sigmoid(hidden @ mixer.centre_read[h]))
        if mixer.window == "layer":
            mean = torch.stack(
                [(visible_row[:, None] * k[b, h]).sum(0) for b in range(len(x)) for visible_row in visible[b]]
            )
            mean = mean.view(*x.shape[:2], -1) / counts[..., None]
            hidden = torch.tanh(mean @ mixer.width_hidden[h])
        learned = mixer.window in ("query", "layer")
        region_width = counts * torch.sigmoid(hidden @ mixer.width_read[h]) if learned else counts * 0.0 + mixer.window
        widths.append(region_width)
    return torch.stack(centres, 1), torch.stack(widths, 1)


def with_prior(mixer, x, seen, prior):
    q, k = heads_of(mixer, x)
    return softmax_of(positioned_scores(mixer, q, k, q, k, mixer.head_dim**-0.5) + prior, seen)


def local(mixer, x, seen):
    centre, width = predicted(mixer, x, seen)
    from_centre = torch.arange(x.shape[1]) - centre[..., None]
    return with_prior(mixer, x, seen, -from_centre.square() / (2 * (width[..., None] / 2).square()))


def gaussian(mixer, x, seen):
    n = x.shape[1]
    distance = torch.arange(n)[:, None] - torch.arange(n)
    prior = x.new_empty(mixer.heads, n, n)
    for h in range(mixer.heads):
        w, b = F.softplus(mixer.steepness[h]), -F.softplus(mixer.lowering[h])
        prior[h] = -(w * distance**2 + b).abs()
    return with_prior(mixer, x, seen, prior)


def blocks(mixer, x, seen):
    n, size = x.shape[1], mixer.size
    if mixer.task is not None:
        z = mixer.task.expand(len(x), -1)
    else:
        visible = seen.expand(len(x), 1, n, n)[:, 0, :1].mT.double()
        z = (mixer.key(x) * visible).sum(1) / visible.sum(1)
    scale, shift = mixer.adapt(z).chunk(2, -1)
    prior = x.new_zeros(len(x), 1, n, n)
    for i in range(n):
        for j in range(n):
            if i // size == j // size:
                column = j % size
                prior[:, 0, i, j] = (1 + scale[:, column]) * mixer.blocks[i, column] + shift[:, column]
    return with_prior(mixer, x, seen, prior)


def hardcoded(mixer, x, seen):
    n, sigma = x.shape[1], mixer.deviation
    weights = x.new_zeros(mixer.heads, n, n)
    for h in range(mixer.heads):
        for i in range(n):
            for j in range(n):
                scaled_distance = (j - i - mixer.offsets[h]) / sigma
                # Weights farther away are indistinguishable from zero.
                near = abs(scaled_distance) <= 6
                weights[h, i, j] = math.exp(-(scaled_distance**2) / 2) / (sigma * math.sqrt(2 * math.pi)) if near else 0
    return weights * seen


def average(mixer, x, seen):
    n, half = x.shape[1], mixer.width // 2
    real = seen.expand(len(x), 1, n, n)[:, 0, -1].double()
    before = torch.ones(n, n, dtype=x.dtype).tril() / torch.arange(1, n + 1)[:, None]
    after = torch.ones(n, n, dtype=x.dtype).triu() * real[:, None]
    after = after / after.sum(-1, keepdim=True).clamp(min=1)
    mean = before @ x if mixer.causal else torch.cat((before @ x[..., :half], after @ x[..., half:]), -1)
    mean = mean if mixer.network is None else mixer.network(mean)
    own_gate, mean_gate = torch.sigmoid(mixer.gates(torch.cat((x, mean), -1))).chunk(2, -1)
    return own_gate * x + mean_gate * mean


def forgotten(mixer, x, seen):
    """Multiply the gates between two tokens: of those after the key up to the query, or the same backwards."""
    n, gates = x.shape[1], mixer.forget(x).sigmoid().mT[..., None]
    identity = torch.eye(n, dtype=x.dtype)
    forward, backward = [identity[0].expand(len(x), mixer.heads, n)], [identity[-1].expand(len(x), mixer.heads, n)]
    for i in range(1, n):
        forward.append(forward[-1] * gates[:, : mixer.heads, i] + identity[i])
    if not mixer.causal:
        for i in reversed(range(n - 1)):
            backward.append(backward[-1] * gates[:, mixer.heads :, i] + identity[i])
    after = torch.ones_like(identity) if mixer.causal else torch.stack(backward[::-1], 2)
    prior = torch.where(torch.ones(n, n, dtype=torch.bool).tril(), torch.stack(forward, 2), after).log()
    _, _, v = mixer.project(x)
    return mixer.merge(with_prior(mixer, x, seen, prior) @ v.repeat_interleave(mixer.heads // mixer.kv_heads, 1))


OUTPUTS = {AverageAttention: average, Forgetting: forgotten}
ORACLES = {
    LocalGaussian: local,
    GaussianTransformer: gaussian,
    ConditionalPrior: blocks,
    HardcodedGaussian: hardcoded,
}
