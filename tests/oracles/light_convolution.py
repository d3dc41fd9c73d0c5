"""Oracles of convolutions with softmax kernels, one position, head and neighbour at a time."""

import torch

from lra_bench.models.convolution.dynamic_conv import DynamicConvolution
from lra_bench.models.convolution.light_conv import LightConvolution

SMALL = {"light_conv": {"kernels": [7]}, "dynamic_conv": {"kernels": [5]}}


def weighed(kernel):
    """Return an oracle from ``kernel``, which returns the scores (H, K) of the neighbours of a position v (C,)."""

    def mix(mixer, x, seen):
        batch, n, _ = x.shape
        seen = seen.expand(batch, 1, n, n)[:, 0]
        value, gate = mixer.value(x).chunk(2, -1)
        value = (value * gate.sigmoid()).unflatten(-1, (mixer.heads, -1))
        real = seen[:, -1]
        mixed = torch.zeros_like(value)
        first = -(mixer.taps - 1) if mixer.causal else -(mixer.taps // 2)
        for example in range(batch):
            for i in range(n):
                weights = kernel(mixer, value[example, i].flatten() * real[example, i]).softmax(-1)
                for tap in range(mixer.taps):
                    j = i + first + tap
                    if 0 <= j < n and seen[example, i, j]:
                        mixed[example, i] += weights[:, tap, None] * value[example, j]
        return mixer.output(mixed.flatten(2))

    return mix


OUTPUTS = {
    LightConvolution: weighed(lambda mixer, v: mixer.kernel),
    DynamicConvolution: weighed(lambda mixer, v: (mixer.choice.weight @ v).unflatten(0, (mixer.heads, -1))),
}
