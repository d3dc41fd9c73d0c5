"""Oracles of systems with memory: which tokens a token may attend to, from the definition of segments."""

import torch

from lra_bench.models.memory.transformer_xl import TransformerXL
from tests.oracles.softmax import scores, softmax_of


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


OUTPUTS = {TransformerXL: transformer_xl}
SMALL = {"transformer_xl": {"segment": 8, "memory": 12}}
