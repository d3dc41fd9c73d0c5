"""Mixing without attention."""

import math

import torch

from lra_bench.models.attention_free.fnet import FNet


def fourier(n):
    """The matrix of the discrete Fourier transform."""
    places = torch.arange(n, dtype=torch.float64)
    return torch.polar(torch.ones(n, n, dtype=torch.float64), -2 * math.pi / n * places[:, None] * places)


def real_rows(x, seen):
    """Which rows are no padding, (B, N, 1)."""
    return seen.reshape(-1, *seen.shape[-2:])[:, -1, :, None].expand(len(x), -1, 1)


def fnet(mixer, x, seen):
    rows, width = x.shape[1:]
    y = (fourier(rows) @ (x * real_rows(x, seen)).to(torch.complex128) @ fourier(width)).real
    return y * ((rows * width) ** -0.5 if mixer.norm == "ortho" else 1)


def normalised(norm, x):
    centred = x - x.mean(-1, keepdim=True)
    return centred / (x.var(-1, correction=0, keepdim=True) + 1e-5).sqrt() * norm.weight + norm.bias


OUTPUTS = {FNet: fnet}
