"""Oracles of mixers with a recurrent state: one position, one head and one direction at a time."""

import torch

from lra_bench.models.recurrent.delta_net import DeltaNet
from lra_bench.models.recurrent.delta_product import DeltaProduct
from lra_bench.models.recurrent.gated_delta_net import GatedDeltaNet
from lra_bench.models.recurrent.gated_delta_product import GatedDeltaProduct
from lra_bench.models.recurrent.gla import GLA
from lra_bench.models.recurrent.gru import GRU
from lra_bench.models.recurrent.lru import LRU
from lra_bench.models.recurrent.lstm import LSTM
from lra_bench.models.recurrent.min_gru import MinGRU
from lra_bench.models.recurrent.min_lstm import MinLSTM
from lra_bench.models.recurrent.mlstm import MLSTM
from lra_bench.models.recurrent.retnet import RetNet
from lra_bench.models.recurrent.signed_min_gru import SignedMinGRU
from lra_bench.models.recurrent.slstm import SLSTM
from lra_bench.models.state_space.log_linear_mamba2 import LogLinearMamba2
from lra_bench.models.state_space.mamba import Mamba
from lra_bench.models.state_space.mamba2 import Mamba2
from lra_bench.models.state_space.s5 import S5
from lra_bench.models.state_space.signed_mamba import SignedMamba
from lra_bench.models.state_space.signed_mamba2 import SignedMamba2
from tests.oracles.positions import rotated


def reading_orders(mixer, x, seen, parts):
    """Yield each example, each of ``parts`` parts of its channels, and its positions in the order of reading."""
    n = x.shape[1]
    lengths = seen.expand(x.shape[0], 1, n, n)[:, 0, -1].sum(-1).tolist()
    for example, length in enumerate(lengths):
        for part in range(parts):
            positions = list(range(length))
            yield example, part, positions if mixer.causal or 2 * part < parts else positions[::-1]


def scanned(gates):
    """Return an oracle that computes the states step by step, one half of the channels per direction."""

    def read(mixer, x, seen):
        kept, added = (each.chunk(2, -1) for each in gates(mixer, x))
        h = [torch.zeros_like(each) for each in kept]
        for example, part, positions in reading_orders(mixer, x, seen, 2):
            state = torch.zeros_like(h[part][0, 0])
            for position in positions:
                state = kept[part][example, position] * state + added[part][example, position]
                h[part][example, position] = state
        return mixer.output(torch.cat(h, -1))

    return read


def candidate(x):
    return torch.where(x >= 0, x + 0.5, 1 / (1 + torch.exp(-x)))


def min_gru(mixer, x):
    z, h = mixer.input(x).chunk(2, -1)
    z = z.sigmoid()
    return 1 - z, z * candidate(h)


def signed_min_gru(mixer, x):
    kept, added = min_gru(mixer, x)
    return 2 * kept - 1, added


def min_lstm(mixer, x):
    f, i, h = mixer.input(x).chunk(3, -1)
    f, i = f.sigmoid(), i.sigmoid()
    return f / (f + i), i / (f + i) * candidate(h)


def filtered(weight, rows, bias=0):
    """Return weighted sums of the previous rows (N, C) and the bias, after SiLU."""
    size = len(weight)
    sums = [
        sum(weight[tap] * rows[index + tap - size + 1] for tap in range(size) if index + tap >= size - 1)
        for index in range(len(rows))
    ]
    return torch.nn.functional.silu(torch.stack(sums) + bias)


