"""Image Transformer, 2-D local attention: rectangles of pixels attend to themselves and to adjacent pixels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lra_bench.contracts import UserError

from ..kernels.softmax import softmax_attention
from ..kernels.tiles import Tiles, tile_attention
from ..mixer import Context, HeadMixer, MixerSpec
from .two_patterns import near_root


class ImageLocal2d(HeadMixer):
    """Attention of all pixels of a rectangle to the rectangle and to a flange on its four sides.

    The 2-D local attention of the Image Transformer (Parmar et al. 2018, arXiv 1802.05751). q (B, H, N, D), k and v
    (B, G, N, D) -> (B, H, N, D). O(N M D) time for M pixels in a rectangle and its flange; O(N D M / block) memory, and
    N M weights if they are dropped on CPU. Prefix rows, which are not pixels, attend to all rows and are visible to
    all rows.

    Deviation from the paper: the flange of the paper's decoder is above and on both sides, and blocks are generated in
    an order that is not that of the sequence. Here the flange is on all sides and there is no causal form.

    Args:
        width: Model width E.
        heads: Number of heads H.
        block: (rows, columns) of a rectangle in pixels, or one number for both.
        flange: (rows, columns) of the flange in pixels, or one number for both.
        columns: Number of columns of the image. The default is that of the task's image, also for longer sequences;
            without images, the square root of ``max_length``, rounded to a multiple of eight.
        common: Options of ``HeadMixer``.

    Raises:
        UserError: If an option is out of range.
    """

    spec = MixerSpec(
        family="sparse",
        paper="Image Transformer",
        arxiv="1802.05751",
        code="tensorflow/tensor2tensor@bafdc1b:tensor2tensor/layers/common_attention.py",
        positions=("embed", "rotate"),
        full_config={"block": 1_000_000},
    )
    separates_cls = True

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        block: int | Sequence[int] = 8,
        flange: int | Sequence[int] = 2,
        columns: int | None = None,
        **common: Any,
    ) -> None:
        super().__init__(width, heads, **common)
        self.block, self.flange = _pair("block", block, 1), _pair("flange", flange, 0)
        if columns is not None and columns < 1:
            raise UserError(f"model.mixer.columns={columns}: must be at least 1")
        self.columns = columns

    def restricts_from(self) -> int:
        """Return the smallest number of pixels at which one of them does not see another one.

        The width of a task's image is only known in ``forward``; without ``columns`` it is taken to be the square root
        of ``max_length``, as for sequences that are not images.
        """
        tall, wide = ((flange // block + 1) * block for block, flange in zip(self.block, self.flange, strict=True))
        columns = self.columns or near_root(self.max_length)
        return wide + 1 if wide < columns else tall * columns + 1

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """Compute attention of pixels within rectangles and flanges, and of prefix rows to everything."""
        prefix, padding = context.prefix, context.padding
        size = self.size(q.shape[2] - prefix, context)
        if all(own >= whole for own, whole in zip(self.block, size, strict=True)):
            return softmax_attention(q, k, v, padding=padding, dropout=self.drop_rate)
        block, flange = ((min(own[0], size[0]), min(own[1], size[1])) for own in (self.block, self.flange))
        tiles = Tiles(size, block, flange, flange, q.device)
        o = tile_attention(q, k, v, tiles, leading=prefix, padding=padding, dropout=self.drop_rate)
        if not prefix:
            return o
        first = softmax_attention(q[:, :, :prefix], k, v, padding=padding, dropout=self.drop_rate)
        return torch.cat((first.to(o.dtype), o), 2)

    def size(self, pixels: int, context: Context) -> tuple[int, int]:
        """Return the (rows, columns) of an image with this number of pixels, whose last row may be incomplete."""
        columns = self.columns or (context.grid[1] if context.grid else near_root(self.max_length))
        columns = min(columns, pixels)
        return -(-pixels // columns), columns


def _pair(name: str, given: int | Sequence[int], least: int) -> tuple[int, int]:
    """Return the value for rows and that for columns; raise ``UserError`` if one is below ``least``."""
    values = (given, given) if isinstance(given, int) else tuple(given)
    if len(values) != 2 or min(values) < least:
        raise UserError(f"model.mixer.{name}={given}: must be one number, or two (rows, columns), at least {least}")
    return values
