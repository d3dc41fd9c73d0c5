"""Whole layers as they begin at width 64, against the formulas of their authors' code typed again."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from lra_bench.models.recurrent.delta_net import DeltaNet
from lra_bench.models.recurrent.delta_product import DeltaProduct
from lra_bench.models.recurrent.gated_delta_net import GatedDeltaNet
from lra_bench.models.recurrent.gated_delta_product import GatedDeltaProduct
from lra_bench.models.recurrent.gla import GLA
from lra_bench.models.recurrent.lru import LRU
from lra_bench.models.recurrent.min_gru import MinGRU
from lra_bench.models.recurrent.min_lstm import MinLSTM
from lra_bench.models.recurrent.mlstm import MLSTM
from lra_bench.models.recurrent.retnet import RetNet
from lra_bench.models.recurrent.short_filter import ShortFilter
from lra_bench.models.recurrent.slstm import SLSTM
from lra_bench.models.state_space.log_linear_mamba2 import LogLinearMamba2
from lra_bench.models.state_space.mamba import Mamba
from lra_bench.models.state_space.mamba2 import Mamba2
from lra_bench.models.state_space.signed_mamba import SignedMamba
from lra_bench.models.state_space.signed_mamba2 import SignedMamba2
from tests.support.mixer_cases import context

WIDTH, BACKBONE_HEADS, HEADS, N = 64, 2, 4, 30


def begin(kind, **options):
    """Return a causal mixer with its initial weights, inputs (2, N, E) and its outputs, in float64."""
    torch.manual_seed(0)
    mixer = kind(WIDTH, BACKBONE_HEADS, causal=True, **options).double().eval()
    x = torch.randn(2, N, WIDTH, dtype=torch.float64)
    return mixer, x, mixer(x, context(N))[0]


def convolved(short_filter, x):
    """Apply the filter as torch's causal depthwise convolution, and SiLU."""
    size, channels = short_filter.weight.shape
    convolution = nn.Conv1d(channels, channels, size, groups=channels, padding=size - 1).double()
    with torch.no_grad():
        convolution.weight.copy_(short_filter.weight.T[:, None])
        convolution.bias.copy_(0 if short_filter.bias is None else short_filter.bias)
    return F.silu(convolution(x.mT)[..., : x.shape[1]].mT)


def in_heads(x, heads):
    return x.unflatten(-1, (heads, -1))


def rms(x, eps):
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt()


def delta_rule(q, k, v, strength, keep):
    """Run the delta rule on (B, N, H, D) position by position; ``strength`` and ``keep`` are (B, N, H)."""
    state = torch.zeros(q.shape[0], q.shape[2], q.shape[-1], v.shape[-1], dtype=q.dtype)
    outputs = []
    for t in range(q.shape[1]):
        state = keep[:, t, :, None, None] * state
        old = torch.einsum("bhk,bhkv->bhv", k[:, t], state)
        state = state + torch.einsum("bhk,bhv->bhkv", k[:, t], strength[:, t, :, None] * (v[:, t] - old))
        outputs.append(torch.einsum("bhk,bhkv->bhv", q[:, t], state) * q.shape[-1] ** -0.5)
    return torch.stack(outputs, 1)


def delta_inputs(mixer, x, heads):
    """Return unit queries and keys, and values, (B, N, H, D)."""
    projections = (mixer.query, mixer.key, mixer.value)
    filtered = [convolved(each, project(x)) for each, project in zip(mixer.filters, projections, strict=True)]
    q, k, v = (in_heads(each, heads) for each in filtered)
    return q / q.norm(dim=-1, keepdim=True), k / k.norm(dim=-1, keepdim=True), v


@pytest.mark.agrees("delta_net", compared="the layer as it begins", within=1e-10)
def test_delta_net(within):
    mixer, x, y = begin(DeltaNet)
    assert mixer.filters[0].bias is None
    strength = mixer.strength(x).sigmoid()
    q, k, v = delta_inputs(mixer, x, BACKBONE_HEADS)
    o = delta_rule(q, k, v, strength, torch.ones_like(strength))
    assert (y - mixer.output(rms(o, 1e-5).flatten(2))).abs().max() <= within


