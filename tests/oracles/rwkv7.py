"""Oracle of RWKV-7, one position, one head and one direction at a time."""

import math

import torch

from lra_bench.models.recurrent.rwkv7 import RWKV7
from tests.oracles.recurrent import reading_orders


def low_rank(network, x):
    y = network.up.weight @ network.between(network.down.weight @ x)
    return y if network.up.bias is None else y + network.up.bias


def mixed(mix, x, places, first):
    """Return the outputs (N, C) and values (N, C) of rows x (N, E), read at ``places`` in the given order."""
    heads, size = mix.bonus.shape
    read, values = x.new_zeros(len(x), heads * size), x.new_zeros(len(x), heads * size)
    state, before = x.new_zeros(heads, size, size), torch.zeros_like(x[0])
    for place in places:
        r, w, k, v, a, g = (x[place] + share * (before - x[place]) for share in mix.shares)
        before = x[place]
        rate = low_rank(mix.rate, a).sigmoid()
        keep = torch.exp(-low_rank(mix.decay, w).sigmoid() / math.sqrt(math.e))
        gate, key, value = low_rank(mix.gate, g), mix.key.weight @ k, mix.value.weight @ v
        values[place] = value
        if first is not None:
            value = value + (first[place] - value) * low_rank(mix.blend, v).sigmoid()
        removal_key = (key * mix.asked).view(heads, size)
        removal_key = removal_key / removal_key.norm(dim=-1, keepdim=True)
        key = key + key * (rate - 1) * mix.written
        projections = (mix.receptance.weight @ r, keep, key, value, rate)
        r, keep, key, value, rate = (projection.view(heads, size) for projection in projections)
        o = torch.zeros_like(value)
        after = []
        for h in range(heads):
            product = removal_key[h] @ state[h]
            after.append(
                keep[h, :, None] * state[h]
                - torch.outer(rate[h] * removal_key[h], product)
                + torch.outer(key[h], value[h])
            )
            o[h] = r[h] @ after[h]
        state = torch.stack(after)
        o = (o - o.mean(-1, keepdim=True)) / (o.var(-1, correction=0, keepdim=True) + 64e-5).sqrt()
        o = o * mix.norm.weight.view(heads, size) + mix.norm.bias.view(heads, size)
        o = o + (r * key * mix.bonus).sum(-1, keepdim=True) * value
        read[place] = o.flatten() * gate
    return read, values


def layers(mixer, x, seen):
    parts = [[] for _ in mixer.mixes]
    for example, part, positions in reading_orders(mixer, x, seen, len(mixer.mixes)):
        parts[part].append(mixed(mixer.mixes[part], x[example], positions, None)[0])
    return mixer.output(torch.cat([torch.stack(part) for part in parts], -1))


OUTPUTS = {RWKV7: layers}
SMALL = {"rwkv7": {"rank": 4}}  # smaller than the width, as in large models
