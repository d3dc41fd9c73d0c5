"""Locality-sensitive hashing that assigns vectors of similar direction to the same bucket."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .linear import full_precision

DIRECTIONS = 64  # per hash; two hashes suffice for 2^14 buckets
ONE_HASH = 32  # most buckets for which one hash is cheaper than two


def angular_buckets(x: Tensor, directions: Tensor, wanted: Tensor, most: int) -> Tensor:
    """Return the bucket of each vector in each round (B, H, R, N); the length of a vector does not matter.

    The bucket of a vector is the one of several random directions and their negatives with which its inner product is
    largest (Andoni et al. 2015, arXiv 1509.02897). Above 32 buckets, a bucket is a pair of two such hashes, so the cost
    grows with the square root of the number of buckets. Computed in single precision or better, without gradient.

    Args:
        x: Vectors (B, H, N, D).
        directions: Gaussian directions (R, 2, D, 64) of the two hashes of each round.
        wanted: Number of buckets of each example (B, 1, 1, 1), rounded up to an even number.
        most: Upper bound of ``wanted``.
    """
    wanted = (wanted + wanted % 2).clamp(min=2)
    root = 2 * (wanted.double().sqrt() / 2).ceil().long()
    two_hashes = wanted > ONE_HASH
    sizes = torch.where(two_hashes, root, wanted), torch.where(two_hashes, 2 * (wanted / root / 2).ceil().long(), 0)
    most += most % 2
    widest = min(DIRECTIONS, max(min(most, ONE_HASH) // 2, math.ceil(math.sqrt(most) / 2)))
    bucket = torch.zeros((), dtype=torch.long, device=x.device)
    with full_precision(x), torch.no_grad():
        x = x.float() if x.dtype.itemsize < 4 else x
        for hash_index in range(1 if most <= ONE_HASH else 2):
            projections = torch.einsum("bhnd,rdf->bhrnf", x, directions[:, hash_index, :, :widest].to(x.dtype))
            half = sizes[hash_index][..., None].div(2, rounding_mode="floor")
            unused = torch.arange(widest, device=x.device) >= half
            nearest = projections.abs().masked_fill_(unused, -1).argmax(-1, keepdim=True)
            negative = (projections.gather(-1, nearest) < 0) & (half > 0)
            bucket = bucket + (nearest + DIRECTIONS * negative)[..., 0] * (2 * DIRECTIONS) ** hash_index
    return bucket