@pytest.mark.agrees("gated_delta_net", compared="the layer as it begins", within=1e-10)
def test_gated_delta_net(within):
    mixer, x, y = begin(GatedDeltaNet)
    assert mixer.filters[0].bias is None
    keep = (-mixer.log_rate.exp() * F.softplus(mixer.step(x))).exp()
    q, k, v = delta_inputs(mixer, x, HEADS)
    o = delta_rule(q, k, v, mixer.strength(x).sigmoid(), keep)
    assert (y - mixer.output(rms(o, 1e-5).flatten(2) * F.silu(mixer.gate(x)))).abs().max() <= within


@pytest.mark.agrees("delta_net_negative", compared="the layer as it begins, with sigmoid_scale=2", within=1e-10)
def test_delta_net_with_negative_eigenvalues(within):
    mixer, x, y = begin(DeltaNet, negative=True)
    strength = 2 * mixer.strength(x).sigmoid()
    q, k, v = delta_inputs(mixer, x, BACKBONE_HEADS)
    o = delta_rule(q, k, v, strength, torch.ones_like(strength))
    assert (y - mixer.output(rms(o, 1e-5).flatten(2))).abs().max() <= within


@pytest.mark.agrees("gated_delta_net_negative", compared="the layer as it begins", within=1e-10)
def test_gated_delta_net_with_negative_eigenvalues(within):
    mixer, x, y = begin(GatedDeltaNet, negative=True)
    keep = (-mixer.log_rate.exp() * F.softplus(mixer.step(x))).exp()
    q, k, v = delta_inputs(mixer, x, HEADS)
    o = delta_rule(q, k, v, 2 * mixer.strength(x).sigmoid(), keep)
    assert (y - mixer.output(rms(o, 1e-5).flatten(2) * F.silu(mixer.gate(x)))).abs().max() <= within


def expanded_product(mixer, x, keep):
    """Return the outputs of the recurrence by the delta rule over a sequence of steps (B, n N, H, D), normalised.

    The decay is that of the first step of a token, and outputs are those of the last step.
    """
    n, heads = mixer.steps, BACKBONE_HEADS
    q = in_heads(convolved(mixer.filters[0], mixer.query(x)), heads)
    k, v = (convolved(mixer.filters[part], project(x)) for part, project in ((1, mixer.key), (2, mixer.value)))
    # Channels are ordered by head, then by step.
    k, v = (each.unflatten(-1, (heads, n, -1)).transpose(2, 3).flatten(1, 2) for each in (k, v))
    strength = (2 * mixer.strength(x).sigmoid()).unflatten(-1, (heads, n)).transpose(2, 3).flatten(1, 2)
    first = torch.ones(2, N, n, heads, dtype=x.dtype)
    first[:, :, 0] = keep
    q = (q / q.norm(dim=-1, keepdim=True)).repeat_interleave(n, 1)
    return rms(delta_rule(q, k / k.norm(dim=-1, keepdim=True), v, strength, first.flatten(1, 2))[:, n - 1 :: n], 1e-5)


@pytest.mark.agrees("delta_product", compared="the layer as it begins, without decay and output gate", within=1e-10)
@pytest.mark.parametrize("steps", [1, 2, 3])
def test_delta_product(steps, within):
    mixer, x, y = begin(DeltaProduct, steps=steps)
    o = expanded_product(mixer, x, torch.ones(2, N, BACKBONE_HEADS, dtype=x.dtype))
    assert (y - mixer.output(o.flatten(2))).abs().max() <= within


@pytest.mark.agrees("gated_delta_product", compared="the layer as it begins", within=1e-10)
@pytest.mark.parametrize("steps", [1, 2, 3])
def test_gated_delta_product(steps, within):
    mixer, x, y = begin(GatedDeltaProduct, steps=steps)
    o = expanded_product(mixer, x, (-mixer.log_rate.exp() * F.softplus(mixer.step(x))).exp())
    assert (y - mixer.output(o.flatten(2) * F.silu(mixer.gate(x)))).abs().max() <= within


