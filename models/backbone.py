"""Backbone around a mixer: embedding, position encoding, blocks, pooling and output head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lra_bench.build import build
from lra_bench.contracts import Batch, Capability, Output, TaskSpec, UserError

from .batch_norm import normalised
from .block import Block, norm_layer
from .canon_layer import Preceded
from .depth.controller import Controller, Pass, position_signal
from .embedding import DEVIATION
from .funnel import check_funnel, pool_pairs
from .hybrid import arrange
from .kernels.dropout import Dropout
from .layer_mix import LayerMix
from .layers import add_convolutions, add_gates, build_block, build_mixers, check_reversible, distinct_layers
from .limits import length_refusal, restricts_from, runs_causally
from .mixer import Context, Mixer, Padding, name_modules
from .networks import Networks
from .output_heads import output_layers
from .parameters import inactive_parameter_count, parameter_count, projections
from .positions.of_network import network_position
from .prefix import with_prefix
from .readout import PAIR_FEATURES, POOLINGS, Head, pool
from .residual import PLAIN, check_residual, initialise_fixup
from .reversible import run_reversibly
from .token_embedding import token_embedding

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
        norm: ``layer`` (LayerNorm), ``rms`` (RMSNorm), ``scale`` (RMSNorm with one learned scale for all features),
            ``batch`` (batch normalisation) or ``none``.
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
        residual: ``add`` (x + F(x)), ``rezero`` (x + α F(x) with a learned scalar, initially 0) or ``fixup`` (learned
            scalars around F, whose layers are initialised such that F is 0).
        block: ``residual`` (``Block``) or ``evolved`` (``EvolvedBlock``).
        share_every: Number of layers with their own weights, which are reused in the same order; 1 for the same weights
            in all layers, None for different weights.
        embedding: ``rank``, ``cutoffs``, ``factor`` and ``tied``, see ``token_embedding``; by default one table.
        output: ``kind``, ``components``, ``cutoffs`` and ``factor``, see ``output_layers``; by default a linear layer.
        token_order: Token ids from the most frequent one on, for ``cutoffs``; other ids follow in their order.
        experts: Options of ``Experts``, and ``every``: every ``every``-th layer, counted from 1, has experts as its
            feed-forward network. ``ff_width`` is the hidden width of an expert, by default that of the networks divided
            by ``top_k``. ``count`` is None for no experts.
        product_keys: Options of ``ProductKeyMemory``, and ``layer``: the layer, counted from 1, that has it in place of
            a feed-forward network, None for none.
        mix_layers: Whether the head receives a learned sum of the states of all layers (``LayerMix``).
        funnel: Number of blocks of equally many layers, between which pairs of neighbouring tokens are averaged
            (``pool_pairs``). None for no pooling.
        gate: Kind of the gates in place of the residual sums, as in GTrXL (``gate.GatedResidual``); None for sums.
        controller: Configuration node of a depth controller (``models/depth``), which runs the blocks and passes no
            memory from batch to batch. None if every token passes through every layer.
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
        residual: str = PLAIN,
        block: str = "residual",
        share_every: int | None = None,
        embedding: Mapping[str, Any] | None = None,
        output: Mapping[str, Any] | None = None,
        token_order: Sequence[int] | None = None,
        experts: Mapping[str, Any] | None = None,
        product_keys: Mapping[str, Any] | None = None,
        mix_layers: bool = False,
        funnel: int | None = None,
        gate: str | None = None,
        controller: Mapping[str, Any] | None = None,
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
        if short_convolution is not None or block != "residual" or funnel is not None:
            self.capability = replace(self.capability, equivariant=False)
        self.requested_causal = causal
        self.causal = runs_causally(spec, self.capability) if causal is None else causal
        layers.check_rows(self.causal)
        with_cls = pooling == "cls" and not spec.per_token
        if pooling in ("cls", "first") and not spec.per_token and self.causal:
            raise UserError(
                f"backbone.pooling={pooling}: in a causal model the first position attends to no other; set "
                "backbone.pooling=mean or last"
            )

        self.embedding = token_embedding(spec, width, embedding_scale, embedding, token_order)
        self.cls = nn.Parameter(torch.randn(width) * cls_scale) if with_cls else None
        self.position = network_position(
            position,
            spec,
            width=width,
            heads=heads,
            max_length=self.max_length,
            causal=self.causal,
            head_dim=head_dim or mixer.get("head_dim"),
            scale=position_scale,
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
        self.depth, self.funnel, self.reversible, self.convolves = depth, funnel, reversible, block == "evolved"
        self.remembers = self.capability.memory and self.causal and controller is None and not self.convolves
        hidden = ff_width if feed_forward else None
        networks = Networks(width, hidden, activation, dropout, feed_forward_chunks, experts, product_keys)
        networks.check(depth)
        check_residual(residual, norm, norm_place, layers.kinds)
        check_funnel(funnel, depth, spec, self.causal, reversible or mix_layers, layers.kinds)
        if reversible:
            others = mix_layers or self.convolves or networks.has_experts
            check_reversible(layers.kinds, norm, norm_place, feed_forward, self.remembers, others)
        self.blocks = nn.ModuleList(
            build_block(each, networks, kind=block, norm=norm, place=norm_place, residual=residual)
            for each in build_mixers(distinct_layers(layers, share_every, norm), common, head_dim, attention_bias)
        )
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
            output_layers(spec, width, output, self.embedding if (embedding or {}).get("tied") else None, token_order),
        )
        if projection_init == "fan_in":
            for layer in projections(self):
                layer.reset_parameters()
        if short_convolution is not None:
            # Created last, so that the other initial weights are those of the same model without convolution.
            add_convolutions(self.blocks, width, short_convolution, self.causal)
        if gate is not None:
            add_gates(self.blocks, width, gate, norm_place, reversible, residual)  # after the other weights, as above
        self.mix = LayerMix(depth) if mix_layers else None
        if residual == "fixup":
            initialise_fixup(self.blocks, depth * (1 + feed_forward))
        self.controller: Controller | None = None
        if controller is not None:
            if mix_layers or funnel is not None:
                raise UserError("model.controller: is not supported with backbone.mix_layers and backbone.funnel")
            of_network = {"spec": spec, "width": width, "depth": depth, "causal": self.causal}
            refused = {"mixers": layers.kinds, "norm": norm, "reversible": reversible}
            self.controller = build(controller, Controller, "model.controller", **of_network, **refused)
            self.capability = replace(self.capability.sourced(self.controller.spec), memory=False)
        name_modules(self)

    def forward(self, batch: Batch, memory: Any = None) -> Output:
        """Return the logits, and the auxiliary losses, memory and statistics of the mixers.

        Logits are (B, classes), or (B, N, classes) if every token is scored. ``memory`` is that of the output for the
        previous batch of a stream, None at its start. Raises ``UserError`` if the mixer or the position encoding does
        not support the length.
        """
        x, context, memory = self._run(batch, memory)
        return Output(self.head(self._pooled(x, context)), context.losses, memory, context.statistics)

    def _pooled(self, x: Tensor, context: Context) -> Tensor:
        """Return the inputs of the head for normalised hidden states x (B, P + N, E)."""
        return x[:, context.prefix :] if self.spec.per_token else pool(x, self.pooling, context.prefix, context.padding)

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
        if self.controller is not None:
            return f"{type(self.controller).__name__} gives tokens different depths"
        if self.reversible:
            return "reversible blocks have no memory"
        if self.convolves:
            return "blocks of the Evolved Transformer have no step form"
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
        return 0 if self.funnel else restricts_from(self.mixers, self.cls is not None)

    def supports(self, spec: TaskSpec) -> str | None:
        """Return the reason why the mixer does not support the direction of the task, None if it does."""
        reasons = (
            mixer.spec.refuses_direction(spec, self.requested_causal, type(mixer).__name__) for mixer in self.mixers
        )
        return next(filter(None, reasons), None)

    def supports_length(self, length: int) -> str | None:
        """Return the reason why sequences of ``length`` tokens are not supported, or None if they are supported."""
        return length_refusal(self.mixers, self.max_length, length) or self.position.supports_length(length)

    @property
    def layers(self) -> list[nn.Module]:
        """Block of each layer; layers that share weights have the same block."""
        return [self.blocks[layer % len(self.blocks)] for layer in range(self.depth)]

    @property
    def mixers(self) -> list[Mixer]:
        """Mixers of all layers that have their own weights."""
        return [block.mixer if isinstance(block, Block | Preceded) else block for block in self.blocks]  # type: ignore[misc]

    @property
    def shards(self) -> list[nn.Module]:
        """Blocks whose weights are used only in one forward pass, their own, so that they can be sharded."""
        if self.reversible or self.controller is not None or self.depth > len(self.blocks):
            return []
        # The backbone calls prefix_rows of the first mixer outside the forward pass of its block.
        has_prefix = type(self.mixers[0]).prefix_rows is not Mixer.prefix_rows
        return list(self.blocks)[has_prefix:]

    def parameter_parts(self) -> dict[str, int]:
        """Return the number of parameters in total and by part.

        ``body`` are the parameters that are in no other part (embeddings, positions, head). ``body_active`` are those
        of them that one token uses: all except those of experts and values of a memory that it does not select.
        """
        parts = {
            "embeddings": parameter_count(self.embedding) + (0 if self.cls is None else self.cls.numel()),
            "positions": parameter_count(self.position),
            "head": parameter_count(self.head),
        }
        total = parameter_count(self)
        body = total - sum(parts.values())
        return {"total": total, "body": body, "body_active": body - inactive_parameter_count(self), **parts}

    def _embed(self, batch: Batch, memory: Any, remembers: bool) -> tuple[Tensor, Context, Tensor | None]:
        """Return the inputs (B, P + N, E) of the first block, its context, and the tokens of the stream so far, (B,).

        P is the number of prefix positions. The number of tokens includes those of the batch; it is None if the model
        has no memory.
        """
        inputs, lengths = batch.inputs, batch.lengths
        # Pairs of documents: both documents of a pair become adjacent sequences.
        if lengths.dim() == 2:
            inputs, lengths = inputs.flatten(0, 1), lengths.flatten()
        if reason := self.supports_length(inputs.shape[1]):
            raise UserError(reason)
        if remembers:
            before = lengths.new_zeros(lengths.shape) if memory is None else memory["seen"]
            positions = before[:, None] + torch.arange(inputs.shape[1], device=inputs.device)
            seen = before + lengths
        else:
            seen, positions = None, self.position.places(inputs.shape[1], inputs.device)
        x = self.embedding(inputs)
        if "embed" in self.position.hooks:
            x = self.position.embed(x, positions)
        x = self.drop(x)
        padding = None
        if not batch.full:
            host = None if batch.host_lengths is None else batch.host_lengths.flatten()
            padding = Padding.from_lengths(lengths, inputs.shape[1], host)
        if padding is not None:
            x = padding.zero(x)
        context = Context(
            padding, positions, grid=self.spec.grid, keeps_memory=remembers, train_length=self.spec.train_length
        )
        x, context = with_prefix(x, context, lengths, self.mixers[0], self.cls)
        return x, context, seen

    def _run(self, batch: Batch, memory: Any, keeps_memory: bool = False) -> tuple[Tensor, Context, Any]:
        """Run all blocks and the final norm, with the memory of every layer if ``remembers`` or ``keeps_memory``.

        Returns:
            The hidden states (B, P + N, E) with P prefix positions; the context after the last block; the memory for
            the next batch of a stream, None if the model has none.
        """
        remembers = self.remembers or keeps_memory
        x, context, seen = self._embed(batch, memory, remembers)
        if self.controller is not None:
            x, context = self.controller(self._pass(batch, x, context))
            return *normalised(self.norm, x, context), None
        if self.reversible:
            x, context = run_reversibly(self.layers, x, context)  # type: ignore[arg-type]
            return *normalised(self.norm, x, context), None
        layer_memories, states = [], [x]
        for layer, block in enumerate(self.layers):
            if self.funnel and layer and layer % (self.depth // self.funnel) == 0:
                x, context = pool_pairs(x, context)
            layer_memory = memory["layers"][layer] if remembers and memory is not None else None
            x, context = block(x, context.replace(depth=layer, memory=layer_memory))
            layer_memories.append(context.memory)
            if self.mix is not None:
                states.append(x)
        if self.mix is not None:
            x = self.mix(states)
        new_memory = None if seen is None else {"seen": seen, "layers": tuple(layer_memories)}
        return *normalised(self.norm, x, context), new_memory

    def finish(self, train: Any, validation: Any) -> None:
        """Prepare the evaluation of the trained network: calibrate the exits of its controller, if it has one.

        Args:
            train: Examples of the training split, a ``Rows`` of ``lra_bench.data.batches``.
            validation: Examples of the validation split.
        """
        if self.controller is None:
            return
        training, device = self.training, next(self.parameters()).device
        self.eval()
        with torch.no_grad():
            self.controller.finish(
                lambda batch: self._pass(batch, *self._embed(batch, None, False)[:2]), train, validation, device
            )
        self.train(training)

    def _pass(self, batch: Batch, x: Tensor, context: Context) -> Pass:
        """Return the inputs of the controller."""

        def features(x: Tensor, context: Context) -> Tensor:
            x, context = normalised(self.norm, x, context)
            return self._pooled(x, context)

        signal = position_signal(self.position, x, context)
        return Pass(self.layers, x, context, signal, features, self.head, batch.targets)
