"""The network around a mixer: embed, position, blocks, pool, head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from lra_bench.build import build, known_options, load_class
from lra_bench.contracts import Batch, Capability, Output, TaskSpec, UserError

from .batch_norm import normalised
from .block import Block, norm_layer
from .embedding import DEVIATION, embedding
from .feedforward import FeedForward
from .kernels.dropout import Dropout
from .mixer import Context, Mixer, Padding, name_modules
from .positions.position import Position
from .readout import PAIR_FEATURES, POOLINGS, Head, pool
from .reversible import run_reversibly


class SequenceModel(nn.Module):
    """A stack of equal blocks around one kind of mixer, for every kind of task.

    ``mixer`` and ``position`` are configuration nodes. ``max_length`` is the longest row to expect, in tokens, by
    default the training length. ``causal`` None follows the task; tasks of either direction run bidirectional where
    the mixer can, unless it is True. ``pooling`` is ``mean``, ``last``, or ``cls``, a learned row before the tokens.
    ``pair_features`` joins the vectors of two documents: ``nli`` or ``concatenation``. ``reversible`` runs blocks in
    two streams whose activations are computed back instead of kept; ``feed_forward_chunks`` is in how many parts of a
    row, one after the other, the feed-forward networks run. Both save memory and take time. ``feed_forward`` false
    leaves the feed-forward networks out of the blocks.
    Raises ``UserError`` where an option does not fit.
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
        pooling: str = "mean",
        norm: str = "layer",
        norm_place: str = "pre",
        activation: str = "gelu",
        max_length: int | None = None,
        causal: bool | None = None,
        pair_features: str = "nli",
        reversible: bool = False,
        feed_forward_chunks: int = 1,
        feed_forward: bool = True,
    ) -> None:
        super().__init__()
        for name, size in {"depth": depth, "width": width, "heads": heads, "ff_width": ff_width}.items():
            if size < 1:
                raise UserError(f"backbone.{name}={size}: must be at least 1")
        if causal is not None and not isinstance(causal, bool):
            raise UserError(f"backbone.causal={causal}: must be true, false or null")
        if pooling not in POOLINGS:
            raise UserError(f"backbone.pooling={pooling}: is none of {', '.join(POOLINGS)}")
        if pair_features not in PAIR_FEATURES:
            raise UserError(f"backbone.pair_features={pair_features}: is none of {', '.join(PAIR_FEATURES)}")
        if norm == "batch" and spec.direction == "causal":
            raise UserError(
                "backbone.norm=batch: means over a batch tell every token in training of those that follow it, which "
                f"{spec.name} forbids; set backbone.norm=layer"
            )
        self.spec, self.pooling, self.max_length = spec, pooling, max_length or spec.train_length
        kind = load_class(str(mixer.get("_target_")), Mixer, "model.mixer")
        self.capability: Capability = kind.spec
        self.asked_causal = causal
        self.causal = _direction(spec, kind.spec) if causal is None else causal
        with_cls = pooling == "cls" and not spec.per_token
        if with_cls and self.causal:
            raise UserError("backbone.pooling=cls: the first row of a causal model sees no token; set mean or last")

        self.embedding = embedding(spec, width)
        self.cls = nn.Parameter(torch.randn(width) * DEVIATION) if with_cls else None
        place = {
            "head_dim": head_dim or mixer.get("head_dim"),
            "causal": self.causal,
            "grid": spec.grid,
            # What is long, by default, is longer than the task's rows, not than the room that was made for them.
            **({} if "train_length" in position else {"train_length": spec.train_length}),
        }
        self.position = build(
            position,
            Position,
            "position",
            width=width,
            heads=heads,
            max_length=self.max_length,
            **_known(place, position, Position, "position"),
        )
        self.drop = Dropout(dropout)
        common = {
            "width": width,
            "heads": heads,
            "depth": depth,
            "max_length": self.max_length + with_cls,
            "causal": self.causal,
            "dropout": dropout,
            "seed": seed,
            # Only embed is the backbone's own hook; a mixer that sees the object would list its weights again.
            "position": self.position if self.position.hooks - {"embed"} else None,
            **_head_dim(kind, head_dim),
        }
        mixers = [build(mixer, Mixer, "model.mixer", layer=layer, **common) for layer in range(depth)]
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
        self.remembers = kind.spec.memory and self.causal
        self.reversible = reversible
        if reversible:
            _check_reversible(kind, norm, norm_place, feed_forward, self.remembers)
        if self.remembers and (reason := self.position.supports_length(10**9)):
            raise UserError(f"{reason} (a system with memory counts positions on without end)")
        self.norm = norm_layer(norm, width) if norm_place == "pre" else nn.Identity()
        self.head = Head(spec, width, ff_width, activation, dropout, pair_features)
        name_modules(self)

    def forward(self, batch: Batch, memory: Any = None) -> Output:
        """Logits (B, classes), or (B, N, classes) where every token is scored; with what the mixers return beside.

        Raises ``UserError`` where rows are longer than the position or the mixer can take.
        """
        x, context, memory = self._run(batch, memory)
        rows = x[:, context.prefix :] if self.spec.per_token else pool(x, self.pooling, context.prefix, context.padding)
        return Output(self.head(rows), context.losses, memory, context.statistics)

    def hidden(self, batch: Batch) -> Tensor:
        """The last layer's rows of the tokens (B, N, E); two documents follow each other as (2B, N, E)."""
        x, context, _ = self._run(batch, None)
        return x[:, context.prefix :]

    def supports(self, spec: TaskSpec) -> str | None:
        """None where the mixer suits the task's direction, else the reason why not."""
        return self.capability.refuses_direction(spec, self.asked_causal, self.mixers[0].__class__.__name__)

    def supports_length(self, length: int) -> str | None:
        """None where rows of ``length`` tokens can be taken, else the reason why not."""
        name, most = self.mixers[0].__class__.__name__, self.max_length
        advice = f"set backbone.max_length={length} or choose a mixer of any length (lra-bench list models)"
        if self.capability.length == "maximum" and length > most:
            return f"{name}: takes at most {most} tokens, asked for {length}; {advice}"
        if self.capability.length == "fixed" and length != most:
            return f"{name}: fixed to {most} tokens, asked for {length}; {advice}"
        return self.position.supports_length(length)

    @property
    def mixers(self) -> list[Mixer]:
        """The mixer of each layer."""
        return [block.mixer if isinstance(block, Block) else block for block in self.blocks]  # type: ignore[misc]

    @property
    def shards(self) -> list[nn.Module]:
        """The blocks whose weights nothing reads but their own forward pass, so that they may be fetched for it."""
        if self.reversible:
            return []
        first = type(self.mixers[0]).prefix_rows is not Mixer.prefix_rows
        return list(self.blocks)[first:]

    def parameter_parts(self) -> dict[str, int]:
        """Parameters in total and by part; what is in no other part is the body."""
        parts = {
            "embeddings": _count(self.embedding) + (0 if self.cls is None else self.cls.numel()),
            "positions": _count(self.position),
            "head": _count(self.head),
        }
        total = _count(self)
        body = total - sum(parts.values())
        return {"total": total, "body": body, "body_active": body, **parts}

    def _run(self, batch: Batch, memory: Any) -> tuple[Tensor, Context, Any]:
        """Rows of the last layer with their prefix, the context after it, the memory to keep."""
        inputs, lengths = batch.inputs, batch.lengths
        if lengths.dim() == 2:
            inputs, lengths = inputs.flatten(0, 1), lengths.flatten()
        if reason := self.supports_length(inputs.shape[1]):
            raise UserError(reason)
        if self.remembers:
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
        x, context = self._with_prefix(x, Context(padding, positions, grid=self.spec.grid), lengths)

        if self.reversible:
            x, context = run_reversibly(list(self.blocks), x, context)  # type: ignore[arg-type]
            return *normalised(self.norm, x, context), None
        layers = []
        for depth, block in enumerate(self.blocks):
            own = memory["layers"][depth] if self.remembers and memory is not None else None
            x, context = block(x, context.replace(depth=depth, memory=own))
            layers.append(context.memory)
        kept = {"seen": seen + lengths, "layers": tuple(layers)} if self.remembers else None
        return *normalised(self.norm, x, context), kept

    def _with_prefix(self, x: Tensor, context: Context, lengths: Tensor) -> tuple[Tensor, Context]:
        """x and context with the mixer's own rows and then the CLS row before the tokens."""
        context = context.replace(train_length=self.spec.train_length)
        rows = []
        if (own := self.mixers[0].prefix_rows(x, context)) is not None:
            rows.append(own)
        if self.cls is not None:
            rows.append(self.cls.to(x.dtype).expand(x.shape[0], 1, -1))
        if not rows:
            return x, context
        x = torch.cat((*rows, x), 1)
        prefix = sum(row.shape[1] for row in rows)
        before = context.positions.new_full((*context.positions.shape[:-1], prefix), -1)
        padding = None if context.padding is None else Padding.from_lengths(lengths + prefix, x.shape[1])
        return x, context.replace(padding=padding, positions=torch.cat((before, context.positions), -1), prefix=prefix)