@pytest.mark.agrees("gla", compared="the layer as it begins", within=1e-10)
def test_gla(within):
    mixer, x, y = begin(GLA)
    q, k, v = (in_heads(project(x), BACKBONE_HEADS) for project in (mixer.query, mixer.key, mixer.value))
    keep = in_heads(mixer.forget(x).sigmoid() ** (1 / 16), BACKBONE_HEADS)
    state, outputs = torch.zeros(2, BACKBONE_HEADS, q.shape[-1], v.shape[-1], dtype=x.dtype), []
    for t in range(N):
        state = keep[:, t, ..., None] * state + k[:, t, ..., None] * v[:, t, :, None]
        outputs.append(torch.einsum("bhk,bhkv->bhv", q[:, t], state) * q.shape[-1] ** -0.5)
    o = rms(torch.stack(outputs, 1), 1e-5).flatten(2)
    assert (y - mixer.output(o * F.silu(mixer.gate(x)))).abs().max() <= within


@pytest.mark.agrees("retnet", compared="the layer without rotation, up to a scale before its norm", within=1e-4)
def test_retnet(within):
    """The authors divide by sums of decays and of weights, which a norm without constant would cancel."""
    mixer, x, y = begin(RetNet)
    q, k, v = (in_heads(project(x), HEADS).transpose(1, 2) for project in (mixer.query, mixer.key, mixer.value))
    rates = 1 - 2.0 ** (-5 - torch.arange(HEADS, dtype=torch.float64))
    distance = torch.arange(N)[:, None] - torch.arange(N)
    decay = torch.where(distance >= 0, rates[:, None, None] ** distance.clamp(min=0), 0)
    decay = decay / decay.sum(-1, keepdim=True).sqrt()
    weights = (q @ k.mT) * q.shape[-1] ** -0.5 * decay
    weights = weights / weights.abs().sum(-1, keepdim=True).clamp(min=1)
    o = rms(weights @ v, 1e-6).transpose(1, 2).flatten(2)
    assert (y - mixer.output(o * F.silu(mixer.gate(x)))).abs().max() <= within
    assert [*mixer.norm.parameters()] == []


@pytest.mark.agrees("mlstm", compared="the layer with an inner width of its input", within=1e-10)
def test_mlstm(within):
    """The recurrent form of the authors' cell, with other gate weights than the initial zeros."""
    torch.manual_seed(0)
    mixer = MLSTM(WIDTH, BACKBONE_HEADS, causal=True).double()
    x = torch.randn(2, N, WIDTH, dtype=torch.float64)
    for gate in (mixer.forget[0], mixer.add[0]):
        nn.init.normal_(gate.weight, std=3.0)
    u, z = mixer.up(x), mixer.gate(x)
    c = convolved(mixer.filter, u)
    q, k, v = (
        torch.cat([part @ block.T for part, block in zip(inputs.split(4, -1), project.weight, strict=True)], -1)
        for project, inputs in ((mixer.query, c), (mixer.key, c), (mixer.value, u))
    )
    add, forget = (gate[0](torch.cat((q, k, v), -1)) for gate in (mixer.add, mixer.forget))
    q, k, v = (in_heads(each, HEADS) for each in (q, k, v))
    cell, normaliser = torch.zeros(2, HEADS, 16, 16, dtype=x.dtype), torch.zeros(2, HEADS, 16, dtype=x.dtype)
    largest, outputs = torch.zeros(2, HEADS, dtype=x.dtype), []
    for t in range(N):
        before, log_keep = largest, F.logsigmoid(forget[:, t])
        largest = torch.maximum(log_keep + before, add[:, t])
        keep, new = (log_keep + before - largest).exp(), (add[:, t] - largest).exp()
        scaled = k[:, t] / 4
        cell = keep[..., None, None] * cell + new[..., None, None] * scaled[..., None] * v[:, t, :, None]
        normaliser = keep[..., None] * normaliser + new[..., None] * scaled
        total = (q[:, t] * normaliser).sum(-1)
        h = torch.einsum("bhk,bhkv->bhv", q[:, t], cell)
        outputs.append(h / (torch.maximum(total.abs(), (-largest).exp()) + 1e-6)[..., None])
    h = torch.stack(outputs, 1).flatten(0, 1).flatten(1)
    h = F.group_norm(h, HEADS, mixer.scale, eps=1e-5).unflatten(0, x.shape[:2])
    expected = mixer.output((h + mixer.skip * c) * F.silu(z))
    assert (mixer(x, context(N))[0] - expected).abs().max() <= within
    assert mixer.scale.tolist() == mixer.skip.tolist() == [1.0] * WIDTH


