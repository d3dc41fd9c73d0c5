"""Oracles of systems with memory: which tokens a token may attend to, from the definition of segments."""

import torch

from lra_bench.models.memory.compressive import Compressive
from lra_bench.models.memory.memorizing import Memorizing
from lra_bench.models.memory.transformer_xl import TransformerXL
from tests.oracles.softmax import positioned_scores, scores, softmax_of


def reach(length, segment, memory):
    """Return whether token i may attend to token j, (N, N), up to the end of the segment of i."""
    places = torch.arange(length)
    starts = places // segment * segment
    return (places >= starts[:, None] - memory) & (places < starts[:, None] + segment)


def transformer_xl(mixer, x, seen):
    """Compute full attention with the scores of tokens outside the memory and the segment removed."""
    allowed = reach(x.shape[1], mixer.segment, mixer.memory_length)
    if mixer.same_length:
        places = torch.arange(x.shape[1])
        allowed = places[:, None] - places < mixer.memory_length
    _, _, v = mixer.project(x)
    weights = softmax_of(scores(mixer, x), seen & allowed)
    return mixer.merge(weights @ v.repeat_interleave(mixer.heads // mixer.kv_heads, 1))


def compressive(mixer, x, seen):
    """Attend to all tokens and to all slots, each a token at the end of its span, with those out of reach removed.

    Only for compressions whose slots depend on the states of their own span alone.
    """
    length, rate = x.shape[1], mixer.rate
    places = torch.arange(length)
    starts = places // mixer.segment * mixer.segment
    made = ((starts - mixer.states).clamp(min=0) // rate)[:, None]
    of_tokens = (places >= made * rate) & (places < starts[:, None] + mixer.segment)
    ends, blocks = places % rate == rate - 1, places // rate
    of_slots = ends & (blocks < made) & (blocks >= made - mixer.compressed)

    summaries = torch.zeros_like(x)
    whole = length // rate * rate
    if whole:
        summaries[:, :whole][:, rate - 1 :: rate] = mixer.compress(x[:, :whole])
    (q, k, v), (_, slot_k, slot_v) = mixer.project(x), mixer.project(summaries)
    pairs = [positioned_scores(mixer, q, each, q, each, mixer.head_dim**-0.5) for each in (k, slot_k)]
    allowed = torch.cat(torch.broadcast_tensors(seen & of_tokens, of_slots.expand_as(seen)), -1)
    return mixer.merge(softmax_of(torch.cat(pairs, -1), allowed) @ torch.cat((v, slot_v), 2))


def memorizing(mixer, x, seen):
    """Compute both attentions with all scores: those of the local window, and the largest of older tokens."""
    q, k, v = mixer.project(x)
    if mixer.qk_norm:
        q, k = (each / each.norm(dim=-1, keepdim=True) for each in (q, k))
        q = q * mixer.head_dim * mixer.temperature[:, None, None]
    sharing = mixer.heads // mixer.kv_heads
    values = v.repeat_interleave(sharing, 1)
    scale = mixer.head_dim**-0.5
    near = reach(x.shape[1], mixer.segment, mixer.cache)
    far = reach(x.shape[1], mixer.segment, mixer.memory_length) & ~near
    # The memory receives no gradient.
    far_scores = (q @ k.detach().repeat_interleave(sharing, 1).mT * scale).masked_fill(~far, -torch.inf)
    ranks = far_scores.argsort(-1, descending=True).argsort(-1)
    chosen = far & (ranks < mixer.neighbours)
    scores = positioned_scores(mixer, q, k, q, k, scale)
    if mixer.joint:
        weights = softmax_of(torch.where(chosen, far_scores, scores), chosen | (seen & near))
        return mixer.merge((weights * chosen) @ values.detach() + (weights * ~chosen) @ values)
    gate = mixer.gate.sigmoid()[:, None, None] * chosen.any(-1, keepdim=True)
    memory = softmax_of(far_scores, chosen) @ values.detach()
    return mixer.merge(gate * memory + (1 - gate) * (softmax_of(scores, seen & near) @ values))


OUTPUTS = {TransformerXL: transformer_xl, Compressive: compressive, Memorizing: memorizing}
SMALL = {
    "transformer_xl": {"segment": 8, "memory": 12},
    "memorizing": {"segment": 8, "memory": 30, "cache": 2, "neighbours": 5},
    "compressive": {"segment": 8, "memory": 6, "compressed": 5, "rate": 3, "bptt": True},
}