def _direction(spec: TaskSpec, capability: Capability) -> bool:
    """Whether to run causally; a direction that the mixer lacks is left for ``supports`` to refuse."""
    wanted = spec.direction == "causal"
    return not capability.bidirectional or (wanted and capability.causal == "exact")


def _known(options: Mapping[str, Any], node: Mapping[str, Any], base: type, option: str) -> dict[str, Any]:
    """Those of ``options`` that the class of ``node`` accepts, whose constructor may know fewer than its ``base``."""
    if not node.get("_target_"):
        return {}
    known = known_options(load_class(str(node["_target_"]), base, option))
    return {name: value for name, value in options.items() if known is None or name in known}


def _check_reversible(kind: type[Mixer], norm: str, norm_place: str, feed_forward: bool, remembers: bool) -> None:
    """Raise ``UserError`` where blocks cannot be run backwards."""
    reasons = {
        f"{kind.__name__} is a block of its own and has no branches": kind.spec.block == "self_contained",
        f"{kind.__name__} hands something from layer to layer": bool(kind.spec.carries),
        f"{kind.__name__} keeps a memory": remembers,
        "a norm after the sum cannot be undone (set backbone.norm_place=pre)": norm_place != "pre",
        "a norm over the batch would count its rows twice (set backbone.norm=layer)": norm == "batch",
        "there are no feed-forward networks to take turns with (set backbone.feed_forward=true)": not feed_forward,
    }
    for reason, holds in reasons.items():
        if holds:
            raise UserError(f"backbone.reversible=true: {reason}")


def _head_dim(kind: type[Mixer], head_dim: int | None) -> dict[str, int]:
    """The option ``head_dim`` for a mixer that has it; others, without heads, run under recipes that set it too."""
    known = known_options(kind)
    return {} if head_dim is None or (known is not None and "head_dim" not in known) else {"head_dim": head_dim}


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
