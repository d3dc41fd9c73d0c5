"""Oracles of systems with memory: which tokens a token may attend to, from the definition of segments."""

import torch

from lra_bench.models.memory.compressive import Compressive
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


OUTPUTS = {TransformerXL: transformer_xl, Compressive: compressive}
SMALL = {
    "transformer_xl": {"segment": 8, "memory": 12},
    "compressive": {"segment": 8, "memory": 6, "compressed": 5, "rate": 3, "bptt": True},
}