def test_mlstm_begins_with_the_deviations_of_the_authors():
    torch.manual_seed(0)
    mixer = MLSTM(256, 4, depth=2)
    for weight in (mixer.up.weight, mixer.gate.weight, mixer.query.weight, mixer.key.weight, mixer.value.weight):
        assert weight.std().item() == pytest.approx(math.sqrt(2 / (5 * 256)), rel=0.1)
    assert mixer.output.weight.std().item() == pytest.approx(2 / 2 / math.sqrt(256), rel=0.1)
    assert [each for each in (mixer.up.bias, mixer.gate.bias, mixer.output.bias) if each is not None] == []


@pytest.mark.agrees("slstm", compared="the layer with other recurrent weights than the initial zeros", within=1e-10)
@pytest.mark.parametrize("state_heads", [1, 2, 4])
def test_slstm(state_heads, within):
    """The authors' cell with its running maximum, for all heads at a time."""
    torch.manual_seed(0)
    mixer = SLSTM(WIDTH, BACKBONE_HEADS, causal=True, state_heads=state_heads).double()
    size, x = WIDTH // state_heads, torch.randn(2, N, WIDTH, dtype=torch.float64)
    nn.init.normal_(mixer.recurrent, std=size**-0.5)
    gates, values = (
        torch.stack([part @ block.T for part, block in zip(each.split(size, -1), project.weight, strict=True)], 2)
        for each, project in ((convolved(mixer.filter, x), mixer.gates), (x, mixer.values))
    )
    y, c, n, m = (torch.zeros(2, state_heads, size, dtype=x.dtype) for _ in range(4))
    outputs = []
    for t in range(N):
        from_state = torch.einsum("bhd,hdk->bhk", y, mixer.recurrent)
        raw = torch.cat((gates[:, t], values[:, t]), -1) + from_state + mixer.bias
        i, f, z, o = raw.chunk(4, -1)
        log_keep = m + F.logsigmoid(f)
        m = torch.maximum(i, log_keep) if t else i
        keep, new = (log_keep - m).exp().clamp(max=1), (i - m).exp().clamp(max=1)
        c, n = keep * c + new * z.tanh(), keep * n + new
        y = o.sigmoid() * c / n
        outputs.append(y)
    h = torch.stack(outputs, 1).flatten(0, 1).flatten(1)
    expected = F.group_norm(h, state_heads, mixer.scale, eps=1e-5).unflatten(0, x.shape[:2])
    assert (mixer(x, context(N))[0] - expected).abs().max() <= within
    assert mixer.scale.tolist() == [1.0] * WIDTH


def test_slstm_begins_as_in_the_authors_code():
    """Only biases of forget gates are not zero; their exponent grows from 0.3 in the first to 1.6 in the last layer."""
    torch.manual_seed(0)
    for layer, exponent in ((0, 0.3), (1, 0.95), (2, 1.6)):
        mixer = SLSTM(256, 2, causal=True, layer=layer, depth=3)
        assert mixer.recurrent.abs().max() == 0
        i, f, z, o = mixer.bias.chunk(4, -1)
        assert max(each.abs().max() for each in (i, z, o)) == 0
        expected = 5 - 12 * torch.linspace(0, 1, 128) ** exponent
        assert (f - expected).abs().max() < 1e-5
        for weight in (mixer.gates.weight, mixer.values.weight):
            assert weight.std().item() == pytest.approx(math.sqrt(2 / (5 * 256)), rel=0.05)


