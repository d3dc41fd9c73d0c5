"""Base classes of token mixers: interface, declared capabilities, context."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lra_bench.build import build
from lra_bench.contracts import Capability, UserError

from .heads.choice import Choice, loss_nodes, merge_node
from .positions.position import Position


@dataclass(frozen=True)
class MixerSpec(Capability):
    """A mixer's capabilities, with what only tests and the FLOP counter need.

    ``full_config`` are the options under which the mixer equals full softmax attention, None where it never does.
    ``extra_flops(length, width, heads)`` counts forward FLOPs per row of the batch that the counter cannot see.
    """

    full_config: Mapping[str, Any] | None = None
    extra_flops: Callable[[int, int, int], int] | None = None


@dataclass(frozen=True)
class Padding:
    """Which rows of a padded batch are real: ``valid`` (B, N) bool, ``lengths`` (B,), prefix rows included."""

    valid: Tensor
    lengths: Tensor

    @classmethod
    def from_lengths(cls, lengths: Tensor, rows: int) -> Padding:
        """The padding of right-padded rows, ``rows`` wide."""
        return cls(torch.arange(rows, device=lengths.device) < lengths[:, None], lengths)

    def key_mask(self) -> Tensor:
        """``valid`` as (B, 1, 1, N), to be combined with attention scores."""
        return self.valid[:, None, None, :]

    def zero(self, x: Tensor) -> Tensor:
        """``x`` (B, N, ...) with zeros at padding, whatever stood there."""
        return x.masked_fill(~self.valid.reshape(*self.valid.shape, *[1] * (x.dim() - 2)), 0)

    def zero_heads(self, x: Tensor) -> Tensor:
        """``x`` (B, H, N, D) with zeros at padding."""
        return x.masked_fill(~self.valid[:, None, :, None], 0)


@dataclass(frozen=True)
class Context:
    """What a mixer knows beside x; never changed in place, but replaced.

    ``padding`` is None when nothing is padded. ``positions`` (N,) or (B, N) are absolute, −1 on prefix rows.
    ``prefix`` counts leading rows that are no tokens. ``depth`` is the index of the layer that runs now;
    ``memory`` is that layer's own from the step before (None or zeros: empty), holding its positions and mask.
    ``carry`` goes from layer to layer, keyed by system. ``losses`` are named auxiliary losses, already weighted.
    ``statistics`` are detached tensors for ``after_step``, keyed by module. ``grid`` is (rows, columns) of an image.
    """

    padding: Padding | None
    positions: Tensor
    prefix: int = 0
    depth: int = 0
    memory: Any = None
    carry: Mapping[str, Any] = field(default_factory=dict)
    losses: Mapping[str, Tensor] = field(default_factory=dict)
    statistics: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)
    grid: tuple[int, int] | None = None
    train_length: int | None = None

    def counted(self) -> Tensor:
        """``positions`` that do not go on counting in padding, (B, N) where there is any: the last real one repeats."""
        if self.padding is None:
            return self.positions
        last = self.positions.masked_fill(~self.padding.valid, -1).amax(-1, keepdim=True)
        return torch.minimum(self.positions, last)

    def replace(self, **changes: Any) -> Context:
        """A copy with some fields changed."""
        return replace(self, **changes)

    def hand_on(self, system: str, value: Any) -> Context:
        """A copy whose carry holds ``value`` for ``system``."""
        return replace(self, carry={**self.carry, system: value})

    def add_loss(self, name: str, loss: Tensor) -> Context:
        """A copy with ``loss`` added under ``name``."""
        return replace(self, losses={**self.losses, name: self.losses[name] + loss if name in self.losses else loss})

    def report(self, module: nn.Module, **statistics: Tensor) -> Context:
        """A copy with statistics of ``module`` added, for its ``after_step``; tensors are detached here."""
        name = str(module.statistics_name)
        before = self.statistics.get(name, {})
        summed = {key: value.detach() + before.get(key, 0) for key, value in statistics.items()}
        return replace(self, statistics={**self.statistics, name: {**before, **summed}})


def name_modules(model: nn.Module) -> None:
    """Tell each module with ``after_step`` its qualified name, under which it reports statistics."""
    for name, module in model.named_modules():
        if hasattr(module, "after_step"):
            module.statistics_name = name


class Mixer(nn.Module):
    """Mixes rows of a sequence: x (B, N, E) to y (B, N, E), without residual, norm or feed-forward.

    ``layer`` of ``depth`` layers; ``max_length`` the longest sequence to expect, in rows; ``seed`` for random
    draws that are not weights. Raises ``UserError`` where a direction or a position hook is not honoured.
    """

    spec: ClassVar[MixerSpec]

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        layer: int = 0,
        depth: int = 1,
        max_length: int = 1024,
        causal: bool = False,
        dropout: float = 0.0,
        seed: int = 0,
        position: Position | None = None,
    ) -> None:
        super().__init__()
        self.width, self.heads, self.layer, self.depth = width, heads, layer, depth
        self.max_length, self.causal, self.dropout, self.seed = max_length, causal, dropout, seed
        self.position = position
        if causal and self.spec.causal != "exact":
            raise UserError(f"model.mixer: {type(self).__name__} has no exact causal form; choose a task without order")
        if not causal and not self.spec.bidirectional:
            raise UserError(f"model.mixer: {type(self).__name__} runs in one direction only; choose a causal task")
        if position is not None and (refused := position.hooks - {"embed"} - set(self.spec.positions)):
            raise UserError(
                f"position={position.name}: {type(self).__name__} does not honour its "
                f"{' and '.join(sorted(refused))} hook; choose a position with hooks among "
                f"{', '.join(self.spec.positions) or 'none'} (lra-bench list positions)"
            )

    @property
    def drop_rate(self) -> float:
        """The share of attention weights, or of what stands for them, to drop now: zero in evaluation."""
        return self.dropout if self.training else 0.0

    def forward(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Mix x (B, N, E) into y (B, N, E)."""
        raise NotImplementedError(f"{type(self).__name__} defines no forward")

    def turn(self, q: Tensor, k: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        """Queries (B, H, N, D) and keys (B, G, M, D) of the first N and M rows, turned where the position does so."""
        if self.position is None or "rotate" not in self.position.hooks:
            return q, k
        positions = context.counted() if self.position.by_length else context.positions
        rows = positions.shape[-1]
        own, others = (positions if x.shape[2] == rows else positions[..., : x.shape[2]] for x in (q, k))
        return self.position.rotate(q, k, own, others)

    def prefix_rows(self, x: Tensor, context: Context) -> Tensor | None:
        """Rows (B, P, E) that the stack puts before the tokens once, when this is its first mixer; None for none."""
        return None


class HeadMixer(Mixer):
    """A mixer of heads: owns the projections, the split into heads and the merge.

    A typical variant defines ``attend`` alone: q (B, H, N, D), k and v (B, G, N, D) to (B, H, N, D).
    ``head_dim`` need not be width / heads. Weights are drawn Xavier-uniform, biases are zero; without ``qkv_bias``
    queries, keys and values have none.
    ``merge`` names what takes the place of the output projection, ``head_losses`` one or more losses on what heads do;
    both are names from ``heads.choice``, or mappings of ``name`` and options.
    """

    shows_heads: ClassVar[bool] = True
    """Whether ``forward`` ends in ``finish``; counts for the class alone that defines ``forward``."""

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        head_dim: int | None = None,
        kv_heads: int | None = None,
        qkv_bias: bool = True,
        merge: Choice | None = None,
        head_losses: Choice | Sequence[Choice] | None = None,
        **common: Any,
    ) -> None:
        super().__init__(width, heads, **common)
        if head_dim is None and width % heads:
            raise UserError(f"backbone.heads={heads}: does not divide width {width}; set backbone.head_dim")
        self.head_dim = head_dim or width // heads
        self.kv_heads = kv_heads or heads
        if heads % self.kv_heads:
            raise UserError(f"model.mixer.kv_heads={kv_heads}: does not divide backbone.heads={heads}")
        self.query = nn.Linear(width, heads * self.head_dim, bias=qkv_bias)
        self.key = nn.Linear(width, self.kv_heads * self.head_dim, bias=qkv_bias)
        self.value = nn.Linear(width, self.kv_heads * self.head_dim, bias=qkv_bias)
        self.output: nn.Module = nn.Linear(heads * self.head_dim, width)
        for linear in (self.query, self.key, self.value, self.output):
            nn.init.xavier_uniform_(linear.weight)
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)
        if merge is not None:
            sizes = {"heads": heads, "head_dim": self.head_dim, "width": width}
            self.output = build(merge_node(merge), nn.Module, "model.mixer.merge", **sizes)
        self.head_losses = nn.ModuleList(
            build(node, nn.Module, "model.mixer.head_losses", mixer=self) for node in loss_nodes(head_losses)
        )

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (B, H, N, D), keys and values (B, G, N, D) of x (B, N, E)."""
        return self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))

    def split(self, x: Tensor) -> Tensor:
        """(B, N, H·D) to (B, H, N, D)."""
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def merge(self, o: Tensor) -> Tensor:
        """(B, H, N, D) to (B, N, E)."""
        return self.output(o.transpose(1, 2).flatten(2))

    def forward(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Project, attend, merge."""
        q, k, v = self.project(x)
        q, k = self.turn(q, k, context)
        return self.finish(self.attend(q, k, v, context), q, k, v, context)

    def finish(self, o: Tensor, q: Tensor, k: Tensor, v: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Merge what heads found (B, H, N, D), and while training add the losses on it and on what ``attend`` took."""
        if self.training:
            for loss in self.head_losses:
                context = loss(self, o, q, k, v, context)
        return self.merge(o), context

    def bias(self, context: Context) -> Callable[[Tensor, Tensor], Tensor] | None:
        """What the position adds to scores, for kernels of blocks: None where it adds nothing.

        Of the rows of queries (X, r) and of keys (X, K) in X blocks to (1 or B, H, X, r, K).
        """
        position, places = self.position, context.positions
        if position is None or "bias" not in position.hooks:
            return None

        def added(queries: Tensor, keys: Tensor) -> Tensor:
            own, others = (places[..., rows].flatten(0, -2) for rows in (queries, keys))
            return position.bias(own, others).unflatten(0, (-1, len(queries))).transpose(1, 2)

        return added

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """q (B, H, N, D), k and v (B, G, N, D) to (B, H, N, D)."""
        raise NotImplementedError(f"{type(self).__name__} defines no attend")

    def use_weights(
        self, q: Tensor, k: Tensor, context: Context, use: Callable[[Tensor, int, Tensor | None], Tensor]
    ) -> Tensor:
        """What ``use`` makes of the weights of ``attend``, as in ``weights_by_rows``; for losses on them."""
        raise NotImplementedError(f"{type(self).__name__} defines no use_weights")
