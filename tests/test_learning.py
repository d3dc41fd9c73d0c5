"""Recall and copy are learned within a minute of one core by every system of the first wave whose mechanism allows it.

Rows have 64 tokens: recall 4 pairs of 32 symbols, copy an alphabet of 16. A recall that stays at one in four knows which
values were shown, and not which key each belongs to.
"""

import pytest

from tests.learning import learn

OPTIONS = [
    "protocol=quick",
    "train.lr=3e-3",
    "train.betas=[0.9,0.95]",
    "train.steps=100000",
    "task.rows.train=50000",
    "task.rows.validation=500",
]
# Recall has one head (conf/recipe/quick_recall.yaml), and scores of another size need another rate.
OWN = {
    "gqa": ["backbone.heads=2", "model.mixer.kv_heads=1"],
    "score_bilinear": ["train.lr=2e-3"],
    "score_dot": ["train.lr=1e-3"],
    "sparse_strided": ["backbone.heads=2"],
}
BOTH = [
    "transformer",
    "transformer_modern",
    "mqa",
    "gqa",
    "score_bilinear",
    "local",
    "block_local",
    "longformer",
    "bigbird",
    "linformer",
    "nystrom",
]
COPY = [
    "score_dot",
    "score_reduced",
    "score_additive",
    "sparse_fixed",
    "sparse_strided",
    "reformer",
    "sinkhorn",
    "sinkhorn_bilinear",
    "linear",
    "performer",
    "rfa",
    "cosformer",
    "luna",
    "synthesizer_dense",
    "synthesizer_random",
    "synthesizer_factorised_dense",
    "synthesizer_factorised_random",
    "fnet",
]
