"""Oracles of mixers without attention."""

import math

import torch

from lra_bench.models.attention_free.fnet import FNet
from lra_bench.models.attention_free.gmlp import GatedMLP
from lra_bench.models.attention_free.mlp_mixer import MLPMixer


def fourier(n):
    """Return the matrix of the discrete Fourier transform."""
    positions = torch.arange(n, dtype=torch.float64)
    return torch.polar(torch.ones(n, n, dtype=torch.float64), -2 * math.pi / n * positions[:, None] * positions)


def real_rows(x, seen):
    """Return the mask of positions that are not padding (B or 1, N, 1)."""
    return seen.reshape(-1, *seen.shape[-2:])[:, -1, :, None].expand(len(x), -1, 1)


def fnet(mixer, x, seen):
    rows, width = x.shape[1:]
    y = (fourier(rows) @ (x * real_rows(x, seen)).to(torch.complex128) @ fourier(width)).real
    return y * ((rows * width) ** -0.5 if mixer.norm == "ortho" else 1)


def normalised(norm, x):
    centred = x - x.mean(-1, keepdim=True)
    return centred / (x.var(-1, correction=0, keepdim=True) + 1e-5).sqrt() * norm.weight + norm.bias


def gelu(x):
    return x * (1 + torch.erf(x / math.sqrt(2))) / 2


def gmlp(mixer, x, seen):
    """Compute gMLP gate by gate: each position sums over its visible positions."""
    n = x.shape[1]
    normed = normalised(mixer.norm, x)
    hidden = gelu(mixer.before(normed))
    half = hidden.shape[-1] // 2
    gated_half, mixed = hidden[..., :half], normalised(mixer.gate_norm, hidden[..., half:])
    weights = mixer.weights[:n, :n]
    if mixer.spatial == "toeplitz":
        # A causal mixer has no weights for later positions; `visible` masks them.
        past, future = mixer.weights[0], mixer.weights[-1]
        weight_rows = [[future[j - i - 1] if j > i else past[i - j] for j in range(n)] for i in range(n)]
        weights = torch.stack([torch.stack(weight_row) for weight_row in weight_rows])
    visible = seen.expand(len(x), 1, n, n)[:, 0]
    gate = (weights * visible) @ mixed + mixer.bias[:n, None]
    if mixer.attention:
        d = mixer.attention
        q, k, v = (mixer.compared(normed)[..., part * d : (part + 1) * d] for part in range(3))
        gate = gate + mixer.read((q @ k.mT / d**0.5).masked_fill(~visible, -torch.inf).softmax(-1).nan_to_num(0) @ v)
    return x + mixer.after(gated_half * gate)


def mlp_mixer(mixer, x, seen):
    """Compute the token mixing one channel at a time."""
    n, x = x.shape[1], x * real_rows(x, seen)
    channels = []
    for channel in x.unbind(-1):
        hidden = gelu(channel @ mixer.before[:, :n].T + mixer.before_bias)
        channels.append(hidden @ mixer.after[:n].T + mixer.after_bias[:n])
    return torch.stack(channels, -1)


OUTPUTS = {FNet: fnet, GatedMLP: gmlp, MLPMixer: mlp_mixer}
