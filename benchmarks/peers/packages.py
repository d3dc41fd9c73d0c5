"""Packages with one system each, and the options with which lra-bench's mixers compute the same or nearly the same."""

from __future__ import annotations

import math
from functools import partial

from torch import nn

from .pair import First, Pair, Sizes

WINDOW = 64  # keys on each side
FEATURES = 256
FEW = 128  # number of projected keys, inducing points, or routed or compressed tokens per query

UNBIASED = {"qkv_bias": False}


def performer(sizes: Sizes, causal: bool = False) -> nn.Module:
    """Return FAVOR+ attention."""
    from performer_pytorch import SelfAttention

    return SelfAttention(
        dim=sizes.width, heads=sizes.heads, dim_head=sizes.head_dim, nb_features=FEATURES, causal=causal, qkv_bias=True
    )


def linear(sizes: Sizes, causal: bool = False) -> nn.Module:
    """Return linear attention with a softmax over queries and over keys."""
    from linear_attention_transformer.linear_attention_transformer import SelfAttention

    return SelfAttention(dim=sizes.width, heads=sizes.heads, causal=causal)


def linformer(sizes: Sizes) -> nn.Module:
    """Return attention to keys and values projected along the sequence, each by a matrix that all heads share."""
    from linformer import LinformerSelfAttention

    return LinformerSelfAttention(dim=sizes.width, seq_len=sizes.length, k=FEW, heads=sizes.heads)


def reformer(sizes: Sizes) -> nn.Module:
    """Return LSH attention with two rounds."""
    from reformer_pytorch import LSHSelfAttention

    return LSHSelfAttention(dim=sizes.width, heads=sizes.heads, bucket_size=64, n_hashes=2)


def routing(sizes: Sizes) -> nn.Module:
    """Return routing attention with clusters of ``FEW`` tokens, in all heads."""
    from routing_transformer.routing_transformer import SelfAttention

    layer = SelfAttention(
        dim=sizes.width, depth=1, max_seq_len=sizes.length, heads=sizes.heads, local_attn_heads=0, window_size=FEW
    )
    return First(layer)


def sinkhorn(sizes: Sizes) -> nn.Module:
    """Return attention to the same block and to a block of softly sorted keys."""
    from sinkhorn_transformer.sinkhorn_transformer import SinkhornSelfAttention

    return SinkhornSelfAttention(
        dim=sizes.width,
        bucket_size=math.isqrt(sizes.length),
        max_seq_len=sizes.length,
        heads=sizes.heads,
        non_permutative=False,
        sinkhorn_iter=8,
        use_simple_sort_net=True,
    )


def nystrom(sizes: Sizes) -> nn.Module:
    """Return Nyström attention with 64 landmarks, six iterations, and a convolution of width 33."""
    from nystrom_attention import NystromAttention

    return NystromAttention(dim=sizes.width, dim_head=sizes.head_dim, heads=sizes.heads, num_landmarks=64)


def local(sizes: Sizes) -> nn.Module:
    """Return attention in a window centred at each token."""
    from local_attention.transformer import LocalMHA

    return LocalMHA(
        dim=sizes.width,
        window_size=WINDOW,
        dim_head=sizes.head_dim,
        heads=sizes.heads,
        exact_windowsize=True,
        use_rotary_pos_emb=False,
    )


def isab(sizes: Sizes) -> nn.Module:
    """Return attention of inducing points to tokens, followed by attention of tokens to inducing points."""
    from isab_pytorch import ISAB

    return First(ISAB(dim=sizes.width, heads=sizes.heads, num_latents=FEW))


def memory_compressed(sizes: Sizes) -> nn.Module:
    """Return attention to keys and values compressed by a convolution."""
    from memory_compressed_attention import MemoryCompressedAttention

    return MemoryCompressedAttention(dim=sizes.width, heads=sizes.heads, compression_factor=compression(sizes))


def compression(sizes: Sizes) -> int:
    """Return the compression factor with which ``FEW`` keys remain."""
    return max(1, sizes.length // FEW)


def gmlp(sizes: Sizes) -> nn.Module:
    """Return a block with a spatial gate, including its norm and residual connection."""
    from g_mlp_pytorch.g_mlp_pytorch import PreNorm, Residual, gMLPBlock

    block = gMLPBlock(dim=sizes.width, dim_ff=4 * sizes.width, seq_len=sizes.length)
    return Residual(PreNorm(sizes.width, block))


def token_mixing(sizes: Sizes) -> nn.Module:
    """Return the token-mixing part of a block, with the paper's inner width.

    It is a convolution of width 1 whose channels are the tokens and whose positions are the model's channels.
    """
    from mlp_mixer_pytorch.mlp_mixer_pytorch import FeedForward

    mix: nn.Module = FeedForward(sizes.length, sizes.width // 2, dense=partial(nn.Conv1d, kernel_size=1))
    return mix


PACKAGES = (
    Pair(
        "performer-pytorch",
        "performer",
        performer,
        lambda _: {"features": FEATURES},
        differs="has biased directions; adds 0.0001 to features",
    ),
    Pair(
        "performer-pytorch",
        "performer",
        partial(performer, causal=True),
        lambda _: {"features": FEATURES},
        causal=True,
        differs="has biased directions; adds 0.0001 to features; stores a state for each token",
    ),
    Pair(
        "linear-attention-transformer",
        "linear",
        linear,
        lambda _: UNBIASED,
        differs="applies a softmax to queries and to keys",
    ),
    Pair(
        "linear-attention-transformer",
        "linear",
        partial(linear, causal=True),
        lambda _: UNBIASED,
        causal=True,
        differs="applies a softmax to queries and the exponential to keys; stores a state for each token",
    ),
    Pair("linformer", "linformer", linformer, lambda _: {**UNBIASED, "rank": FEW, "sharing": "headwise"}),
    Pair(
        "reformer-pytorch",
        "reformer",
        reformer,
        lambda _: {**UNBIASED, "chunk": 64, "rounds": 2},
        differs="counts pairs twice that are in one bucket in both rounds",
    ),
    Pair(
        "routing-transformer",
        "routing",
        routing,
        lambda sizes: {**UNBIASED, "clusters": max(1, sizes.length // FEW), "local_heads": 0},
        differs="routes by unit vectors but attends with other vectors; has an additional loss",
    ),
    Pair(
        "sinkhorn-transformer",
        "sinkhorn",
        sinkhorn,
        lambda sizes: {**UNBIASED, "block": math.isqrt(sizes.length)},
        differs="scores blocks by one layer; uses sorted keys in place of sorted values",
    ),
    Pair(
        "nystrom-attention",
        "nystrom",
        nystrom,
        lambda _: {**UNBIASED, "landmarks": 64},
        differs="initialises the inverse with one norm for the entire batch",
    ),
    Pair("local-attention", "local", local, lambda _: {**UNBIASED, "window": WINDOW}),
    Pair(
        "isab-pytorch",
        "isab",
        isab,
        lambda _: {**UNBIASED, "points": FEW, "norm": False},
        differs="has output projections instead of residuals and feed-forward layers",
    ),
    Pair(
        "memory-compressed-attention",
        "memory_compressed",
        memory_compressed,
        lambda sizes: {**UNBIASED, "stride": compression(sizes)},
        differs="scales scores by the width of the model; adds a zero key",
    ),
    Pair("g-mlp-pytorch", "gmlp", gmlp, lambda sizes: {"hidden": 4 * sizes.width}),
    Pair("mlp-mixer-pytorch", "mlp_mixer", token_mixing, lambda sizes: {"hidden": sizes.width // 2}),
)