@pytest.mark.agrees("mamba", compared="the layer as it begins, with an inner width of its input", within=1e-10)
@pytest.mark.agrees("mamba_negative", compared="the layer as it begins, with an inner width of its input", within=1e-10)
@pytest.mark.parametrize("kind", [Mamba, SignedMamba])
def test_mamba(kind, within):
    mixer, x, y = begin(kind)
    u = convolved(mixer.filter, mixer.value(x))
    low, write, read = (u @ mixer.choice[0]).split((4, 16, 16), -1)
    steps = F.softplus(low @ mixer.step[0] + mixer.step_bias)
    rates = -mixer.log_rate.exp()
    state, outputs = torch.zeros(2, WIDTH, 16, dtype=x.dtype), []
    for t in range(N):
        keep = (steps[:, t, :, None] * rates).exp()
        keep = 2 * keep - 1 if kind is SignedMamba else keep
        state = keep * state + (steps[:, t] * u[:, t])[..., None] * write[:, t, None]
        outputs.append((state * read[:, t, None]).sum(-1) + u[:, t])
    expected = mixer.output(torch.stack(outputs, 1) * F.silu(mixer.gate(x)))
    assert (y - expected).abs().max() <= within
    assert (rates + torch.arange(1, 17)).abs().max() < 1e-5
    assert mixer.filter.bias.abs().max() > 0.4


@pytest.mark.agrees("mamba2", compared="the layer as it begins, with an inner width of its input", within=1e-10)
@pytest.mark.parametrize("kind", [Mamba2, SignedMamba2])
def test_mamba2(kind, within):
    mixer, inputs, y = begin(kind)
    projections = (mixer.query, mixer.key, mixer.value)
    read, write, x = (
        convolved(each, project(inputs)) for each, project in zip(mixer.filters, projections, strict=True)
    )
    x, steps = in_heads(x, HEADS), F.softplus(mixer.step(inputs))
    keep = (-mixer.log_rate.exp() * steps).exp()
    keep = 2 * keep - 1 if kind is SignedMamba2 else keep
    state, outputs = torch.zeros(2, HEADS, 16, 32, dtype=x.dtype), []
    for t in range(N):
        added = (steps[:, t, :, None] * x[:, t])[..., None] * write[:, t, None, None]
        state = keep[:, t, :, None, None] * state + added
        outputs.append((state * read[:, t, None, None]).sum(-1) + x[:, t])
    gated = torch.stack(outputs, 1).flatten(2) * F.silu(mixer.gate(inputs))
    assert (y - mixer.output(rms(gated, 1e-5))).abs().max() <= within
    assert all(each.bias.abs().max() > 0.4 for each in mixer.filters)


@pytest.mark.agrees("log_linear_mamba2", compared="the layer with other scales than the initial ones", within=1e-10)
@pytest.mark.parametrize("length", [1, 30, 200])
def test_log_linear_mamba2(length, within):
    """The authors' recurrent form: a state for each digit of the position, which are merged like a sum with carry."""
    mixer, _, _ = begin(LogLinearMamba2)
    nn.init.normal_(mixer.level_scale)
    inputs = torch.randn(2, length, WIDTH, dtype=torch.float64)
    projections = (mixer.query, mixer.key, mixer.value)
    read, write, x = (
        convolved(each, project(inputs)) for each, project in zip(mixer.filters, projections, strict=True)
    )
    x, steps = in_heads(x, HEADS), F.softplus(mixer.step(inputs))
    keep = (-mixer.log_rate.exp() * steps).exp()
    scales = F.softplus(mixer.level_scale * mixer.level(inputs).unflatten(-1, (HEADS, -1)))
    states, outputs = {}, []
    for t in range(length):
        states = {level: keep[:, t, :, None, None] * state for level, state in states.items()}
        states[0] = (steps[:, t, :, None] * x[:, t])[..., None] * write[:, t, None, None]
        total = sum(scales[:, t, :, level, None, None] * state for level, state in states.items())
        outputs.append((total * read[:, t, None, None]).sum(-1) + x[:, t])
        # Adding one to t clears its lowest ones, whose states are merged into the first free level.
        free = 1 + (~t & (t + 1)).bit_length() - 1
        states[free] = sum(states.pop(level) for level in range(free) if level in states)
    gated = torch.stack(outputs, 1).flatten(2) * F.silu(mixer.gate(inputs))
    assert (mixer(inputs, context(length))[0] - mixer.output(rms(gated, 1e-5))).abs().max() <= within
    assert mixer.levels == 1 + math.ceil(math.log2(1024)) and mixer.level_scale.shape == (HEADS, 11)


