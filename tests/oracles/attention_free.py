"""Mixing without attention."""

import math

import torch

from lra_bench.models.attention_free.fnet import FNet


def fourier(n):
    """The matrix of the discrete Fourier transform."""
    places = torch.arange(n, dtype=torch.float64)
    return torch.polar(torch.ones(n, n, dtype=torch.float64), -2 * math.pi / n * places[:, None] * places)


def fnet(mixer, x, seen):
    rows, width = x.shape[1:]
    real = seen.reshape(-1, *seen.shape[-2:])[:, -1, :, None]  # what the last row sees is what is no padding
    y = (fourier(rows) @ (x * real).to(torch.complex128) @ fourier(width)).real
    return y * ((rows * width) ** -0.5 if mixer.norm == "ortho" else 1)


OUTPUTS = {FNet: fnet}
