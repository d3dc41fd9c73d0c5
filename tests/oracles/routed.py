"""Oracles of attention to positions that are chosen by content."""

import math

import torch

from lra_bench.models.routed.native_sparse import NativeSparseAttention
from lra_bench.models.routed.reformer import Reformer
from lra_bench.models.routed.routing import RoutingAttention
from lra_bench.models.routed.sac import SparseAdaptiveConnection
from lra_bench.models.routed.sinkhorn import SinkhornAttention
from lra_bench.models.routed.sinkhorn_bilinear import BilinearSinkhornAttention
from lra_bench.models.routed.sortcut import SortCut
from tests.oracles.positions import rotated


def lengths_of(seen, batch):
    """Return the number of positions of each example that are not padding: those visible to its last query."""
    return seen.expand(batch, 1, *seen.shape[-2:])[:, 0, -1].sum(-1).tolist()


def block_scores(mixer, head, summary, summaries, keys):
    """Return the scores (M, M) of all blocks at all positions.

    ``summary`` (M, E) are the features of positions, ``summaries`` (M, E) those of blocks, ``keys`` M tensors (b, D).
    """
    if mixer.scorer == "linear":
        by_block = [mixer.scoring.weight @ sum(block.unbind()) + mixer.scoring.bias for block in keys]
        return torch.stack([scores[: len(keys)] for scores in by_block], 1)
    return torch.stack([scores_at(mixer, head, each, summaries) for each in summary])


