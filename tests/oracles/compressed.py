"""Attention to a compressed sequence."""

import math

import torch

from lra_bench.models.compressed.luna import Luna

SMALL = {"luna": {"packed": 5}}


def luna(mixer, x, seen):
    """The two attentions of the first layer; causally, token by token, with packed rows as they stood by then."""
    split, scale = mixer.split, mixer.head_dim**-0.5
    asks, q = split(mixer.packed_query(mixer.packed)), split(mixer.query(x)) * scale
    keys = split(mixer.key(x))
    scores = asks @ keys.mT * scale
    if not mixer.causal:
        packed = scores.masked_fill(~seen[..., :1, :], -torch.inf).softmax(-1) @ keys
        values = split(mixer.value(packed.transpose(1, 2).flatten(2)))
        return mixer.merge((q @ values.mT).softmax(-1) @ values)
    weights, values, outputs = (1 + 2**scores).log() / math.log(2), split(mixer.value(x)), []
    for t in range(x.shape[1]):
        packed = weights[..., : t + 1] @ values[:, :, : t + 1] / (t + 1)
        outputs.append((q[:, :, t, None] @ packed.mT).softmax(-1) @ packed)
    return mixer.merge(torch.cat(outputs, 2))


OUTPUTS = {Luna: luna}
