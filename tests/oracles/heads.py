"""Oracles of attention whose heads share or mix parameters, or differ in span."""

import torch

from lra_bench.models.heads.adaptive_span import AdaptiveSpan
from lra_bench.models.heads.collaborative import CollaborativeHeads
from lra_bench.models.heads.dynamic_span import DynamicSpan
from lra_bench.models.heads.multiscale import MultiScale
from lra_bench.models.heads.talking_heads import TalkingHeads
from tests.oracles.positions import distances, rotated_products
from tests.oracles.softmax import heads_of, positioned_scores, scores, softmax, softmax_of

SMALL = {
    "multiscale": {"scales": [2, 9]},
    "adaptive_span": {"span": 24, "initial_span": 12, "ramp": 7},
    "adaptive_span_dynamic": {"span": 24, "initial_span": 12, "ramp": 7},
}


def talking(mixer, x, seen):
    """Mix the matrices of scores and of weights over heads."""
    rotary = mixer.position is not None and mixer.position.name == "rope"
    q, k = heads_of(mixer, x)
    products = rotated_products(q, k) if rotary else q @ k.mT
    mixed = torch.einsum("bhij,hs->bsij", products, mixer.mix_scores) * mixer.head_dim**-0.5
    weights = softmax_of(mixed if rotary else positioned_scores(mixer, q, k, scores=mixed), seen)
    return torch.einsum("bsij,sh->bhij", weights, mixer.mix_weights)


def collaborative(mixer, x, seen):
    """Compute one head at a time, each from all channels of the shared space."""
    q, k = x @ mixer.query.weight.T, x @ mixer.key.weight.T
    width = mixer.query.out_features / mixer.heads
    scores_of_heads = []
    for head in range(mixer.heads):
        products = torch.einsum("bic,c,bjc->bij", q, mixer.mixing[head], k)
        scores_of_heads.append((products + (x @ mixer.content.weight[head])[:, None]) / width**0.5)
    like = x.new_zeros(x.shape[0], mixer.heads, x.shape[1], 1)  # positions only read its shape here
    return softmax_of(positioned_scores(mixer, like, like, scores=torch.stack(scores_of_heads, 1)), seen)


def scales(mixer, x, seen):
    windows = torch.tensor([scale for scale, count in mixer.runs for _ in range(count)])
    return softmax(mixer, x, seen & (distances(x[:, None]).abs() <= windows[:, None, None]))


def ramped(mixer, x, seen, spans):
    """Multiply the exponentials of the scores by the ramp before they are normalised."""
    ramp = ((mixer.ramp + spans - distances(x[:, None]).abs()) / mixer.ramp).clamp(0, 1)
    logits = scores(mixer, x).masked_fill(~seen, -torch.inf)
    weights = (logits - logits.amax(-1, keepdim=True).clamp(min=-1e300)).exp() * ramp
    return weights / weights.sum(-1, keepdim=True).clamp(min=1e-300)


def of_heads(mixer, x, seen):
    return ramped(mixer, x, seen, (mixer.share.clamp(min=0) * mixer.span)[:, None, None])


def of_tokens(mixer, x, seen):
    spans = mixer.span * torch.sigmoid(x @ mixer.share.weight.T + mixer.share.bias)
    _, _, v = mixer.project(x)
    return mixer.merge(
        ramped(mixer, x, seen, spans.mT[..., None]) @ v.repeat_interleave(mixer.heads // mixer.kv_heads, 1)
    )


ORACLES = {
    TalkingHeads: talking,
    CollaborativeHeads: collaborative,
    MultiScale: scales,
    AdaptiveSpan: of_heads,
}
OUTPUTS = {DynamicSpan: of_tokens}
