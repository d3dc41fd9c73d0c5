"""Oracle of gated attention after moving averages, step by step and query by query."""

import math

import torch

from lra_bench.models.state_space.mega import Mega
from lra_bench.models.state_space.mega_chunk import MegaChunk
from tests.oracles.recurrent import swish

SMALL = {"mega": {"reach": 20}, "mega_chunk": {"chunk": 8, "reach": 6}}


def averaged(average, x, ends):
    """Compute the moving averages of both directions, each beginning with the position itself."""
    y = x * average.skip
    amount, damping = average.amount.sigmoid(), average.damping.sigmoid()
    for direction, reverse in enumerate([False, True][: len(amount)]):
        for example, end in enumerate(ends):
            state = torch.zeros_like(amount[direction])
            for position in range(end)[:: -1 if reverse else 1]:
                taken = amount[direction] * average.spread[direction] * x[example, position, :, None]
                state = taken + (1 - amount[direction] * damping[direction]) * state
                read = (average.readout[direction] * state).sum(-1) / math.sqrt(state.shape[-1])
                y[example, position] = y[example, position] + read
    return swish(y)


def weights(mixer, q, k, seen):
    """Return the attention weights of queries q and keys k (N, Z) of one example, query by query."""
    n = len(q)
    scores = torch.zeros(n, n, dtype=q.dtype)
    for i in range(n):
        distance = (torch.arange(n) - i).clamp(-mixer.reach, mixer.reach)
        scale = seen[i].sum().clamp(min=1) if mixer.function == "laplace" else math.sqrt(q.shape[-1])
        scores[i] = k @ q[i] / scale + mixer.places[distance + mixer.reach]
    if mixer.function == "softmax":
        return scores.masked_fill(~seen, -torch.inf).softmax(-1).nan_to_num(0)
    return torch.special.ndtr((scores - math.sqrt(1 / 2)) / math.sqrt(1 / (4 * math.pi))) * seen


def gated(mixer, x, seen):
    """Compute the output without dropout, with x as residual."""
    batch, n, _ = x.shape
    seen = seen.expand(batch, 1, n, n)[:, 0]
    if isinstance(mixer, MegaChunk):
        chunk = torch.arange(n) // mixer.chunk
        seen = seen & (chunk[:, None] == chunk)
    lengths = [int(row.any(0).sum()) for row in seen]
    x = x * (torch.arange(n) < torch.tensor(lengths)[:, None])[..., None]
    moved = mixer.gates(averaged(mixer.average, x, lengths))
    update, reset, shared, candidate = moved.split(mixer.sizes, -1)
    value = swish(mixer.value(x))
    q, k = (swish(shared) * scale + shift for scale, shift in zip(mixer.scales, mixer.shifts, strict=True))
    o = torch.stack([weights(mixer, q[row], k[row], seen[row]) @ value[row] for row in range(batch)])
    return update.sigmoid() * (swish(candidate + mixer.read(o * swish(reset))) - x)


OUTPUTS = {Mega: gated, MegaChunk: gated}
