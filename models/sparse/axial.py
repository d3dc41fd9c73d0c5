"""Axial attention: layers attend along the rows of a grid and along its columns, in turn."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lra_bench.contracts import UserError

from ..kernels.block import block_attention
from ..kernels.patterns import by_residue, from_residue, not_later
from ..kernels.softmax import softmax_attention
from ..mixer import Context, HeadMixer, MixerSpec, Padding
from .two_patterns import near_root


class AxialAttention(HeadMixer):
    """Attention within the rows of a grid in even layers (0, 2, …), within its columns in odd layers.

    Ho et al. 2019, arXiv 1912.12180. q (B, H, N, D), k and v (B, G, N, D) -> (B, H, N, D). Sequences are written into
    the grid row by row. O(N (C + N / C) D) time with C columns, O(N √N D) for C = √N; O(N D) memory, and the weights of
    a layer, O(N C), if they are dropped on CPU.

    In the causal form, a token attends to its own row up to itself and to the whole row above in even layers, and to
    the tokens above it and itself in odd layers. A row and a column layer together connect each token to all tokens
    before it, and in the bidirectional form to all tokens of the grid if its last row is complete. Prefix rows are not
    in the grid. They attend to all rows and are visible to all rows, in the causal form to the rows before them and to
    the rows after them.

    Deviation from the paper: its causal form has two stacks of layers. The first one attends to whole rows, and its
    output is moved one row down before the second one, which attends to the tokens of a row up to each token, reads it.
    Here the keys of the row above take the place of the first stack.

    Args:
        width: Model width E.
        heads: Number of heads H.
        columns: Number of columns C. The default is that of the task's image, also for longer sequences; without
            images, the square root of ``max_length``, rounded to a multiple of eight.
        common: Options of ``HeadMixer``.

    Raises:
        UserError: If ``columns`` is below 1.
    """

    spec = MixerSpec(
        family="sparse",
        paper="Axial Attention in Multidimensional Transformers",
        arxiv="1912.12180",
        code="google-research/google-research@066e6a1:axial/transformers.py",
        causal="exact",
        growth=1.5,
        positions=("embed", "rotate"),
        full_config={"columns": 1_000_000},
    )
    separates_cls = True

    def __init__(self, width: int, heads: int, *, columns: int | None = None, **common: Any) -> None:
        super().__init__(width, heads, **common)
        if columns is not None and columns < 1:
            raise UserError(f"model.mixer.columns={columns}: must be at least 1")
        self.columns = columns

    def restricts_from(self) -> int | None:
        """Return the smallest number of tokens at which one of them does not see another one.

        The width of a task's image is only known in ``forward``; without ``columns`` it is taken to be the square root
        of ``max_length``, as for sequences that are not images.
        """
        columns = self.columns or near_root(self.max_length)
        if self.layer % 2:
            return 2 if columns > 1 else None
        return (2 if self.causal else 1) * columns + 1

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """Compute attention along one axis of the grid, and that of prefix rows."""
        prefix = context.prefix
        # With right padding and a causal mask, real queries have no padded keys to attend to.
        padding = None if self.causal else context.padding
        columns = self.columns or (context.grid[1] if context.grid else near_root(self.max_length))
        columns = min(columns, q.shape[2] - prefix)
        before = (k[:, :, :prefix], v[:, :, :prefix]) if prefix else None
        valid = None if padding is None else padding.valid[:, prefix:]
        along = self._down_columns if self.layer % 2 else self._along_rows
        if before is None:
            return along(q, k, v, columns, None, valid)
        o = along(q[:, :, prefix:], k[:, :, prefix:], v[:, :, prefix:], columns, before, valid)
        keys, values = before if self.causal else (k, v)
        first = softmax_attention(
            q[:, :, :prefix], keys, values, padding=padding, causal=self.causal, dropout=self.drop_rate
        )
        return torch.cat((first.to(o.dtype), o), 2)

    def _along_rows(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        columns: int,
        before: tuple[Tensor, Tensor] | None,
        valid: Tensor | None,
    ) -> Tensor:
        """Attend within rows, in the causal form also to the row above; and to the keys and values ``before``."""
        return block_attention(
            q,
            k,
            v,
            block=columns,
            neighbours=(1 if self.causal else 0, 0),
            keep=not_later if self.causal else None,
            extra=before,
            padding=None if valid is None else Padding(valid, valid.sum(1)),
            dropout=self.drop_rate,
        )

    def _down_columns(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        columns: int,
        before: tuple[Tensor, Tensor] | None,
        valid: Tensor | None,
    ) -> Tensor:
        """Attend within columns, in the causal form to tokens above only; and to the keys and values ``before``."""
        length, visible = q.shape[2], None
        if not self.causal and (valid is not None or length % columns):
            real = torch.ones(1, length, dtype=torch.bool, device=q.device) if valid is None else valid
            visible = by_residue(real[:, None, :, None], columns).mT.repeat_interleave(q.shape[1], 1)
        queries, keys, values = (by_residue(x, columns) for x in (q, k, v))
        if before is not None:
            keys, values = (
                torch.cat((first.repeat(1, columns, 1, 1), rest), 2)
                for first, rest in zip(before, (keys, values), strict=True)
            )
            visible = None if visible is None else F.pad(visible, (before[0].shape[2], 0), value=True)
        o = softmax_attention(queries, keys, values, visible=visible, causal=self.causal, dropout=self.drop_rate)
        return from_residue(o, columns, length)
