"""Full attention."""

from lra_bench.models.full.softmax_attention import SoftmaxAttention

from .softmax import softmax

ORACLES = {SoftmaxAttention: softmax}
