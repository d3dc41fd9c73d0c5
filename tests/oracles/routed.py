"""Attention to what the content chooses."""

import math

import torch

from lra_bench.models.routed.reformer import Reformer
from lra_bench.models.routed.routing import RoutingAttention
from lra_bench.models.routed.sinkhorn import SinkhornAttention
from lra_bench.models.routed.sinkhorn_bilinear import BilinearSinkhornAttention
from lra_bench.models.routed.sortcut import SortCut

from .positions import turned


def lengths_of(seen, batch):
    """How many rows are no padding: what the last row of each sees."""
    return seen.expand(batch, 1, *seen.shape[-2:])[:, 0, -1].sum(-1).tolist()


def block_score(mixer, head, asking, coming):
    """One block's score for all others, from its summary (E,) and theirs (M, E)."""
    part = slice(head * mixer.head_dim, (head + 1) * mixer.head_dim)
    if isinstance(mixer, BilinearSinkhornAttention):
        asking, coming = (
            (y - y.mean(-1, keepdim=True)) / (y.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()
            for y in (asking, coming)
        )
        query = mixer.query.weight[part] @ asking + mixer.query.bias[part]
        return (coming @ mixer.key.weight[part].T + mixer.key.bias[part]) @ query / mixer.head_dim**0.5
    hidden = (mixer.hidden.weight[part] @ asking + mixer.hidden.bias[part]).relu()
    return (mixer.rows[head] @ hidden + mixer.row_bias[head, 0])[: len(coming)]


def permutation(mixer, scores):
    """Shares of blocks, normalised without logarithms."""
    count = len(scores)
    shares = (scores / mixer.temperature).exp()
    if mixer.causal:
        shares = shares.tril(-1)
        return torch.cat((shares[:1], shares[1:] / shares[1:].sum(1, keepdim=True)))
    for _ in range(mixer.iterations):
        shares = shares / shares.sum(1, keepdim=True)
        shares = shares / shares.sum(0, keepdim=True)
    assert shares.shape == (count, count)
    return shares


def sinkhorn(mixer, x, seen):
    """Block by block and head by head, on the real rows alone."""
    outputs = torch.zeros_like(x)
    for row, length in enumerate(lengths_of(seen, len(x))):
        real, b = x[row, :length], mixer.block
        q, k, v = (part[0] for part in mixer.project(real[None]))
        starts = range(0, length, b)
        sums = torch.stack([real[s : s + b].sum(0) for s in starts])
        asking = torch.stack([real[: s + 1].sum(0) for s in starts]) if mixer.causal else sums
        heads = []
        for h in range(mixer.heads):
            share = permutation(mixer, torch.stack([block_score(mixer, h, a, sums) for a in asking]))
            rows = []
            for a, start in enumerate(starts):
                for i in range(start, min(start + b, length)):
                    keys, values, shift = [], [], []
                    for t in range(b if not mixer.causal or a else 0):
                        held = [(share[a, m], s + t) for m, s in enumerate(starts) if s + t < length]
                        held = held[:a] if mixer.causal else held
                        if held:
                            weight = torch.stack([w for w, _ in held])
                            present = weight.sum() / share[a].sum()
                            at = [j for _, j in held]
                            keys.append(weight @ k[h, at] / present)
                            values.append(weight @ v[h, at] / present)
                            shift.append(present.log())
                    for j in range(start, min(start + b, i + 1 if mixer.causal else length)):
                        keys.append(k[h, j])
                        values.append(v[h, j])
                        shift.append(x.new_zeros(()))
                    scores = torch.stack(keys) @ q[h, i] * mixer.head_dim**-0.5 + torch.stack(shift)
                    rows.append(scores.softmax(0) @ torch.stack(values))
            heads.append(torch.stack(rows))
        outputs[row, :length] = mixer.merge(torch.stack(heads)[None])[0]
    return outputs


def sortcut(mixer, x, seen):
    """What stands at each of the first places, token by token; then full attention to it."""
    outputs = torch.zeros_like(x)
    for row, length in enumerate(lengths_of(seen, len(x))):
        real, b = x[row, :length], mixer.block
        q, k, v = (part[0] for part in mixer.project(real[None]))
        starts = range(0, length, b)
        sums = torch.stack([real[s : s + b].sum(0) for s in starts])
        heads = []
        for h in range(mixer.heads):
            share = permutation(mixer, torch.stack([block_score(mixer, h, a, sums) for a in sums]))
            keys, values, shift = [], [], []
            for place in share[: mixer.budget]:
                for t in range(min(b, length)):
                    at = [s + t for s in starts if s + t < length]
                    weight = place[: len(at)]
                    present = weight.sum() / place.sum()
                    keys.append(weight @ k[h, at] / present)
                    values.append(weight @ v[h, at] / present)
                    shift.append(present.log())
            scores = q[h] @ torch.stack(keys).T * mixer.head_dim**-0.5 + torch.stack(shift)
            heads.append(scores.softmax(-1) @ torch.stack(values))
        outputs[row, :length] = mixer.merge(torch.stack(heads)[None])[0]
    return outputs


def bucket(x, directions, size):
    """Which of ``size`` directions a vector points to most, half of them the negatives of the others."""
    along = x @ directions[:, : size // 2]
    return torch.cat((along, -along)).argmax().item()


def meetings(mixer, q):
    """Which tokens meet in which round, for the queries (N, D) of one head: (rounds, N, N)."""
    n, m = len(q), mixer.chunk
    chunks = -(-n // m)
    count = max(2, chunks + chunks % 2)
    met = torch.zeros(mixer.rounds, n, n, dtype=torch.bool)
    for r in range(mixer.rounds):
        coarse, fine = mixer.directions[r, 0], mixer.directions[r, 1]
        if count <= 32:
            keys = [bucket(x, coarse, count) for x in q]
        else:
            first = 2 * math.ceil(math.sqrt(count) / 2)
            second = 2 * math.ceil(count / first / 2)
            keys = [bucket(x, coarse, first) + first * bucket(x, fine, second) for x in q]
        order = sorted(range(n), key=lambda i: (keys[i], i))
        for place, i in enumerate(order):
            chunk = place // m
            for c in (chunk, (chunk - 1) % chunks):
                met[r, i, order[c * m : (c + 1) * m]] = True
    return met


def reformer(mixer, x, seen):
    """Softmax over all that a token meets in any round."""
    (q,) = turned(mixer, mixer.query(x).unflatten(-1, (mixer.heads, -1)).transpose(1, 2))
    scores = q @ (q / q.norm(dim=-1, keepdim=True)).mT * mixer.head_dim**-0.5
    scores = scores.masked_fill(torch.eye(x.shape[1], dtype=torch.bool), -5e4)
    met = torch.zeros(scores.shape, dtype=torch.bool)
    for row, length in enumerate(lengths_of(seen, len(x))):
        for h in range(mixer.heads):
            met[row, h, :length, :length] = meetings(mixer, q[row, h, :length].detach()).any(0)
    return scores.masked_fill(~met, -torch.inf).softmax(-1).nan_to_num(0)


def routed(mixer, x, seen):
    """Cluster by cluster, and what a token reads in several averaged; the first heads see a band."""
    q, k, _ = mixer.project(x)
    n, scale = x.shape[1], mixer.head_dim**-0.5
    weights = torch.zeros(*q.shape[:3], n, dtype=x.dtype)
    places = torch.arange(n)
    band = ((places[:, None] - places).abs() <= mixer.window) & seen
    local = mixer.local_heads
    weights[:, :local] = (q @ k.mT * scale)[:, :local].masked_fill(~band, -torch.inf).softmax(-1).nan_to_num(0)
    for row, length in enumerate(lengths_of(seen, len(x))):
        for h in range(local, mixer.heads):
            own, keys = q[row, h, :length], k[row, h, :length]
            size, times = math.ceil(length / mixer.clusters), [0] * n
            for centroid in mixer.centroids.means[h - local]:
                asking, asked = (
                    sorted(range(length), key=lambda i, y=y, c=centroid: -(y[i] @ c).item())[:size] for y in (own, keys)
                )
                for i in asking:
                    times[i] += 1
                    spread = (keys[asked] @ own[i] * scale).softmax(0)
                    index = torch.tensor([row]), torch.tensor([h]), torch.tensor([i]), torch.tensor(asked)
                    weights = weights.index_put(index, spread, accumulate=True)
            weights[row, h] = weights[row, h].clone() / torch.tensor(times).clamp(min=1)[:, None]
    return weights


SMALL = {"routing": {"window": 4}, "reformer": {"chunk": 8}, "sortcut": {"block": 16}}
ORACLES = {Reformer: reformer, RoutingAttention: routed}
OUTPUTS = {SinkhornAttention: sinkhorn, BilinearSinkhornAttention: sinkhorn, SortCut: sortcut}
