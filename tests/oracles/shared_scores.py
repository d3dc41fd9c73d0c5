"""Attention that shares scores or weights between layers, in a layer that has none below it.

What happens above is the affair of test_shared_scores.
"""

from lra_bench.models.prior.evolving_attention import EvolvingAttention
from lra_bench.models.prior.lazyformer import LazyFormer, LazyMaps
from lra_bench.models.prior.realformer import RealFormer
from tests.oracles.softmax import softmax


def shared(mixer, x, seen):
    _, _, v = mixer.project(x)
    return mixer.merge(softmax(mixer, x, seen) @ v)


ORACLES = {EvolvingAttention: softmax, RealFormer: softmax}
OUTPUTS = {LazyFormer: shared, LazyMaps: shared}
