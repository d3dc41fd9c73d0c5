"""Layers of Hugging Face's transformers, each followed by an output projection as in its model."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .pair import First, Pair, Sizes

WINDOW = 64  # keys on each side
BLOCK = 64


def common(sizes: Sizes) -> dict[str, Any]:
    """Return the sizes under the names of transformers' configurations, with dropout disabled."""
    return {
        "hidden_size": sizes.width,
        "num_attention_heads": sizes.heads,
        "attention_probs_dropout_prob": 0.0,
        "hidden_dropout_prob": 0.0,
        "max_position_embeddings": sizes.length,
    }


class BigBird(nn.Module):
    """Block-sparse attention with the masks of the full model for rows without padding."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        from transformers import BigBirdConfig
        from transformers.models.big_bird.modeling_big_bird import BigBirdBlockSparseAttention, BigBirdModel

        config = BigBirdConfig(**common(sizes), block_size=BLOCK, num_random_blocks=3)
        self.layer = BigBirdBlockSparseAttention(config, seed=0)
        self.output = nn.Linear(sizes.width, sizes.width)
        masks = BigBirdModel.create_masks_for_block_sparse_attn(torch.ones(1, sizes.length), BLOCK)
        blocks, self.band, self.rows, self.columns = masks
        self.blocks = blocks

    def forward(self, x: Tensor) -> Tensor:
        """Map rows (B, N, E) to rows (B, N, E)."""
        y: Tensor = self.output(self.layer(x, self.band, self.rows, self.columns, self.blocks, self.blocks)[0])
        return y


def longformer(sizes: Sizes) -> nn.Module:
    """Return Longformer's attention with a sliding window and one global token."""
    from transformers import LongformerConfig
    from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

    config = LongformerConfig(**common(sizes), attention_window=[2 * WINDOW], num_hidden_layers=1)
    is_global = torch.arange(sizes.length)[None] == 0
    return First(
        LongformerSelfAttention(config, 0),
        project=sizes.width,
        attention_mask=10000.0 * is_global,
        is_index_masked=torch.zeros_like(is_global),
        is_index_global_attn=is_global,
        is_global_attn=True,
    )


def nystromformer(sizes: Sizes) -> nn.Module:
    """Return Nyströmformer's attention with 64 landmarks, six iterations, and a convolution of width 33."""
    from transformers import NystromformerConfig
    from transformers.models.nystromformer.modeling_nystromformer import NystromformerSelfAttention

    config = NystromformerConfig(
        **common(sizes),
        num_landmarks=64,
        segment_means_seq_len=sizes.length,
        conv_kernel_size=33,
        inv_coeff_init_option=False,
    )
    return First(NystromformerSelfAttention(config), project=sizes.width)


def fnet(sizes: Sizes) -> nn.Module:
    """Return FNet's Fourier transform over positions and channels."""
    from transformers import FNetConfig
    from transformers.models.fnet.modeling_fnet import FNetBasicFourierTransform

    return First(FNetBasicFourierTransform(FNetConfig(hidden_size=sizes.width)))


def reformer(sizes: Sizes) -> nn.Module:
    """Return LSH attention with two rounds and as many buckets as chunks."""
    from transformers import ReformerConfig
    from transformers.models.reformer.modeling_reformer import LSHSelfAttention

    config = ReformerConfig(
        hidden_size=sizes.width,
        num_attention_heads=sizes.heads,
        attention_head_size=sizes.head_dim,
        max_position_embeddings=sizes.length,
        lsh_attn_chunk_length=64,
        lsh_attention_probs_dropout_prob=0.0,
        num_hashes=2,
        num_buckets=max(2, sizes.length // 64),
        is_decoder=False,
    )
    return First(LSHSelfAttention(config, 0), project=sizes.width)


HUGGING_FACE = (
    Pair(
        "transformers",
        "bigbird",
        BigBird,
        lambda _: {"block": BLOCK, "random_blocks": 3},
        differs="samples random blocks at every step; computes an N x N matrix of weights to return",
    ),
    Pair("transformers", "longformer", longformer, lambda _: {"window": WINDOW, "global_tokens": 1}),
    Pair(
        "transformers",
        "nystrom",
        nystromformer,
        lambda _: {"landmarks": 64},
        differs="initialises the inverse with one norm for the entire batch",
    ),
    Pair("transformers", "fnet", fnet, lambda _: {"norm": "backward"}),
    Pair(
        "transformers",
        "reformer",
        reformer,
        lambda _: {"chunk": 64, "rounds": 2},
        differs="does not divide scores by sqrt(D); counts pairs twice that are in one bucket in both rounds",
    ),
)
