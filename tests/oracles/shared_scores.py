"""Oracles of attention that shares scores or weights between layers, in the first layer.

Later layers are tested in test_shared_scores.py.
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
