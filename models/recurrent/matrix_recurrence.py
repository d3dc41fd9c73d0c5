"""Base class of recurrences with a matrix state per head: linear attention with decay or with the delta rule."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lra_bench.contracts import UserError

from ..feedforward import linear
from ..kernels.accelerated import accelerable, accelerated_decay_attention
from ..kernels.decay import CHUNK, decay_attention
from ..mixer import Context, Padding
from .recurrence import Recurrence
from .short_filter import ShortFilter

FEWEST_HEADS, SMALLEST_HEAD = 4, 16
"""Default of the number of heads with a decay each, and the features that each of them must have."""


class MatrixRecurrence(Recurrence):
    """Base class of linear attention with a matrix state per head and decay.

    Values are added to the state under their keys, and queries read them: x (B, N, E) -> (B, N, E). Subclasses
    implement ``decays``, or override ``recall``; they override ``features`` if queries, keys and values need more than
    a projection. In the bidirectional form every head becomes two of half the width, one per direction. Raises
    ``UserError`` if the heads do not divide the widths.

    Args:
        width: Number of features E.
        heads: Number of heads of the backbone.
        key_width: Total width of the queries, and of the keys, of all heads; by default half the width.
        filter: Length of a convolution in front of the state in tokens; 0 for none.
        filter_bias: Whether the convolution has a bias.
        gated: Whether a SiLU gate follows the norm of each head's output.
        state_heads: Number of heads H of the state. By default the heads of the backbone; if each head has its own
            decay (``decay_per_head``), at least ``FEWEST_HEADS`` heads, but not more than leave ``SMALLEST_HEAD``
            features to a head, and only if they divide the widths.
        **common: Arguments of ``Mixer``.
    """

    shares_keys: ClassVar[bool] = False
    """Whether all heads of a direction share queries and keys."""
    decay_per_head: ClassVar[bool] = False
    """Whether all features of a head decay at the same rate, so that few heads mean few decay rates."""
    norm_eps: ClassVar[float] = 1e-5
    """Constant that the norm of the outputs adds to the mean square, as in flash-linear-attention."""
    revision: ClassVar[int] = 2
    chunk: int = CHUNK
    """Positions per chunk, a power of two."""

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        key_width: int | None = None,
        filter: int = 0,
        filter_bias: bool = False,
        gated: bool = True,
        state_heads: int | None = None,
        **common: Any,
    ) -> None:
        super().__init__(width, heads, inner=width, **common)
        key_width = max(width // 2, 1) if key_width is None else key_width
        if state_heads is not None and state_heads < 1:
            raise UserError(f"model.mixer.state_heads={state_heads}: must be at least 1")
        self.state_heads = self._default_heads(key_width) if state_heads is None else state_heads
        self.streams, self.groups = self._counts(self.state_heads)
        if not self._divides(self.state_heads, key_width):
            directions = "" if self.causal else " in two directions"
            option = "backbone.heads" if state_heads is None else "model.mixer.state_heads"
            raise UserError(
                f"{option}={self.state_heads}: {self.streams} recurrences{directions} do not divide width {width} and "
                f"model.mixer.key_width={key_width}; change {option} or model.mixer.key_width"
            )
        if filter < 0:
            raise UserError(f"model.mixer.filter={filter}: must be at least 0; 0 means no convolution")
        self.head_dim, self.key_dim = width // self.streams, key_width // self.groups
        self.query: nn.Module = linear(width, key_width)
        self.key: nn.Module = linear(width, key_width)
        self.value: nn.Module = linear(width, width)
        self.filters = nn.ModuleList(
            ShortFilter(size, filter, bias=filter_bias) for size in (key_width, key_width, width) if filter
        )
        self.norm: nn.Module = nn.RMSNorm(self.head_dim, eps=self.norm_eps)
        self.gate = linear(width, width) if gated else None
        self.accelerated = False

    def accelerate(self) -> None:
        """Use the kernels of flash-linear-attention from now on."""
        self.accelerated = True

    def forward(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Project x, apply the convolutions, run the recurrence, gate and project."""
        if context.padding is not None:
            x = context.padding.zero(x)
        memory = {} if context.memory is None else dict(context.memory)
        projected = [self.ordered(project(x), context) for project in (self.query, self.key, self.value)]
        for number, short_filter in enumerate(self.filters):
            projected[number], memory[f"filter{number}"] = short_filter(
                projected[number], memory.get(f"filter{number}"), context.padding
            )
        q, k, v = self.features(
            *(self.split(each, count) for each, count in zip(projected, self._head_counts, strict=True))
        )
        q, k = self.apply_rotation(q, k, context)
        o, memory["state"] = self.recall(q, k, v, x, context, memory.get("state"))
        return self.finish(self.gated(o.to(x.dtype), x, context)), self.remember(context, **memory)

    def _counts(self, heads: int) -> tuple[int, int]:
        """Return the numbers of recurrences and of different queries and keys, in all directions together."""
        directions = 1 if self.causal else 2
        return directions * heads, directions * (1 if self.shares_keys else heads)

    def _divides(self, heads: int, key_width: int) -> bool:
        """Return whether ``heads`` heads per direction divide the widths."""
        streams, groups = self._counts(heads)
        return not self.width % streams and not key_width % groups and key_width >= groups

    def _default_heads(self, key_width: int) -> int:
        """Return the default of ``state_heads``."""
        wanted = min(FEWEST_HEADS, self.width // SMALLEST_HEAD) if self.decay_per_head else 0
        return next((each for each in range(wanted, self.heads, -1) if self._divides(each, key_width)), self.heads)

    @property
    def _head_counts(self) -> tuple[int, int, int]:
        return self.groups, self.groups, self.streams

    def split(self, x: Tensor, count: int) -> Tensor:
        """Split (B, N, count·D) into heads (B, H, N, D); repeat them if ``count`` is less than the number of heads."""
        x = x.unflatten(-1, (count, -1)).transpose(1, 2)
        return x if count == self.streams else x.repeat_interleave(self.streams // count, 1)

    def gated(self, o: Tensor, x: Tensor, context: Context) -> Tensor:
        """Normalise the outputs of each head (B, H, N, V), restore the token order and apply the gate: (B, N, E)."""
        o = self.ordered(self.norm(o).transpose(1, 2).flatten(2), context)
        return o if self.gate is None else o * F.silu(self.gate(x))

    def by_stream(self, x: Tensor, context: Context) -> Tensor:
        """Transpose x (B, N, H) to (B, H, N) in processing order, in single precision or better."""
        x = self.ordered(x, context).transpose(1, 2)
        return x.float() if x.dtype.itemsize < 4 else x

    def features(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries and keys (B, H, N, K) and values (B, H, N, V) as they enter the recurrence."""
        return q, k, v

    def decays(self, x: Tensor, context: Context) -> tuple[Tensor, Tensor | None]:
        """Return log decays (B, H, N) or (B, H, N, K), and the strengths of the delta rule (B, H, N) or None."""
        raise NotImplementedError(f"{type(self).__name__} defines no decays")

    def recall(
        self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, context: Context, state: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Run the recurrence on queries, keys and values.

        Args:
            q: Queries (B, H, N, K).
            k: Keys (B, H, N, K).
            v: Values (B, H, N, V).
            x: Inputs of the mixer (B, N, E), from which decays are computed.
            context: Context with the padding.
            state: State (B, H, K, V) before the first token, or None.

        Returns:
            Outputs (B, H, N, V), and the state after the last token that is not padding.
        """
        log_decay, strength = self.decays(x, context)
        if context.padding is not None:
            k, log_decay = context.padding.zero_heads(k), still(log_decay, context.padding)
            strength = None if strength is None else still(strength, context.padding)
        return self.decay_attention(q, k, v, log_decay, strength=strength, state=state)

    def decay_attention(
        self, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, **options: Any
    ) -> tuple[Tensor, Tensor]:
        """Call ``decay_attention`` of the kernels, or its accelerated version."""
        if self.accelerated and accelerable(q, v):
            return accelerated_decay_attention(q, k, v, log_decay, **options)
        return decay_attention(q, k, v, log_decay, chunk=self.chunk, **options)


def still(x: Tensor, padding: Padding) -> Tensor:
    """Return x (B, H, N) or (B, H, N, K) with zeros at padding, which leave the state unchanged."""
    valid = padding.valid[:, None]
    return torch.where(valid[..., None] if x.dim() == 4 else valid, x, 0)
