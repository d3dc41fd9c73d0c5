"""Small mixers for tests, each of which uses one interface between backbone and mixers."""

import torch
from torch import nn

from lra_bench.models.kernels.linear import linear_attention
from lra_bench.models.kernels.softmax import softmax_attention
from lra_bench.models.mixer import HeadMixer, Mixer, MixerSpec


def declare(**claims):
    return MixerSpec(family="test", paper="a test system", **claims)


class Remembering(HeadMixer):
    """Causal linear attention whose sums are passed from batch to batch; zeros are the empty memory."""

    spec = declare(bidirectional=False, causal="exact", memory=True)

    def forward(self, x, context):
        q, k, v = self.project(x)
        q, k = q.exp(), k.exp()
        if context.padding is not None:
            k = context.padding.zero_heads(k)
        values = torch.cat((v, torch.ones_like(v[..., :1])), -1)
        memory = context.memory
        before = memory["sums"] if memory is not None else k.new_zeros(*k.shape[:2], k.shape[-1], values.shape[-1])
        summed = (q @ k.mT).tril() @ values + q @ before
        after = {"sums": before + k.mT @ values}
        return self.merge(summed[..., :-1] / summed[..., -1:]), context.replace(memory=after)


class Accumulating(HeadMixer):
    """Attention with the sum of all layers' scores, for which queries and keys are carried along, as in RealFormer."""

    spec = declare(carries=("accumulating",))

    def forward(self, x, context):
        q, k, v = self.project(x)
        earlier = context.carry.get("accumulating", ())
        so_far = (*earlier, (q, k))
        q, k = (torch.cat(parts, -1) for parts in zip(*so_far, strict=True))
        o = softmax_attention(q, k, v, padding=context.padding, scale=self.head_dim**-0.5)
        return self.merge(o), context.with_carry("accumulating", so_far)


class Relay(HeadMixer):
    """Tokens attend to themselves and to relay rows, relay rows to all positions, as in Star-Transformer."""

    spec = declare()

    def __init__(self, width, heads, *, relays=2, **common):
        super().__init__(width, heads, **common)
        self.relays = relays
        if self.layer == 0:
            self.start = nn.Parameter(torch.randn(relays, width))

    def prefix_rows(self, x, context):
        return self.start.expand(x.shape[0], -1, -1)

    def attend(self, q, k, v, context):
        n = q.shape[2]
        assert context.prefix >= self.relays
        visible = torch.eye(n, dtype=torch.bool)
        visible[: self.relays] = True
        visible[:, : self.relays] = True
        return softmax_attention(q, k, v, padding=context.padding, visible=visible)


class Centring(Mixer):
    """Subtracts a running mean, which is reported in ``forward`` and updated in ``after_step``."""

    spec = declare()

    def __init__(self, width, heads, **common):
        super().__init__(width, heads, **common)
        self.scale = nn.Parameter(torch.ones(width))
        self.register_buffer("mean", torch.zeros(width))

    def forward(self, x, context):
        real = x if context.padding is None else context.padding.zero(x)
        count = x.new_tensor(x.shape[0] * x.shape[1]) if context.padding is None else context.padding.lengths.sum()
        context = context.report(self, total=real.sum((0, 1)), count=count)
        return (x - self.mean) * self.scale, context

    def after_step(self, step, statistics):
        if statistics:
            self.mean.lerp_(statistics["total"] / statistics["count"], 0.5)


class Penalised(Mixer):
    """Returns a named auxiliary loss in addition to its output."""

    spec = declare()

    def __init__(self, width, heads, **common):
        super().__init__(width, heads, **common)
        self.linear = nn.Linear(width, width)

    def forward(self, x, context):
        y = self.linear(x)
        return y, context.add_loss("size", 0.1 * y.square().mean())


class SelfContained(Mixer):
    """A self-contained block, to which the backbone adds no residual, norm or feed-forward."""

    spec = declare(block="self_contained")

    def forward(self, x, context):
        return 2 * x, context


class OneWay(HeadMixer):
    """Causal only."""

    spec = declare(bidirectional=False, causal="exact")

    def attend(self, q, k, v, context):
        return linear_attention(q.exp(), k.exp(), v, causal=True)


class BothWays(HeadMixer):
    """Bidirectional only."""

    spec = declare()

    def attend(self, q, k, v, context):
        return softmax_attention(q, k, v, padding=context.padding)


class Bounded(BothWays):
    """Accepts sequences up to ``max_length``."""

    spec = declare(length="maximum")


class Fixed(BothWays):
    """Accepts sequences of length ``max_length`` only."""

    spec = declare(length="fixed")
