"""Depthwise convolution with a short kernel along the sequence."""

from __future__ import annotations

from torch import Tensor


def depthwise(inputs: Tensor, weight: Tensor) -> Tensor:
    """Convolve inputs (B, N + K − 1, C) with the kernel of each channel, weight (K, C): (B, N, C).

    O(N C K) time. The last row of ``weight`` is multiplied with the last input that an output depends on. A sum of
    shifted copies, because torch's depthwise convolution takes several times as long on CPU.
    """
    size = len(weight)
    length = inputs.shape[1] - size + 1
    y = inputs[:, :length] * weight[0]
    for tap in range(1, size):
        y = y + inputs[:, tap : tap + length] * weight[tap]
    return y
