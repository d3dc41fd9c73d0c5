"""Rows in front of the tokens of a network: those of its mixer, then the CLS row."""

from __future__ import annotations

import torch
from torch import Tensor

from .mixer import Context, Mixer, Padding


def with_prefix(
    x: Tensor, context: Context, lengths: Tensor, mixer: Mixer, cls: Tensor | None
) -> tuple[Tensor, Context]:
    """Insert the prefix rows of ``mixer``, then the row ``cls`` (E,), in front of the tokens x (B, N, E).

    ``lengths`` (B,) are those of the rows without the prefix. Returns x (B, P + N, E) and the context with the P prefix
    positions added to positions and padding.
    """
    prefixes = []
    if (mixer_prefix := mixer.prefix_rows(x, context)) is not None:
        prefixes.append(mixer_prefix)
    if cls is not None:
        prefixes.append(cls.to(x.dtype).expand(x.shape[0], 1, -1))
    if not prefixes:
        return x, context
    x = torch.cat((*prefixes, x), 1)
    prefix = sum(each.shape[1] for each in prefixes)
    prefix_positions = context.positions.new_full((*context.positions.shape[:-1], prefix), -1)
    padding = None
    if context.padding is not None:
        host = context.padding.host_lengths
        padding = Padding.from_lengths(lengths + prefix, x.shape[1], None if host is None else host + prefix)
    positions = torch.cat((prefix_positions, context.positions), -1)
    return x, context.replace(padding=padding, positions=positions, prefix=prefix)
