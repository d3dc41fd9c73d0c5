"""Options of the sequence model around a mixer (section ``backbone``), in groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .declaration import AT_LEAST_ONE, AT_LEAST_TWO, NOT_NEGATIVE, POSITIVE, SHARE, Rule, one_of, option

LAYERS = Rule("must be at least 1 and at most 4096", lambda value: 1 <= value <= 4096)
ACTIVATION = one_of(
    [
        *("gelu", "gelu_tanh", "relu", "silu", "elu", "selu", "sigmoid", "softplus"),
        *("swiglu", "geglu", "reglu", "glu", "liglu"),
    ]
)


@dataclass
class Hybrid:
    """Another mixer in some layers.

    The network passes memory from batch to batch only if both mixers have one.

    Attributes:
        every: Number k: layers k, 2k, …, counted from 1, have it; null means none.
        mixer: Name of a model, a mapping with its name as ``name`` and options of its mixer, or a mapping with
            ``_target_``. Null means full softmax attention.
    """

    every: int | None = option(None, AT_LEAST_TWO)
    mixer: Any = None


@dataclass
class Embedding:
    """Embedding of tokens; by default one table.

    Attributes:
        rank: Rank of the two matrices whose product the embeddings are; null for no product.
        cutoffs: Ranks by frequency at which clusters of narrower embeddings begin; null for no clusters.
        factor: Factor by which the width decreases from cluster to cluster.
        tied: Whether the output head uses the embeddings too.
    """

    rank: int | None = option(None, AT_LEAST_ONE)
    cutoffs: list[int] | None = None
    factor: int = option(4, AT_LEAST_ONE)
    tied: bool = False


@dataclass
class OutputHead:
    """Output head that scores tokens.

    Attributes:
        kind: ``softmax`` (a linear layer), ``adaptive`` (softmax) or ``mixture`` (of softmaxes).
        components: Number of softmaxes of a mixture.
        cutoffs: Ranks by frequency at which the clusters of the adaptive softmax begin.
        factor: Factor by which the width decreases from cluster to cluster; null means no projections.
    """

    kind: str = option("softmax", one_of(("softmax", "adaptive", "mixture")))
    components: int = option(15, AT_LEAST_ONE)
    cutoffs: list[int] | None = None
    factor: int | None = option(4, AT_LEAST_ONE)


@dataclass
class Experts:
    """Mixture of experts as the feed-forward network of some layers.

    Attributes:
        count: Number of experts; null for no experts.
        top_k: Number of experts that a token uses.
        every: Number k: layers k, 2k, …, counted from 1, have experts.
        ff_width: Hidden width of an expert; by default that of the networks divided by ``top_k``.
        balance: Weight of the balance loss.
        z_loss: Weight of the z loss.
        jitter: Noise of the input of the router.
    """

    count: int | None = option(None, AT_LEAST_ONE)
    top_k: int = option(2, AT_LEAST_ONE)
    every: int = option(1, AT_LEAST_ONE)
    ff_width: int | None = option(None, AT_LEAST_ONE)
    balance: float = option(0.01, NOT_NEGATIVE)
    z_loss: float = option(0.0, NOT_NEGATIVE)
    jitter: float = option(0.0, SHARE)


@dataclass
class ProductKeys:
    """Product-key memory in place of the feed-forward network of one layer.

    Attributes:
        layer: The layer, counted from 1; null for none.
        keys: Number of half-keys in each of two sets; there are ``keys`` squared values.
        heads: Number of queries per token.
        top_k: Number of values that a query selects.
        lr_factor: Factor of the learning rate of the values.
    """

    layer: int | None = option(None, AT_LEAST_ONE)
    keys: int = option(32, AT_LEAST_ONE)
    heads: int = option(4, AT_LEAST_ONE)
    top_k: int = option(8, AT_LEAST_ONE)
    lr_factor: float = option(1.0, POSITIVE)


@dataclass
class EmbeddingOptions:
    """Inputs of the first block.

    Attributes:
        embedding: Embedding of tokens.
        token_order: Token ids from the most frequent one on, for ``cutoffs``; other ids follow in their order.
        embedding_scale: Standard deviation of the initial token or channel embeddings.
        position_scale: Standard deviation of initial learned positions, or amplitude of sinusoids; null for the default
            of the position encoding. Ignored by position encodings without the option ``scale``.
        cls_scale: Standard deviation of the initial CLS embedding.
        max_length: Longest expected sequence in tokens; by default the training length. Longer sequences are rejected
            only if the mixer or the position encoding has a limit (``supports_length``).
        stem: Kernel size of a convolution between the embedding and the first block (``Stem``): K tokens, or K × K
            pixels of an image if the model is bidirectional. Null for no convolution.
        patch: Size of patches that are joined into one position each before the first block (``Patches``): P tokens, or
            P × P pixels of an image. Null for no patches.
    """

    embedding: Embedding = option(Embedding, of_system=True)
    token_order: list[int] | None = option(None, of_system=True)
    embedding_scale: float = option(0.25, NOT_NEGATIVE)
    position_scale: float | None = option(None, NOT_NEGATIVE)
    cls_scale: float = option(0.25, NOT_NEGATIVE)
    max_length: int | None = option(None, AT_LEAST_ONE)
    stem: int | None = option(None, AT_LEAST_TWO, of_system=True)
    patch: int | None = option(None, AT_LEAST_TWO, of_system=True)


@dataclass
class BlockOptions:
    """Blocks: their number and size, mixers, norms and residual sums.

    Batch normalisation uses the unpadded tokens of the batch, which is therefore not split into micro-batches.

    Attributes:
        depth: Number of layers.
        width: Number of features E.
        heads: Number of heads.
        head_dim: Number of features per head; by default width / heads. Ignored by mixers without this option.
        attention_dropout: Dropout probability inside the mixers, in most of them of attention weights; by default
            ``dropout``.
        attention_bias: Whether the query, key, value and output projections of the mixers have biases; null for the
            default of the mixer. Ignored by mixers without this option.
        causal: Direction of the mixer. Null follows the task; tasks that allow either direction then run bidirectional
            if the mixer supports it.
        dropout: Dropout probability.
        projection_init: Initialisation of the projections of heads, the feed-forward networks and the output head:
            ``xavier`` (Xavier-uniform, zero biases) or ``fan_in`` (weights and biases uniform within ±1 / √inputs,
            torch's default).
        norm: ``layer`` (LayerNorm), ``rms`` (RMSNorm), ``scale`` (RMSNorm with one learned scale for all features),
            ``batch`` (batch normalisation) or ``none``.
        norm_place: ``pre`` (before each mixer and feed-forward network, and after the last block) or ``post`` (after
            each residual sum).
        block: ``residual`` (``Block``) or ``evolved`` (``EvolvedBlock``).
        residual: ``add`` (x + F(x)), ``rezero`` (x + α F(x) with a learned scalar, initially 0) or ``fixup`` (learned
            scalars around F, whose layers are initialised such that F is 0; needs ``norm=none``).
        gate: Kind of the gates in place of the residual sums, as in GTrXL (``GatedResidual``), behind a ReLU of the
            branch; needs ``norm_place=pre``. Null for sums.
        share_every: Number of layers with their own weights, which are reused in the same order; 1 for the same weights
            in all layers, null for different weights.
        reversible: Whether to run the blocks as two residual streams and recompute activations in the backward pass
            instead of storing them. Saves memory, costs time.
    """

    depth: int = option(2, LAYERS)
    width: int = option(64, AT_LEAST_ONE)
    heads: int = option(2, AT_LEAST_ONE)
    head_dim: int | None = option(None, AT_LEAST_ONE)
    attention_dropout: float | None = option(None, SHARE)
    attention_bias: bool | None = None
    causal: bool | None = None
    dropout: float = option(0.1, SHARE)
    projection_init: str = option("xavier", one_of(("xavier", "fan_in")))
    norm: str = option("layer", one_of(("layer", "rms", "scale", "batch", "none")))
    norm_place: str = option("pre", one_of(("pre", "post")))
    block: str = option("residual", one_of(("residual", "evolved")), of_system=True)
    residual: str = option("add", one_of(("add", "rezero", "fixup")), of_system=True)
    gate: str | None = option(
        None, one_of(("input", "output", "highway", "sigmoid_tanh", "gru"), end=", or null"), of_system=True
    )
    share_every: int | None = option(None, AT_LEAST_ONE, of_system=True)
    reversible: bool = False


@dataclass
class NetworkOptions:
    """Feed-forward networks of the blocks.

    Attributes:
        feed_forward: Whether the blocks have feed-forward networks.
        ff_width: Their hidden width.
        activation: Their activation. Gated ones (``swiglu``, ``geglu``, ``reglu``, ``glu``, ``liglu``) have 2/3 of the
            hidden width.
        feed_forward_chunks: Number of chunks of the sequence that they process sequentially. Saves memory, costs time.
        experts: Experts in place of some networks.
        product_keys: Memory in place of one network.
    """

    feed_forward: bool = True
    ff_width: int = option(128, AT_LEAST_ONE)
    activation: str = option("gelu", ACTIVATION)
    feed_forward_chunks: int = option(1, AT_LEAST_ONE)
    experts: Experts = option(Experts, of_system=True)
    product_keys: ProductKeys = option(ProductKeys, of_system=True)


@dataclass
class AddedLayers:
    """What is added to the mixers of the model.

    Attributes:
        short_convolution: Kernel size in tokens of a depthwise convolution in front of every mixer (``CanonLayer``),
            causal if the model is causal, otherwise centred; in front of the block, if the mixer replaces the block.
            Null for no convolution.
        hybrid: Another mixer in some layers.
        funnel: Number of blocks of equally many layers, between which pairs of neighbouring tokens are averaged
            (``pool_pairs``). Null for no pooling.
    """

    short_convolution: int | None = option(None, AT_LEAST_TWO, of_system=True)
    hybrid: Hybrid = option(Hybrid, of_system=True)
    funnel: int | None = option(None, AT_LEAST_TWO, of_system=True)


@dataclass
class ReadoutOptions:
    """From the states of the last block to logits.

    Attributes:
        mix_layers: Whether the head receives a learned sum of the states of all layers (``LayerMix``).
        pooling: How the hidden states of a sequence become one vector: ``mean`` over its tokens, ``first`` or ``last``
            (that of the first or last token) or ``cls`` (that of a CLS position with a learned embedding, in front of
            the tokens). Ignored if the task scores every token.
        readout_hidden: Widths of the hidden layers of the output head; by default one of ``ff_width``. Ignored if the
            task scores every token.
        readout_activation: Activation of the output head; by default ``activation``.
        readout_dropout: Dropout probability in the output head; by default ``dropout``.
        pair_features: How the vectors x and y of two documents are combined for the output head: ``nli``,
            (x, y, x·y, x − y), or ``concatenation``, (x, y).
        output: Output head of tasks that score every token.
    """

    mix_layers: bool = option(False, of_system=True)
    pooling: str = option("mean", one_of(("mean", "cls", "first", "last")))
    readout_hidden: list[int] | None = option(None, AT_LEAST_ONE)
    readout_activation: str | None = option(None, ACTIVATION)
    readout_dropout: float | None = option(None, SHARE)
    pair_features: str = option("nli", one_of(("nli", "concatenation")))
    output: OutputHead = option(OutputHead, of_system=True)


@dataclass
class BackboneOptions(ReadoutOptions, AddedLayers, EmbeddingOptions, NetworkOptions, BlockOptions):
    """Options of the sequence model around a mixer."""
