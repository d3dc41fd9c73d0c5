"""Attention to what the content chooses."""

import math

import torch

from lra_bench.models.routed.reformer import Reformer
from lra_bench.models.routed.routing import RoutingAttention
from lra_bench.models.routed.sac import SparseAdaptiveConnection
from lra_bench.models.routed.sinkhorn import SinkhornAttention
from lra_bench.models.routed.sinkhorn_bilinear import BilinearSinkhornAttention
from lra_bench.models.routed.sortcut import SortCut
from tests.oracles.positions import turned


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
                for i in range(start, min(start + b, length)):
                    own = range(start, min(start + b, i + 1 if mixer.causal else length))
                    scores = torch.stack([*keys, *(k[h, j] for j in own)]) @ q[h, i] * mixer.head_dim**-0.5
                    scores = scores + torch.stack([*shift, *(x.new_zeros(()) for _ in own)])
                    rows.append(scores.softmax(0) @ torch.stack([*values, *(v[h, j] for j in own)]))
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
    n, scale, (asks, told) = x.shape[1], mixer.head_dim**-0.5, turned(mixer, q, k)
    weights = torch.zeros(*q.shape[:3], n, dtype=x.dtype)
    places = torch.arange(n)
    band = ((places[:, None] - places).abs() <= mixer.window) & seen
    local = mixer.local_heads
    weights[:, :local] = (asks @ told.mT * scale)[:, :local].masked_fill(~band, -torch.inf).softmax(-1).nan_to_num(0)
    for row, length in enumerate(lengths_of(seen, len(x))):
        for h in range(local, mixer.heads):
            own, keys = q[row, h, :length], k[row, h, :length]
            size, times = math.ceil(length / mixer.clusters), [0] * n
            for centroid in mixer.centroids.means[h - local]:
                asking, asked = ((y @ centroid).argsort(descending=True)[:size].tolist() for y in (own, keys))
                for i in asking:
                    times[i] += 1
                    spread = (told[row, h, asked] @ asks[row, h, i] * scale).softmax(0)
                    index = torch.tensor([row]), torch.tensor([h]), torch.tensor([i]), torch.tensor(asked)
                    weights = weights.index_put(index, spread, accumulate=True)
            weights[row, h] = weights[row, h].clone() / torch.tensor(times).clamp(min=1)[:, None]
    return weights


def lstm_step(lstm, x, h, c):
    """One step of the gates as they are written down."""
    gates = lstm.weight_ih_l0 @ x + lstm.bias_ih_l0 + lstm.weight_hh_l0 @ h + lstm.bias_hh_l0
    enter, forget, new, out = gates.chunk(4)
    c = forget.sigmoid() * c + enter.sigmoid() * new.tanh()
    return out.sigmoid() * c.tanh(), c


def walk(mixer, nodes, at, draws):
    """Nodes that one walk chooses, and the log chances of its choices."""
    predictor, (n, p) = mixer.predictor, nodes.shape
    reach = len(predictor.near) // 2
    x = predictor.start if at is None else nodes[at]
    h = c = torch.zeros(p, dtype=nodes.dtype)
    chosen, chances = [], []
    for draw in draws:
        h, c = lstm_step(predictor.lstm, x, h, c)
        logits = nodes @ h / math.sqrt(p)
        if at is not None:
            logits = logits + torch.stack([predictor.near[max(-reach, min(reach, j - at)) + reach] for j in range(n)])
        spread, heap, at = logits.softmax(0), 0.0, 0
        while at < n - 1 and heap + spread[at].item() <= draw:
            heap, at = heap + spread[at].item(), at + 1
        chosen.append(at)
        chances.append(spread[at].log())
        x = nodes[at]
    return chosen, torch.stack(chances)


def walks(mixer, real):
    """The edges of one row's tokens (N, E) in evaluation, as pairs, and the mean log chance of its choices."""
    nodes, golden = mixer.predictor.nodes(real.detach()), (5**0.5 - 1) / 2
    offsets, count = mixer.offsets.tolist(), mixer.edges
    if mixer.sequential:
        draws = [(offsets[t % count] + t // count * golden) % 1 for t in range(2 * count * len(real))]
        chosen, chances = walk(mixer, nodes, None, draws)
        return list(zip(chosen[::2], chosen[1::2], strict=True)), chances.mean()
    found = [walk(mixer, nodes, i, [(start + i * golden) % 1 for start in offsets]) for i in range(len(real))]
    edges = [(i, j) for i, (chosen, _) in enumerate(found) for j in chosen]
    return edges, torch.cat([chances for _, chances in found]).mean()


def sac(mixer, x, seen):
    """Full attention of each row where there is no edge hidden."""
    rows = []
    for real in (row[:length] for row, length in zip(x, lengths_of(seen, len(x)), strict=True)):
        visible = torch.eye(len(real), dtype=torch.bool)
        for i, j in walks(mixer, real)[0]:
            visible[i, j] = True
        q, k, v = mixer.project(real[None])
        q, k = turned(mixer, q, k)
        weights = (q @ k.mT * mixer.head_dim**-0.5).masked_fill(~visible, -torch.inf).softmax(-1)
        y = mixer.merge(weights @ v)[0]
        rows.append(torch.cat((y, y.new_zeros(x.shape[1] - len(y), y.shape[1]))))
    return torch.stack(rows)


SMALL = {
    "reformer": {"chunk": 8},
    "routing": {"window": 4},
    "sac": {"edges": 3, "hidden": 8, "distance": 4},
    "sortcut": {"block": 16},
}
ORACLES = {Reformer: reformer, RoutingAttention: routed}
OUTPUTS = {
    BilinearSinkhornAttention: sinkhorn,
    SinkhornAttention: sinkhorn,
    SortCut: sortcut,
    SparseAdaptiveConnection: sac,
}
