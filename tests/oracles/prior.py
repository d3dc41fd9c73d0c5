"""Oracles of attention whose scores, or a part of them, do not come from queries and keys."""

import torch

from lra_bench.models.prior.factorised_synthesizer import FactorisedDenseSynthesizer
from lra_bench.models.prior.random_synthesizer import FixedRandomSynthesizer, RandomSynthesizer
from lra_bench.models.prior.synthesizer import DenseSynthesizer, FactorisedRandomSynthesizer


def mixed(mixer, x, seen, synthetic):
    """Return the weights of synthetic scores (B or 1, H, N, N), mixed with content scores as configured."""
    scores = synthetic.expand(x.shape[0], -1, -1, -1)
    if mixer.mixture != "alone":
        q, k = (linear(x).unflatten(-1, (mixer.heads, -1)).transpose(1, 2) for linear in (mixer.query, mixer.key))
        content = q @ k.mT * mixer.head_dim**-0.5
        if mixer.mixture == "plus":
            scores = content + scores
        else:
            share = mixer.balance.sigmoid()
            scores = (1 - share) * content + share * scores
    return scores.masked_fill(~seen, -torch.inf).softmax(-1).nan_to_num(0)


def dense(mixer, x, seen):
    n, d = x.shape[1], mixer.head_dim
    hidden = mixer.hidden(x).relu()
    heads = [hidden[..., h * d : (h + 1) * d] @ mixer.rows[h, :n].T + mixer.row_bias[h, :n] for h in range(mixer.heads)]
    return mixed(mixer, x, seen, torch.stack(heads, 1))


def random(mixer, x, seen):
    n = x.shape[1]
    return mixed(mixer, x, seen, mixer.scores[None, :, :n, :n])


def factorised_random(mixer, x, seen):
    n = x.shape[1]
    return mixed(mixer, x, seen, (mixer.left @ mixer.right.mT)[None, :, :n, :n])


def factorised_dense(mixer, x, seen):
    """Compute each score as the product of an entry of the coarse row and an entry of the fine row."""
    (batch, n, _), d, (_, fine_size) = x.shape, mixer.head_dim, mixer.sizes
    hidden = mixer.hidden(x).relu().view(batch, n, 2, mixer.heads, d)
    scores = x.new_zeros(batch, mixer.heads, n, n)
    for h in range(mixer.heads):
        coarse = hidden[:, :, 0, h] @ mixer.coarse[h] + mixer.coarse_bias[h]
        fine = hidden[:, :, 1, h] @ mixer.fine[h] + mixer.fine_bias[h]
        for j in range(n):
            scores[:, h, :, j] = coarse[..., j // fine_size] * fine[..., j % fine_size]
    return mixed(mixer, x, seen, scores)


ORACLES = {
    DenseSynthesizer: dense,
    RandomSynthesizer: random,
    FixedRandomSynthesizer: random,
    FactorisedRandomSynthesizer: factorised_random,
    FactorisedDenseSynthesizer: factorised_dense,
}