@pytest.mark.agrees("lru", compared="the recurrence and the gated output", within=1e-10)
def test_lru(within):
    mixer, x, y = begin(LRU)
    factors = torch.exp(-mixer.log_rate.exp() + 1j * mixer.log_phase.exp())
    inputs = torch.complex(mixer.input.weight[::2], mixer.input.weight[1::2]) * mixer.log_scale.exp()[:, None]
    readout = torch.complex(mixer.readout.weight[:, ::2], -mixer.readout.weight[:, 1::2])
    h, outputs = torch.zeros(2, 32, dtype=torch.complex128), []
    for t in range(N):
        h = factors * h + x[:, t].to(h.dtype) @ inputs.T
        outputs.append((h @ readout.T).real + mixer.skip * x[:, t])
    a, b = mixer.output[1](F.gelu(torch.stack(outputs, 1))).chunk(2, -1)
    assert (y - a * b.sigmoid()).abs().max() <= within


def test_lru_begins_on_a_ring_close_to_the_circle_with_small_phases():
    torch.manual_seed(0)
    factors = LRU(WIDTH, BACKBONE_HEADS).rates()[0]
    assert factors.abs().min() > 0.9 - 1e-6 and factors.abs().max() < 0.999 + 1e-6
    assert factors.angle().min() >= 0 and factors.angle().max() < math.pi / 10 + 1e-6
    assert (factors.abs() > 0.98).sum() >= 4


def test_filters_begin_as_torchs_convolution():
    """Uniform within the inverse root of the number of taps, weights and biases alike."""
    torch.manual_seed(0)
    ours, torchs = ShortFilter(2000, 4, bias=True), nn.Conv1d(2000, 2000, 4, groups=2000)
    for mine, theirs in ((ours.weight, torchs.weight), (ours.bias, torchs.bias)):
        assert mine.std().item() == pytest.approx(theirs.std().item(), rel=0.05)
        assert 0.49 < mine.abs().max() <= 0.5
    assert ShortFilter(4, 4).bias is None


@pytest.mark.parametrize("kind", [RetNet, GatedDeltaNet, Mamba2, MLSTM])
@pytest.mark.parametrize("causal", [False, True])
def test_systems_with_a_decay_per_head_have_at_least_four_heads(kind, causal):
    """From width 64 on; smaller heads than 16 features are made only if the backbone or the option asks for them."""
    directions = 1 if causal else 2
    for width, heads, expected in ((16, 2, 2), (64, 1, 4), (64, 2, 4), (64, 8, 8), (256, 4, 4), (512, 8, 8)):
        mixer = kind(width, heads, causal=causal)
        assert (mixer.state_heads, mixer.streams) == (expected, directions * expected)
        assert mixer.head_dim == width // mixer.streams
    assert kind(64, 2, causal=causal, state_heads=2).state_heads == 2


@pytest.mark.parametrize("kind", [DeltaNet, GLA])
def test_other_systems_have_the_heads_of_the_backbone(kind):
    assert [kind(64, heads).state_heads for heads in (1, 2, 8)] == [1, 2, 8]


