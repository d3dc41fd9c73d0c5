"""Scores (B, H, N, N) with positions, defined pair by pair, for sequences whose tokens are at positions 0, 1, 2 ..."""

import math

import torch
import torch.nn.functional as F


def distances(q):
    """Return i − j for queries i and keys j (N, N)."""
    positions = torch.arange(q.shape[2])
    return positions[:, None] - positions


def from_distance(q, function):
    """Return (H, N, N) from a function of head and distance that returns a number."""
    n = q.shape[2]
    values = {(h, d): torch.as_tensor(function(h, d)) for h in range(q.shape[1]) for d in range(1 - n, n)}
    pair_values = [values[h, i - j] for h in range(q.shape[1]) for i in range(n) for j in range(n)]
    return torch.stack(pair_values).reshape(q.shape[1], n, n).to(q.dtype)


def in_pairs(x):
    """Return complex pairs of channels, the remaining channels, and the rotation rate of each pair."""
    pairs = x.shape[-1] // 2
    rates = torch.tensor([10_000 ** (-m / pairs) for m in range(pairs)], dtype=x.dtype)
    return torch.complex(x[..., :pairs], x[..., pairs : 2 * pairs]), x[..., 2 * pairs :], rates


def rotated(mixer, *heads):
    """Rotate queries or keys (B, H, N, D) if the position of the mixer is rotary."""
    if mixer.position is None or mixer.position.name != "rope":
        return heads
    results = []
    for x in heads:
        a, rest, rates = in_pairs(x)
        a = a * torch.polar(torch.ones(()).to(x.dtype), torch.arange(x.shape[2])[:, None] * rates)
        results.append(torch.cat((a.real, a.imag, rest), -1))
    return results


def rotated_products(q, k):
    """Return products with rotary positions: the real part of those of complex pairs, rotated by the distance."""
    (a, q_rest, rates), (b, k_rest, _) = in_pairs(q), in_pairs(k)
    rotation = torch.polar(torch.ones(()).to(q.dtype), distances(q)[..., None] * rates)
    rest = q_rest @ k_rest.mT
    return torch.einsum("bhim,bhjm,ijm->bhij", a, b.conj(), rotation).real + rest


def alibi(position, q, k, scores):
    heads = q.shape[1]
    return scores + from_distance(q, lambda h, d: -(2.0 ** (-8 * (h + 1) / heads)) * abs(d))


def t5(position, q, k, scores):
    sides = 1 if position.causal else 2

    def bucket(d):
        side, n = 32 // sides, max(d, 0) if position.causal else abs(d)
        exact = side // 2
        index = n if n < exact else exact + int(math.log(n / exact) / math.log(128 / exact) * exact + 1e-9)
        return min(index, side - 1) + (side if sides == 2 and d < 0 else 0)

    return scores + from_distance(q, lambda h, d: position.table[h, bucket(d)])


def kerple(position, q, k, scores):
    def kernel(h, d):
        return -F.softplus(position.amount[h]) * (1 + F.softplus(position.shape[h]) * abs(d)).log()

    return scores + from_distance(q, kernel)


def shaw(position, q, k, scores):
    clip = position.clip
    nearest = (-distances(q)).clamp(-clip, 0 if position.causal else clip) + clip
    return scores + torch.einsum("bhid,ijd->bhij", q, position.table[nearest]) * q.shape[-1] ** -0.5


def transformer_xl(position, q, k, scores):
    """Apply W to the table of r(i − j), with one row per pair."""
    width = position.relative.shape[-1]
    rates = torch.tensor([10_000 ** (-2 * (m // 2) / width) for m in range(width)], dtype=q.dtype)
    angles = distances(q)[..., None] * rates
    waves = torch.where(torch.arange(width) % 2 == 0, angles.sin(), angles.cos())
    relative = torch.einsum("hde,ije->hijd", position.relative, waves)
    content = torch.einsum("hd,bhjd->bhj", position.content, k)[:, :, None]
    place = torch.einsum("bhid,hijd->bhij", q + position.place[:, None], relative)
    return scores + (content + place) * q.shape[-1] ** -0.5


def da_transformer(position, q, k, scores):
    def factor(h, d):
        beta = position.beta[h]
        return (1 + beta.exp()) / (1 + (beta - position.alpha[h] * abs(d)).exp())

    return F.relu(scores) * from_distance(q, factor)


WRITTEN = {each.__name__: each for each in (alibi, t5, kerple, shaw, transformer_xl, da_transformer)}
