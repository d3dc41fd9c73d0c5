"""Backbone around a mixer: embedding, position encoding, blocks, pooling and output head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lra_bench.build import build
from lra_bench.contracts import Batch, Capability, Output, TaskSpec, UserError
from lra_bench.options.backbone import BackboneOptions

from .batch_norm import normalised
from .block import NORMS, Block
from .canon_layer import Preceded
from .depth.controller import Controller, Pass, position_signal
from .funnel import check_funnel, pool_pairs
from .hybrid import arrange
from .kernels.dropout import Dropout
from .layer_mix import LayerMix
from .layers import add_convolutions, add_gates, build_block, build_mixers, check_reversible, distinct_layers
from .limits import length_refusal, restricts_from, runs_causally
from .mixer import Context, Mixer, Padding, name_modules
from .networks import check_networks
from .output_heads import output_layers
from .parameters import inactive_parameter_count, parameter_count, projections
from .positions.of_network import network_position
from .prefix import with_prefix
from .readout import Head, at_places, pool
from .residual import check_residual, initialise_fixup
from .reversible import run_reversibly
from .stem import Patches, Stem, misfit, patched, tokens_of
from .token_embedding import token_embedding


class SequenceModel(nn.Module):
    """Stack of identical blocks around one kind of mixer, for every kind of task.

    Raises ``UserError`` if the options do not fit each other, the mixer or the task.

    Args:
        spec: Specification of the task.
        mixer: Configuration node of the mixer.
        position: Configuration node of the position encoding.
        options: Options of the section ``backbone``.
        seed: Seed of random numbers that are not weights.
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
        options: BackboneOptions,
        seed: int = 0,
        controller: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        pooling, width, depth = options.pooling, options.width, options.depth
        self.width = width
        if options.norm == "batch" and spec.direction == "causal":
            raise UserError(
                "backbone.norm=batch: statistics over a batch leak later tokens to earlier ones, which the causal task "
                f"{spec.name} does not allow; set backbone.norm=layer"
            )
        self.spec, self.pooling, self.stem_size, self.patch_size = spec, pooling, options.stem, options.patch
        layers = arrange(mixer, options.hybrid, depth)
        self.capability: Capability = layers.capability
        mixes = options.short_convolution, options.funnel, options.stem, options.patch
        if options.block != "residual" or any(size is not None for size in mixes):
            self.capability = replace(self.capability, equivariant=False)
        self.requested_causal = options.causal
        self.causal = runs_causally(spec, self.capability) if options.causal is None else options.causal
        layers.check_rows(self.causal)
        self.inner = patched(spec, options.patch, self.causal, ["model.controller"] if controller is not None else [])
        self.max_length = self._positions(options.max_length or spec.train_length)
        with_cls = pooling == "cls" and not spec.per_token
        if pooling in ("cls", "first") and not spec.per_token and self.causal:
            raise UserError(
                f"backbone.pooling={pooling}: in a causal model the first position attends to no other; set "
                "backbone.pooling=mean or last"
            )

        self.embedding = token_embedding(spec, width, options)
        self.cls = nn.Parameter(torch.randn(width) * options.cls_scale) if with_cls else None
        self.position = network_position(
            position,
            self.inner,
            width=width,
            heads=options.heads,
            max_length=self.max_length,
            causal=self.causal,
            head_dim=options.head_dim or mixer.get("head_dim"),
            scale=options.position_scale,
        )
        self.drop = Dropout(options.dropout)
        common = {
            "width": width,
            "heads": options.heads,
            "depth": depth,
            "max_length": self.max_length + with_cls,
            "causal": self.causal,
            "dropout": options.dropout if options.attention_dropout is None else options.attention_dropout,
            "seed": seed,
            # The backbone applies the embed hook. If there is no other hook, the mixer needs no position encoding, and
            # passing it would register its parameters in each mixer as well.
            "position": self.position if self.position.hooks - {"embed"} else None,
        }
        self.depth, self.funnel, self.reversible = depth, options.funnel, options.reversible
        self.convolves = options.block == "evolved"
        # Of the convolutions only those in front of the mixers have a memory.
        self.remembers = self.capability.memory and self.causal and controller is None and not self.convolves
        self.remembers = self.remembers and options.stem is None and options.patch is None
        check_networks(options)
        check_residual(options, layers.kinds)
        check_funnel(options, spec, self.causal, layers.kinds)
        if self.reversible:
            check_reversible(options, layers.kinds, self.remembers)
        mixers = build_mixers(distinct_layers(layers, options), common, options)
        self.blocks = nn.ModuleList(build_block(each, options) for each in mixers)
        # With memory, positions continue from batch to batch of a stream, so every position must be supported.
        if self.remembers and (reason := self.position.supports_length(10**9)):
            raise UserError(f"{reason} (positions of a system with memory grow without limit)")
        self.norm = NORMS[options.norm](width) if options.norm_place == "pre" else nn.Identity()
        tied = self.embedding if options.embedding.tied else None
        self.head = Head(
            spec,
            width,
            options.readout_hidden or options.ff_width,
            options.readout_activation or options.activation,
            options.dropout if options.readout_dropout is None else options.readout_dropout,
            options.pair_features,
            output_layers(spec, width, options.output, tied, options.token_order),
        )
        if options.projection_init == "fan_in":
            for layer in projections(self):
                layer.reset_parameters()
        if options.short_convolution is not None:
            # Created last, so that the other initial weights are those of the same model without convolution.
            add_convolutions(self.blocks, width, options.short_convolution, self.causal)
        if options.gate is not None:
            add_gates(self.blocks, options.gate, options)  # after the other weights, as above
        stem, patch, grid = options.stem, options.patch, spec.grid
        self.stem = None if stem is None else Stem(width, stem, causal=self.causal, grid=grid)
        self.patches = None if patch is None else Patches(width, patch, grid)
        self.mix = LayerMix(depth) if options.mix_layers else None
        if options.residual == "fixup":
            initialise_fixup(self.blocks, depth * (1 + options.feed_forward))
        self.controller: Controller | None = None
        if controller is not None:
            if options.mix_layers or self.funnel is not None:
                raise UserError("model.controller: is not supported with backbone.mix_layers and backbone.funnel")
            if spec.decodes_state:
                raise UserError(f"model.controller: {spec.name} decodes one state, not tokens; choose another task")
            of_network = {"spec": spec, "width": width, "depth": depth, "causal": self.causal}
            refused = {"mixers": layers.kinds, "norm": options.norm, "reversible": self.reversible}
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

    def states(self, batch: Batch) -> Output:
        """Return the output for a batch with the hidden states of its tokens, see ``hidden``, in place of logits."""
        x, context, _ = self._run(batch, None)
        return Output(x[:, context.prefix :], context.losses, None, context.statistics)

    def _pooled(self, x: Tensor, context: Context) -> Tensor:
        """Return the inputs of the head for normalised hidden states x (B, P + N, E)."""
        if self.spec.decodes_state:
            state = pool(x, "last", context.prefix, context.padding)
            return at_places(state, x.shape[1] - context.prefix)
        return x[:, context.prefix :] if self.spec.per_token else pool(x, self.pooling, context.prefix, context.padding)

    def hidden(self, batch: Batch) -> Tensor:
        """Return the hidden states after the last block and the final norm, one for each token or patch.

        (B, N, E), or (2B, N, E) for pairs of documents, with the two documents of a pair adjacent.
        """
        return self.states(batch).logits

    def refuses_pretraining(self) -> str | None:
        """Return why the hidden states of this network cannot be trained to restore inputs, None if they can."""
        if self.controller is not None:
            return f"{type(self.controller).__name__} gives tokens different depths"
        shortened = "patch" if self.patches is not None else "funnel" if self.funnel is not None else ""
        return f"backbone.{shortened} shortens the sequence" if shortened else None

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
        if self.stem is not None or self.patches is not None:
            return "backbone.stem and backbone.patch have no step form"
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
        length = 0 if self.funnel else restricts_from(self.mixers, self.cls is not None)
        if not length or self.patch_size is None:
            return length
        return 1 + (length - 1) * tokens_of(self.patch_size, self.spec.grid)

    def supports(self, spec: TaskSpec) -> str | None:
        """Return the reason why the mixer does not support the direction of the task, None if it does."""
        reasons = (
            mixer.spec.refuses_direction(spec, self.requested_causal, type(mixer).__name__) for mixer in self.mixers
        )
        return next(filter(None, reasons), None)

    def supports_length(self, length: int) -> str | None:
        """Return the reason why sequences of ``length`` tokens are not supported, or None if they are supported."""
        if reason := self._misfit(length):
            return reason
        positions = self._positions(length)
        return length_refusal(self.mixers, self.max_length, positions) or self.position.supports_length(positions)

    def _misfit(self, length: int) -> str | None:
        """Return why an image of ``length`` pixels has no patches or no convolution, None if it has."""
        patch, grid = self.patch_size, self.spec.grid
        if patch is None and (self.stem_size is None or self.causal):
            return None
        reason = misfit(length, patch or 1, grid)
        return None if reason is None else f"backbone.{'stem' if patch is None else f'patch={patch}'}: {reason}"

    def _positions(self, length: int) -> int:
        """Return the number of positions of the blocks for ``length`` tokens."""
        return length if self.patch_size is None else -(-length // tokens_of(self.patch_size, self.spec.grid))

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
            "embeddings": sum(parameter_count(each) for each in self._inputs)
            + (0 if self.cls is None else self.cls.numel()),
            "positions": parameter_count(self.position),
            "head": parameter_count(self.head),
        }
        total = parameter_count(self)
        body = total - sum(parts.values())
        return {"total": total, "body": body, "body_active": body - inactive_parameter_count(self), **parts}

    @property
    def _inputs(self) -> list[nn.Module]:
        """Layers in front of the position encoding."""
        return [each for each in (self.embedding, self.stem, self.patches) if each is not None]

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
        x, host = self.embedding(inputs), None
        if not batch.full and batch.host_lengths is not None:
            host = batch.host_lengths.flatten()
        if self.stem is not None or self.patches is not None:
            x, lengths, host = self._joined(x, lengths, host, batch.full)
        if remembers:
            before = lengths.new_zeros(lengths.shape) if memory is None else memory["seen"]
            positions = before[:, None] + torch.arange(inputs.shape[1], device=inputs.device)
            seen = before + lengths
        else:
            seen, positions = None, self.position.places(x.shape[1], inputs.device)
        if "embed" in self.position.hooks:
            x = self.position.embed(x, positions)
        x = self.drop(x)
        padding = None
        if not batch.full:
            padding = Padding.from_lengths(lengths, x.shape[1], host)
        if padding is not None:
            x = padding.zero(x)
        context = Context(
            padding, positions, grid=self.inner.grid, keeps_memory=remembers, train_length=self.inner.train_length
        )
        x, context = with_prefix(x, context, lengths, self.mixers[0], self.cls)
        return x, context, seen

    def _joined(
        self, x: Tensor, lengths: Tensor, host: Tensor | None, full: bool | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return embeddings x (B, N, E) after stem and patches, and the lengths (B,) on the device and on the host."""
        if not full:
            x = Padding.from_lengths(lengths, x.shape[1], host).zero(x)
        if self.stem is not None:
            x = self.stem(x)
            if not full and self.patches is not None:
                x = Padding.from_lengths(lengths, x.shape[1], host).zero(x)
        if self.patches is None:
            return x, lengths, host
        return self.patches(x), self.patches.count(lengths), None if host is None else self.patches.count(host)

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
