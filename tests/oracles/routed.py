"""Attention to what the content chooses."""

import torch

from lra_bench.models.routed.sinkhorn import BilinearSinkhornAttention, SinkhornAttention


def lengths_of(seen, batch):
    """How many rows are no padding: what the last row of each sees."""
    return seen.expand(batch, 1, *seen.shape[-2:])[:, 0, -1].sum(-1).tolist()


def block_score(mixer, head, asking, coming):
    """One block's score for all others, from its summary (E,) and theirs (M, E)."""
    part = slice(head * mixer.head_dim, (head + 1) * mixer.head_dim)
    if isinstance(mixer, BilinearSinkhornAttention):
        normal = [
            (y - y.mean(-1, keepdim=True)) / (y.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()
            for y in (asking, coming)
        ]
        return (normal[1] @ mixer.coming.weight[part].T) @ (mixer.asking.weight[part] @ normal[0]) / mixer.head_dim**0.5
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


OUTPUTS = {SinkhornAttention: sinkhorn, BilinearSinkhornAttention: sinkhorn}
