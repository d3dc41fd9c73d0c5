"""Backbone around a mixer: embedding, position encoding, blocks, pooling and output head."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lra_bench.build import build, known_options, load_class
from lra_bench.contracts import Batch, Capability, Output, TaskSpec, UserError

from .batch_norm import normalised
from .block import Block, norm_layer
from .canon_layer import CanonLayer, Preceded
from .embedding import DEVIATION, embedding
from .feedforward import FeedForward
from .hybrid import arrange
from .kernels.dropout import Dropout
from .mixer import Context, HeadMixer, Mixer, Padding, name_modules
from .positions.position import Position
from .readout import PAIR_FEATURES, POOLINGS, Head, pool
from .reversible import run_reversibly

PROJECTION_INITS = ("xavier", "fan_in")


class SequenceModel(nn.Module):
    """Stack of identical blocks around one kind of mixer, for every kind of task.

    Raises ``UserError`` if an option has an invalid value or does not fit the others.

    Args:
        spec: Specification of the task.
        mixer: Configuration node of the mixer.
        position: Configuration node of the position encoding.
        seed: Seed of random numbers that are not weights.
        depth: Number of layers.
        width: Number of features E.
        heads: Number of heads.
        head_dim: Number of features per head; by default width / heads. Ignored by mixers without this option.
        ff_width: Hidden width of the feed-forward networks.
        dropout: Dropout probability.
        attention_dropout: Dropout probability inside the mixers, in most of them of attention weights; by default
            ``dropout``.
        attention_bias: Whether the query, key, value and output projections of the mixers have biases; None for the
            default of the mixer. Ignored by mixers without this option.
        projection_init: Initialisation of the projections of heads, the feed-forward networks and the output head:
            ``xavier`` (Xavier-uniform, zero biases) or ``fan_in`` (weights and biases uniform within ±1 / √inputs,
            torch's default).
        embedding_scale: Standard deviation of the initial token or channel embeddings.
        position_scale: Standard deviation of initial learned positions, or amplitude of sinusoids; None for the default
            of the position encoding. Ignored by position encodings without the option ``scale``.
        cls_scale: Standard deviation of the initial CLS embedding.
        pooling: How the hidden states of a sequence become one vector: ``mean`` over its tokens, ``first`` or ``last``
            (that of the first or last token) or ``cls`` (that of a CLS position with a learned embedding, in front of
            the tokens). Ignored if the task scores every token.
        readout_hidden: Widths of the hidden layers of the output head; by default one of ``ff_width``. Ignored if the
            task scores every token.
        readout_activation: Activation of the output head; by default ``activation``.
        readout_dropout: Dropout probability in the output head; by default ``dropout``.
        norm: ``layer`` (LayerNorm), ``rms`` (RMSNorm), ``scale`` (RMSNorm with one learned scale for all features) or
            ``batch`` (batch normalisation).
        norm_place: ``pre`` (before each mixer and feed-forward network, and after the last block) or ``post`` (after
            each residual sum).
        activation: Activation of the feed-forward networks.
        max_length: Longest expected sequence in tokens; by default the training length. Longer sequences are rejected
            only if the mixer or the position encoding has a limit (``supports_length``).
        causal: Direction of the mixer. None follows the task; tasks that allow either direction then run bidirectional
            if the mixer supports it.
        pair_features: How the vectors x and y of two documents are combined for the output head: ``nli``,
            (x, y, x·y, x − y), or ``concatenation``, (x, y).
        reversible: Whether to run the blocks as two residual streams and recompute activations in the backward pass
            instead of storing them. Saves memory, costs time.
        feed_forward_chunks: Number of chunks of the sequence that the feed-forward networks process sequentially. Saves
            memory, costs time.
        feed_forward: Whether the blocks have feed-forward networks.
        short_convolution: Kernel size in tokens of a depthwise convolution in front of every mixer (``CanonLayer``),
            causal if the model is causal, otherwise centred; in front of the block, if the mixer replaces the block.
            None for no convolution.
        hybrid: ``every`` and ``mixer``: in every ``every``-th layer, counted from 1, the configuration node ``mixer``
            replaces that of the model; by default full softmax attention. ``every`` is None if all layers have the
            mixer of the model. The network passes memory from batch to batch only if both mixers have one.
    """

    revision: ClassVar[int] = 1
    """Part of the hash of cells.

    Raise it if the backbone computes something else from the same arguments, also because its parts do: embedding,
    blocks, norms, feed-forward networks or readout.
    """

    def __init__(
        self,
        *,
        spec: TaskSpec,
        mixer: Mapping[str, Any],
        position: Mapping[str, Any],
        seed: int = 0,
        depth: int = 2,
        width: int = 64,
        heads: int = 2,
        head_dim: int | None = None,
        ff_width: int = 128,
        dropout: float = 0.1,
        attention_dropout: float | None = None,
        attention_bias: bool | None = None,
        projection_init: str = "xavier",
        embedding_scale: float = DEVIATION,
        position_scale: float | None = None,
        cls_scale: float = DEVIATION,
        pooling: str = "mean",
        readout_hidden: Sequence[int] | None = None,
        readout_activation: str | None = None,
        readout_dropout: float | None = None,
        norm: str = "layer",
        norm_place: str = "pre",
        activation: str = "gelu",
        max_length: int | None = None,
        causal: bool | None = None,
        pair_features: str = "nli",
        reversible: bool = False,
        feed_forward_chunks: int = 1,
        feed_forward: bool = True,
        short_convolution: int | None = None,
        hybrid: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        for name, size in {"depth": depth, "width": width, "heads": heads, "ff_width": ff_width}.items():
            if size < 1:
                raise UserError(f"backbone.{name}={size}: must be at least 1")
        if causal is not None and not isinstance(causal, bool):
            raise UserError(f"backbone.causal={causal}: must be true, false or null")
        if pooling not in POOLINGS:
            raise UserError(f"backbone.pooling={pooling}: must be one of {', '.join(POOLINGS)}")
        if projection_init not in PROJECTION_INITS:
            raise UserError(f"backbone.projection_init={projection_init}: must be one of {', '.join(PROJECTION_INITS)}")
        if pair_features not in PAIR_FEATURES:
            raise UserError(f"backbone.pair_features={pair_features}: must be one of {', '.join(PAIR_FEATURES)}")
        if norm == "batch" and spec.direction == "causal":
            raise UserError(
                "backbone.norm=batch: statistics over a batch leak later tokens to earlier ones, which the causal task "
                f"{spec.name} does not allow; set backbone.norm=layer"
            )
        self.spec, self.pooling, self.max_length = spec, pooling, max_length or spec.train_length
        layers = arrange(mixer, hybrid, depth)
        self.capability: Capability = layers.capability
        if short_convolution is not None:
            self.capability = replace(self.capability, equivariant=False)
        self.requested_causal = causal
        self.causal = _runs_causally(spec, self.capability) if causal is None else causal
        layers.check_rows(self.causal)
        with_cls = pooling == "cls" and not spec.per_token
        if pooling in ("cls", "first") and not spec.per_token and self.causal:
            raise UserError(
                f"backbone.pooling={pooling}: in a causal model the first position attends to no other; set "
                "backbone.pooling=mean or last"
            )

        self.embedding = embedding(spec, width, embedding_scale)
        self.cls = nn.Parameter(torch.randn(width) * cls_scale) if with_cls else None
        position_options = {
            "head_dim": head_dim or mixer.get("head_dim"),
            "causal": self.causal,
            "grid": spec.grid,
            # Position encodings that scale longer sequences do so beyond the training length, not beyond max_length.
            **({} if "train_length" in position else {"train_length": spec.train_length}),
            **({} if position_scale is None or "scale" in position else {"scale": position_scale}),
        }
        self.position = build(
            position,
            Position,
            "position",
            width=width,
            heads=heads,
            max_length=self.max_length,
            **_accepted_options(position_options, position, Position, "position"),
        )
        self.drop = Dropout(dropout)
        common = {
            "width": width,
            "heads": heads,
            "depth": depth,
            "max_length": self.max_length + with_cls,
            "causal": self.causal,
            "dropout": dropout if attention_dropout is None else attention_dropout,
            "seed": seed,
            # The backbone applies the embed hook. If there is no other hook, the mixer needs no position encoding, and
            # passing it would register its parameters in each mixer as well.
            "position": self.position if self.position.hooks - {"embed"} else None,
        }
        mixers = [
            build(node, Mixer, option, layer=layer, **common, **_head_options(kind, node, head_dim, attention_bias))
            for layer, (node, option, kind) in enumerate(zip(layers.nodes, layers.options, layers.kinds, strict=True))
        ]
        self.blocks = nn.ModuleList(
            each
            if each.spec.block == "self_contained"
            else Block(
                each,
                FeedForward(width, ff_width, activation, dropout) if feed_forward else None,
                width,
                norm=norm,
                place=norm_place,
                dropout=dropout,
                chunks=feed_forward_chunks,
            )
            for each in mixers
        )
        self.remembers = self.capability.memory and self.causal
        self.reversible = reversible
        if reversible:
            for kind in layers.kinds:
                _check_reversible(kind, norm, norm_place, feed_forward, self.remembers)
        # With memory, positions continue from batch to batch of a stream, so every position must be supported.
        if self.remembers and (reason := self.position.supports_length(10**9)):
            raise UserError(f"{reason} (positions of a system with memory grow without limit)")
        self.norm = norm_layer(norm, width) if norm_place == "pre" else nn.Identity()
        self.head = Head(
            spec,
            width,
            readout_hidden or ff_width,
            readout_activation or activation,
            dropout if readout_dropout is None else readout_dropout,
            pair_features,
        )
        if projection_init == "fan_in":
            for layer in self._projections():
                layer.reset_parameters()
        if short_convolution is not None:
            # Created last, so that the other initial weights are those of the same model without convolution.
            for number, block in enumerate(self.blocks):
                convolution = CanonLayer(width, short_convolution, causal=self.causal)
                if isinstance(block, Block):
                    block.convolution = convolution
                else:
                    self.blocks[number] = Preceded(block, convolution)  # type: ignore[arg-type]
        name_modules(self)

    def forward(self, batch: Batch, memory: Any = None) -> Output:
        """Return the logits, and the auxiliary losses, memory and statistics of the mixers.

        Logits are (B, classes), or (B, N, classes) if every token is scored. ``memory`` is that of the output for the
        previous batch of a stream, None at its start. Raises ``UserError`` if the mixer or the position encoding does
        not support the length.
        """
        x, context, memory = self._run(batch, memory)
        features = (
            x[:, context.prefix :] if self.spec.per_token else pool(x, self.pooling, context.prefix, context.padding)
        )
        return Output(self.head(features), context.losses, memory, context.statistics)

    def hidden(self, batch: Batch) -> Tensor:
        """Return the hidden states of the tokens after the last block and the final norm.

        (B, N, E), or (2B, N, E) for pairs of documents, with the two documents of a pair adjacent.
        """
        x, context, _ = self._run(batch, None)
        return x[:, context.prefix :]

    def refuses_steps(self) -> str | None:
        """Return why ``read`` does not support this network, None if it does."""
        if not self.causal:
            return "the model is bidirectional"
        if self.reversible:
            return "reversible blocks have no memory"
        if type(self.mixers[0]).prefix_rows is not Mixer.prefix_rows:
            return f"{type(self.mixers[0]).__name__} adds rows in front of the tokens"
        if self.position.depends_on_length:
            return f"position={self.position.name} depends on the length"
        return next(filter(None, (mixer.refuses_steps() for mixer in self.mixers)), None)

    def read(self, batch: Batch, memory: Any = None) -> tuple[Tensor, Any]:
        """Read tokens that follow those of ``memory``; None is the start of a sequence.

        Returns the hidden states of the tokens after the final norm (B, N, E), equal to those of ``hidden`` for the
        whole sequence, and the memory for the tokens after them: all tensors that are needed to read on. Call it in
        evaluation mode only. Raises ``ValueError`` if a sequence has padding, and ``UserError`` if the network has no
        such form (``refuses_steps``).
        """
        if reason := self.refuses_steps():
            raise UserError(f"model: cannot be read in parts, because {reason}")
        if not batch.full:
            raise ValueError("sequences with padding cannot be read in parts")
        x, _, memory = self._run(batch, memory, keeps_memory=True)
        return x, memory

    def restricts_from(self) -> int | None:
        """Return the smallest length in tokens at which a layer restricts what a token can attend to.

        0 and None as in ``Mixer.restricts_from``; the result is None if all layers return None.
        """
        lengths = [_in_tokens(mixer, self.cls is not None) for mixer in self.mixers]
        return min((length for length in lengths if length is not None), default=None)

    def supports(self, spec: TaskSpec) -> str | None:
        """Return the reason why the mixer does not support the direction of the task, None if it does."""
        reasons = (
            mixer.spec.refuses_direction(spec, self.requested_causal, type(mixer).__name__) for mixer in self.mixers
        )
        return next(filter(None, reasons), None)

    def supports_length(self, length: int) -> str | None:
        """Return the reason why sequences of ``length`` tokens are not supported, or None if they are supported."""
        limit = self.max_length
        option = f"backbone.max_length={limit}"
        advice = f"set backbone.max_length={length} or choose a mixer without this limit (lra-bench list models)"
        kinds: dict[type[Mixer], None] = dict.fromkeys(type(mixer) for mixer in self.mixers)
        for kind in kinds:
            if kind.spec.length == "maximum" and length > limit:
                return f"{option}: {kind.__name__} takes at most {limit} tokens, {length} were requested; {advice}"
            if kind.spec.length == "fixed" and length != limit:
                return f"{option}: {kind.__name__} takes exactly {limit} tokens, {length} were requested; {advice}"
        return self.position.supports_length(length)

    @property
    def mixers(self) -> list[Mixer]:
        """Mixers of all layers."""
        return [block.mixer if isinstance(block, Block | Preceded) else block for block in self.blocks]  # type: ignore[misc]

    @property
    def shards(self) -> list[nn.Module]:
        """Blocks whose weights are used only in their own forward pass, so that they can be sharded."""
        if self.reversible:
            return []
        # The backbone calls prefix_rows of the first mixer outside the forward pass of its block.
        has_prefix = type(self.mixers[0]).prefix_rows is not Mixer.prefix_rows
        return list(self.blocks)[has_prefix:]

    def _projections(self) -> Iterator[nn.Linear]:
        """Yield the layers that ``projection_init`` initialises."""
        for module in self.modules():
            layers: list[Any] = []
            if isinstance(module, HeadMixer):
                layers = [getattr(module, name, None) for name in ("query", "key", "value", "output")]
            elif isinstance(module, FeedForward):
                layers = list(module)
            elif isinstance(module, Head):
                layers = [module.layers]
            yield from (layer for layer in layers if isinstance(layer, nn.Linear))

    def parameter_parts(self) -> dict[str, int]:
        """Return the number of parameters in total and by part.

        ``body`` are the parameters that are in no other part (embeddings, positions, head). ``body_active`` are those
        of them that one token uses; here all.
        """
        parts = {
            "embeddings": _parameter_count(self.embedding) + (0 if self.cls is None else self.cls.numel()),
            "positions": _parameter_count(self.position),
            "head": _parameter_count(self.head),
        }
        total = _parameter_count(self)
        body = total - sum(parts.values())
        return {"total": total, "body": body, "body_active": body, **parts}

    def _run(self, batch: Batch, memory: Any, keeps_memory: bool = False) -> tuple[Tensor, Context, Any]:
        """Run all blocks and the final norm, with the memory of every layer if ``remembers`` or ``keeps_memory``.

        Returns:
            The hidden states (B, P + N, E) with P prefix positions; the context after the last block; the memory for
            the next batch of a stream, None if the model has none.
        """
        inputs, lengths, remembers = batch.inputs, batch.lengths, self.remembers or keeps_memory
        # Pairs of documents: both documents of a pair become adjacent sequences.
        if lengths.dim() == 2:
            inputs, lengths = inputs.flatten(0, 1), lengths.flatten()
        if reason := self.supports_length(inputs.shape[1]):
            raise UserError(reason)
        if remembers:
            seen = lengths.new_zeros(lengths.shape) if memory is None else memory["seen"]
            positions = seen[:, None] + torch.arange(inputs.shape[1], device=inputs.device)
        else:
            positions = self.position.places(inputs.shape[1], inputs.device)
        x = self.embedding(inputs)
        if "embed" in self.position.hooks:
            x = self.position.embed(x, positions)
        x = self.drop(x)
        padding = None if batch.full else Padding.from_lengths(lengths, inputs.shape[1])
        if padding is not None:
            x = padding.zero(x)
        context = Context(padding, positions, grid=self.spec.grid, keeps_memory=remembers)
        x, context = self._with_prefix(x, context, lengths)

        if self.reversible:
            x, context = run_reversibly(list(self.blocks), x, context)  # type: ignore[arg-type]
            return *normalised(self.norm, x, context), None
        layer_memories = []
        for layer, block in enumerate(self.blocks):
            layer_memory = memory["layers"][layer] if remembers and memory is not None else None
            x, context = block(x, context.replace(depth=layer, memory=layer_memory))
            layer_memories.append(context.memory)
        # "seen" is the number of tokens of the stream so far, (B,).
        new_memory = {"seen": seen + lengths, "layers": tuple(layer_memories)} if remembers else None
        return *normalised(self.norm, x, context), new_memory

    def _with_prefix(self, x: Tensor, context: Context, lengths: Tensor) -> tuple[Tensor, Context]:
        """Insert the prefix vectors of the mixer, then the CLS vector, in front of the tokens.

        Returns x (B, P + N, E) and the context with the P prefix positions added to positions and padding.
        """
        context = context.replace(train_length=self.spec.train_length)
        prefixes = []
        if (mixer_prefix := self.mixers[0].prefix_rows(x, context)) is not None:
            prefixes.append(mixer_prefix)
        if self.cls is not None:
            prefixes.append(self.cls.to(x.dtype).expand(x.shape[0], 1, -1))
        if not prefixes:
            return x, context
        x = torch.cat((*prefixes, x), 1)
        prefix = sum(each.shape[1] for each in prefixes)
        prefix_positions = context.positions.new_full((*context.positions.shape[:-1], prefix), -1)
        padding = None if context.padding is None else Padding.from_lengths(lengths + prefix, x.shape[1])
        positions = torch.cat((prefix_positions, context.positions), -1)
        return x, context.replace(padding=padding, positions=positions, prefix=prefix)


def _runs_causally(spec: TaskSpec, capability: Capability) -> bool:
    """Return whether the mixer runs causally if ``backbone.causal`` is not set.

    If the mixer does not support the direction of the task, the result is the direction that it supports, and
    ``SequenceModel.supports`` returns the reason.
    """
    causal_task = spec.direction == "causal"
    return not capability.bidirectional or (causal_task and capability.causal == "exact")


def _accepted_options(options: Mapping[str, Any], node: Mapping[str, Any], base: type, option: str) -> dict[str, Any]:
    """Return the ``options`` that the constructor of the class in ``node`` accepts.

    The class is given by ``_target_``, and is a subclass of ``base`` that may accept fewer options than ``base``.
    ``option`` is the name of ``node`` in error messages.
    """
    if not node.get("_target_"):
        return {}
    accepted = known_options(load_class(str(node["_target_"]), base, option))
    return {name: value for name, value in options.items() if accepted is None or name in accepted}


def _check_reversible(kind: type[Mixer], norm: str, norm_place: str, feed_forward: bool, remembers: bool) -> None:
    """Raise ``UserError`` if the blocks cannot be run as reversible blocks."""
    reasons = {
        f"{kind.__name__} replaces the whole block and has no residual branches": kind.spec.block == "self_contained",
        f"{kind.__name__} passes values from layer to layer": bool(kind.spec.carries),
        f"{kind.__name__} has memory": remembers,
        "a norm after the residual sum cannot be inverted (set backbone.norm_place=pre)": norm_place != "pre",
        "batch statistics would be accumulated twice (set backbone.norm=layer)": norm == "batch",
        "the second residual branch needs feed-forward networks (set backbone.feed_forward=true)": not feed_forward,
    }
    for reason, applies in reasons.items():
        if applies:
            raise UserError(f"backbone.reversible=true: {reason}")


def _head_options(
    kind: type[Mixer], mixer: Mapping[str, Any], head_dim: int | None, bias: bool | None
) -> dict[str, Any]:
    """Return the options of the mixer that ``backbone.head_dim`` and ``backbone.attention_bias`` set.

    Options that the mixer does not have are left out instead of rejected, because recipes set them for all mixers;
    biases are left out too if the configuration of the mixer sets them.
    """
    accepted = known_options(kind)
    biases = {name: bias for name in ("qkv_bias", "output_bias") if name not in mixer}
    options = {"head_dim": head_dim, **biases}
    return {
        name: value for name, value in options.items() if value is not None and (accepted is None or name in accepted)
    }


def _in_tokens(mixer: Mixer, with_cls: bool) -> int | None:
    """Return ``restricts_from`` of the mixer without the CLS row."""
    length = mixer.restricts_from()
    return length - 1 if length and with_cls and not mixer.separates_cls else length


def _parameter_count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
