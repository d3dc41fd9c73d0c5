"""One small system for each port of the contracts, so that the port is known to work before a product needs it."""

import torch
from torch import nn

from lra_bench.models.kernels.linear import linear_attention
from lra_bench.models.kernels.softmax import softmax_attention
from lra_bench.models.mixer import HeadMixer, Mixer, MixerSpec


def declare(**claims):
    return MixerSpec(family="test", paper="a test system", **claims)


class Remembering(HeadMixer):
    """Causal linear attention whose sums go on from batch to batch: a memory of which zeros are the empty one."""

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
    """Attends by the sum of all layers' scores: queries and keys travel from layer to layer (as RealFormer's)."""

    spec = declare(carries=("accumulating",))

    def forward(self, x, context):
        q, k, v = self.project(x)
        earlier = context.carry.get("accumulating", ())
        so_far = (*earlier, (q, k))
        q, k = (torch.cat(parts, -1) for parts in zip(*so_far, strict=True))
        o = softmax_attention(q, k, v, padding=context.padding, scale=self.head_dim**-0.5)
        return self.merge(o), context.hand_on("accumulating", so_far)


class Relay(HeadMixer):
    """Tokens see the relay rows and themselves, relay rows see everything (as Star-Transformer's)."""

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
    """Subtracts a running mean that it reports in forward and moves in ``after_step``."""

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
    """Returns a named loss beside its output."""

    spec = declare()

    def __init__(self, width, heads, **common):
        super().__init__(width, heads, **common)
        self.linear = nn.Linear(width, width)

    def forward(self, x, context):
        y = self.linear(x)
        return y, context.add_loss("size", 0.1 * y.square().mean())


class SelfContained(Mixer):
    """A whole block of its own: the backbone adds no residual, norm or feed-forward."""

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
    """Takes rows up to the longest it was built for."""

    spec = declare(length="maximum")


class Fixed(BothWays):
    """Takes rows of one length only."""

    spec = declare(length="fixed")
