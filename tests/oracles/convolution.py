"""Oracles of mixing by convolution."""

import math

import torch

from lra_bench.models.convolution.hyena import Hyena
from lra_bench.models.convolution.long_conv import LongConv
from lra_bench.models.convolution.sgconv import SGConv
from lra_bench.models.convolution.short_convolution import ShortConvolution


def real_rows(x, seen):
    """Return the mask of positions that are not padding (B, N, 1)."""
    n = x.shape[1]
    return seen.expand(x.shape[0], 1, n, n)[:, 0, -1, :, None]


def toeplitz(ahead, behind=None):
    """Return matrices (E, N, N) from kernels (E, N): ``ahead`` for lags from 0 on, ``behind`` for lags below 0."""
    n = ahead.shape[-1]
    matrix = torch.zeros(*ahead.shape, n, dtype=ahead.dtype)
    for i in range(n):
        for j in range(n):
            if i >= j:
                matrix[..., i, j] = ahead[..., i - j]
            elif behind is not None:
                matrix[..., i, j] = behind[..., j - i - 1]
    return matrix


def by_lags(kernels):
    """Return an oracle from ``kernels``, which returns kernels (directions, E, N) at lags from zero, or one, on."""

    def read(mixer, x, seen):
        matrix = toeplitz(*kernels(mixer, x.shape[1]))
        y = torch.einsum("eij,bje->bie", matrix, x * real_rows(x, seen)) + x * mixer.skip
        y = mixer.output(torch.nn.functional.gelu(y))
        return y[..., : mixer.width] * y[..., mixer.width :].sigmoid() if mixer.gated else y

    return read


def pieces(mixer, n):
    """Return the kernels lag by lag, interpolated between two numbers of the piece that contains the lag."""
    taps, kernels = mixer.pieces.shape[-1], torch.zeros(*mixer.pieces.shape[:2], n, dtype=mixer.pieces.dtype)
    for lag in range(n):
        scale = 0 if lag < taps else 1 + int(math.log2(lag // taps))
        if scale == mixer.pieces.shape[2]:
            break
        stretch = 2 ** max(0, scale - 1)
        coordinate = min(max(((lag if scale == 0 else lag - taps * stretch) + 0.5) / stretch - 0.5, 0), taps - 1)
        low, fraction = int(coordinate), coordinate - int(coordinate)
        piece = mixer.pieces[:, :, scale]
        value = (1 - fraction) * piece[..., low] + fraction * piece[..., min(low + 1, taps - 1)]
        kernels[..., lag] = value / mixer.decay**scale
    return kernels / mixer.norm


def squashed(mixer, n):
    """Return the kernels lag by lag, from the mean of neighbouring lags."""
    half, longest = mixer.smooth // 2, mixer.max_length
    kernels = torch.zeros(*mixer.kernel.shape[:2], n, dtype=mixer.kernel.dtype)
    for lag in range(min(n, longest)):
        mean = mixer.kernel[..., max(0, lag - half) : lag + half + 1].sum(-1) / mixer.smooth
        kernels[..., lag] = mean.sign() * (mean.abs() - mixer.squash).clamp(min=0)
    return kernels


def implicit(filters, n):
    """Return the filters at lags from zero on, one lag at a time."""
    lag_values = []
    for lag in range(n):
        time, angle = lag / (filters.max_length - 1), 2 * math.pi * lag / filters.max_length
        angles = [angle * band for band in filters.multiples.tolist()]
        y = torch.tensor([time, *map(math.cos, angles), *(-math.sin(each) for each in angles)], dtype=torch.float64)
        for layer in filters.layers:
            y = torch.sin(filters.frequency * (layer.weight @ y + layer.bias))
        lag_values.append((filters.last.weight @ y).reshape(filters.shape) * torch.exp(-time * filters.rates))
    return torch.stack(lag_values, -1)


def hyena(mixer, x, seen):
    """Compute the output by alternate products with matrices of lags and with gates."""
    n, real = x.shape[1], real_rows(x, seen)
    rows, short = mixer.input(x) * real, torch.zeros(*x.shape[:2], len(mixer.short), dtype=x.dtype)
    for i in range(n):
        for tap in range(3):
            j = i + tap - (2 if mixer.causal else 1)
            if 0 <= j < n:
                short[:, i] += mixer.short[:, 0, tap] * rows[:, j]
    z, *gates = (short * real).chunk(mixer.order + 1, -1)
    filters = implicit(mixer.filters, n + 1)
    for number, gate in enumerate(gates):
        behind = () if mixer.causal else (filters[1, number, :, 1:],)
        matrix = toeplitz(filters[0, number, :, :n], *behind)
        z = gate * (torch.einsum("eij,bje->bie", matrix, z) + mixer.skip[number] * z)
    return mixer.output(z)


def short(mixer, x, seen):
    """Compute sums over neighbours, one position at a time."""
    n, size = x.shape[1], mixer.kernel.shape[-1]
    first = -(size - 1) if mixer.causal else -(size // 2)
    seen = seen.expand(x.shape[0], 1, n, n)[:, 0]
    value, mixed = mixer.value(x), torch.zeros_like(x)
    for i in range(n):
        for tap in range(size):
            j = i + first + tap
            if 0 <= j < n:
                mixed[:, i] += mixer.kernel[:, 0, tap] * value[:, j] * seen[:, i, j, None]
    gate = mixer.gate(x)
    return mixer.output(gate * gate.sigmoid() * mixed)


OUTPUTS = {
    ShortConvolution: short,
    SGConv: by_lags(pieces),
    LongConv: by_lags(squashed),
    Hyena: hyena,
}