def matrices(step, gated=None):
    """Return an oracle of heads whose states are matrices, updated by ``step``.

    ``step`` maps the state before a position, None at first, to the state after it and the output. ``gated`` computes
    the output of the mixer in place of norm, gate and projection.
    """

    def read(mixer, x, seen):
        heads, projections = mixer.streams, (mixer.query, mixer.key, mixer.value)
        counts = (mixer.groups, mixer.groups, heads)
        rows = [project(x).unflatten(-1, (count, -1)) for project, count in zip(projections, counts, strict=True)]
        o = x.new_zeros(*x.shape[:2], heads, mixer.head_dim)
        for example, head, positions in reading_orders(mixer, x, seen, heads):
            if not positions:
                continue
            groups = [head * count // heads for count in counts]
            head_rows = [each[example, positions, group] for each, group in zip(rows, groups, strict=True)]
            for number, convolution in enumerate(mixer.filters):
                weight = convolution.weight.unflatten(-1, (counts[number], -1))[:, groups[number]]
                bias = 0 if convolution.bias is None else convolution.bias.view(counts[number], -1)[groups[number]]
                head_rows[number] = filtered(weight, head_rows[number], bias)
            q, k, v = head_rows
            q, k = (each[0, 0] for each in rotated(mixer, q[None, None], k[None, None]))
            state = None
            for index, position in enumerate(positions):
                state, o[example, position, head] = step(
                    mixer, x[example, position], head, state, q[index], k[index], v[index]
                )
        if gated is not None:
            return gated(mixer, o.flatten(2), x)
        o = mixer.norm(o).flatten(2)
        if mixer.gate is not None:
            o = o * swish(mixer.gate(x))
        return mixer.output(o)

    return read


def swish(x):
    return x * x.sigmoid()


def or_zeros(state, k, v):
    return torch.zeros(len(k), len(v), dtype=v.dtype) if state is None else state


def retention(mixer, x, head, state, q, k, v):
    rate = 1 - 2.0 ** (-5 - head % mixer.state_heads)
    state = rate * or_zeros(state, k, v) + torch.outer(k, v) * mixer.key_dim**-0.5
    return state, q @ state


def gated(mixer, x, head, state, q, k, v):
    gate = mixer.forget(x).unflatten(-1, (mixer.streams, -1))[head].sigmoid() ** (1 / 16)
    state = gate[:, None] * or_zeros(state, k, v) + torch.outer(k, v)
    return state, q @ state * mixer.key_dim**-0.5


def delta(mixer, x, head, state, q, k, v):
    strength, state = mixer.strength(x)[head].sigmoid() * (2 if mixer.negative else 1), or_zeros(state, k, v)
    k = k / k.norm()
    state = state + strength * torch.outer(k, v - k @ state)
    return state, q / q.norm() @ state * mixer.key_dim**-0.5


def rate(mixer, x, head):
    step = torch.nn.functional.softplus(mixer.step(x)[head])
    return step, (-mixer.log_rate[head].exp() * step).exp()


def gated_delta(mixer, x, head, state, q, k, v):
    return delta(mixer, x, head, rate(mixer, x, head)[1] * or_zeros(state, k, v), q, k, v)


def selective(mixer, x, head, state, q, k, v):
    step, kept = rate(mixer, x, head)
    state = kept * or_zeros(state, k, v) + step * torch.outer(k, v)
    return state, q @ state + mixer.skip[head] * v


def householder_product(mixer, x, head, state, q, k, v):
    strengths = mixer.strength(x).unflatten(-1, (mixer.streams, mixer.steps))[head].sigmoid()
    state = or_zeros(state, q, v[: len(v) // mixer.steps])
    for strength, key, value in zip(strengths, k.chunk(mixer.steps), v.chunk(mixer.steps), strict=True):
        key = key / key.norm()
        state = state + strength * (2 if mixer.negative else 1) * torch.outer(key, value - key @ state)
    return state, q / q.norm() @ state * mixer.key_dim**-0.5


def gated_householder_product(mixer, x, head, state, q, k, v):
    state = or_zeros(state, q, v[: len(v) // mixer.steps])
    return householder_product(mixer, x, head, rate(mixer, x, head)[1] * state, q, k, v)


def signed_selective(mixer, x, head, state, q, k, v):
    step, kept = rate(mixer, x, head)
    state = (2 * kept - 1) * or_zeros(state, k, v) + step * torch.outer(k, v)
    return state, q @ state + mixer.skip[head] * v


def fenwick_level(t, j):
    """Return the number of the block of the positions before t, counted from the token itself, that contains j."""
    if t == j:
        return 0
    largest = t.bit_length() - 1
    return largest + 1 if j < 1 << largest else fenwick_level(t - (1 << largest), j - (1 << largest))


def log_linear(mixer, x, head, past, q, k, v):
    """Sum over all previous tokens, which are the state, each with its decayed weight, key and value."""
    step, kept = rate(mixer, x, head)
    past = [*((kept * weight, *pair) for weight, *pair in past or ()), (step, k, v)]
    scales = (mixer.level_scale * mixer.level(x).unflatten(-1, (mixer.streams, -1)))[head]
    scales = torch.nn.functional.softplus(scales)
    o = mixer.skip[head] * v
    for j, (weight, key, value) in enumerate(past):
        level = min(fenwick_level(len(past) - 1, j), len(scales) - 1)
        o = o + scales[level] * weight * (q @ key) * value
    return past, o


def gate_first(mixer, o, x):
    o = o * swish(mixer.gate(x))
    return mixer.output(mixer.norm(o))


def by_blocks(projection, x):
    """Multiply each block of the features of x (N, C) by its matrix."""
    weight = projection.weight
    parts = zip(weight, x.split(weight.shape[-1], -1), strict=True)
    return torch.cat([part @ matrix.mT for matrix, part in parts], -1)


def exponential(mixer, x, seen):
    """Compute the mLSTM layer position by position, with the running maximum of the gates."""
    directions, heads, width = len(mixer.forget), mixer.state_heads, x.shape[-1]
    u, half = mixer.up(x), width // directions
    read = torch.zeros_like(x)
    for example, part, places in reading_orders(mixer, x, seen, directions):
        if not places:
            continue
        channels = slice(part * half, (part + 1) * half)
        rows = u.new_zeros(len(places), width)
        rows[:, channels] = u[example, places, channels]
        convolved = swish(rows) if mixer.filter is None else filtered(mixer.filter.weight, rows, mixer.filter.bias)
        q, k, v = (
            by_blocks(projection, each).chunk(directions, -1)[part]
            for projection, each in ((mixer.query, convolved), (mixer.key, convolved), (mixer.value, rows))
        )
        forget, add = (gate[part](torch.cat((q, k, v), -1)) for gate in (mixer.forget, mixer.add))
        q, k, v = (each.unflatten(-1, (heads, -1)) for each in (q, k, v))
        for head in range(heads):
            cell, normaliser, largest = x.new_zeros(q.shape[-1], v.shape[-1]), x.new_zeros(q.shape[-1]), x.new_zeros(())
            for t, place in enumerate(places):
                log_keep = forget[t, head].sigmoid().log() + largest
                largest = torch.maximum(log_keep, add[t, head])
                keep, new = (log_keep - largest).exp(), (add[t, head] - largest).exp()
                scaled = k[t, head] * q.shape[-1] ** -0.5
                cell = keep * cell + new * torch.outer(scaled, v[t, head])
                normaliser = keep * normaliser + new * scaled
                denominator = torch.maximum((q[t, head] @ normaliser).abs(), (-largest).exp()) + 1e-6
                o = q[t, head] @ cell / denominator
                o = (o - o.mean()) / (o.var(correction=0) + 1e-5).sqrt()
                own = slice(part * half + head * len(o), part * half + (head + 1) * len(o))
                read[example, place, own] = o * mixer.scale[own] + mixer.skip[own] * convolved[t, own]
    return mixer.output(read if mixer.gate is None else read * swish(mixer.gate(x)))


def exponential_scalars(mixer, x, seen):
    """Compute the sLSTM layer position by position, with the gates themselves instead of a running maximum."""
    heads, size = mixer.state_heads, mixer.norm.normalized_shape[0]
    inputs, y = x.shape[-1] // heads, torch.zeros_like(x)
    for example, stream, places in reading_orders(mixer, x, seen, mixer.streams):
        first = stream % heads * inputs
        rows = x[example, places, first : first + inputs]
        convolved = rows
        if mixer.filter is not None and places:
            part = slice(stream // heads * x.shape[-1] + first, stream // heads * x.shape[-1] + first + inputs)
            convolved = filtered(mixer.filter.weight[:, part], rows, mixer.filter.bias[part])
        hidden, cell, total = (x.new_zeros(size) for _ in range(3))
        own = slice(stream * size, (stream + 1) * size)
        for t, place in enumerate(places):
            logits = torch.cat((mixer.gates.weight[stream] @ convolved[t], mixer.values.weight[stream] @ rows[t]))
            logits = logits + hidden @ mixer.recurrent[stream] + mixer.bias[stream]
            add, forget, z, o = logits.chunk(4)
            cell = forget.sigmoid() * cell + add.exp() * z.tanh()
            total = forget.sigmoid() * total + add.exp()
            hidden = o.sigmoid() * cell / total
            normalised = (hidden - hidden.mean()) / (hidden.var(correction=0) + 1e-5).sqrt()
            y[example, place, own] = normalised * mixer.scale[own]
    return y


def mamba(mixer, x, seen):
    """Compute the channels of each direction step by step."""
    groups, value = len(mixer.choice), mixer.value(x)
    y, size, (rank, states, _) = torch.zeros_like(value), value.shape[-1] // groups, mixer.sizes
    for example, group, positions in reading_orders(mixer, x, seen, groups):
        channels = slice(group * size, (group + 1) * size)
        state = x.new_zeros(size, states)
        filtered_values = (
            filtered(mixer.filter.weight[:, channels], value[example, positions, channels], mixer.filter.bias[channels])
            if positions
            else ()
        )
        for position, u in zip(positions, filtered_values, strict=True):
            chosen = u @ mixer.choice[group]
            step = torch.nn.functional.softplus(chosen[:rank] @ mixer.step[group] + mixer.step_bias[channels])
            kept = (-step[:, None] * mixer.log_rate[channels].exp()).exp()
            kept = 2 * kept - 1 if mixer.negative else kept
            state = kept * state + torch.outer(step * u, chosen[rank : rank + states])
            y[example, position, channels] = state @ chosen[rank + states :] + mixer.skip[channels] * u
    return mixer.output(y * swish(mixer.gate(x)))


def networks(cell):
    """Return an oracle that applies ``cell`` step by step in each direction."""

    def read(mixer, x, seen):
        size = mixer.networks[0].hidden_size
        h = x.new_zeros(*x.shape[:2], len(mixer.networks) * size)
        for example, part, positions in reading_orders(mixer, x, seen, len(mixer.networks)):
            network, state = mixer.networks[part], (x.new_zeros(size), x.new_zeros(size))
            for position in positions:
                from_input = network.weight_ih_l0 @ x[example, position] + network.bias_ih_l0
                state = cell(from_input, network.weight_hh_l0 @ state[0] + network.bias_hh_l0, state)
                h[example, position, part * size : (part + 1) * size] = state[0]
        return mixer.output(h)

    return read


def lstm(from_input, from_state, state):
    i, f, g, o = (from_input + from_state).chunk(4)
    cell = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
    return o.sigmoid() * cell.tanh(), cell


def gru(from_input, from_state, state):
    (r, z, n), (own_r, own_z, own_n) = from_input.chunk(3), from_state.chunk(3)
    z = (z + own_z).sigmoid()
    h = (1 - z) * (n + (r + own_r).sigmoid() * own_n).tanh() + z * state[0]
    return h, h


def complex_states(rates, transform):
    """Return an oracle with the states λ h + γ B x of each direction, step by step."""

    def read(mixer, x, seen):
        factors, scale = rates(mixer)
        weight = torch.complex(mixer.input.weight[::2], mixer.input.weight[1::2])
        weight = weight.repeat(len(factors) // len(weight), 1)
        inputs = x.to(weight.dtype) @ weight.mT * scale
        h, half = torch.zeros_like(inputs), inputs.shape[-1] // 2
        for example, part, positions in reading_orders(mixer, x, seen, 2):
            channels = slice(half) if part == 0 else slice(half, None)
            state = torch.zeros_like(inputs[0, 0, channels])
            for position in positions:
                state = factors[channels] * state + inputs[example, position, channels]
                h[example, position, channels] = state
        readout = torch.complex(mixer.readout.weight[:, ::2], -mixer.readout.weight[:, 1::2])
        return transform(mixer.output, (h @ readout.mT).real + mixer.skip * x)

    return read


def ring(mixer):
    return (-mixer.log_rate.exp() + 1j * mixer.log_phase.exp()).exp(), mixer.log_scale.exp()


def held_constant(mixer):
    pole, step = -mixer.log_decay.exp() + 1j * mixer.frequency, mixer.log_step.exp()
    directions = mixer.readout.in_features // (2 * len(pole))
    return (pole * step).exp().repeat(directions), (2 * ((pole * step).exp() - 1) / pole).repeat(directions)


def gated_linear(output, y):
    a, b = output[1](torch.nn.functional.gelu(y)).chunk(2, -1)
    return a * b.sigmoid()


def gated_by_itself(output, y):
    gelu = torch.nn.functional.gelu(y)
    return (gelu if output.activated else y) * output.gate(gelu).sigmoid()


SMALL = {
    "gated_delta_product": {"key_width": 16},  # a vector of one feature would be 1 or −1 for any input
    "mlstm": {"key_width": 8},  # with blocks that are not square
}
OUTPUTS = {
    LRU: complex_states(ring, gated_linear),
    S5: complex_states(held_constant, gated_by_itself),
    MinGRU: scanned(min_gru),
    MinLSTM: scanned(min_lstm),
    RetNet: matrices(retention),
    GLA: matrices(gated),
    DeltaNet: matrices(delta),
    GatedDeltaNet: matrices(gated_delta),
    DeltaProduct: matrices(householder_product),
    GatedDeltaProduct: matrices(gated_householder_product),
    Mamba: mamba,
    Mamba2: matrices(selective, gate_first),
    LogLinearMamba2: matrices(log_linear, gate_first),
    SignedMinGRU: scanned(signed_min_gru),
    SignedMamba: mamba,
    SignedMamba2: matrices(signed_selective, gate_first),
    MLSTM: exponential,
    SLSTM: exponential_scalars,
    LSTM: networks(lstm),
    GRU: networks(gru),
}
