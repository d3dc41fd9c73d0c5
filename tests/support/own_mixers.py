"""Mixers as users write them outside the package: thirty that do what they declare, and broken ones."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from lra_bench.contracts import Output
from lra_bench.models.kernels.softmax import softmax_attention
from lra_bench.models.mixer import HeadMixer, Mixer, MixerSpec


def spec(**claims):
    return MixerSpec(family="own", paper="of a user", **claims)


CAUSAL = {"causal": "exact", "bidirectional": False}
QUADRATIC = {"growth": 2.0, "materialises": "maps"}


def zeroed(x, context):
    """Set padding of x (B, N, ...) or of heads (B, H, N, D) to zero."""
    if context.padding is None:
        return x
    return context.padding.zero_heads(x) if x.dim() == 4 else context.padding.zero(x)


def hidden_keys(scores, context):
    return scores if context.padding is None else scores.masked_fill(~context.padding.key_mask(), -torch.inf)


def causal_mask(n):
    return torch.ones(n, n, dtype=torch.bool).tril()


class DropsWeights(HeadMixer):
    spec = spec(**QUADRATIC)

    def attend(self, q, k, v, context):
        weights = hidden_keys(q @ k.mT, context).softmax(-1).nan_to_num()
        return F.dropout(weights, self.drop_rate, self.training) @ v


class DropsOutput(HeadMixer):
    spec = spec(equivariant=True)

    def __init__(self, width, heads, **common):
        super().__init__(width, heads, **common)
        self.drop = nn.Dropout(0.5)

    def attend(self, q, k, v, context):
        return self.drop(q.sigmoid() * v)


class FixedRandomFeatures(HeadMixer):
    spec = spec(stochastic=True)

    def __init__(self, width, heads, *, features=16, **common):
        super().__init__(width, heads, **common)
        generator = torch.Generator().manual_seed(self.seed)
        self.register_buffer("directions", torch.randn(self.head_dim, features, generator=generator))

    def attend(self, q, k, v, context):
        q, k = (x @ self.directions for x in (q, k))
        q, k = q.exp(), zeroed(k.exp(), context)
        return q @ (k.mT @ v) / (q @ k.sum(2, keepdim=True).mT + 1e-6)


class DrawnRandomFeatures(FixedRandomFeatures):
    def attend(self, q, k, v, context):
        directions = torch.randn(self.head_dim, 16, dtype=q.dtype)
        q, k = (q @ directions).cos(), zeroed((k @ directions).cos(), context)
        return q @ (k.mT @ v) / 16


class Sorts(HeadMixer):
    spec = spec()

    def attend(self, q, k, v, context):
        scores = k.mean(-1)
        if context.padding is not None:
            scores = scores.masked_fill(~context.padding.valid[:, None], torch.inf)
        order = scores.argsort(dim=-1, stable=True)[..., None].expand_as(v)
        sums = zeroed(v, context).gather(2, order).cumsum(2)
        return q.sigmoid() * torch.zeros_like(v).scatter(2, order, sums) / v.shape[1]


class Fourier(Mixer):
    spec = spec(padding="content")

    def __init__(self, width, heads, **common):
        super().__init__(width, heads, **common)
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x, context):
        return self.scale * torch.fft.fft(zeroed(x, context).float(), dim=1, norm="ortho").real.to(x.dtype), context


class CausalFourier(Mixer):
    spec = spec(**CAUSAL)

    def __init__(self, width, heads, **common):
        super().__init__(width, heads, **common)
        self.decay = nn.Parameter(torch.rand(width))

    def forward(self, x, context):
        n = x.shape[1]
        kernel = torch.exp(-self.decay.abs() * torch.arange(n, dtype=x.dtype)[:, None])
        product = torch.fft.rfft(kernel, 2 * n, dim=0) * torch.fft.rfft(x, 2 * n, dim=1)
        return torch.fft.irfft(product, 2 * n, dim=1)[:, :n], context


class ComplexStateSpace(Mixer):
    spec = spec(**CAUSAL)

    def __init__(self, width, heads, *, states=4, **common):
        super().__init__(width, heads, **common)
        poles = -torch.rand(width, states) + 1j * math.pi * torch.arange(states)
        self.poles, self.mix = nn.Parameter(poles), nn.Parameter(torch.randn(width, states, dtype=torch.complex64))

    def forward(self, x, context):
        n = x.shape[1]
        powers = torch.exp(self.poles[..., None] * torch.arange(n) / 16)
        kernel = (self.mix[..., None] * powers).sum(1).real
        product = torch.fft.rfft(kernel, 2 * n) * torch.fft.rfft(x.mT, 2 * n)
        return torch.fft.irfft(product, 2 * n)[..., :n].mT.to(x.dtype), context


class TopKeys(HeadMixer):
    """Keys with the largest rounded scores, among which there are ties."""

    spec = spec(**QUADRATIC)

    def attend(self, q, k, v, context):
        scores = hidden_keys((q @ k.mT).round(), context)
        least = scores.topk(min(4, scores.shape[-1]), dim=-1).values[..., -1:]
        return scores.masked_fill(scores < least, -torch.inf).softmax(-1).nan_to_num() @ v


class HalfPrecision(HeadMixer):
    spec = spec(causal="exact", **QUADRATIC)

    def attend(self, q, k, v, context):
        scores = hidden_keys((q.bfloat16() @ k.bfloat16().mT).float(), context)
        if self.causal:
            scores = scores.masked_fill(~causal_mask(q.shape[2]), -torch.inf)
        return (scores.softmax(-1).nan_to_num().bfloat16() @ v.bfloat16()).to(v.dtype)


class SinglePrecision(HeadMixer):
    spec = spec()

    def attend(self, q, k, v, context):
        weights = zeroed(k.float().exp(), context)
        return (
            q.float().sigmoid() * (weights * v.float()).sum(2, keepdim=True) / (weights.sum(2, keepdim=True) + 1)
        ).to(v.dtype)


class Float32Inside(Mixer):
    """Multiplies with a float32 tensor, so that float64 weights are not supported."""

    spec = spec()

    def __init__(self, width, heads, **common):
        super().__init__(width, heads, **common)
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x, context):
        return self.scale * (x @ torch.eye(self.width)), context


class Standardises(Mixer):
    """Statistics of the batch in training, running ones afterwards, updated after each step."""

    spec = spec()

    def __init__(self, width, heads, **common):
        super().__init__(width, heads, **common)
        self.scale = nn.Parameter(torch.ones(width))
        self.register_buffer("mean", torch.zeros(width))

    def forward(self, x, context):
        valid = torch.ones_like(x[..., :1]) if context.padding is None else context.padding.valid[..., None]
        mean = zeroed(x, context).sum((0, 1)) / valid.sum().clamp(min=1) if self.training else self.mean
        return self.scale * (x - mean), context.report(self, mean=mean)

    def after_step(self, step, statistics):
        self.mean += 0.1 * (statistics["mean"] - self.mean)


class Recurrent(Mixer):
    spec = spec(**CAUSAL)

    def __init__(self, width, heads, **common):
        super().__init__(width, heads, **common)
        self.network = nn.GRU(width, width, batch_first=True)

    def forward(self, x, context):
        return self.network(x)[0], context


class Loop(Mixer):
    spec = spec(**CAUSAL)

    def __init__(self, width, heads, **common):
        super().__init__(width, heads, **common)
        self.gate = nn.Linear(width, width)

    def forward(self, x, context):
        state, states, gates = torch.zeros_like(x[:, 0]), [], self.gate(x).sigmoid()
        for t in range(x.shape[1]):
            state = gates[:, t] * state + (1 - gates[:, t]) * x[:, t]
            states.append(state)
        return torch.stack(states, 1), context


class CumulativeAttention(HeadMixer):
    spec = spec(**CAUSAL)

    def attend(self, q, k, v, context):
        q, k = F.elu(q) + 1, F.elu(k) + 1
        sums = (k[..., :, None] * v[..., None, :]).cumsum(2)
        return torch.einsum("bhnd,bhnde->bhne", q, sums) / (q * k.cumsum(2)).sum(-1, keepdim=True)


class Fused(HeadMixer):
    spec = spec(growth=2.0, **CAUSAL)

    def attend(self, q, k, v, context):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class FusedWithPadding(HeadMixer):
    spec = spec(growth=2.0, materialises="rows")

    def attend(self, q, k, v, context):
        return softmax_attention(q, k, v, padding=context.padding)


class Maps(HeadMixer):
    spec = spec(causal="exact", **QUADRATIC)

    def attend(self, q, k, v, context):
        scores = hidden_keys(q @ k.mT, context)
        if self.causal:
            scores = scores.masked_fill(~causal_mask(q.shape[2]), -1e9)
        return scores.softmax(-1).nan_to_num() @ v


class Distances(HeadMixer):
    spec = spec(causal="exact", **QUADRATIC)

    def attend(self, q, k, v, context):
        weights = torch.exp(-torch.cdist(q, k))
        weights = weights.tril() if self.causal else weights
        return weights @ zeroed(v, context) / q.shape[-1] if self.causal else weights @ zeroed(v, context)


class Convolution(Mixer):
    spec = spec(causal="exact")

    def __init__(self, width, heads, *, kernel=5, **common):
        super().__init__(width, heads, **common)
        self.kernel, self.filter = kernel, nn.Conv1d(width, width, kernel, groups=width)

    def forward(self, x, context):
        before = self.kernel - 1 if self.causal else self.kernel // 2
        x = F.pad(zeroed(x, context).mT, (before, self.kernel - 1 - before))
        return self.filter(x).mT, context


class ShiftsTokens(Mixer):
    spec = spec(**CAUSAL)

    def __init__(self, width, heads, **common):
        super().__init__(width, heads, **common)
        self.weight = nn.Linear(2 * width, width)

    def forward(self, x, context):
        return self.weight(torch.cat((x, F.pad(x, (0, 0, 1, 0))[:, :-1]), -1)), context


class BlockMeans(HeadMixer):
    """Attention to the tokens of the own block of 16, padded inside."""

    spec = spec()

    def attend(self, q, k, v, context):
        n, more = q.shape[2], -q.shape[2] % 16
        valid = q.new_ones(len(q), n, dtype=torch.bool) if context.padding is None else context.padding.valid
        q, k, v = (F.pad(x, (0, 0, 0, more)).unflatten(2, (-1, 16)) for x in (q, k, v))
        seen = F.pad(valid, (0, more)).unflatten(1, (-1, 16))[:, None, :, None]
        weights = (q @ k.mT).masked_fill(~seen, -torch.inf).softmax(-1).nan_to_num()
        return (weights @ v).flatten(2, 3)[:, :, :n]


class EarlierBlocks(HeadMixer):
    """Mean of the values of all earlier blocks of 8, causal."""

    spec = spec(**CAUSAL)

    def attend(self, q, k, v, context):
        n, more = v.shape[2], -v.shape[2] % 8
        sums = F.pad(v, (0, 0, 0, more)).unflatten(2, (-1, 8)).sum(3).cumsum(2)
        before = F.pad(sums, (0, 0, 1, 0))[:, :, :-1].repeat_interleave(8, 2)[:, :, :n]
        return q.sigmoid() * before / (1 + torch.arange(n))[:, None] + v


class SquareRootBlocks(HeadMixer):
    """Attention inside blocks of about the square root of N."""

    spec = spec(growth=1.5, materialises="rows", padding="content")

    def attend(self, q, k, v, context):
        n = q.shape[2]
        size = math.isqrt(n - 1) + 1
        more = -n % size
        k = k if context.padding is None else k.masked_fill(~context.padding.valid[:, None, :, None], 0)
        q, k, v = (F.pad(x, (0, 0, 0, more)).unflatten(2, (-1, size)) for x in (q, k, zeroed(v, context)))
        return (((q @ k.mT) / size) @ v).flatten(2, 3)[:, :, :n]


class LearnedQueries(HeadMixer):
    spec = spec(equivariant=True)

    def __init__(self, width, heads, *, slots=4, **common):
        super().__init__(width, heads, **common)
        self.slots = nn.Parameter(torch.randn(heads, slots, self.head_dim))

    def attend(self, q, k, v, context):
        summary = hidden_keys(self.slots @ k.mT, context).softmax(-1).nan_to_num() @ v
        return (q @ self.slots.mT).softmax(-1) @ summary


class FixedLength(Mixer):
    spec = spec(length="fixed", padding="content", growth=2.0, materialises="parameters")

    def __init__(self, width, heads, **common):
        super().__init__(width, heads, **common)
        self.mix = nn.Parameter(torch.randn(self.max_length, self.max_length) / self.max_length)

    def forward(self, x, context):
        return self.mix @ zeroed(x, context), context


class LearnedFilter(Mixer):
    spec = spec(length="maximum", **CAUSAL)

    def __init__(self, width, heads, **common):
        super().__init__(width, heads, **common)
        self.weights = nn.Parameter(torch.randn(self.max_length, width))

    def forward(self, x, context):
        return (self.weights[: x.shape[1]] * x).cumsum(1) / x.shape[1] ** 0, context


class ZeroAtFirst(HeadMixer):
    spec = spec(**CAUSAL)

    def __init__(self, width, heads, **common):
        super().__init__(width, heads, **common)
        self.alpha = nn.Parameter(torch.zeros(()))

    def attend(self, q, k, v, context):
        return self.alpha * q.sigmoid() * v.cumsum(2)


class CumulativeMaximum(Mixer):
    spec = spec(**CAUSAL)

    def __init__(self, width, heads, **common):
        super().__init__(width, heads, **common)
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x, context):
        return self.scale * x.cummax(1).values, context


class MeanOfAll(Mixer):
    spec = spec(padding="none")

    def __init__(self, width, heads, **common):
        super().__init__(width, heads, **common)
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x, context):
        return self.scale * x.mean(1, keepdim=True).expand_as(x), context


class Carries(HeadMixer):
    spec = spec(carries=("own",))

    def forward(self, x, context):
        q, k, v = self.project(x)
        v = v + context.carry.get("own", 0)
        return self.merge(q.sigmoid() * k * v), context.with_carry("own", v)


class HasLoss(HeadMixer):
    spec = spec()

    def forward(self, x, context):
        q, k, v = self.project(x)
        return self.merge(q.sigmoid() * k * v), context.add_loss("small", 1e-3 * zeroed(q, context).square().mean())


class Streams(Mixer):
    """Exponential mean that continues from batch to batch of a stream."""

    spec = spec(memory=True, **CAUSAL)

    def __init__(self, width, heads, **common):
        super().__init__(width, heads, **common)
        self.rate = nn.Parameter(torch.zeros(width))

    def forward(self, x, context):
        state = torch.zeros_like(x[:, 0]) if context.memory is None else context.memory["state"]
        valid = x.new_ones(x.shape[:2]) if context.padding is None else context.padding.valid.to(x.dtype)
        rate, states = self.rate.sigmoid(), []
        for t in range(x.shape[1]):
            state = torch.where(valid[:, t, None] > 0, rate * state + x[:, t], state)
            states.append(state)
        return torch.stack(states, 1), context.replace(memory={"state": state})


class FrozenFilter(HeadMixer):
    spec = spec()

    def __init__(self, width, heads, **common):
        super().__init__(width, heads, **common)
        self.filter = nn.Parameter(torch.randn(self.head_dim), requires_grad=False)

    def attend(self, q, k, v, context):
        return self.filter * q.sigmoid() * k * v


RIGHT = [
    *(DropsWeights, DropsOutput, FixedRandomFeatures, DrawnRandomFeatures, Sorts, Fourier, CausalFourier),
    *(ComplexStateSpace, TopKeys, HalfPrecision, SinglePrecision, Float32Inside, Standardises, Recurrent, Loop),
    *(CumulativeAttention, Fused, FusedWithPadding, Maps, Distances, Convolution, ShiftsTokens, BlockMeans),
    *(EarlierBlocks, SquareRootBlocks, LearnedQueries, FixedLength, LearnedFilter, ZeroAtFirst, CumulativeMaximum),
    *(MeanOfAll, Carries, HasLoss, Streams, FrozenFilter),
]


class ReadsNextToken(HeadMixer):
    spec = spec(**CAUSAL)

    def attend(self, q, k, v, context):
        return q.sigmoid() * F.pad(v, (0, 0, 0, 1))[:, :, 1:]


class ReadsPadding(HeadMixer):
    spec = spec()

    def attend(self, q, k, v, context):
        return q.sigmoid() * v.mean(2, keepdim=True)


class MixesRows(HeadMixer):
    spec = spec()

    def attend(self, q, k, v, context):
        return q.sigmoid() * (v - v.mean(0, keepdim=True))


class StoresMaps(HeadMixer):
    spec = spec(growth=2.0)

    def attend(self, q, k, v, context):
        return hidden_keys(q @ k.mT, context).softmax(-1).nan_to_num() @ v


class GrowsFaster(HeadMixer):
    spec = spec(growth=1.0, **CAUSAL)

    def attend(self, q, k, v, context):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class Forgets(Streams):
    def forward(self, x, context):
        y, after = super().forward(x, context.replace(memory=None))
        return y, after


class ChangesBuffers(Mixer):
    spec = spec()

    def __init__(self, width, heads, **common):
        super().__init__(width, heads, **common)
        self.norm = nn.BatchNorm1d(width)

    def forward(self, x, context):
        return self.norm(x.mT).mT, context


class RandomAtTest(HeadMixer):
    spec = spec()

    def attend(self, q, k, v, context):
        ChangingState.calls += 1
        return q.sigmoid() * v * (1 + ChangingState.calls % 2)


class ChangingState:
    calls = 0


class Detached(HeadMixer):
    spec = spec(**CAUSAL)

    def forward(self, x, context):
        y, context = super().forward(x.detach(), context)
        return y, context

    def attend(self, q, k, v, context):
        return q.sigmoid() * v.cumsum(2).detach()


class UsesSeed(FixedRandomFeatures):
    spec = spec()


class Ordered(ShiftsTokens):
    spec = spec(padding="content", equivariant=True)


class NeedsBlocks(HeadMixer):
    spec = spec()

    def attend(self, q, k, v, context):
        return q.sigmoid() * v if v.shape[2] == 37 else v.unflatten(2, (-1, 2)).flatten(2, 3)


class OneKind(nn.Module):
    """A network without declarations that supports tokens of one kind of task; ``shift`` reads later tokens."""

    def __init__(self, *, spec, kind, shift=0):
        super().__init__()
        self.kind, self.shift = kind, shift
        self.table = nn.Embedding(spec.vocabulary_size, 8)
        self.head = nn.Linear(8, spec.classes)

    def forward(self, batch, memory=None):
        x = self.table(batch.tokens).roll(-self.shift, 1)
        return Output(self.head(x.mean(1) if self.kind == "classification" else x))


BROKEN = {
    ReadsNextToken: "future tokens",
    ReadsPadding: "content of padding",
    MixesRows: "batch",
    StoresMaps: "storage",
    GrowsFaster: "growth",
    Forgets: "state",
    ChangesBuffers: "buffers",
    RandomAtTest: "determinism",
    NeedsBlocks: "lengths",
    UsesSeed: "seed",
    Ordered: "permutation",
}
"""The finding that is wrong for each broken mixer, perhaps among others."""