@pytest.mark.parametrize("kind", [RetNet, GatedDeltaNet, Mamba2, MLSTM])
def test_heads_are_chosen_among_those_that_divide_the_width(kind):
    """Three heads divide 48; 40 features leave room for two heads of 16; three do not divide 56."""
    found = {width: kind(width, 1, causal=True).state_heads for width in (48, 40, 56)}
    assert found == {48: 3, 40: 2, 56: 2}


def test_gated_delta_net_begins_with_rates_from_0_to_16():
    torch.manual_seed(0)
    rates = GatedDeltaNet(512, 256, causal=True).log_rate.exp()
    assert 0 < rates.min() < 0.5 and 15.5 < rates.max() <= 16 and rates.mean().item() == pytest.approx(8, rel=0.1)


@pytest.mark.agrees("min_gru", compared="the layer in the paper's recurrent form", within=1e-10)
def test_min_gru(within):
    mixer, x, y = begin(MinGRU)
    gate, candidate = mixer.input(x).chunk(2, -1)
    candidate = torch.where(candidate >= 0, candidate + 0.5, candidate.sigmoid())
    h, outputs = torch.zeros_like(gate[:, 0]), []
    for t in range(N):
        z = gate[:, t].sigmoid()
        h = (1 - z) * h + z * candidate[:, t]
        outputs.append(h)
    assert (y - mixer.output(torch.stack(outputs, 1))).abs().max() <= within


@pytest.mark.agrees("min_lstm", compared="the layer in the paper's recurrent form", within=1e-10)
def test_min_lstm(within):
    mixer, x, y = begin(MinLSTM)
    forget, add, candidate = mixer.input(x).chunk(3, -1)
    candidate = torch.where(candidate >= 0, candidate + 0.5, candidate.sigmoid())
    h, outputs = torch.zeros_like(add[:, 0]), []
    for t in range(N):
        f, i = forget[:, t].sigmoid(), add[:, t].sigmoid()
        h = (f * h + i * candidate[:, t]) / (f + i)
        outputs.append(h)
    assert (y - mixer.output(torch.stack(outputs, 1))).abs().max() <= within


def in_log_space(log_factors, log_inputs):
    """Return the states h_t = f_t h_(t−1) + u_t from the logarithms of f and u, (B, N, C)."""
    total = log_factors.cumsum(1)
    return (total + (log_inputs - total).logcumsumexp(1)).exp()


def log_positive(x):
    """Return log(x + 0.5) for x ≥ 0 and log σ(x) for x < 0."""
    return torch.where(x >= 0, (x.relu() + 0.5).log(), -F.softplus(-x))


@pytest.mark.agrees("min_gru", compared="the parallel form without initial state", within=1e-10)
def test_min_gru_in_log_space(within):
    mixer, x, y = begin(MinGRU)
    gate, candidate = mixer.input(x).chunk(2, -1)
    h = in_log_space(-F.softplus(gate), -F.softplus(-gate) + log_positive(candidate))
    assert (y - mixer.output(h)).abs().max() <= within


@pytest.mark.agrees("min_lstm", compared="the parallel form with use_coeff_norm, without initial state", within=1e-10)
def test_min_lstm_in_log_space(within):
    mixer, x, y = begin(MinLSTM)
    forget, add, candidate = mixer.input(x).chunk(3, -1)
    ratio = F.softplus(-forget) - F.softplus(-add)
    h = in_log_space(-F.softplus(ratio), -F.softplus(-ratio) + log_positive(candidate))
    assert (y - mixer.output(h)).abs().max() <= within


def test_decay_rates_are_those_of_the_heads_in_both_directions():
    mixer, x = RetNet(64, 2), torch.zeros(1, 3, 64)
    log_decay, _ = mixer.decays(x, context(3))
    rates = [1 - 2.0 ** (-5 - head) for head in range(4)]
    assert log_decay.exp()[0, :, 0].tolist() == pytest.approx(rates * 2)
