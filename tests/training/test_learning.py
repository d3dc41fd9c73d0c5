"""Which of the first systems learn recall and copy within a minute of one core, and what keeps the others from it.

Rows have 64 tokens; recall has 4 pairs of 32 symbols, copy an alphabet of 16. A recall that stays at one in four knows
which values were shown, and not which key each belongs to.
"""

import pytest

from tests.support.learning import SECONDS, learn
from tests.support.mixer_cases import NODES

OPTIONS = [
    "protocol=quick",
    "train.lr=3e-3",
    "train.betas=[0.9,0.95]",
    "train.steps=100000",
    "task.rows.train=50000",
    "task.rows.validation=500",
]
# Recall has one head (conf/recipe/quick_recall.yaml). Systems whose weights are blunt learn it causally, where few
# tokens compete for a weight: in both directions linear needs 12,000 steps, causally 700. Block systems have blocks for
# rows of 64; scores of another size want another rate; Longformer's steps are slow and end the better for a rate that
# falls.
CAUSAL = "backbone.causal=true"
OWN = {
    "cosformer": [CAUSAL],
    "gqa": ["backbone.heads=2", "model.mixer.kv_heads=1"],
    "linear": [CAUSAL],
    "longformer": ["train.steps=1400", "train.schedule=linear"],
    "luna": ["model.mixer.packed=16"],
    "rfa": [CAUSAL, "train.lr=1e-3", "train.betas=[0.9,0.99]"],
    "score_bilinear": ["train.lr=2e-3", "train.betas=[0.9,0.999]"],
    "score_dot": [CAUSAL, "train.lr=1e-3", "backbone.head_dim=16"],
    "score_reduced": ["train.lr=2e-3", "train.steps=1700", "train.schedule=linear"],
    "sinkhorn": ["model.mixer.block=32"],
    "sinkhorn_bilinear": ["model.mixer.block=32"],
    "sparse_fixed": ["model.mixer.stride=8", "model.mixer.summary=4"],
    "sparse_strided": ["model.mixer.stride=32", "model.mixer.combine=merged"],
}
# Its gate must first learn to keep: the faster rate does so on copy, and is too fast for recall.
ON_RECALL = {"rfa_gated": ["train.lr=2e-3"]}
LEARN_BOTH = [
    *("transformer", "transformer_modern", "mqa", "gqa", "score_dot", "score_bilinear", "score_reduced"),
    *("local", "block_local", "longformer", "bigbird", "sparse_fixed", "sparse_strided", "sinkhorn"),
    *("sinkhorn_bilinear", "linear", "cosformer", "rfa", "rfa_gated", "luna", "linformer", "nystrom"),
]
# Copy alone: what stands against recall, and in brackets what was reached in a minute.
COPY_ALONE = {
    "fnet": "mixes by place, whatever tokens hold (one in four)",
    "performer": "random features estimate sharp weights poorly, their error grows as exp(|q + k|^2) (one in four)",
    "reformer": "a shared projection asks for what a token is, not for its neighbour (one in four)",
    "score_additive": "a score takes many hyperbolic tangents: a minute has too few steps (causally 81 %, and rising)",
    "synthesizer_dense": "a token's weights compare it with no other token (70 %)",
    "synthesizer_factorised_dense": "a token's weights compare it with no other token (79 %)",
    "synthesizer_factorised_random": "mixes by place, whatever tokens hold",
    "synthesizer_random": "mixes by place, whatever tokens hold",
}
NEITHER = {
    "bag_of_tokens": "knows no order",
    "short_convolution": "sees a few places around each token (both at chance)",
    "synthesizer_random_fixed": "its weights are drawn and do not learn",
}
HELD = [("recall", name) for name in LEARN_BOTH] + [("copy", name) for name in [*LEARN_BOTH, *COPY_ALONE]]


def test_every_system_stands_in_one_place():
    groups = [*LEARN_BOTH, *COPY_ALONE, *NEITHER]
    assert len(set(groups)) == len(groups) and {*groups, *OWN, *ON_RECALL} <= {*NODES, "bag_of_tokens"}


@pytest.mark.slow
@pytest.mark.parametrize(("task", "name"), HELD)
def test_a_minute_is_enough(task, name, tmp_path):
    own = [*OWN.get(name, []), *(ON_RECALL.get(name, []) if task == "recall" else [])]
    learned = learn(tmp_path, [f"task={task}", f"model={name}", *OPTIONS, *own])
    assert learned.score >= 0.95 and learned.seconds <= SECONDS, learned