def scores_at(mixer, head, summary, summaries):
    """Return the scores of all blocks at one position, from its features (E,) and theirs (M, E)."""
    channels = slice(head * mixer.head_dim, (head + 1) * mixer.head_dim)
    if isinstance(mixer, BilinearSinkhornAttention):
        summary, summaries = (
            (y - y.mean(-1, keepdim=True)) / (y.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()
            for y in (summary, summaries)
        )
        query = mixer.query.weight[channels] @ summary + mixer.query.bias[channels]
        return (summaries @ mixer.key.weight[channels].T + mixer.key.bias[channels]) @ query / mixer.head_dim**0.5
    hidden = (mixer.hidden.weight[channels] @ summary + mixer.hidden.bias[channels]).relu()
    return (mixer.rows[head] @ hidden + mixer.row_bias[head, 0])[: len(summaries)]


def permutation(mixer, scores):
    """Return the weights of blocks, normalised without logarithms."""
    count = len(scores)
    normalised = (scores / mixer.temperature).exp()
    if mixer.causal:
        normalised = normalised.tril(-1)
        return torch.cat((normalised[:1], normalised[1:] / normalised[1:].sum(1, keepdim=True)))
    if mixer.sort == "softmax":
        return normalised / normalised.sum(0)
    for _ in range(mixer.iterations):
        normalised = normalised / normalised.sum(1, keepdim=True)
        normalised = normalised / normalised.sum(0, keepdim=True)
    assert normalised.shape == (count, count)
    return normalised


def sinkhorn(mixer, x, seen):
    """Compute outputs block by block and head by head, on real tokens only."""
    outputs = torch.zeros_like(x)
    for example, length in enumerate(lengths_of(seen, len(x))):
        real, b = x[example, :length], mixer.block
        q, k, v = (part[0] for part in mixer.project(real[None]))
        starts = range(0, length, b)
        sums = torch.stack([real[s : s + b].sum(0) for s in starts])
        query_sums = torch.stack([real[: s + 1].sum(0) for s in starts]) if mixer.causal else sums
        heads = []
        for h in range(mixer.heads):
            block_weights = permutation(
                mixer, block_scores(mixer, h, query_sums, sums, [k[h, s : s + b] for s in starts])
            )
            outputs_of_head = []
            for a, start in enumerate(starts):
                keys, values, shift = [], [], []
                for t in range(b if not mixer.causal or a else 0):
                    candidates = [(block_weights[a, m], s + t) for m, s in enumerate(starts) if s + t < length]
                    candidates = candidates[:a] if mixer.causal else candidates
                    if candidates:
                        weight = torch.stack([w for w, _ in candidates])
                        present_weight = weight.sum() / block_weights[a].sum()
                        indices = [j for _, j in candidates]
                        keys.append(weight @ k[h, indices] / present_weight)
                        values.append(weight @ v[h, indices] / present_weight)
                        shift.append(present_weight.log())
                for i in range(start, min(start + b, length)):
                    own_block = range(start, min(start + b, i + 1 if mixer.causal else length))
                    scores = torch.stack([*keys, *(k[h, j] for j in own_block)]) @ q[h, i] * mixer.head_dim**-0.5
                    scores = scores + torch.stack([*shift, *(x.new_zeros(()) for _ in own_block)])
                    weights = scores.softmax(0)
                    if mixer.join == "sum":
                        weights = torch.cat((scores[: len(keys)].softmax(0), scores[len(keys) :].softmax(0)))
                    outputs_of_head.append(weights @ torch.stack([*values, *(v[h, j] for j in own_block)]))
            heads.append(torch.stack(outputs_of_head))
        outputs[example, :length] = mixer.merge(torch.stack(heads)[None])[0]
    return outputs


def sortcut(mixer, x, seen):
    """Sort the keys and values of the first blocks token by token, then compute full attention to them."""
    outputs = torch.zeros_like(x)
    for example, length in enumerate(lengths_of(seen, len(x))):
        real, b = x[example, :length], mixer.block
        q, k, v = (part[0] for part in mixer.project(real[None]))
        starts = range(0, length, b)
        sums = torch.stack([real[s : s + b].sum(0) for s in starts])
        heads = []
        for h in range(mixer.heads):
            block_weights = permutation(mixer, block_scores(mixer, h, sums, sums, [k[h, s : s + b] for s in starts]))
            keys, values, shift = [], [], []
            for sorted_weights in block_weights[: mixer.budget]:
                for t in range(min(b, length)):
                    indices = [s + t for s in starts if s + t < length]
                    weight = sorted_weights[: len(indices)]
                    present_weight = weight.sum() / sorted_weights.sum()
                    keys.append(weight @ k[h, indices] / present_weight)
                    values.append(weight @ v[h, indices] / present_weight)
                    shift.append(present_weight.log())
            scores = q[h] @ torch.stack(keys).T * mixer.head_dim**-0.5 + torch.stack(shift)
            heads.append(scores.softmax(-1) @ torch.stack(values))
        outputs[example, :length] = mixer.merge(torch.stack(heads)[None])[0]
    return outputs


def bucket(x, directions, size):
    """Return which of ``size`` directions has the largest product with x; half of them are negatives of the others."""
    projections = x @ directions[:, : size // 2]
    return torch.cat((projections, -projections)).argmax().item()


def shared_chunks(mixer, q):
    """Return which tokens share a chunk in each round, (rounds, N, N), for the queries (N, D) of one head."""
    n, m = len(q), mixer.chunk
    chunks = -(-n // m)
    count = max(2, chunks + chunks % 2)
    shared = torch.zeros(mixer.rounds, n, n, dtype=torch.bool)
    for r in range(mixer.rounds):
        coarse, fine = mixer.directions[r, 0], mixer.directions[r, 1]
        if count <= 32:
            keys = [bucket(x, coarse, count) for x in q]
        else:
            first = 2 * math.ceil(math.sqrt(count) / 2)
            second = 2 * math.ceil(count / first / 2)
            keys = [bucket(x, coarse, first) + first * bucket(x, fine, second) for x in q]
        order = sorted(range(n), key=lambda i: (keys[i], i))
        for rank, i in enumerate(order):
            chunk = rank // m
            for c in (chunk, (chunk - 1) % chunks):
                shared[r, i, order[c * m : (c + 1) * m]] = True
    return shared


def reformer(mixer, x, seen):
    """Compute the softmax over all tokens that share a chunk with the query in any round."""
    (q,) = rotated(mixer, mixer.query(x).unflatten(-1, (mixer.heads, -1)).transpose(1, 2))
    scores = q @ (q / q.norm(dim=-1, keepdim=True)).mT * mixer.head_dim**-0.5
    scores = scores.masked_fill(torch.eye(x.shape[1], dtype=torch.bool), -5e4)
    shared = torch.zeros(scores.shape, dtype=torch.bool)
    for example, length in enumerate(lengths_of(seen, len(x))):
        for h in range(mixer.heads):
            shared[example, h, :length, :length] = shared_chunks(mixer, q[example, h, :length].detach()).any(0)
    return scores.masked_fill(~shared, -torch.inf).softmax(-1).nan_to_num(0)


def routed(mixer, x, seen):
    """Compute weights cluster by cluster, averaged over the clusters of a token; the first heads attend to a band."""
    q, k, _ = mixer.project(x)
    n, scale, (rotated_q, rotated_k) = x.shape[1], mixer.head_dim**-0.5, rotated(mixer, q, k)
    weights = torch.zeros(*q.shape[:3], n, dtype=x.dtype)
    positions = torch.arange(n)
    band = ((positions[:, None] - positions).abs() <= mixer.window) & seen
    local = mixer.local_heads
    weights[:, :local] = (
        (rotated_q @ rotated_k.mT * scale)[:, :local].masked_fill(~band, -torch.inf).softmax(-1).nan_to_num(0)
    )
    for example, length in enumerate(lengths_of(seen, len(x))):
        for h in range(local, mixer.heads):
            queries, keys = q[example, h, :length], k[example, h, :length]
            size, counts = math.ceil(length / mixer.clusters), [0] * n
            for centroid in mixer.centroids.means[h - local]:
                query_indices, key_indices = (
                    (y @ centroid).argsort(descending=True)[:size].tolist() for y in (queries, keys)
                )
                for i in query_indices:
                    counts[i] += 1
                    cluster_weights = (rotated_k[example, h, key_indices] @ rotated_q[example, h, i] * scale).softmax(0)
                    index = torch.tensor([example]), torch.tensor([h]), torch.tensor([i]), torch.tensor(key_indices)
                    weights = weights.index_put(index, cluster_weights, accumulate=True)
            weights[example, h] = weights[example, h].clone() / torch.tensor(counts).clamp(min=1)[:, None]
    return weights


def lstm_step(lstm, x, h, c):
    """Compute one LSTM step from the definition of its gates."""
    gates = lstm.weight_ih_l0 @ x + lstm.bias_ih_l0 + lstm.weight_hh_l0 @ h + lstm.bias_hh_l0
    enter, forget, new, out = gates.chunk(4)
    c = forget.sigmoid() * c + enter.sigmoid() * new.tanh()
    return out.sigmoid() * c.tanh(), c


def walk(mixer, nodes, node, draws):
    """Return the nodes chosen by one walk and the log-probabilities of its choices."""
    predictor, (n, p) = mixer.predictor, nodes.shape
    reach = len(predictor.near) // 2
    x = predictor.start if node is None else nodes[node]
    h = c = torch.zeros(p, dtype=nodes.dtype)
    chosen, log_probabilities = [], []
    for draw in draws:
        h, c = lstm_step(predictor.lstm, x, h, c)
        logits = nodes @ h / math.sqrt(p)
        if node is not None:
            logits = logits + torch.stack([predictor.near[max(-reach, min(reach, j - node)) + reach] for j in range(n)])
        probabilities, cumulative, node = logits.softmax(0), 0.0, 0
        while node < n - 1 and cumulative + probabilities[node].item() <= draw:
            cumulative, node = cumulative + probabilities[node].item(), node + 1
        chosen.append(node)
        log_probabilities.append(probabilities[node].log())
        x = nodes[node]
    return chosen, torch.stack(log_probabilities)


def walks(mixer, real):
    """Return the edges between the tokens (N, E) of one example in evaluation, and the mean log-probability."""
    nodes, golden = mixer.predictor.nodes(real.detach()), (5**0.5 - 1) / 2
    offsets, count = mixer.offsets.tolist(), mixer.edges
    if mixer.sequential:
        draws = [(offsets[t % count] + t // count * golden) % 1 for t in range(2 * count * len(real))]
        chosen, log_probabilities = walk(mixer, nodes, None, draws)
        return list(zip(chosen[::2], chosen[1::2], strict=True)), log_probabilities.mean()
    all_walks = [walk(mixer, nodes, i, [(start + i * golden) % 1 for start in offsets]) for i in range(len(real))]
    edges = [(i, j) for i, (chosen, _) in enumerate(all_walks) for j in chosen]
    return edges, torch.cat([log_probabilities for _, log_probabilities in all_walks]).mean()


def sac(mixer, x, seen):
    """Compute full attention per example, masked to the edges."""
    padded_outputs = []
    for real in (row[:length] for row, length in zip(x, lengths_of(seen, len(x)), strict=True)):
        visible = torch.eye(len(real), dtype=torch.bool)
        for i, j in walks(mixer, real)[0]:
            visible[i, j] = True
        q, k, v = mixer.project(real[None])
        q, k = rotated(mixer, q, k)
        weights = (q @ k.mT * mixer.head_dim**-0.5).masked_fill(~visible, -torch.inf).softmax(-1)
        y = mixer.merge(weights @ v)[0]
        padded_outputs.append(torch.cat((y, y.new_zeros(x.shape[1] - len(y), y.shape[1]))))
    return torch.stack(padded_outputs)


def native_sparse(mixer, x, seen):
    """Compute the three branches of native sparse attention query by query."""
    sizes, group = mixer.sizes, mixer.heads // mixer.kv_heads
    q, k, v = mixer.project(x)
    rows = [mixer.split(project(x)) for project in (mixer.summary_key, mixer.summary_value)]
    window_key, window_value = (mixer.split(project(x)) for project in (mixer.window_key, mixer.window_value))
    turned, k, window_key = rotated(mixer, q, k, window_key)
    gates = mixer.gate(x).sigmoid().unflatten(-1, (3, mixer.heads))
    o = torch.zeros_like(q)
    for example, length in enumerate(lengths_of(seen, len(x))):
        firsts = range(0, max(0, length - sizes.summary + 1), sizes.stride)
        for head in range(mixer.heads):
            shared = head // group
            keys, values = (
                [summary(network, each[example, shared, first : first + sizes.summary]) for first in firsts]
                for network, each in zip((mixer.key_summaries, mixer.value_summaries), rows, strict=True)
            )
            same = range(shared * group, (shared + 1) * group)
            for t in range(length):
                stop = t + 1 if mixer.causal else length
                ends = [first + sizes.summary for first in firsts if first + sizes.summary <= stop]
                weights = {h: weights_of(mixer, q[example, h, t], keys[: len(ends)]) for h in same}
                chosen = selected_blocks(mixer, sum(weights.values()).tolist(), ends, t, stop)
                inside = [j for j in range(stop) if j // sizes.block in chosen]
                near = [j for j in range(stop) if abs(j - t) <= mixer.window]
                branches = [
                    weights[head] @ torch.stack(values[: len(ends)]) if ends else torch.zeros_like(q[0, 0, 0]),
                    weights_of(mixer, turned[example, head, t], k[example, shared, inside])
                    @ v[example, shared, inside],
                    weights_of(mixer, turned[example, head, t], window_key[example, shared, near])
                    @ window_value[example, shared, near],
                ]
                o[example, head, t] = sum(gates[example, t, c, head] * branch for c, branch in enumerate(branches))
    return mixer.merge(o)


def summary(network, block):
    """Return the summary of a block (l, D)."""
    m = (network.weight * block).sum(0) + network.bias
    return m + network.change(torch.nn.functional.gelu(m))


def weights_of(mixer, query, keys):
    """Return the attention weights of a query for a list or tensor of keys."""
    keys = torch.stack([*keys]) if len(keys) else query.new_zeros(0, len(query))
    return (keys @ query / mixer.head_dim**0.5).softmax(0)


def selected_blocks(mixer, weights, ends, t, stop):
    """Return the blocks that token t selects, from the weights of the summaries that end at ``ends``."""
    sizes = mixer.sizes
    scores = [0.0] * -(-stop // sizes.block)
    for weight, end in zip(weights, ends, strict=True):
        for place in range(end - sizes.summary, end):
            scores[place // sizes.block] += weight / sizes.stride
    own = t // sizes.block
    always = [own, own - 1, *([] if mixer.causal else [own + 1]), 0]
    order = sorted(
        range(len(scores)), key=lambda block: (always.index(block) if block in always else 9, -scores[block])
    )
    return order[: sizes.selected]


SMALL = {
    "native_sparse": {"summary": 4, "stride": 2, "block": 4, "selected": 6, "window": 5},
    "reformer": {"chunk": 8},
    "routing": {"window": 4},
    "sac": {"edges": 3, "hidden": 8, "distance": 4},
    "sortcut": {"block": 16},
}
ORACLES = {Reformer: reformer, RoutingAttention: routed}
OUTPUTS = {
    BilinearSinkhornAttention: sinkhorn,
    NativeSparseAttention: native_sparse,
    SinkhornAttention: sinkhorn,
    SortCut: sortcut,
    SparseAdaptiveConnection: sac,
}
