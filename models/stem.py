"""Layers between the embedding of the inputs and the first block: a convolution, and patches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch.nn.functional as F
from torch import Tensor, nn

from lra_bench.contracts import TaskSpec, UserError

from .feedforward import linear

Grid = tuple[int, int]


class Stem(nn.Module):
    """Convolution of the embeddings, then GELU: (B, N, E) to (B, N, E), O(N E^2 K) time for a kernel of K tokens.

    Xiao et al. 2021, arXiv 2106.14881 (convolutional stem), with one layer. The kernel covers a token and the K − 1
    tokens before it in a causal model, otherwise (K − 1) / 2 tokens on either side, and K × K pixels of an image. What
    is outside of the sequence or image counts as zero.

    Deviation from the paper: one layer without batch norm that keeps the resolution, where the paper has several with
    stride 2; ``Patches`` reduce the resolution.

    Args:
        width: Number of features E.
        size: Size K of the kernel.
        causal: Whether later tokens are not read.
        grid: Rows and columns of the images of the task, None for other inputs.
    """

    def __init__(self, width: int, size: int, *, causal: bool, grid: Grid | None) -> None:
        super().__init__()
        if not causal and size % 2 == 0:
            raise UserError(
                f"backbone.stem={size}: must be odd unless the model is causal, because the kernel is centred; set "
                f"{size - 1} or {size + 1}"
            )
        self.before, self.after = (size - 1, 0) if causal else (size // 2, size // 2)
        self.grid = None if causal else grid
        self.convolution: nn.Module = (
            nn.Conv1d(width, width, size) if self.grid is None else nn.Conv2d(width, width, size)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs for embeddings (B, N, E) in which padding is zero."""
        x, around = x.mT, (self.before, self.after)
        if self.grid is not None:
            columns = image_size(x.shape[2], self.grid)[1]
            return F.gelu(self.convolution(F.pad(x.unflatten(2, (-1, columns)), 2 * around)).flatten(2)).mT
        return F.gelu(self.convolution(F.pad(x, around))).mT


class Patches(nn.Module):
    """Linear map of non-overlapping patches of the embeddings: (B, N, E) to (B, M, E), O(N E^2) time.

    Dosovitskiy et al. 2020, arXiv 2010.11929 (Vision Transformer). A patch is P × P pixels of an image, row by row, or
    P consecutive tokens; the last one is filled with zeros, so that M = ⌈N / P⌉.

    Deviation from the paper: the patches are joined after the embedding, because inputs may be tokens.

    Args:
        width: Number of features E.
        size: Size P of a patch.
        grid: Rows and columns of the images of the task, None for other inputs.
    """

    def __init__(self, width: int, size: int, grid: Grid | None) -> None:
        super().__init__()
        self.size, self.grid = size, grid
        self.joined = linear(width * tokens_of(size, grid), width)

    def forward(self, x: Tensor) -> Tensor:
        """Return the patches of embeddings (B, N, E) in which padding is zero."""
        size = self.size
        if self.grid is None:
            patches = F.pad(x, (0, 0, 0, -x.shape[1] % size)).unflatten(1, (-1, size)).flatten(2)
        else:
            image = x.unflatten(1, image_size(x.shape[1], self.grid))
            parts = (
                image.unflatten(2, (-1, size)).unflatten(1, (-1, size)).transpose(2, 3)
            )  # (B, rows, columns, P, P, E)
            patches = parts.flatten(3).flatten(1, 2)
        joined: Tensor = self.joined(patches)
        return joined

    def count(self, tokens: Tensor) -> Tensor:
        """Return the number of patches for numbers of tokens."""
        of_patch = tokens_of(self.size, self.grid)
        return (tokens + of_patch - 1) // of_patch


def image_size(pixels: int, grid: Grid) -> Grid:
    """Return rows and columns of an image, ``grid`` or, for square images, those of a square of another size."""
    if pixels == grid[0] * grid[1] or grid[0] != grid[1]:
        return pixels // grid[1], grid[1]
    return math.isqrt(pixels), math.isqrt(pixels)


def tokens_of(size: int, grid: Grid | None) -> int:
    """Return the number of tokens of a patch of size P: P², if they are pixels of an image, otherwise P."""
    return size if grid is None else size**2


def patched(spec: TaskSpec, size: int | None, causal: bool, refused: Sequence[str] = ()) -> TaskSpec:
    """Return ``spec`` with the training length and the grid in patches; raises ``UserError`` if there can be none.

    ``refused`` are options of the network that need every token.
    """
    if size is None:
        return spec
    reasons = {
        f"{spec.name} scores every token, and a patch has one state": spec.per_token,
        f"{', '.join(refused)} needs the state of every token": bool(refused),
        "a square patch of pixels would pass later rows on to earlier ones in a causal model": (
            causal and spec.grid is not None
        ),
    }
    if reason := next((each for each, applies in reasons.items() if applies), None):
        raise UserError(f"backbone.patch={size}: {reason}; leave it out")
    if reason := misfit(spec.train_length, size, spec.grid):
        raise UserError(f"backbone.patch={size}: {reason}; choose a divisor of both sides")
    of_patch = tokens_of(size, spec.grid)
    grid = None if spec.grid is None else (spec.grid[0] // size, spec.grid[1] // size)
    return replace(spec, train_length=-(-spec.train_length // of_patch), grid=grid)


def misfit(length: int, size: int, grid: Grid | None) -> str | None:
    """Return why ``length`` tokens have no patches, None if they have; tokens of other inputs than images always do."""
    if grid is None:
        return None
    rows, columns = image_size(length, grid)
    if rows * columns != length:
        return f"{length:,} pixels are no image with the sides of the task"
    return f"does not divide an image of {rows} × {columns} pixels" if rows % size or columns % size else None
