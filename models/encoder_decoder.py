"""Encoder-decoder: an encoder reads the source and a decoder with cross-attention outputs a label or an answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lra_bench.build import build, load_class
from lra_bench.contracts import Batch, Capability, Output, TaskSpec, UserError

from .block import Block
from .embedding import DEVIATION, embedding
from .feedforward import FeedForward, linear
from .kernels.dropout import Dropout
from .kernels.softmax import softmax_attention
from .limits import restricts_from
from .mixer import Context, Mixer, Padding, name_modules
from .positions.sinusoidal import sinusoids
from .readout import Head
from .source_target import one_output_only, parameter_parts, source_and_target


class EncoderDecoder(nn.Module):
    """Encoder-decoder Transformer: blocks that read the source, and blocks that read the target and the source.

    Vaswani et al. 2017, arXiv 1706.03762, around any two mixers. An encoder block has a bidirectional mixer and a
    feed-forward network; a decoder block a causal mixer, attention from its states to those of the encoder, and a
    feed-forward network. In tasks of kind ``generation`` the source is that of the row, and the target is the separator
    and the answer. A label is a target of one symbol, which the decoder outputs after a learned start symbol. Positions
    are sinusoidal, and counted from the start of the source and of the target.

    Tokens (B, N) or values (B, N, C) to logits (B, classes), or (B, N, classes) in generation. Time and memory are
    those of the mixers, and of the cross-attention: O(N T E) time for T symbols, O(N E) memory. Does not support other
    tasks that score every token, mixers that add rows in front of the tokens, and mixers that replace the whole block.

    Deviations from the paper: norms are before each branch, embeddings are not shared with the output layer, and the
    waves of the positions have the scale of the embeddings.

    Args:
        spec: Specification of the task.
        width: Number of features E.
        heads: Number of heads of the mixers and of the cross-attention.
        depth: Number of blocks of the encoder, and of the decoder.
        ff_width: Hidden width of the feed-forward networks, and of the output head of labels.
        dropout: Dropout probability.
        encoder: Configuration node of the mixer of the encoder; it needs a bidirectional form.
        decoder: Configuration node of the mixer of the decoder; it needs an exact causal form.
        seed: Seed of random numbers of the mixers that are not parameters; the seed of the run does not affect it.
    """

    capability = Capability(
        family="full",
        paper="Attention Is All You Need",
        arxiv="1706.03762",
        code="tensorflow/tensor2tensor@bafdc1b:tensor2tensor/models/transformer.py",
        causal="exact",
        growth=2.0,
        positions=(),
    )
    revision: ClassVar[int] = 1
    """Part of the hash of cells. Raise it if the class computes something else from the same arguments."""

    def __init__(
        self,
        *,
        spec: TaskSpec,
        encoder: Mapping[str, Any],
        decoder: Mapping[str, Any],
        width: int = 64,
        heads: int = 2,
        depth: int = 2,
        ff_width: int = 128,
        dropout: float = 0.1,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if width % heads:
            raise UserError(f"model.network.heads={heads}: does not divide width {width}; set backbone.heads")
        self.spec = spec
        self.embedding, self.drop = embedding(spec, width), Dropout(dropout)
        sizes = {"width": width, "heads": heads, "depth": depth, "max_length": spec.train_length, "dropout": dropout}

        def blocks(node: Mapping[str, Any], option: str, causal: bool, feed_forward: bool) -> list[Block]:
            check_mixer(node, option, causal)
            made = []
            for layer in range(depth):
                mixer = build(node, Mixer, option, layer=layer, causal=causal, seed=seed, **sizes)
                inner = FeedForward(width, ff_width, "gelu", 0.0) if feed_forward else None
                made.append(Block(mixer, inner, width, norm="layer", place="pre", dropout=dropout))
            return made

        self.encoder = nn.ModuleList(blocks(encoder, "model.network.encoder", False, True))
        self.encoder_norm = nn.LayerNorm(width)
        self.decoder = nn.ModuleList(
            DecoderBlock(
                block, CrossAttention(width, heads, dropout), FeedForward(width, ff_width, "gelu", 0.0), dropout
            )
            for block in blocks(decoder, "model.network.decoder", True, False)
        )
        self.decoder_norm = nn.LayerNorm(width)
        self.symbol = None if spec.separator is not None else nn.Parameter(torch.randn(width) * DEVIATION)
        self.head = Head(spec, width, ff_width, "gelu", dropout)
        name_modules(self)

    def forward(self, batch: Batch, memory: Any = None) -> Output:
        """Return the logits: (B, classes), or (B, N, classes) in generation."""
        rows = source_and_target(batch, self.spec)
        source = Padding.from_lengths(rows.lengths, rows.inputs.shape[1])
        context = Context(
            None if batch.full and rows.tokens is None else source,
            torch.arange(rows.inputs.shape[1], device=rows.inputs.device),
            grid=self.spec.grid,
            train_length=self.spec.train_length,
        )
        states = source.zero(self._placed(self.embedding(rows.inputs)))
        for depth, block in enumerate(self.encoder):
            states, context = block(states, context.replace(depth=depth, memory=None))
        states = self.encoder_norm(states)
        if rows.tokens is None:
            assert self.symbol is not None
            target, lengths = self.symbol.to(states.dtype).expand(len(states), 1, -1), None
        else:
            target, lengths = self.embedding(rows.tokens), rows.target_lengths
        x = self._placed(target)
        context = context.replace(
            padding=None if lengths is None else Padding.from_lengths(lengths, x.shape[1]),
            positions=torch.arange(x.shape[1], device=x.device),
            grid=None,
            carry={},
        )
        for depth, block in enumerate(self.decoder):
            x, context = block(x, context.replace(depth=depth, memory=None), states, source)
        x = self.decoder_norm(x)
        logits = self.head(x[:, 0]) if rows.tokens is None else rows.in_rows(self.head(x))
        return Output(logits, context.losses, None, context.statistics)

    def _placed(self, x: Tensor) -> Tensor:
        """Return embeddings x (S, N, E) with positions, after dropout."""
        waves = sinusoids(torch.arange(x.shape[1], device=x.device), x.shape[2])
        placed: Tensor = self.drop(x + (DEVIATION * waves).to(x.dtype))
        return placed

    def supports(self, spec: TaskSpec) -> str | None:
        """Return a reason if the task scores every token of its input, otherwise None."""
        return one_output_only("EncoderDecoder", spec)

    def restricts_from(self) -> int | None:
        """Return the smallest length at which a mixer of the encoder restricts what a token can attend to."""
        return restricts_from([block.mixer for block in self.encoder], False)  # type: ignore[misc]

    def parameter_parts(self) -> dict[str, int]:
        """Return the number of parameters in total and by part."""
        return parameter_parts(self, self.embedding, self.head)


class DecoderBlock(nn.Module):
    """Residual block with three branches: a causal mixer, attention to the encoder, a feed-forward network."""

    def __init__(self, block: Block, cross: CrossAttention, feed_forward: FeedForward, dropout: float) -> None:
        super().__init__()
        self.block, self.cross, self.feed_forward, self.drop = block, cross, feed_forward, Dropout(dropout)
        self.cross_norm, self.feed_forward_norm = (nn.LayerNorm(cross.width) for _ in range(2))

    def forward(self, x: Tensor, context: Context, states: Tensor, source: Padding) -> tuple[Tensor, Context]:
        """Return x (S, T, E) after all branches; ``states`` (S, N, E) and ``source`` are those of the encoder."""
        x, context = self.block(x, context)
        x = x + self.drop(self.cross(self.cross_norm(x), states, source))
        return x + self.drop(self.feed_forward(self.feed_forward_norm(x))), context


class CrossAttention(nn.Module):
    """Softmax attention of T decoder states to N encoder states: (S, T, E) and (S, N, E) to (S, T, E).

    Vaswani et al. 2017, arXiv 1706.03762. O(T N E) time, O((T + N) E) memory.
    """

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.width, self.heads, self.dropout = width, heads, dropout
        self.query, self.key, self.value, self.output = (linear(width, width) for _ in range(4))

    def forward(self, x: Tensor, states: Tensor, source: Padding) -> Tensor:
        """Attend from x to the states that are not padding; without any, the attended values are zero."""
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in (self.query(x), self.key(states), self.value(states))
        )
        o = softmax_attention(q, k, v, padding=source, dropout=self.dropout if self.training else 0.0)
        attended: Tensor = self.output(o.transpose(1, 2).flatten(2))
        return attended


def check_mixer(node: Mapping[str, Any], option: str, causal: bool) -> None:
    """Raise ``UserError`` if a mixer lacks the direction, replaces the whole block or adds rows in front of tokens."""
    kind = load_class(str(node.get("_target_")), Mixer, option)
    if kind.spec.causal != "exact" if causal else not kind.spec.bidirectional:
        form = "exact causal form, which a decoder" if causal else "bidirectional form, which an encoder"
        raise UserError(f"{option}: {kind.__name__} has no {form} needs; choose another mixer")
    if kind.spec.block == "self_contained" or kind.prefix_rows is not Mixer.prefix_rows:
        raise UserError(
            f"{option}: {kind.__name__} replaces the whole block or adds rows in front of the tokens; "
            "choose another mixer"
        )
