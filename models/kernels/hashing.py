"""Locality-sensitive hashing: vectors of like direction fall into the same bucket."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .linear import full_precision

DIRECTIONS = 64  # of each of the two hashes, enough for 2^14 buckets
ONE_HASH = 32  # buckets up to which one hash is cheaper than two


def angular_buckets(x: Tensor, directions: Tensor, wanted: Tensor, most: int) -> Tensor:
    """The bucket of each vector in each round (B, H, R, N), which does not depend on the vector's length.

    x (B, H, N, D), ``directions`` (R, 2, D, 64) Gaussian. A bucket is the one of some directions and their negatives
    that a vector points to most (Andoni et al. 2015, arXiv 1509.02897). There are ``wanted`` (B, 1, 1, 1) buckets,
    rounded up to even, at most ``most``; above 32 they are pairs of two hashes, so that costs grow with the root.
    """
    wanted = (wanted + wanted % 2).clamp(min=2)
    root = 2 * (wanted.double().sqrt() / 2).ceil().long()
    two = wanted > ONE_HASH
    sizes = torch.where(two, root, wanted), torch.where(two, 2 * (wanted / root / 2).ceil().long(), 0)
    most += most % 2
    widest = min(DIRECTIONS, max(min(most, ONE_HASH) // 2, math.ceil(math.sqrt(most) / 2)))
    bucket = torch.zeros((), dtype=torch.long, device=x.device)
    with full_precision(x), torch.no_grad():
        x = x.float() if x.dtype.itemsize < 4 else x
        for part in range(1 if most <= ONE_HASH else 2):
            along = torch.einsum("bhnd,rdf->bhrnf", x, directions[:, part, :, :widest].to(x.dtype))
            half = sizes[part][..., None].div(2, rounding_mode="floor")
            outside = torch.arange(widest, device=x.device) >= half
            nearest = along.abs().masked_fill_(outside, -1).argmax(-1, keepdim=True)
            negative = (along.gather(-1, nearest) < 0) & (half > 0)
            bucket = bucket + (nearest + DIRECTIONS * negative)[..., 0] * (2 * DIRECTIONS) ** part
    return bucket
