"""Mixing by a state that goes from row to row: one row, one head and one direction at a time."""

import torch

from lra_bench.models.recurrent.delta_net import DeltaNet
from lra_bench.models.recurrent.gated_delta_net import GatedDeltaNet
from lra_bench.models.recurrent.gla import GLA
from lra_bench.models.recurrent.min_gru import MinGRU
from lra_bench.models.recurrent.min_lstm import MinLSTM
from lra_bench.models.recurrent.retnet import RetNet

from .positions import turned


def orders(mixer, x, seen, parts):
    """Of each row of the batch and each of ``parts`` parts of its channels, the places in the order of reading."""
    n = x.shape[1]
    lengths = seen.expand(x.shape[0], 1, n, n)[:, 0, -1].sum(-1).tolist()
    for row, length in enumerate(lengths):
        for part in range(parts):
            places = list(range(length))
            yield row, part, places if mixer.causal or 2 * part < parts else places[::-1]


def scanned(gates):
    """Channel halves, step by step."""

    def read(mixer, x, seen):
        kept, added = (each.chunk(2, -1) for each in gates(mixer, x))
        h = [torch.zeros_like(each) for each in kept]
        for row, part, places in orders(mixer, x, seen, 2):
            state = torch.zeros_like(h[part][0, 0])
            for place in places:
                state = kept[part][row, place] * state + added[part][row, place]
                h[part][row, place] = state
        return mixer.output(torch.cat(h, -1))

    return read


def candidate(x):
    return torch.where(x >= 0, x + 0.5, 1 / (1 + torch.exp(-x)))


def min_gru(mixer, x):
    z, h = mixer.input(x).chunk(2, -1)
    z = z.sigmoid()
    return 1 - z, z * candidate(h)


def min_lstm(mixer, x):
    f, i, h = mixer.input(x).chunk(3, -1)
    f, i = f.sigmoid(), i.sigmoid()
    return f / (f + i), i / (f + i) * candidate(h)


def filtered(weight, rows):
    """Weighted sums of the last rows (N, C)."""
    size = len(weight)
    sums = [
        sum(weight[tap] * rows[at + tap - size + 1] for tap in range(size) if at + tap >= size - 1)
        for at in range(len(rows))
    ]
    return torch.nn.functional.silu(torch.stack(sums))


def matrices(step):
    """Heads, step by step: ``step(mixer, x, head)`` gives what happens at a row to its state, key and value."""

    def read(mixer, x, seen):
        heads = mixer.streams
        rows = [linear(x).unflatten(-1, (heads, -1)) for linear in (mixer.query, mixer.key, mixer.value)]
        o = torch.zeros_like(rows[2])
        for row, head, places in orders(mixer, x, seen, heads):
            if not places:
                continue
            own = [each[row, places, head] for each in rows]
            for number, short in enumerate(mixer.filters):
                own[number] = filtered(short.weight.unflatten(-1, (heads, -1))[:, head], own[number])
            q, k, v = own
            q, k = (each[0, 0] for each in turned(mixer, q[None, None], k[None, None]))
            state = x.new_zeros(k.shape[-1], v.shape[-1])
            for at, place in enumerate(places):
                state, read = step(mixer, x[row, place], head, state, q[at], k[at], v[at])
                o[row, place, head] = read @ state
        o = mixer.norm(o).flatten(2)
        if mixer.gate is not None:
            gate = mixer.gate(x)
            o = o * gate * gate.sigmoid()
        return mixer.output(o)

    return read


def retention(mixer, x, head, state, q, k, v):
    rate = 1 - 2.0 ** (-5 - head % mixer.heads)
    return rate * state + torch.outer(k, v) * mixer.key_dim**-0.5, q


def gated(mixer, x, head, state, q, k, v):
    gate = mixer.forget(x).unflatten(-1, (mixer.streams, -1))[head].sigmoid() ** (1 / 16)
    return gate[:, None] * state + torch.outer(k, v), q * mixer.key_dim**-0.5


def delta(mixer, x, head, state, q, k, v):
    strength = mixer.strength(x)[head].sigmoid() * (2 if mixer.negative else 1)
    k = k / k.norm()
    return state + strength * torch.outer(k, v - k @ state), q / q.norm() * mixer.key_dim**-0.5


def gated_delta(mixer, x, head, state, q, k, v):
    step = torch.nn.functional.softplus(mixer.step(x)[head])
    return delta(mixer, x, head, (-mixer.log_rate[head].exp() * step).exp() * state, q, k, v)


OUTPUTS = {
    MinGRU: scanned(min_gru),
    MinLSTM: scanned(min_lstm),
    RetNet: matrices(retention),
    GLA: matrices(gated),
    DeltaNet: matrices(delta),
    GatedDeltaNet: matrices(gated_delta),
}
